"""Turn the tensors that hooks receive into labelled records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.attention import Attended
from glassformer.layers.cache import LayerCache
from glassformer.observe.captured import CapturedInputs, Record
from glassformer.observe.exact_attention import exact_rows
from glassformer.observe.hook_points import AttentionPoint, HookPoint, LogitsPoint, MixturePoint
from glassformer.observe.module_hooks import Arguments
from glassformer.observe.padding import NO_PADDING, Padding, padding_of
from glassformer.observe.positions import by_text
from glassformer.observe.running import AttentionRun, Running, Visit, is_pooled

OF_CALLS = ("weights", "scores", "sinks", "q", "k", "v")
"""Kinds that are recorded where an attention is computed, not at a module."""


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
    calls: int = 0
    foreign: bool = False
    """True for models of transformers: each attention then passes its output to :meth:`output`."""
    _length: int = 0
    """Length of the text that was seen last."""
    _padding: Padding = NO_PADDING
    """Padding by the masks of the block that was entered last."""
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.running = Running(self._note_padding, _require_captured)

    def _note_padding(self, module: nn.Module, values: Tensor, arguments: Arguments) -> None:
        """Store the padding by the masks of a block that is entered."""
        block = self.running.block
        start = 0 if block is None else block.start
        self._padding = padding_of(module, arguments, start, start + values.shape[1])

    @torch.no_grad()
    def attention(self, inputs: Attended, run: AttentionRun, dropout: float) -> None:
        """Record one call of an attention, which drops weights with a probability."""
        point = run.point
        run.captured = True
        self.calls += 1
        self._check_dropout(point, dropout)
        visit = run.visit(point, inputs.q.shape[2])
        if self.inputs is not None:
            self._add_inputs(self.inputs, visit, inputs)
        rows, positions = self._rows(visit)
        if not rows:
            return
        # transformers makes a cache for every text; in the first call it changes nothing.
        is_fresh = visit.cache is None or (
            visit.start == 0 and not isinstance(visit.cache, LayerCache)
        )
        needs_grad = inputs.q.requires_grad or inputs.v.requires_grad
        retains = self.retain_grad and is_fresh and needs_grad
        self._add_rows(visit, inputs, run, rows, positions, retains)
        if "q" in self.kinds:
            heads = self.chosen[point]
            labels: dict[str, Any] = {"heads": heads, "queries": positions}
            labels["cross"] = visit.is_cross(inputs)
            self._keep("q", point, inputs.q, ((1, heads), (2, rows)), retains, **labels)
        if "k" in self.kinds or "v" in self.kinds:
            self._add_keys(visit, inputs, retains)

    def _check_dropout(self, point: AttentionPoint, dropout: float) -> None:
        """Refuse gradients of weights that dropout changes."""
        if dropout != 0 and self.retain_grad and {"weights", "scores"} & set(self.kinds):
            raise InputError(
                got=f"retain_grad for the weights of {point.name}, which drops some of them",
                expected="an attention without dropout",
                fix="Call model.eval(), or set its attention dropout to 0.",
            )

    def _add_inputs(self, records: list[CapturedInputs], visit: Visit, inputs: Attended) -> None:
        """Record the inputs of an attention, which must be those of a whole text."""
        point = visit.point
        is_whole = visit.start == 0 and inputs.q.shape[2] == inputs.k.shape[2]
        if visit.cache is not None and not is_whole:
            raise InputError(
                got=f"what = 'inputs' of {point.name} after {visit.start} positions in a cache",
                expected=(
                    "a forward pass from the start of the text, with a cache of no more than its "
                    "length"
                ),
                fix="Pass the whole text in one call, or capture weights.",
            )
        cross = visit.is_cross(inputs)
        records.append(
            CapturedInputs(point.name, point.layer, _copied(inputs), point.source, cross)
        )

    def _add_rows(
        self,
        visit: Visit,
        inputs: Attended,
        run: AttentionRun,
        rows: tuple[int, ...],
        positions: tuple[int, ...],
        retains: bool,
    ) -> None:
        """Record the weights, scores and sinks of the chosen rows of an attention."""
        point = run.point
        kinds = [kind for kind in ("weights", "scores") if kind in self.kinds]
        if "sinks" in self.kinds and point.sinks:
            kinds.append("sinks")
        if not kinds:
            return
        if retains and "scores" in kinds:
            _check_scores_gradient(inputs)
        heads = self.chosen[point]
        cross = visit.is_cross(inputs)
        labels: dict[str, Any] = {"heads": heads, "queries": positions, "cross": cross}
        exact = exact_rows(inputs, heads, rows, kinds)
        if exact.sinks is not None and "sinks" in kinds:
            self._add("sinks", point, exact.sinks, **labels)
        order, first_position = visit.key_order(inputs)
        start = first_position + exact.first
        for kind, values in (("weights", exact.weights), ("scores", exact.scores)):
            if values is None or kind not in kinds:
                continue
            if order is not None:
                values = values[..., order]
            count = values.shape[3]
            if not cross:  # empty slots of a cache come after the last query
                count = min(count, visit.total - start)
            gradient = None
            if retains and (self.foreign or point.out_proj is not None):
                keys = slice(exact.first, exact.first + count)
                gradient = partial(
                    _weights_gradient, kind, inputs, run.gradients, heads, rows, keys
                )
            labels["keys"] = range(start, start + count)
            self._add(kind, point, values[..., :count], gradient=gradient, **labels)

    def _add_keys(self, visit: Visit, inputs: Attended, retains: bool) -> None:
        """Record the keys and values that a call of an attention has computed."""
        num_keys = inputs.k.shape[2]
        order, first_position = visit.key_order(inputs)
        cross = visit.is_cross(inputs)
        positions = range(visit.start, visit.total)
        length = self._length
        if cross:
            positions = range(num_keys)
            length = num_keys
        if order is None:
            slots = tuple(position - first_position for position in positions)
        else:
            slots = tuple(order[-inputs.q.shape[2] :].tolist())
        query_heads = self.chosen[visit.point]
        heads = tuple(dict.fromkeys(head // inputs.group for head in query_heads))
        labels: dict[str, Any] = {"heads": heads, "keys": positions, "cross": cross}
        labels["length"] = length
        for kind, tensor in (("k", inputs.k), ("v", inputs.v)):
            if kind in self.kinds:
                self._keep(kind, visit.point, tensor, ((1, heads), (2, slots)), retains, **labels)

    def note_output(self, merged: Tensor, arguments: Arguments) -> None:
        """Collect the gradient of the input of the running attention's output projection."""
        self.output(merged)

    def output(self, merged: Tensor) -> None:
        """Collect the gradient of the running attention's output; its heads may be merged."""
        if self.retain_grad and self.running.attention is not None and merged.requires_grad:
            gradients = self.running.attention.gradients
            merged.register_hook(lambda gradient: gradients.append(gradient.flatten(2)))

    def note(self, kind: str, point: HookPoint, tensor: Tensor, _: Any = None) -> Tensor | None:
        """Record a tensor [batch, position, dim] of the block or the attention that is running."""
        run = self.running.attention or self.running.block
        if run is None:
            return None
        # A view of its own: the gradient must not include other readers of the tensor, such as a
        # residual addition.
        is_input = kind in ("attention_input", "ffn_input", "neurons")
        needs_view = is_input and self.retain_grad and tensor.requires_grad
        if needs_view:
            tensor = tensor.view_as(tensor)
        values = by_text(tensor, run.shape, f"{kind} of {point.name}")
        self.calls += 1
        rows, positions = self._rows(run.visit(point, values.shape[1]))
        if rows and isinstance(point, AttentionPoint) and kind == "heads":
            heads = self.chosen[point]
            picks = ((1, heads), (2, rows))
            self._keep(
                kind,
                point,
                values,
                picks,
                self.retain_grad,
                point.heads,
                heads=heads,
                queries=positions,
            )
        elif rows:
            self._keep(kind, point, values, ((1, rows),), self.retain_grad, queries=positions)
        return tensor if needs_view else None

    def logits(self, point: LogitsPoint, values: Tensor, _: Any = None) -> None:
        """Record the logits: a row for each text of a classifier, otherwise some positions."""
        pooled = is_pooled(point, values)
        block = self.running.ended
        if block is None:
            if not pooled:
                return
            block = self.running.latest
        visit, values = self.running.logits_visit(point, values, block)
        if pooled:
            self._add("logits", point, values.detach().clone(), queries=(0,), length=1, real=None)
            return
        rows, positions = self._rows(visit)
        if rows:
            self._keep("logits", point, values, ((1, rows),), self.retain_grad, queries=positions)

    @torch.no_grad()
    def mixture(self, point: MixturePoint, values: Tensor, arguments: Sequence[Any]) -> None:
        """Record one call of a mixture of experts."""
        run = self.running.attention or self.running.block
        if run is None:
            return
        x = by_text(arguments[0], run.shape, f"the input of {point.name}")
        self.calls += 1
        rows, positions = self._rows(run.visit(point, x.shape[1]))
        if not rows:
            return
        picks = ((1, rows),)
        probabilities, choices, shares = point.route(x)
        for kind, tensor in (("router", probabilities), ("shares", shares), ("choices", choices)):
            if kind in self.kinds:
                self._add(kind, point, _picked(tensor, picks), queries=positions)
        if "experts" in self.kinds:
            edited = getattr(values, "experts", None)
            if edited is None:
                outputs = point.expert_outputs(_picked(x, picks), _picked(choices, picks))
            else:
                outputs = _picked(edited, picks)
            self._add("experts", point, outputs, queries=positions)

    def _rows(self, visit: Visit) -> tuple[tuple[int, ...], tuple[int, ...]]:
        self._length = visit.total
        return visit.rows(self.queries)

    def _keep(
        self,
        kind: str,
        point: HookPoint,
        tensor: Tensor,
        picks: Sequence[tuple[int, Sequence[int]]],
        retains: bool,
        num_heads: int = 0,
        **labels: Any,
    ) -> None:
        """Record a part of a tensor, with its gradient if it ``retains`` one.

        With ``num_heads``, the last axis of the tensor holds the outputs of so many heads.
        """

        def part(values: Tensor) -> Tensor:
            if num_heads:
                values = values.unflatten(-1, (num_heads, -1)).transpose(1, 2)
            return _picked(values, picks)

        if retains and tensor.requires_grad:
            tensor.retain_grad()
            labels["gradient"] = lambda: None if tensor.grad is None else part(tensor.grad)
        self._add(kind, point, part(tensor.detach()), **labels)

    @property
    def has_records(self) -> bool:
        """True once there was a record."""
        return bool(self._counts)

    def _add(self, kind: str, point: HookPoint, values: Tensor, **labels: Any) -> None:
        call = self._counts[kind, point.name]
        self._counts[kind, point.name] += 1
        length = labels.pop("length", self._length)
        labels |= {"length": length, "source": point.source, "padded": self._padding.exists}
        if "real" not in labels:
            labels["real"] = self._real(kind, labels)
        contiguous = values.contiguous()  # safetensors needs it
        self.records.append(Record(kind, point.name, point.layer, call, contiguous, **labels))

    def _real(self, kind: str, labels: Mapping[str, Any]) -> Bool[Tensor, "batch position"] | None:
        """Return which positions of a record's texts are real; None if all are."""
        if kind not in ("k", "v"):
            return self._padding.real_keys(labels["queries"], self._length)
        if labels["cross"]:
            return self._padding.real_memory(labels["keys"])
        return self._padding.real_keys(labels["keys"], self._length)


def _check_scores_gradient(inputs: Attended) -> None:
    """Refuse the gradient of scores whose weights are edited."""
    if any(rewrite.kind == "weights" for rewrite in inputs.rewrites):
        raise InputError(
            got="gradients of scores within an edit of weights",
            expected="gradients of weights",
            fix="Keep gradients of weights.",
        )


def _require_captured(run: AttentionRun) -> None:
    """Refuse an attention that has not passed the point where attention is captured."""
    if not run.captured:
        raise InputError(
            got=(
                f"{run.point.name}, which ran without passing the point where attention is captured"
            ),
            expected="an attention implementation that calls the captured function",
            fix="Capture other modules, or choose another attention implementation.",
        )


def _picked(tensor: Tensor, picks: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
    """Return a copy of some indices on some axes, safe from later changes by the model."""
    for dim, indices in picks:
        if tuple(indices) != tuple(range(tensor.shape[dim])):
            tensor = tensor.index_select(dim, torch.tensor(indices, device=tensor.device))
    return tensor.clone(memory_format=torch.contiguous_format)


def _copied(inputs: Attended) -> Attended:
    """Return copies of the tensors that determine the weights, without the values.

    Masks are shared, since nothing writes to them.
    """
    copies: dict[str, Any] = {}
    for name in ("q", "k", "key_weights", "sinks"):
        tensor = getattr(inputs, name)
        copies[name] = None if tensor is None else tensor.detach().clone()
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
    """Return the gradient of weights, ``grad[i] . v[j]``, or of scores, through the softmax."""
    if not gradients:
        return None
    merged = torch.stack(list(gradients)).sum(0)
    grad = merged.unflatten(-1, (inputs.q.shape[1], -1)).transpose(1, 2)
    grad = _picked(grad, ((1, heads), (2, rows)))
    shared = tuple(head // inputs.group for head in heads)
    of_weights = grad @ inputs.v[:, shared, keys].to(grad.dtype).mT
    if kind == "weights":
        return of_weights
    weights = exact_rows(inputs, heads, rows, ("weights",)).weights
    assert weights is not None
    return weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
