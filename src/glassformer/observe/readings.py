"""How what passes in a running model becomes labelled records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.layers.cache import LayerCache, SlotCache
from glassformer.observe.captured import KeptAttention, Record
from glassformer.observe.exact_attention import Given, exact_rows
from glassformer.observe.watch_points import Point

_OF_ROWS = ("weights", "scores", "sinks")


@dataclass(eq=False)
class OutputGradient:
    """The gradient of an attention's output [batch, query, head * value_dim], summed over what is differentiated."""

    total: Tensor | None = None

    def add(self, grad: Tensor) -> None:
        """Add what one backward pass brings."""
        grad = grad.flatten(2)
        self.total = grad if self.total is None else self.total + grad


@dataclass(eq=False)
class Frame:
    """A block or an attention that is running.

    Args:
        point: The attention; None for a block.
        start: The position of the first query in its text.
        cache: Earlier keys and values, if there are any: ours, or one of transformers.
        dropout: What share of the weights is dropped.
        noted: Whether its attention has been seen.
        gradient: Where the gradient of its attention's output goes.
        owner: The module that runs.
    """

    point: Point | None
    start: int
    cache: Any
    dropout: float = 0.0
    noted: bool = False
    gradient: OutputGradient = field(default_factory=OutputGradient)
    owner: nn.Module | None = None


class Reader:
    """Turns what hooks hand over into records.

    Args:
        records: Where they go.
        kinds: What is asked for.
        chosen: The places that are watched, each with its heads.
        queries: The positions that are asked for; None: all.
        retain_grad: Whether records shall have gradients.
        given: Where goes what each attention was given; None: nowhere.
    """

    def __init__(
        self,
        records: list[Record],
        kinds: Sequence[str],
        chosen: Mapping[Point, tuple[int, ...]],
        queries: slice | tuple[int, ...] | None,
        retain_grad: bool,
        given: list[KeptAttention] | None = None,
    ) -> None:
        self.records, self.kinds, self.chosen = records, kinds, chosen
        self.queries, self.retain_grad, self.given = queries, retain_grad, given
        self.frames: list[Frame] = []
        self.calls = 0
        self._counts: dict[tuple[str, str], int] = {}

    def frame(self, point: Point | None, layer: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Frame:
        """What is known when an attention, or the block of a layer, is entered: where its queries begin."""
        given = (*args, *kwargs.values())
        cache = next((each for each in given if isinstance(each, LayerCache | SlotCache) or _is_foreign(each)), None)
        around = self.frames[-1] if self.frames else None
        module = None if point is None else point.module
        dropout = float(getattr(module, "dropout", 0.0)) if module is not None and _drops(module) else 0.0
        if around is not None and point is not None:
            # A cross-attention is not told where its queries stand, but its block is.
            return Frame(point, around.start, None if point.cross else cache, dropout)
        return Frame(point, _start(cache, layer), cache, dropout)

    @torch.no_grad()
    def attention(self, given: Given, frame: Frame) -> None:
        """Record what is asked for of one attention."""
        point = frame.point
        assert point is not None
        frame.noted = True
        self.calls += 1
        keeps = self.retain_grad and frame.cache is None and (given.q.requires_grad or given.v.requires_grad)
        require(
            frame.dropout == 0 or not (self.retain_grad and {"weights", "scores"} & set(self.kinds)),
            f"retain_grad for the weights of {point.name}, which drops some of them",
            "an attention without dropout",
            "Call model.eval(), or set its attention dropout to 0.",
        )
        length, keys = given.q.shape[2], given.k.shape[2]
        cross = point.cross or (not given.pattern.causal and length != keys and frame.cache is None)
        if self.given is not None:
            require(
                frame.cache is None or (frame.start == 0 and length == keys),
                f"what = 'given' of {point.name} behind {frame.start} positions of a cache",
                "a forward pass from the start of the text, without room for more",
                "Let the model read the whole text at once, or ask for weights.",
            )
            self.given.append(KeptAttention(point.name, point.layer, _kept(given), point.source, cross))
        rows = self._rows(frame, length)
        if len(rows) == 0:
            return
        heads = self.chosen[point]
        order, first = (None, 0) if cross else key_order(frame, length, keys)
        positions = tuple(frame.start + row for row in rows)
        asked = [kind for kind in _OF_ROWS if kind in self.kinds and (kind != "sinks" or point.sinks)]
        if asked:
            found = exact_rows(given, heads, rows, asked)
            labels: dict[str, Any] = {"heads": heads, "queries": positions, "cross": cross}
            if found.sinks is not None:
                self._add("sinks", point, found.sinks, **labels)
            for kind, values in (("weights", found.weights), ("scores", found.scores)):
                if values is not None:
                    values = values if order is None else values[..., order]
                    behind = first + found.first
                    # Slots of a cache that nothing has been written to yet stand behind the last query.
                    count = values.shape[3] if cross else min(values.shape[3], frame.start + length - behind)
                    values = values[..., :count]
                    at = slice(found.first, found.first + count)
                    gradient = None
                    if keeps and point.mixed is not None:
                        gradient = partial(_weights_gradient, kind, given, frame.gradient, heads, rows, at)
                    self._add(kind, point, values, keys=range(behind, behind + count), gradient=gradient, **labels)
        if "q" in self.kinds:
            picks = ((1, heads), (2, rows))
            self._keep("q", point, given.q, picks, keeps, heads=heads, queries=positions, cross=cross)
        shared = tuple(sorted({head // given.group for head in heads}))
        places = range(keys) if cross else range(frame.start, frame.start + length)
        made = tuple(each - first for each in places) if order is None else tuple(order[-length:].tolist())
        for kind, tensor in (("k", given.k), ("v", given.v)):
            if kind in self.kinds:
                self._keep(kind, point, tensor, ((1, shared), (2, made)), keeps, heads=shared, keys=places, cross=cross)

    def output(self, merged: Tensor) -> None:
        """Listen for the gradient of the running attention's output: its heads may be merged or not."""
        if self.retain_grad and self.frames and merged.requires_grad:
            merged.register_hook(self.frames[-1].gradient.add)

    def after(self, point: Point, x: Tensor, output: Tensor, frame: Frame) -> None:
        """Record what is asked for of a feed-forward network or a mixture of experts."""
        if point.role == "ffn":
            self.tensor("ffn", point, output, frame)
            return
        self.calls += 1
        rows = self._rows(frame, x.shape[1])
        if len(rows) == 0:
            return
        assert point.route is not None
        assert point.expert_outputs is not None
        positions = tuple(frame.start + row for row in rows)
        with torch.no_grad():
            picks = ((1, rows),)
            probabilities, choices, shares = point.route(x)
            for kind, values in (("router", probabilities), ("shares", shares), ("choices", choices)):
                if kind in self.kinds:
                    self._add(kind, point, _taken(values, picks), queries=positions)
            if "experts" in self.kinds:
                made = point.expert_outputs(_taken(x, picks), _taken(choices, picks))
                self._add("experts", point, made, queries=positions)

    def tensor(self, kind: str, point: Point, tensor: Tensor, frame: Frame) -> None:
        """Record positions of a tensor [batch, position, dim] that the model itself has made."""
        self.calls += 1
        rows = self._rows(frame, tensor.shape[1])
        if len(rows) > 0:
            positions = tuple(frame.start + row for row in rows)
            self._keep(kind, point, tensor, ((1, rows),), self.retain_grad, queries=positions)

    def _rows(self, frame: Frame, length: int) -> tuple[int, ...]:
        """Which of this call's positions are asked for, from 0."""
        start, total = frame.start, frame.start + length
        if self.queries is None:
            return tuple(range(length))
        if isinstance(self.queries, slice):
            asked = set(range(total)[self.queries])
        else:
            asked = {each + total if each < 0 else each for each in self.queries}
            wrong = [each for each in self.queries if not -total <= each < total]
            require(
                frame.cache is not None or not wrong,
                f"queries {wrong} of a text of {total} positions",
                f"numbers from {-total} to {total - 1}",
                "Choose among them, watch other modules, or pass a slice.",
            )
        return tuple(sorted(each - start for each in asked if start <= each < total))

    def _keep(
        self,
        kind: str,
        point: Point,
        tensor: Tensor,
        picks: Sequence[tuple[int, Sequence[int]]],
        keeps: bool,
        **labels: Any,
    ) -> None:
        gradient = None
        if keeps and tensor.requires_grad:
            tensor.retain_grad()
            gradient = partial(_own_gradient, tensor, picks)
        self._add(kind, point, _taken(tensor.detach(), picks), gradient=gradient, **labels)

    def _add(self, kind: str, point: Point, values: Tensor, **labels: Any) -> None:
        call = self._counts.get((kind, point.name), 0)
        self._counts[kind, point.name] = call + 1
        self.records.append(Record(kind, point.name, point.layer, call, values, source=point.source, **labels))


def key_order(frame: Frame, length: int, keys: int) -> tuple[Tensor | None, int]:
    """The order that brings a cache's keys into that of their positions (None: they are), and the first position.

    Keys that stand behind the newest position, in slots not yet written to, are left out of the order; without an
    order they are the last.
    """
    cache, total = frame.cache, frame.start + length
    if isinstance(cache, SlotCache):
        slots = torch.arange(keys, device=cache.position.device)
        filled = min(total, keys)
        latest = cache.position - (cache.position - slots) % cache.slots
        return latest.argsort()[keys - filled :], total - filled
    if isinstance(cache, LayerCache) and cache.window is not None and length == 1:  # for several they are in order
        return cache.positions(1).argsort(), total - keys
    return None, max(0, total - keys)


def _start(cache: Any, layer: int) -> int:
    if isinstance(cache, LayerCache):
        return cache.length
    if isinstance(cache, SlotCache):
        return int(cache.position)
    return 0 if cache is None else int(cache.get_seq_length(layer))


def _is_foreign(cache: Any) -> bool:
    return not isinstance(cache, Tensor) and callable(getattr(cache, "get_seq_length", None))


def _drops(module: Any) -> bool:
    return bool(module.training) and isinstance(getattr(module, "dropout", None), float)


def _taken(tensor: Tensor, picks: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
    """A copy of some places on some axes: what the model goes on to do with its own tensor must not reach it."""
    for dim, numbers in picks:
        if tuple(numbers) != tuple(range(tensor.shape[dim])):
            tensor = tensor.index_select(dim, torch.tensor(numbers, device=tensor.device))
    return tensor.clone()


def _kept(given: Given) -> Given:
    """Copies of what the weights follow from, without the values; a mask, which nobody writes to, is shared."""
    q, k = given.q.detach().clone(), given.k.detach().clone()
    key_weights = None if given.key_weights is None else given.key_weights.detach().clone()
    sinks = None if given.sinks is None else given.sinks.detach().clone()
    return replace(given, q=q, k=k, v=k[..., :0], key_weights=key_weights, sinks=sinks)


def _own_gradient(tensor: Tensor, picks: Sequence[tuple[int, Sequence[int]]]) -> Tensor | None:
    return None if tensor.grad is None else _taken(tensor.grad, picks)


@torch.no_grad()
def _weights_gradient(
    kind: str, given: Given, output: OutputGradient, heads: Sequence[int], rows: Sequence[int], keys: slice
) -> Tensor | None:
    """``grad[i] . v[j]`` for the weights; for the scores that through the softmax, sinks or not."""
    if output.total is None:
        return None
    grad = output.total.unflatten(-1, (given.q.shape[1], -1)).transpose(1, 2)
    grad = _taken(grad, ((1, heads), (2, rows)))
    shared = tuple(head // given.group for head in heads)
    of_weights = grad @ given.v[:, shared, keys].to(grad.dtype).mT
    if kind == "weights":
        return of_weights
    weights = exact_rows(given, heads, rows, ("weights",)).weights
    assert weights is not None
    return weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
