"""Hooks of modules: their input, their output or their whole computation is read or replaced, in
one scope.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from glassformer.errors import InputError
from glassformer.layers.opened import close_entry, entries, open_entry, opened, without
from glassformer.observe.patches import patched


class Given(tuple[Any, ...]):
    """The arguments of a module's call, and those by name once more."""

    named: Mapping[str, Any]


Change = Callable[[Tensor, Given], Tensor | None]
"""From the first tensor of a module's input or output, and all its arguments, to what replaces it;
None: nothing.
"""


class Phase(IntEnum):
    """When a change is made at its place; those of one phase are made in the order in which they
    were inserted.
    """

    BEFORE = 0
    """Ahead of all edits, on what the model itself computed: it notes or checks, and returns None.
    """
    EDIT = 1
    """The edits, those of outer blocks first."""
    READ = 2
    """After all edits: it notes what the model goes on with."""


class Scope:
    """A ``with`` block: its changes are made in its thread, by the code of the block and by tasks
    begun in it.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.open = True
        self.elsewhere = False
        """Whether a module was run in another thread meanwhile."""
        self._places: list[tuple[int, str]] = []

    def here(self) -> bool:
        """Whether the code that runs now belongs to the block."""
        if threading.get_ident() != self.thread:
            self.elsewhere = True
            return False
        return self.open and self in entries(Scope)

    def insert(self, module: nn.Module, where: str, change: Change, phase: Phase) -> None:
        """Add a change to those at a place of a module, as the last one of its phase there.

        One hook makes all changes of a place: of ``input`` and ``output`` after the hooks that the
        module has by then, which are part of the model; of ``first input`` and ``first output``
        before them.
        """
        key = id(module), where
        with _lock:
            if key not in _inserted:
                _leave_copy(module, where)
                register: Callable[..., Any]
                if "input" in where:
                    register = module.register_forward_pre_hook
                else:
                    register = module.register_forward_hook
                _inserted[key] = (
                    register(_HOOKS[where], with_kwargs=True, prepend="first" in where),
                    [],
                )
            changes = _inserted[key][1]
            self._places.append(key)
            # Of a scope whose end was interrupted, changes are there still.
            live = [entry for entry in changes if entry.scope.open]
            changes[:] = sorted([*live, _Entry(phase, change, self)], key=lambda entry: entry.phase)

    def end(self) -> None:
        """Take the hooks off that make no other scope's changes."""
        close_entry(self)
        with _lock:
            for key in {*self._places} & _inserted.keys():
                handle, changes = _inserted[key]
                changes[:] = [entry for entry in changes if entry.scope is not self]
                if not changes:
                    del _inserted[key]
                    handle.remove()


@contextmanager
def scope() -> Iterator[Scope]:
    """A new scope, until the block ends."""
    own = Scope()
    open_entry(own)
    try:
        yield own
    finally:
        own.open = False  # here already, as a Ctrl-C may come before a call does anything
        own.end()


class Enough(Exception):
    """Ends a forward pass that has given what is wanted of it."""


def suspended() -> AbstractContextManager[None]:
    """Within the block no scope's changes are made: a module that is run does what it does by
    itself.
    """
    return without(Scope)


_lock = threading.Lock()


class _Entry(NamedTuple):
    phase: Phase
    change: Change
    scope: Scope


_inserted: dict[tuple[int, str], tuple[Any, list[_Entry]]] = {}


def is_changed(module: nn.Module | None, where: str) -> bool:
    """Whether an edit of this scope changes a module's input or output."""
    hook_and_changes = _inserted.get((id(module), where))
    if hook_and_changes is None:
        return False
    return any(entry.phase is Phase.EDIT and entry.scope.here() for entry in hook_and_changes[1])


def other_hooks(model: nn.Module) -> tuple[int, ...]:
    """The numbers of the forward hooks of modules that are not inserted here, such as a user's own.

    Those that transformers leaves in a model which was asked for attentions or hidden states change
    nothing.
    """
    everywhere = (*torch_module._global_forward_hooks, *torch_module._global_forward_pre_hooks)
    hooks = (
        each
        for module in model.modules()
        for each in (module._forward_hooks, module._forward_pre_hooks)
    )
    found = (
        pair for each in hooks for pair in tuple(each.items()) if pair[1] not in _HOOKS.values()
    )
    recording = "transformers.utils.output_capturing"
    return everywhere + tuple(
        number for number, hook in found if getattr(hook, "__module__", None) != recording
    )


def _changed(
    module: nn.Module, where: str, values: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    hook_and_changes = _inserted.get((id(module), where))
    if hook_and_changes is None:
        with _lock:
            _leave_copy(module, where)
        return values
    if not isinstance(values, Tensor):
        return values
    given = Given((*args, *kwargs.values()))
    given.named = kwargs
    for _, change, scope in tuple(hook_and_changes[1]):
        if not scope.here():
            continue
        if torch.compiler.is_compiling():
            raise InputError(
                got="a model that is exported or traced within a capture or an intervention",
                expected="a run of it",
                fix="Trace it before or after.",
            )
        if torch._C._functorch.is_batchedtensor(values):
            raise InputError(
                got="a capture or an intervention under vmap",
                expected="a run of a batch",
                fix="Pass the texts as a batch.",
            )
        new = change(values, given)
        if new is not None:
            values = new
    return values


def _leave_copy(module: nn.Module, where: str) -> None:
    """Take our hook at a place off a copy of a module, or off one that was loaded, whose original
    had it.
    """
    if "input" in where:
        hooks = module._forward_pre_hooks
    else:
        hooks = module._forward_hooks
    live = {
        handle.id for handle, _ in _inserted.values() if handle.hooks_dict_ref() is hooks
    }  # also of copy.copy()
    for number in [
        number for number, hook in hooks.items() if hook is _HOOKS[where] and number not in live
    ]:
        del hooks[number]


def _input(
    where: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> Any:
    if (
        kwargs is None
    ):  # torch has forgotten that the hook takes them: another thread has just removed it
        return None
    if args:
        name = None
    else:
        name = next((key for key, value in kwargs.items() if isinstance(value, Tensor)), None)
    if name is not None:
        first = kwargs[name]
    elif args:
        first = args[0]
    else:
        first = None
    values = _changed(module, where, first, args, kwargs)
    if values is first:
        return None
    if name is None:
        return ((values, *args[1:]), kwargs)
    return (args, {**kwargs, name: values})


def _output(where: str, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
    if len(rest) == 1:  # as above
        return None
    kwargs, output = rest
    first = output[0] if isinstance(output, tuple) else output
    values = _changed(module, where, first, args, kwargs)
    if values is first:
        return None
    if not isinstance(output, tuple):
        return values
    choices = output[-1]
    if len(output) == 3 and isinstance(choices, Tensor) and not choices.is_floating_point():
        # A router of transformers, whose choice follows from its scores.
        return chosen(values, *output[1:])
    return (values, *output[1:])


# Functions by name, as a model that is saved or copied within a block takes its hooks along.
def _at_input(*given: Any) -> Any:
    return _input("input", *given)


def _at_output(*given: Any) -> Any:
    return _output("output", *given)


def _at_first_input(*given: Any) -> Any:
    return _input("first input", *given)


def _at_first_output(*given: Any) -> Any:
    return _output("first output", *given)


_HOOKS: Mapping[str, Callable[..., Any]] = {
    "input": _at_input,
    "output": _at_output,
    "first input": _at_first_input,
    "first output": _at_first_output,
}


Forward = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class _StandIns:
    """An open block of :func:`standing_in`."""

    forwards: Mapping[int, Forward]
    """By the identity of the module."""


@contextmanager
def standing_in(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Let another function, which is also given the module's own forward, compute each of some
    modules.

    Within the block and its thread; elsewhere the modules do what they do by themselves.
    """
    by_identity = {id(module): forward for module, forward in forwards.items()}
    with ExitStack() as attached, opened(_StandIns(by_identity)):
        for module in forwards:
            attached.enter_context(
                patched((id(module), "forward"), partial(_replace_forward, module))
            )
        yield


def _replace_forward(module: nn.Module) -> Callable[[], None]:
    before = vars(module).get("forward")
    module.forward = partial(_stood_in, module.forward, id(module))

    def undo() -> None:
        if before is None:
            del module.forward
        else:
            module.forward = before

    return undo


def _stood_in(own: Forward, key: int, *args: Any, **kwargs: Any) -> Any:
    for entry in reversed(entries(_StandIns)):
        if key in entry.forwards:
            return entry.forwards[key](own, *args, **kwargs)
    return own(*args, **kwargs)


def without_other_hooks(module: Any, x: Tensor) -> Any:
    """The output of ``module`` with the changes of its output; other hooks, which may count its
    calls, do not run.
    """
    output = module.forward(x)
    new = None
    if (id(module), "output") in _inserted:
        new = _at_output(module, (x,), {}, output)
    return output if new is None else new


def chosen(scores: Tensor, weights: Tensor, choices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output of a router with these scores: routing weights and choices in the form of the
    given ones.
    """
    best, experts = scores.topk(choices.shape[-1], dim=-1)
    return (
        scores,
        best.softmax(-1, dtype=torch.promote_types(best.dtype, torch.float32)).to(weights.dtype),
        experts,
    )
