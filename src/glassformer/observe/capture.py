"""Attention weights of a running model, exact, without touching what it computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.layers.attention import Attended, watching
from glassformer.layers.attention_weights import attention_weights
from glassformer.layers.cache import LayerCache
from glassformer.layers.grouped_query import GroupedQueryAttention

Chosen = Sequence[str] | Callable[[str, nn.Module], bool]
"""Names of attention modules, as ``model.named_modules()`` tells them, or which of them to take."""


@dataclass(frozen=True, eq=False)
class Captured:
    """What :func:`capture` has seen so far, by the names of the attention modules.

    Args:
        calls: The weights of every call of each module, in order; no entry for a module that has not run.
    """

    calls: dict[str, list[Float[Tensor, "batch head query key"]]] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Float[Tensor, "batch head query key"]]:
        """The weights of each module's last call."""
        return {name: calls[-1] for name, calls in self.calls.items()}


@contextmanager
def capture(model: nn.Module, modules: Chosen | None = None) -> Iterator[Captured]:
    """Watch a model's attention::

        with capture(model) as seen:
            logits = model(source, target)
        seen.weights["decoder_layers.0.cross_attention"]     # [batch, head, query, key]

    The weights are computed beside the model's own attention, from the queries and keys that it is given, so every
    output stays what it is to the last bit, and no random number is drawn. They are those before dropout, in float32
    or wider, without a gradient; 0 where a query may not see a key; with sinks a row sums to less than 1. In cached
    decoding each step is a call, whose keys are those that the step can see, in order of position.

    Captures may be nested. Nothing is left behind when the ``with`` block is left, however that happens. Seen are the
    forward passes of the thread that opened the block; what ``torch.compile`` has compiled is not, so watch the model
    itself.

    Args:
        model: Any model with :class:`~glassformer.layers.grouped_query.GroupedQueryAttention` in it.
        modules: The attention modules to watch; all when None. Each watched call costs
            ``batch * head * query * key`` numbers, which are kept as long as the result is.

    Raises:
        InputError: A model without such attention, or a choice that names another module, or none at all.
    """
    watched = _choose(model, modules)
    seen, thread = Captured(), threading.get_ident()
    inside: list[tuple[str, LayerCache | None]] = []

    def enter(module: nn.Module, _: Any, arguments: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            cache = arguments.get("cache")
            inside.append((watched[module], cache if isinstance(cache, LayerCache) else None))

    def leave(*_: Any) -> None:
        if threading.get_ident() == thread:
            inside.pop()

    def note(attended: Attended) -> None:
        if inside and threading.get_ident() == thread:
            name, cache = inside[-1]
            seen.calls.setdefault(name, []).append(_weights(attended, cache))

    with ExitStack() as attached:
        for module in watched:
            attached.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            attached.callback(module.register_forward_hook(leave, always_call=True).remove)
        attached.enter_context(watching(note))
        yield seen


def _choose(model: nn.Module, modules: Chosen | None) -> dict[nn.Module, str]:
    """The attention modules to watch, each with its name."""
    there = {name: module for name, module in model.named_modules() if isinstance(module, GroupedQueryAttention)}
    require(
        len(there) > 0,
        f"{type(model).__name__}, which has no GroupedQueryAttention in it",
        "a model that has",
        "Watch one of glassformer's own models.",
    )
    known = ", ".join(there)
    if modules is None:
        names = list(there)
    elif callable(modules):
        names = [name for name, module in there.items() if modules(name, module)]
    else:
        require(not isinstance(modules, str), f"modules = {modules!r}", "a list of names", f"Write [{modules!r}].")
        names = list(modules)
        unknown = [name for name in names if name not in there]
        require(not unknown, f"modules {unknown}", f"names of attention modules: {known}", "Choose among them.")
    require(len(names) > 0, "a choice of no module", f"at least one of {known}", "Leave modules out to watch all.")
    return {there[name]: name for name in names}


@torch.no_grad()
def _weights(attended: Attended, cache: LayerCache | None) -> Tensor:
    weights = attention_weights(
        attended.q,
        attended.k,
        attended.pattern,
        scale=attended.scale,
        key_weights=attended.key_weights,
        sinks=attended.sinks,
    )
    if cache is None or cache.window is None:
        return weights
    return weights[..., cache.positions(attended.q.shape[2]).argsort()]
