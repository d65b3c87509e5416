"""Read or replace the input, the output or the whole computation of modules within a scope."""

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


class Arguments(tuple[Any, ...]):
    """The arguments of a module's call in order, and its keyword arguments by name."""

    named: Mapping[str, Any]


Change = Callable[[Tensor, Arguments], Tensor | None]
"""Maps the first tensor of a module's input or output, and all its arguments, to a new tensor.

None keeps the tensor.
"""


class Phase(IntEnum):
    """Order of the changes at one place; within a phase, changes run in the order of insertion."""

    BEFORE = 0
    """Before all edits: reads or checks what the model itself has computed, and returns None."""
    EDIT = 1
    """Edits, those of outer blocks first."""
    READ = 2
    """After all edits: reads the values with which the model continues."""


class Scope:
    """A ``with`` block; its changes act in its thread, in code and tasks of the block."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.open = True
        self.ran_in_other_thread = False
        """True once a module has run in another thread."""
        self._places: list[tuple[int, str]] = []

    def is_active(self) -> bool:
        """Return whether the code that runs now belongs to the block."""
        if threading.get_ident() != self.thread:
            self.ran_in_other_thread = True
            return False
        return self.open and self in entries(Scope)

    def insert(self, module: nn.Module, where: str, change: Change, phase: Phase) -> None:
        """Add a change to those at a place of a module, as the last one of its phase there.

        One hook makes all changes of a place. At ``input`` and ``output`` it runs after the hooks
        that the module already has, which are part of the model; at ``first input`` and
        ``first output`` before them.
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
                hook = register(_HOOKS[where], with_kwargs=True, prepend="first" in where)
                _inserted[key] = (hook, [])
            changes = _inserted[key][1]
            self._places.append(key)
            # A scope whose end was interrupted has left its changes here.
            live = [entry for entry in changes if entry.scope.open]
            changes[:] = sorted([*live, _Entry(phase, change, self)], key=lambda entry: entry.phase)

    def end(self) -> None:
        """Remove this scope's changes, and the hooks that have no others."""
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
    """Open a new scope, which ends with the block."""
    new_scope = Scope()
    open_entry(new_scope)
    try:
        yield new_scope
    finally:
        new_scope.open = False  # before any call, since Ctrl-C may come at the start of one
        new_scope.end()


class ForwardEnded(Exception):
    """Raised by a hook to end a forward pass once everything needed is computed."""


def suspended() -> AbstractContextManager[None]:
    """Within the block, modules run without the changes of any scope."""
    return without(Scope)


_lock = threading.Lock()


class _Entry(NamedTuple):
    phase: Phase
    change: Change
    scope: Scope


_inserted: dict[tuple[int, str], tuple[Any, list[_Entry]]] = {}


def is_changed(module: nn.Module | None, where: str) -> bool:
    """Return whether an edit of this scope changes a module's input or output."""
    hook_and_changes = _inserted.get((id(module), where))
    if hook_and_changes is None:
        return False
    return any(
        entry.phase is Phase.EDIT and entry.scope.is_active() for entry in hook_and_changes[1]
    )


def other_hooks(model: nn.Module) -> tuple[int, ...]:
    """Return the ids of all forward hooks that were not inserted here, such as those of users.

    Hooks with which transformers records attentions or hidden states do not count: they change
    nothing.
    """
    ids = [*torch_module._global_forward_hooks, *torch_module._global_forward_pre_hooks]
    recording = "transformers.utils.output_capturing"
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for number, hook in tuple(hooks.items()):
                is_ours = hook in _HOOKS.values()
                if not is_ours and getattr(hook, "__module__", None) != recording:
                    ids.append(number)
    return tuple(ids)


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
    arguments = Arguments((*args, *kwargs.values()))
    arguments.named = kwargs
    for _, change, scope in tuple(hook_and_changes[1]):
        if not scope.is_active():
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
        new = change(values, arguments)
        if new is not None:
            values = new
    return values


def _leave_copy(module: nn.Module, where: str) -> None:
    """Remove our hook at a place from a module that inherited it, as a copy or by loading."""
    if "input" in where:
        hooks = module._forward_pre_hooks
    else:
        hooks = module._forward_hooks
    # A module made by copy.copy() shares the dictionary with its original.
    live = {handle.id for handle, _ in _inserted.values() if handle.hooks_dict_ref() is hooks}
    for number, hook in tuple(hooks.items()):
        if hook is _HOOKS[where] and number not in live:
            del hooks[number]


def _input(
    where: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> Any:
    if kwargs is None:
        # Another thread has just removed the hook, and torch forgot that it takes kwargs.
        return None
    if args:
        values = _changed(module, where, args[0], args, kwargs)
        if values is args[0]:
            return None
        return ((values, *args[1:]), kwargs)
    name = next((key for key, value in kwargs.items() if isinstance(value, Tensor)), None)
    first = None if name is None else kwargs[name]
    values = _changed(module, where, first, args, kwargs)
    if values is first or name is None:
        return None
    return (args, {**kwargs, name: values})


def _output(where: str, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
    if len(rest) == 1:  # without kwargs, as above
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


# Named functions can be pickled: a model that is saved or copied in a block keeps its hooks.
def _at_input(*arguments: Any) -> Any:
    return _input("input", *arguments)


def _at_output(*arguments: Any) -> Any:
    return _output("output", *arguments)


def _at_first_input(*arguments: Any) -> Any:
    return _input("first input", *arguments)


def _at_first_output(*arguments: Any) -> Any:
    return _output("first output", *arguments)


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
    """Keyed by the id of the module."""


@contextmanager
def standing_in(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Replace the forward pass of modules within the block and its thread.

    Each function receives the module's own forward first, then its arguments.
    """
    by_identity = {id(module): forward for module, forward in forwards.items()}
    with ExitStack() as stack, opened(_StandIns(by_identity)):
        for module in forwards:
            key = (id(module), "forward")
            stack.enter_context(patched(key, partial(_replace_forward, module)))
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


def _stood_in(original: Forward, key: int, *args: Any, **kwargs: Any) -> Any:
    for entry in reversed(entries(_StandIns)):
        if key in entry.forwards:
            return entry.forwards[key](original, *args, **kwargs)
    return original(*args, **kwargs)


def without_other_hooks(module: Any, x: Tensor) -> Any:
    """Return the output of ``module`` with our changes, without running other hooks."""
    output = module.forward(x)
    new = None
    if (id(module), "output") in _inserted:
        new = _at_output(module, (x,), {}, output)
    return output if new is None else new


def chosen(scores: Tensor, weights: Tensor, choices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output of a router with other scores: weights and choices follow from them."""
    best, experts = scores.topk(choices.shape[-1], dim=-1)
    return (
        scores,
        best.softmax(-1, dtype=torch.promote_types(best.dtype, torch.float32)).to(weights.dtype),
        experts,
    )
