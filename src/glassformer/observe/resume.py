"""Run a model from one of its layers on, for several copies of its texts, and take a metric of the logits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.observe.capture import find_hook_points
from glassformer.observe.edits import Edit, put
from glassformer.observe.hook_points import ROLES, HookPoint, Selection, select
from glassformer.observe.intervene import intervene
from glassformer.observe.seams import standing_in

Metric = Callable[[Tensor], Tensor]
"""From logits [batch, position, class] to one number for each text [batch], or to their mean []."""

Part = Literal["encoder", "decoder", "cross"]
"""Of an encoder-decoder: its encoder, its decoder's blocks and their self-attention, their cross-attention."""

Stage = Literal["residual_before", "residual_between", "residual"]


class _Done(Exception):
    """The logits are there."""


class Runner:
    """A model and a metric of its logits; ``part`` says whose layers are resumed."""

    def __init__(self, model: nn.Module, metric: Metric, logits: Selection, part: Part | None = None) -> None:
        self.points = find_hook_points(model)
        self.model, self._metric, self._logits, self._part = model, metric, logits, part
        heads = [point for point in self.points if point.role == "logits"]
        require(
            len(heads) == 1,
            f"{type(model).__name__}, which has no logits",
            "a decoder, an encoder-decoder, or an encoder with a classifier",
            "Load the model with its head.",
        )
        self._head = heads[0].module
        there = {"encoder": any(point.source for point in self.points), "cross": any(p.cross for p in self.points)}
        parts = [None, "decoder", *(name for name, exists in there.items() if exists)]
        require(part in parts, f"part = {part!r} of {type(model).__name__}", f"one of {parts}", "Omit part.")
        blocks = [point for point in self.points if point.role == "block"]
        self.blocks = [point for point in blocks if point.source == (part == "encoder")]
        self.memory = [point for point in blocks if point.source and part != "encoder"]
        """The encoder's blocks, where only the decoder is resumed."""

    def places(self, site: str) -> dict[int, HookPoint]:
        """The hook points of a site in this part, by layer."""
        role, cross = ROLES[site], self._part == "cross"
        require(role == "attention" or not cross, f"{site} of the cross-attention", "heads, q, k, v", "Omit part.")
        there = [point for point in self.points if point.role == role and point.source == (self._part == "encoder")]
        found = {point.layer: point for point in there if point.cross == cross}
        require(len(found) > 0, f"{site} of {type(self.model).__name__}", "a site that it has", "Choose another site.")
        return found

    def run(self, texts: Mapping[str, Tensor], copies: int = 1) -> Float[Tensor, "copy text"]:
        """The metric of each text of each copy, or one number for each copy."""
        repeated = {name: each.repeat(copies, *[1] * (each.dim() - 1)) for name, each in texts.items()}
        found: list[Tensor] = []
        thread = threading.get_ident()

        def shorten(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if args[0].dim() == 2 or threading.get_ident() != thread:
                return None
            return (args[0][:, list(select("logits", self._logits, args[0].shape[1]))],)

        def note(_: nn.Module, __: Any, output: Tensor) -> None:
            if threading.get_ident() == thread:
                found.append(output)
                raise _Done  # what the model does with so few logits is not needed

        hooks = self._head.register_forward_pre_hook(shorten), self._head.register_forward_hook(note)
        try:
            self.model(repeated[""]) if "" in repeated else self.model(**repeated)
        except _Done:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        logits = found[-1] if found[-1].dim() == 3 else found[-1][:, None]
        values = torch.stack([self._metric(copy).reshape(-1) for copy in logits.unflatten(0, (copies, -1))])
        require(
            bool(values.isfinite().all()), "a metric that is NaN or infinite", "finite numbers", "Check the metric."
        )
        return values

    def resumed(
        self,
        texts: Mapping[str, Tensor],
        layer: int,
        stage: Stage,
        stream: Float[Tensor, "row position dim"],
        memory: Float[Tensor, "text source dim"] | None = None,
        edits: Sequence[Edit] = (),
    ) -> Float[Tensor, "copy text"]:
        """:meth:`run` from a stage of ``layer`` on, at which the residual stream is ``stream``.

        Args:
            texts: The texts, of which ``stream`` holds one copy or several, one after another.
            layer: A layer of the part.
            stage: Of a post-norm block not ``residual_between``.
            stream: What the blocks before would give.
            memory: The last residual stream of the encoder, where it is not resumed itself.
            edits: What else is changed.
        """
        copies = len(stream) // len(next(iter(texts.values())))
        if stage == "residual" and layer + 1 < len(self.blocks):
            layer, stage = layer + 1, "residual_before"
        block = self.blocks[layer]
        skipped = [*self.blocks[: layer + (stage == "residual")], *self.memory]
        changes = [put(stage, stream, modules=[block.name]), *edits]
        if memory is not None:
            changes.insert(0, put("residual", memory.repeat(copies, 1, 1), modules=[self.memory[-1].name]))
        with ExitStack() as attached:
            for point in skipped:
                attached.enter_context(standing_in(point.module, _unchanged))
            if stage == "residual_between":
                attention = next(p.module for p in self.points if p.role == "attention" and p.block is block.module)
                foreign = type(attention).__module__.startswith("transformers.")
                attached.enter_context(standing_in(attention, partial(_nothing, foreign)))
            attached.enter_context(intervene(self.model, *changes))
            return self.run(texts, copies)


def _unchanged(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The input of a block instead of its output."""
    return args[0] if args else kwargs["hidden_states"]


def _nothing(foreign: bool, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Zeros instead of the output of an attention."""
    zeros = torch.zeros_like(_unchanged(own, *args, **kwargs))
    return (zeros, None) if foreign else zeros
