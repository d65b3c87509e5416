"""Seams: places where the input, the output or the whole computation of a module is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Change = Callable[[Tensor, tuple[Any, ...]], Tensor | None]
"""From the first tensor of a module's input or output, and all its arguments, to what replaces it; None: nothing."""

_lock = threading.Lock()
_Entry = tuple[int, Change, int]
"""The order of a change, the change, and the thread that it is for."""
_seams: dict[tuple[int, str], tuple[Any, list[_Entry]]] = {}


def insert(module: nn.Module, where: str, change: Change, order: int) -> Callable[[], None]:
    """Add a change to those of a module's input or output, after those of a lower or equal ``order``.

    One hook makes all changes. It is the module's first, so that other hooks see the changed values.
    """
    key = id(module), where
    entry = order, change, threading.get_ident()
    with _lock:
        if key not in _seams:
            changes: list[_Entry] = []
            hook = partial(_change_input if where == "input" else _change_output, changes)
            register = module.register_forward_pre_hook if where == "input" else module.register_forward_hook
            _seams[key] = register(hook, prepend=True, with_kwargs=True), changes
        changes = _seams[key][1]
        changes[:] = sorted([*changes, entry], key=lambda each: each[0])

    def remove() -> None:
        with _lock:
            handle, changes = _seams[key]
            changes[:] = [each for each in changes if each is not entry]
            if not changes:
                handle.remove()
                del _seams[key]

    return remove


def is_changed(module: nn.Module | None, where: str) -> bool:
    """Whether an edit of this thread, not its bookkeeping before or after, changes a module's input or output."""
    found = _seams.get((id(module), where))
    return found is not None and any(
        order in (1, 2) and thread == threading.get_ident() for order, _, thread in found[1]
    )


def _changed(changes: list[_Entry], values: Tensor, given: tuple[Any, ...]) -> Tensor:
    for _, change, _ in list(changes):
        new = change(values, given)
        values = values if new is None else new
    return values


def _change_input(
    changes: list[_Entry], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> Any:
    if kwargs is None:  # torch has forgotten that the hook takes them: another thread has just removed it
        return None
    name = None if args else next(key for key, value in kwargs.items() if isinstance(value, Tensor))
    first = kwargs[name] if name is not None else args[0]
    values = _changed(changes, first, (*args, *kwargs.values()))
    if values is first:
        return None
    return ((values, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: values})


def _change_output(changes: list[_Entry], module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
    if len(rest) == 1:  # as above
        return None
    kwargs, output = rest
    first = output[0] if isinstance(output, tuple) else output
    values = _changed(changes, first, (*args, *kwargs.values()))
    if values is first:
        return None
    if not isinstance(output, tuple):
        return values
    if len(output) == 3:  # a router of transformers, whose choice follows from its scores
        return chosen(values, *output[1:])
    return (values, *output[1:])


Forward = Callable[..., Any]
_stand_ins: dict[int, tuple[Any, dict[int, Forward]]] = {}


@contextmanager
def standing_in(module: nn.Module, forward: Forward) -> Iterator[None]:
    """Let ``forward``, which is also given the module's own one, compute ``module`` in this thread."""
    thread, key = threading.get_ident(), id(module)
    with _lock:
        if key not in _stand_ins:
            _stand_ins[key] = vars(module).get("forward"), {}
            module.forward = partial(_stood_in, module.forward, _stand_ins[key][1])
        before, each = _stand_ins[key]
        outer = each.get(thread)
        each[thread] = forward
    try:
        yield
    finally:
        with _lock:
            if outer is not None:
                each[thread] = outer
            else:
                del each[thread]
            if not each:
                del _stand_ins[key]
                if before is None:
                    del module.forward
                else:
                    module.forward = before


def _stood_in(own: Forward, each: dict[int, Forward], *args: Any, **kwargs: Any) -> Any:
    forward = each.get(threading.get_ident())
    return own(*args, **kwargs) if forward is None else forward(own, *args, **kwargs)


def without_other_hooks(module: Any, x: Tensor) -> Any:
    """The output of ``module`` with the changes of its output; other hooks, which may count its calls, do not run."""
    output = module.forward(x)
    found = _seams.get((id(module), "output"))
    new = None if found is None else _change_output(found[1], module, (x,), {}, output)
    return output if new is None else new


def chosen(scores: Tensor, weights: Tensor, choices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output of a router with these scores: routing weights and choices in the form of the given ones."""
    best, experts = scores.topk(choices.shape[-1], dim=-1)
    return scores, best.softmax(-1, dtype=torch.promote_types(best.dtype, torch.float32)).to(weights.dtype), experts
