"""The running block and attention of a model, and the text positions that they compute."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.layers.attention import Attended
from glassformer.observe.hook_points import (
    AttentionPoint,
    BlockPoint,
    EmbeddingPoint,
    HookPoint,
    LogitsPoint,
    Selection,
    of_kind,
)
from glassformer.observe.module_hooks import Arguments, Phase, Scope
from glassformer.observe.positions import (
    cache_of,
    is_cross,
    kept_logits,
    key_order,
    require_rows,
    rows_of,
    start_of,
)


@dataclass(eq=False, slots=True)
class Visit:
    """One call of a hook point, with the positions of its tensors in their texts.

    Args:
        point: The hook point.
        start: The position of the first query.
        length: Queries of the call.
        cache: Earlier keys and values, if there are any.
        kept: The queries that the tensor has, counted from the call's first one; all when None.
    """

    point: HookPoint
    start: int
    length: int
    cache: Any
    kept: Sequence[int] | None = None

    @property
    def total(self) -> int:
        """Positions of the text by now."""
        return self.start + self.length

    def rows(self, queries: Selection | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the chosen queries, as indices in the tensor and as positions of the text."""
        cached = self.cache is not None
        return rows_of(queries, self.start, self.length, cached, kept=self.kept)

    def is_cross(self, call: Attended) -> bool:
        """Return whether an attention reads another text than that of its queries."""
        return is_cross(self.point, call, self.cache)

    def key_order(self, call: Attended) -> tuple[Tensor | None, int]:
        """Return the permutation that sorts the keys by position, and the first position.

        The permutation is None if the keys are sorted.
        """
        if self.is_cross(call):
            return None, 0
        return key_order(self.cache, self.start, self.length, call.k.shape[2])

    def key_places(self, call: Attended) -> dict[int, int]:
        """Return the slot of the key of each position; a cache may hold them in another order."""
        order, first = self.key_order(call)
        count = call.k.shape[2]
        slots = range(count) if order is None else order.tolist()
        return dict(zip(range(first, first + count), slots, strict=True))


@dataclass(eq=False, slots=True)
class BlockRun:
    """A block that is running, or an attention in no block.

    Args:
        module: The block.
        start: The position of its first query in its text.
        cache: Earlier keys and values, if there are any: a cache of glassformer or of transformers.
        shape: The shape of its input; empty outside of all blocks.
    """

    module: nn.Module | None
    start: int
    cache: Any
    shape: Sequence[int]

    def visit(self, point: HookPoint, length: int, kept: Sequence[int] | None = None) -> Visit:
        """Return the call of a hook point in this block."""
        return Visit(point, self.start, length, self.cache, kept)


@dataclass(eq=False, slots=True)
class AttentionRun:
    """An attention that is running.

    Args:
        point: The attention.
        block: Its block.
        cache: Earlier keys and values; None in a cross-attention.
        captured: Whether its queries and keys have been seen.
        gradients: Gradients of its output, [batch, query, head * value_dim], one for each backward
            pass.
    """

    point: AttentionPoint
    block: BlockRun
    cache: Any
    captured: bool = False
    gradients: list[Tensor] = field(default_factory=list)

    @property
    def shape(self) -> Sequence[int]:
        """The shape of the input of its block."""
        return self.block.shape

    def visit(self, point: HookPoint, length: int) -> Visit:
        """Return the call of a hook point in this attention."""
        # A cross-attention does not receive the position of its queries, but its block does.
        return Visit(point, self.block.start, length, self.cache)


class Running:
    """The block and the attention that are running, by hooks of some blocks and attentions.

    Args:
        block_entered: Called with a block, or an attention in no block, and its arguments when it
            is entered.
        attention_left: Called when an attention is left.
    """

    def __init__(
        self,
        block_entered: Callable[[nn.Module, Tensor, Arguments], None],
        attention_left: Callable[[AttentionRun], None] | None = None,
    ) -> None:
        self._block_entered = block_entered
        self._attention_left = attention_left
        self.block: BlockRun | None = None
        self.attention: AttentionRun | None = None
        self.latest = BlockRun(None, 0, None, torch.Size())
        """The block that was entered last, whether or not it has been left."""
        self.ended: BlockRun | None = None
        """The block that was left last."""
        self._arguments: Arguments | None = None
        """The arguments of a model of transformers, where its logits are read."""
        self._attentions: list[AttentionPoint] = []
        self._blocks: list[nn.Module] = []

    def enter(
        self,
        scope: Scope,
        points: Sequence[HookPoint],
        chosen: Iterable[HookPoint],
        attentions: Iterable[AttentionPoint],
    ) -> None:
        """Follow the blocks of the chosen hook points, and attentions, from their input on."""
        self._attentions = list(attentions)
        blocks: dict[nn.Module, int] = {}
        if self._attentions:
            # The first block of a stack ends an attention that has raised and not left.
            blocks |= {point.module: point.layer for point in of_kind(points, EmbeddingPoint)}
        for point in chosen:
            if isinstance(point, LogitsPoint):  # its positions are those of the last block
                last = of_kind(points, BlockPoint)[-1]
                blocks[last.module] = last.layer
                if point.owner is not None:
                    scope.insert(point.owner, "input", self._note_arguments, Phase.BEFORE)
            elif point.block is not None:
                blocks[point.block] = point.layer
        self._blocks = list(blocks)
        for block, layer in blocks.items():
            scope.insert(block, "input", partial(self._enter_block, block, layer), Phase.BEFORE)
        for attention in self._attentions:
            scope.insert(
                attention.module, "input", partial(self._enter_attention, attention), Phase.BEFORE
            )

    def leave_attentions(self, scope: Scope) -> None:
        """Follow the attentions to their output; call this after inserting all other hooks."""
        for attention in self._attentions:
            scope.insert(
                attention.module, "output", partial(self._leave_attention, attention), Phase.READ
            )

    def leave_blocks(self, scope: Scope) -> None:
        """Follow the blocks to their output, like :meth:`leave_attentions`.

        Without this call, the last block counts as running.
        """
        for block in self._blocks:
            scope.insert(block, "output", partial(self._leave_block, block), Phase.READ)

    def logits_visit(
        self, point: LogitsPoint, values: Tensor, block: BlockRun
    ) -> tuple[Visit, Tensor]:
        """Return the call of the module that computes logits, and logits with an axis of positions.

        A classifier's logits have one position; other logits may be those of some positions alone.
        """
        if is_pooled(point, values):
            require_rows(values, block.shape or None, point.name)
            return Visit(point, 0, 1, None), values[:, None]
        if values.dim() == 2:  # of the last position, as in generate()
            values = values[:, None]
        length = block.shape[1]
        positions = kept_logits(self._arguments, length, values.shape[1])
        return block.visit(point, length, positions), values

    def _enter_block(
        self, module: nn.Module, layer: int, values: Tensor, arguments: Arguments
    ) -> None:
        cache = cache_of(arguments)
        self.attention = None  # an attention that has raised has not left
        self.block = BlockRun(module, start_of(cache, layer), cache, values.shape)
        self.latest = self.block
        self._block_entered(module, values, arguments)

    def _leave_block(self, module: nn.Module, values: Tensor, arguments: Arguments) -> None:
        if self.block is not None and self.block.module is module:
            self.ended = self.block
            self.block = None

    def _enter_attention(self, point: AttentionPoint, values: Tensor, arguments: Arguments) -> None:
        if point.block is None:
            self._enter_block(point.module, point.layer, values, arguments)
        block = self.latest if self.block is None else self.block
        self.attention = AttentionRun(point, block, None if point.cross else cache_of(arguments))

    def _leave_attention(self, point: AttentionPoint, values: Tensor, arguments: Arguments) -> None:
        run = self.attention
        if run is None or run.point is not point:
            return
        self.attention = None
        if point.block is None:
            self.block = None
        if self._attention_left is not None:
            self._attention_left(run)

    def _note_arguments(self, values: Tensor, arguments: Arguments) -> None:
        self._arguments = arguments


def is_pooled(point: LogitsPoint, logits: Tensor) -> bool:
    """Return whether logits belong to a classifier: one row for each text."""
    return logits.dim() == 2 and point.name != "output"
