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
from glassformer.observe.module_hooks import Given
from glassformer.observe.padding import NO_PADDING, Padding, padding_of
from glassformer.observe.positions import by_text
from glassformer.observe.running import AttentionRun, Running, Visit, is_pooled

OF_CALLS = ("weights", "scores", "sinks", "q", "k", "v")
"""What is recorded where an attention is computed, not at a module."""


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
    """Whether the model is one of transformers, all of whose attentions give their output to
    :meth:`output`.
    """
    _length: int = 0
    """The positions of the text that was seen last."""
    _padding: Padding = NO_PADDING
    """What the last block that began was told by its masks."""
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.running = Running(self._note_padding, _require_captured)

    def _note_padding(self, module: nn.Module, values: Tensor, given: Given) -> None:
        """Note what a block that begins is told by its masks."""
        block = self.running.block
        start = 0 if block is None else block.start
        self._padding = padding_of(module, given, start, start + values.shape[1])

    @torch.no_grad()
    def attention(self, inputs: Attended, run: AttentionRun, dropout: float) -> None:
        """Record one call of an attention, which drops weights with a probability."""
        point = run.point
        run.captured = True
        self.calls += 1
        length = inputs.q.shape[2]
        keys = inputs.k.shape[2]
        visit = run.visit(point, length)
        cached = visit.cache is not None
        # transformers makes a cache for every text; in the first call it changes nothing.
        fresh = not cached or (visit.start == 0 and not isinstance(visit.cache, LayerCache))
        keeps = self.retain_grad and fresh and (inputs.q.requires_grad or inputs.v.requires_grad)
        if dropout != 0 and self.retain_grad and {"weights", "scores"} & set(self.kinds):
            raise InputError(
                got=f"retain_grad for the weights of {point.name}, which drops some of them",
                expected="an attention without dropout",
                fix="Call model.eval(), or set its attention dropout to 0.",
            )
        cross = visit.is_cross(inputs)
        if self.inputs is not None:
            if not (not cached or (visit.start == 0 and length == keys)):
                raise InputError(
                    got=f"what = 'inputs' of {point.name} after {visit.start} positions in a cache",
                    expected=(
                        "a forward pass from the start of the text, with a cache of no more than "
                        "its length"
                    ),
                    fix="Pass the whole text in one call, or capture weights.",
                )
            self.inputs.append(
                CapturedInputs(point.name, point.layer, _copied(inputs), point.source, cross)
            )
        rows, positions = self._rows(visit)
        if len(rows) == 0:
            return
        heads = self.chosen[point]
        order, first = visit.key_order(inputs)
        labels: dict[str, Any] = {"queries": positions, "cross": cross}
        asked = [
            kind for kind in OF_CALLS[:3] if kind in self.kinds and (kind != "sinks" or point.sinks)
        ]
        if asked:
            found = exact_rows(inputs, heads, rows, asked)
            if found.sinks is not None and "sinks" in asked:
                self._add("sinks", point, found.sinks, heads=heads, **labels)
            for kind, values in (("weights", found.weights), ("scores", found.scores)):
                if values is not None and kind in asked:
                    if order is None:
                        values = values
                    else:
                        values = values[..., order]
                    start = first + found.first
                    # Empty slots of a cache come after the last query.
                    if cross:
                        count = values.shape[3]
                    else:
                        count = min(values.shape[3], visit.total - start)
                    at = slice(found.first, found.first + count)
                    gradient = None
                    edited = any(rewrite.kind == "weights" for rewrite in inputs.rewrites)
                    if keeps and edited and kind == "scores":
                        raise InputError(
                            got="gradients of scores within an edit of weights",
                            expected="those of weights",
                            fix="Keep gradients of weights.",
                        )
                    if keeps and (self.foreign or point.out_proj is not None):
                        gradient = partial(
                            _weights_gradient, kind, inputs, run.gradients, heads, rows, at
                        )
                    span = range(start, start + count)
                    self._add(
                        kind,
                        point,
                        values[..., :count],
                        heads=heads,
                        keys=span,
                        gradient=gradient,
                        **labels,
                    )
        if "q" in self.kinds:
            self._keep("q", point, inputs.q, ((1, heads), (2, rows)), keeps, heads=heads, **labels)
        shared = tuple(dict.fromkeys(head // inputs.group for head in heads))
        if cross:
            places = range(keys)
        else:
            places = range(visit.start, visit.total)
        if order is None:
            made = tuple(each - first for each in places)
        else:
            made = tuple(order[-length:].tolist())
        for kind, tensor in (("k", inputs.k), ("v", inputs.v)):
            if kind in self.kinds:
                labels = {
                    "heads": shared,
                    "keys": places,
                    "cross": cross,
                    "length": keys if cross else self._length,
                }
                self._keep(kind, point, tensor, ((1, shared), (2, made)), keeps, **labels)

    def note_output(self, merged: Tensor, given: Given) -> None:
        """Collect the gradient of what enters the output projection of the running attention."""
        self.output(merged)

    def output(self, merged: Tensor) -> None:
        """Collect the gradient of the running attention's output, whose heads may be merged or not."""
        if self.retain_grad and self.running.attention is not None and merged.requires_grad:
            gradients = self.running.attention.gradients
            merged.register_hook(lambda gradient: gradients.append(gradient.flatten(2)))

    def note(self, kind: str, point: HookPoint, tensor: Tensor, _: Any = None) -> Tensor | None:
        """Record a tensor [batch, position, dim] of the block or the attention that is running."""
        run = self.running.attention or self.running.block
        if run is None:
            return None
        # The gradient of what a module reads leaves out what else reads it, such as a residual
        # addition.
        own = (
            kind in ("attention_input", "ffn_input", "neurons")
            and self.retain_grad
            and tensor.requires_grad
        )
        tensor = tensor.view_as(tensor) if own else tensor
        values = by_text(tensor, run.shape, f"{kind} of {point.name}")
        self.calls += 1
        rows, positions = self._rows(run.visit(point, values.shape[1]))
        if len(rows) > 0 and isinstance(point, AttentionPoint) and kind == "heads":
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
        elif len(rows) > 0:
            self._keep(kind, point, values, ((1, rows),), self.retain_grad, queries=positions)
        return tensor if own else None

    def logits(self, point: LogitsPoint, values: Tensor, _: Any = None) -> None:
        """Record the output of the model: of a classifier one for each text, of others perhaps the
        last positions.
        """
        block = self.running.ended
        if block is None:
            if not is_pooled(point, values):
                return
            block = self.running.latest
        pooled = is_pooled(point, values)
        visit, values = self.running.logits_visit(point, values, block)
        if pooled:
            self._add("logits", point, values.detach().clone(), queries=(0,), length=1, real=None)
            return
        rows, positions = self._rows(visit)
        if len(rows) > 0:
            self._keep("logits", point, values, ((1, rows),), self.retain_grad, queries=positions)

    @torch.no_grad()
    def mixture(self, point: MixturePoint, values: Tensor, given: Sequence[Any]) -> None:
        """Record one call of a mixture of experts."""
        run = self.running.attention or self.running.block
        if run is None:
            return
        x = by_text(given[0], run.shape, f"the input of {point.name}")
        self.calls += 1
        rows, positions = self._rows(run.visit(point, x.shape[1]))
        if len(rows) == 0:
            return
        picks = ((1, rows),)
        probabilities, choices, shares = point.route(x)
        for kind, found in (("router", probabilities), ("shares", shares), ("choices", choices)):
            if kind in self.kinds:
                self._add(kind, point, _taken(found, picks), queries=positions)
        if "experts" in self.kinds:
            edited = getattr(values, "experts", None)
            x = _taken(x, picks)
            choices = _taken(choices, picks)
            if edited is None:
                outputs = point.expert_outputs(x, choices)
            else:
                outputs = _taken(edited, picks)
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
        keeps: bool,
        heads_of: int = 0,
        **labels: Any,
    ) -> None:
        def part(values: Tensor) -> Tensor:
            return _taken(
                values.unflatten(-1, (heads_of, -1)).transpose(1, 2) if heads_of else values, picks
            )

        if keeps and tensor.requires_grad:
            tensor.retain_grad()
            labels["gradient"] = lambda: None if tensor.grad is None else part(tensor.grad)
        self._add(kind, point, part(tensor.detach()), **labels)

    @property
    def made(self) -> bool:
        """Whether there was a record."""
        return bool(self._counts)

    def _add(self, kind: str, point: HookPoint, values: Tensor, **labels: Any) -> None:
        call = self._counts[kind, point.name]
        self._counts[kind, point.name] += 1
        length = labels.pop("length", self._length)
        kept = values.contiguous()  # as safetensors needs it
        labels |= {"length": length, "source": point.source, "padded": self._padding.exists}
        if "real" not in labels:
            labels["real"] = self._real(kind, labels)
        record = Record(kind, point.name, point.layer, call, kept, **labels)
        self.records.append(record)

    def _real(self, kind: str, labels: Mapping[str, Any]) -> Bool[Tensor, "batch position"] | None:
        """Return which positions of a record's texts are real, None if all are."""
        if kind not in ("k", "v"):
            return self._padding.real_keys(labels["queries"], self._length)
        if labels["cross"]:
            return self._padding.real_memory(labels["keys"])
        return self._padding.real_keys(labels["keys"], self._length)


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


def _taken(tensor: Tensor, picks: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
    """A copy of some indices on some axes, which later changes by the model do not reach."""
    for dim, numbers in picks:
        if tuple(numbers) != tuple(range(tensor.shape[dim])):
            tensor = tensor.index_select(dim, torch.tensor(numbers, device=tensor.device))
    return tensor.clone(memory_format=torch.contiguous_format)


def _copied(inputs: Attended) -> Attended:
    """Copies of what the weights depend on, without the values; masks are shared, as nothing writes
    to them.
    """
    tensors = {name: getattr(inputs, name) for name in ("q", "k", "key_weights", "sinks")}
    copies: dict[str, Any] = {
        name: None if each is None else each.detach().clone() for name, each in tensors.items()
    }
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
    """``grad[i] . v[j]`` for the weights; for the scores that through the softmax, with sinks or
    without.
    """
    if not gradients:
        return None
    grad = (
        torch.stack(list(gradients)).sum(0).unflatten(-1, (inputs.q.shape[1], -1)).transpose(1, 2)
    )
    grad = _taken(grad, ((1, heads), (2, rows)))
    shared = tuple(head // inputs.group for head in heads)
    of_weights = grad @ inputs.v[:, shared, keys].to(grad.dtype).mT
    if kind == "weights":
        return of_weights
    weights = exact_rows(inputs, heads, rows, ("weights",)).weights
    assert weights is not None
    return weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
