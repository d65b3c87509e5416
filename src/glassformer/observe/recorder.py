"""Turn the tensors that hooks receive into labelled records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.layers.attention import Attended
from glassformer.layers.cache import LayerCache
from glassformer.observe.captured import CapturedInputs, Record
from glassformer.observe.exact_attention import exact_rows
from glassformer.observe.hook_points import ROLES, HookPoint, Selection, whole_numbers

_OF_ROWS = ("weights", "scores", "sinks")


@dataclass(eq=False)
class Frame:
    """A block or an attention that is running."""

    point: HookPoint | None
    """The attention; None for a block."""
    start: int
    """The position of the first query in its text."""
    cache: Any
    """Earlier keys and values, if there are any: a cache of glassformer or of transformers."""
    dropout: float = 0.0
    """The probability of dropping an attention weight."""
    recorded: bool = False
    """Whether its attention has been captured."""
    gradients: list[Tensor] = field(default_factory=list)
    """Gradients of its attention's output, [batch, query, head * value_dim], one for each backward pass."""
    module: nn.Module | None = None


@dataclass(eq=False)
class Recorder:
    """Adds records to ``records``, and inputs of attentions to ``inputs`` unless it is None."""

    records: list[Record]
    kinds: Sequence[str]
    """Keys of :data:`~glassformer.observe.captured.AXES`."""
    chosen: Mapping[HookPoint, tuple[int, ...]]
    """The hook points, each with its heads."""
    queries: slice | tuple[int, ...] | None
    """Positions; all when None."""
    retain_grad: bool
    inputs: list[CapturedInputs] | None = None
    frames: list[Frame] = field(default_factory=list)
    calls: int = 0
    asked: Any = None
    """The arguments of a model of transformers, of which ``logits_to_keep`` is read."""
    _last: tuple[Frame, int] | None = None
    """The frame and the length of the stream that was seen last."""
    _length: int = 0
    """The positions of the text that was seen last."""
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def frame(self, module: nn.Module, point: HookPoint | None, layer: int, given: Iterable[Any]) -> Frame:
        """The frame of an attention, or of the block of a layer, that is about to run with these arguments."""
        cache = cache_of(given)
        dropout = getattr(module, "dropout", 0.0) if point is not None and module.training else 0.0
        dropout = dropout if isinstance(dropout, float) else 0.0
        if self.frames and point is not None:
            # A cross-attention does not receive the position of its queries, but its block does.
            return Frame(point, self.frames[-1].start, None if point.cross else cache, dropout, module=module)
        return Frame(point, start_of(cache, layer), cache, dropout, module=module)

    @torch.no_grad()
    def attention(self, inputs: Attended, frame: Frame) -> None:
        """Record one call of an attention."""
        point = frame.point
        assert point is not None
        frame.recorded = True
        self.calls += 1
        # transformers makes a cache for every text; in the first call it changes nothing.
        fresh = frame.cache is None or (frame.start == 0 and not isinstance(frame.cache, LayerCache))
        keeps = self.retain_grad and fresh and (inputs.q.requires_grad or inputs.v.requires_grad)
        require(
            frame.dropout == 0 or not (self.retain_grad and {"weights", "scores"} & set(self.kinds)),
            f"retain_grad for the weights of {point.name}, which drops some of them",
            "an attention without dropout",
            "Call model.eval(), or set its attention dropout to 0.",
        )
        length, keys = inputs.q.shape[2], inputs.k.shape[2]
        cross = point.cross or (not inputs.pattern.causal and length != keys and frame.cache is None)
        if self.inputs is not None:
            require(
                frame.cache is None or (frame.start == 0 and length == keys),
                f"what = 'inputs' of {point.name} after {frame.start} positions in a cache",
                "a forward pass from the start of the text, with a cache of no more than its length",
                "Pass the whole text in one call, or capture weights.",
            )
            self.inputs.append(CapturedInputs(point.name, point.layer, _copied(inputs), point.source, cross))
        rows, positions = self._rows(frame, length)
        if len(rows) == 0:
            return
        heads = self.chosen[point]
        order, first = (None, 0) if cross else key_order(frame.cache, frame.start, length, keys)
        labels: dict[str, Any] = {"queries": positions, "cross": cross}
        asked = [kind for kind in _OF_ROWS if kind in self.kinds and (kind != "sinks" or point.sinks)]
        if asked:
            found = exact_rows(inputs, heads, rows, asked)
            if found.sinks is not None:
                self._add("sinks", point, found.sinks, heads=heads, **labels)
            for kind, values in (("weights", found.weights), ("scores", found.scores)):
                if values is not None and kind in asked:
                    values = values if order is None else values[..., order]
                    start = first + found.first
                    # Empty slots of a cache come after the last query.
                    count = values.shape[3] if cross else min(values.shape[3], frame.start + length - start)
                    at = slice(found.first, found.first + count)
                    gradient = None
                    if keeps and point.mixed is not None:
                        gradient = partial(_weights_gradient, kind, inputs, frame.gradients, heads, rows, at)
                    span = range(start, start + count)
                    self._add(kind, point, values[..., :count], heads=heads, keys=span, gradient=gradient, **labels)
        if "q" in self.kinds:
            self._keep("q", point, inputs.q, ((1, heads), (2, rows)), keeps, heads=heads, **labels)
        shared = tuple(dict.fromkeys(head // inputs.group for head in heads))
        places = range(keys) if cross else range(frame.start, frame.start + length)
        made = tuple(each - first for each in places) if order is None else tuple(order[-length:].tolist())
        for kind, tensor in (("k", inputs.k), ("v", inputs.v)):
            if kind in self.kinds:
                labels = {"heads": shared, "keys": places, "cross": cross, "length": keys if cross else self._length}
                self._keep(kind, point, tensor, ((1, shared), (2, made)), keeps, **labels)

    def output(self, merged: Tensor) -> None:
        """Collect the gradient of the running attention's output, whose heads may be merged or not."""
        if self.retain_grad and self.frames and merged.requires_grad:
            gradients = self.frames[-1].gradients
            merged.register_hook(lambda gradient: gradients.append(gradient.flatten(2)))

    def stream(self, kind: str, module: nn.Module, tensor: Tensor, frame: Frame) -> None:
        """Record the residual stream at a block, or an attention's output, if that is asked for."""
        tensor = tensor if tensor.dim() == 3 else tensor[None]  # one text of a single head
        self._last = frame, tensor.shape[1]
        if kind in self.kinds:
            for point in self.chosen:
                if point.module is module and ROLES[kind] == point.role:
                    self.tensor(kind, point, tensor, frame)

    def here(self, kind: str, point: HookPoint, tensor: Tensor, _: Any = None) -> None:
        """Record a tensor [batch, position, dim] of the block that is running."""
        if self.frames:
            self.tensor(kind, point, tensor, self.frames[-1])

    def read(self, kind: str, point: HookPoint, tensor: Tensor, _: Any = None) -> Tensor:
        """Record what a module reads; its gradient leaves out what else reads it, such as a residual addition."""
        own = tensor.view_as(tensor) if self.retain_grad and tensor.requires_grad else tensor
        self.here(kind, point, own)
        return own

    def heads(self, point: HookPoint, merged: Tensor, _: Any = None) -> None:
        """Record the outputs of the heads of the attention that is running, from [batch, position, head * dim]."""
        if not self.frames:
            return
        rows, positions = self._rows(self.frames[-1], merged.shape[1])
        if len(rows) == 0:
            return
        chosen = self.chosen[point]
        picks = ((1, chosen), (2, rows))

        def split(tensor: Tensor) -> Tensor:
            return _taken(tensor.unflatten(-1, (point.heads, -1)).transpose(1, 2), picks)

        labels: dict[str, Any] = {"heads": chosen, "queries": positions}
        if self.retain_grad and merged.requires_grad:
            merged.retain_grad()
            labels["gradient"] = lambda: None if merged.grad is None else split(merged.grad)
        self._add("heads", point, split(merged.detach()), **labels)

    def logits(self, point: HookPoint, values: Tensor, _: Any = None) -> None:
        """Record the output of the model: of a classifier one for each text, of others perhaps the last positions."""
        if values.dim() == 2 and point.name == "output":  # of the last position, as in generate()
            values = values[:, None]
        if values.dim() == 2:
            self._add("logits", point, values.detach().clone()[:, None], queries=(0,), length=1)
        elif self._last is not None:
            frame, length = self._last
            kept = None if self.asked is None else kept_logits(self.asked, length)
            kept = list(range(length - values.shape[1], length)) if kept is None else kept
            self._length = frame.start + length
            rows, positions = rows_of(self.queries, frame.start, length, frame.cache is not None, kept=kept)
            if len(rows) > 0:
                self._keep("logits", point, values, ((1, rows),), self.retain_grad, queries=positions)

    def after(self, point: HookPoint, output: Tensor, given: Sequence[Any]) -> None:
        """Record one call of a feed-forward network or a mixture of experts."""
        x = given[0]
        if not self.frames:
            return
        frame = self.frames[-1]
        if point.role == "ffn":
            self.tensor("ffn", point, output, frame)
            return
        self.calls += 1
        rows, positions = self._rows(frame, x.shape[1])
        if len(rows) == 0:
            return
        assert point.route is not None
        assert point.expert_outputs is not None
        with torch.no_grad():
            picks = ((1, rows),)
            probabilities, choices, shares = point.route(x)
            for kind, values in (("router", probabilities), ("shares", shares), ("choices", choices)):
                if kind in self.kinds:
                    self._add(kind, point, _taken(values, picks), queries=positions)
            if "experts" in self.kinds:
                made = point.expert_outputs(_taken(x, picks), _taken(choices, picks))
                self._add("experts", point, made, queries=positions)

    def tensor(self, kind: str, point: HookPoint, tensor: Tensor, frame: Frame) -> None:
        """Record positions of a tensor [batch, position, dim] of the model."""
        self.calls += 1
        rows, positions = self._rows(frame, tensor.shape[1])
        if len(rows) > 0:
            self._keep(kind, point, tensor, ((1, rows),), self.retain_grad, queries=positions)

    def _rows(self, frame: Frame, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        self._length = frame.start + length
        return rows_of(self.queries, frame.start, length, frame.cache is not None)

    def _keep(
        self,
        kind: str,
        point: HookPoint,
        tensor: Tensor,
        picks: Sequence[tuple[int, Sequence[int]]],
        keeps: bool,
        **labels: Any,
    ) -> None:
        if keeps and tensor.requires_grad:
            tensor.retain_grad()
            labels["gradient"] = lambda: None if tensor.grad is None else _taken(tensor.grad, picks)
        self._add(kind, point, _taken(tensor.detach(), picks), **labels)

    @property
    def made(self) -> bool:
        """Whether there was a record."""
        return bool(self._counts)

    def _add(self, kind: str, point: HookPoint, values: Tensor, **labels: Any) -> None:
        call = self._counts[kind, point.name]
        self._counts[kind, point.name] += 1
        length = labels.pop("length", self._length)
        record = Record(kind, point.name, point.layer, call, values, length=length, source=point.source, **labels)
        self.records.append(record)


def kept_logits(given: Any, length: int) -> list[int] | None:
    """The positions of a call whose logits a model of transformers is asked for; None: the last ones."""
    kept = given.named.get("logits_to_keep")
    return torch.arange(length)[kept.cpu()].tolist() if isinstance(kept, Tensor) and kept.dim() > 0 else None


def rows_of(
    queries: Selection | None,
    start: int,
    length: int,
    cached: bool,
    name: str = "queries",
    kept: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The chosen positions of a call of ``length`` positions, counted from its first one, and from the text's start; in
    the order in which they were chosen.

    ``start`` is the call's first position; with a cache, positions of other calls are left out. If the tensor has only
    the ``kept`` positions of the call, the indices are among these.
    """
    if kept is not None:
        index = {row: at for at, row in enumerate(kept)}
        pairs = zip(*rows_of(queries, start, length, cached, name), strict=True)
        found = [(index[row], position) for row, position in pairs if row in index]
        return tuple(at for at, _ in found), tuple(position for _, position in found)
    total = start + length
    if queries is None:
        return tuple(range(length)), tuple(range(start, total))
    if isinstance(queries, slice):
        asked = list(range(total)[queries])
    else:
        given = whole_numbers(name, queries)
        asked = list(dict.fromkeys(each + total if each < 0 else each for each in given))
        wrong = [each for each in given if not -total <= each < total]
        require(
            cached or not wrong,
            f"{name} {wrong} of a text of {total} positions",
            f"numbers from {-total} to {total - 1}",
            "Choose among these, capture other modules, or pass a slice.",
        )
    positions = tuple(each for each in asked if start <= each < total)
    return tuple(each - start for each in positions), positions


def key_order(cache: Any, start: int, length: int, keys: int) -> tuple[Tensor | None, int]:
    """The permutation that sorts a cache's keys by position (None: they are sorted), and the first position.

    The permutation leaves out slots that have not been written to; without a permutation they are the last.
    """
    total = start + length
    if isinstance(cache, LayerCache) and not cache.in_order:
        filled = min(total, keys)
        return cache.positions(length).argsort()[keys - filled :], total - filled
    return None, max(0, total - keys)


def cache_of(given: Iterable[Any]) -> Any:
    """The cache among the arguments of a block or an attention, of glassformer or of transformers."""
    return next((each for each in given if isinstance(each, LayerCache) or _is_foreign(each)), None)


def start_of(cache: Any, layer: int) -> int:
    """The position of the next token in a cache."""
    if isinstance(cache, LayerCache):
        return cache.length
    return 0 if cache is None else int(cache.get_seq_length(layer))


def _is_foreign(cache: Any) -> bool:
    return not isinstance(cache, Tensor) and callable(getattr(cache, "get_seq_length", None))


def _taken(tensor: Tensor, picks: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
    """A copy of some indices on some axes, which later changes by the model do not reach."""
    for dim, numbers in picks:
        if tuple(numbers) != tuple(range(tensor.shape[dim])):
            tensor = tensor.index_select(dim, torch.tensor(numbers, device=tensor.device))
    return tensor.clone()


def _copied(inputs: Attended) -> Attended:
    """Copies of what the weights depend on, without the values; masks are shared, as nothing writes to them."""
    tensors = {name: getattr(inputs, name) for name in ("q", "k", "key_weights", "sinks")}
    copies: dict[str, Any] = {name: None if each is None else each.detach().clone() for name, each in tensors.items()}
    return replace(inputs, **copies, v=inputs.k.detach()[..., :0].clone())


@torch.no_grad()
def _weights_gradient(
    kind: str,
    inputs: Attended,
    gradients: Sequence[Tensor],
    heads: Sequence[int],
    rows: Sequence[int],
    keys: slice,
) -> Tensor | None:
    """``grad[i] . v[j]`` for the weights; for the scores that through the softmax, with sinks or without."""
    if not gradients:
        return None
    grad = torch.stack(list(gradients)).sum(0).unflatten(-1, (inputs.q.shape[1], -1)).transpose(1, 2)
    grad = _taken(grad, ((1, heads), (2, rows)))
    shared = tuple(head // inputs.group for head in heads)
    of_weights = grad @ inputs.v[:, shared, keys].to(grad.dtype).mT
    if kind == "weights":
        return of_weights
    weights = exact_rows(inputs, heads, rows, ("weights",)).weights
    assert weights is not None
    return weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
