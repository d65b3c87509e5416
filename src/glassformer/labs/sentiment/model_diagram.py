"""Diagrams of a loaded model, or of one block with its residual paths."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from torch import nn

from glassformer.errors import require
from glassformer.figures.style import BLUE, RED, in_style, new_figure
from glassformer.observe.model_summary import Kind, Part, StackName, describe, describe_block, stack_of

_GROUND: dict[Kind, str] = {
    "data": "#ffffff",
    "embedding": "#d4ebf8",
    "norm": "#ececec",
    "attention": "#fae3b4",
    "feed-forward": "#bfe6d9",
    "sum": "#ffffff",
    "head": "#c5dcee",
}
_WIDTH, _LEFT, _GAP, _CAPTION, _LINE = 4.3, 0.75, 0.36, 0.3, 0.165
"""Inches: of a box, left of it, between two boxes, above boxes in a frame, and of a line of details."""

_ROUND = "round,pad=0,rounding_size=0.06"


def architecture(model: nn.Module) -> Figure:
    """The whole model from tokens to logits with its sizes; equal blocks are drawn once.

    The two stacks of an encoder-decoder are side by side, with an arrow from the memory to the cross-attention.

    Raises:
        InputError: A module that is no Encoder, Decoder or EncoderDecoder.
    """
    parts = describe(model)
    return draw(parts, f"{type(model).__name__}: {sum(part.parameters for part in parts):,} parameters")


def block(model: nn.Module, layer: int = 0, *, stack: StackName | None = None) -> Figure:
    """Block ``layer``, from 0, part by part, with its residual paths and the shapes between parts.

    ``stack`` is "encoder" or "decoder" for an encoder-decoder; its decoder when None.

    Raises:
        InputError: A module of another kind, a layer out of range, or a stack for a model of one stack.
    """
    parts = describe_block(model, layer, stack=stack)
    found, total = stack_of(model, stack), sum(part.parameters for part in parts)
    name = f"{found.name} block" if found.name else "Block"
    return draw(parts, f"{name} {layer + 1} of {len(found.layers)}: {total:,} parameters", every_shape=True)


@in_style
def draw(parts: Sequence[Part], title: str, *, every_shape: bool = False) -> Figure:
    """Boxes from top to bottom, a column for each stack, with residual paths on the left and frames around blocks.

    ``every_shape`` writes every shape, not only those that differ from the previous one.
    """
    require(len(parts) > 0, "no parts", "at least one", "Describe the model.")
    places = _places(parts)
    columns, height = max(part.stack for part in parts) + 1, max(bottom for _, bottom in places) + 0.3
    width = columns * (_LEFT + _WIDTH) + 0.35
    figure, (ax,) = new_figure(width, height)
    figure.set_layout_engine("none")
    ax.set(position=(0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    ax.text(0.3, 0.3, title, weight="bold", size=11, va="center")
    for stack in range(columns):
        column = [(part, place) for part, place in zip(parts, places, strict=True) if part.stack == stack]
        _draw_column(ax, column, _LEFT + stack * (_LEFT + _WIDTH), every_shape)
    for part, (top, bottom) in zip(parts, places, strict=True):
        if part.reads is not None:
            end = max(place[1] for other, place in zip(parts, places, strict=True) if other.stack == part.reads)
            left, source = (_LEFT + stack * (_LEFT + _WIDTH) for stack in (part.stack, part.reads))
            # Down from the end of the source stack, and up again on the left of the reading one.
            path = [source + _WIDTH / 2] * 2 + [left - 0.55] * 2, [end, end + 0.15, end + 0.15, (top + bottom) / 2]
            ax.plot(*path, color=BLUE, lw=1.4)
            _arrow(ax, (left - 0.55, (top + bottom) / 2), (left, (top + bottom) / 2), BLUE)
    return figure


def _places(parts: Sequence[Part]) -> list[tuple[float, float]]:
    """Top and bottom of each part, in inches from the top."""
    places: list[tuple[float, float]] = []
    ends: dict[int, tuple[float, str]] = {}
    for part in parts:
        top, frame = ends.get(part.stack, (0.6, ""))
        if part.block != frame:
            top += _CAPTION if part.block else 0.16
        bottom = top + (0.26 if part.kind == "sum" else 0.3 + _LINE * len(_lines(part)))
        places.append((top, bottom))
        ends[part.stack] = bottom + _GAP, part.block
    return places


def _lines(part: Part) -> list[str]:
    return [line for text in part.details for line in textwrap.wrap(text, 56)]


def _draw_column(ax: Axes, column: list[tuple[Part, tuple[float, float]]], left: float, every_shape: bool) -> None:
    middle, shape = left + _WIDTH / 2, ""
    for (part, (_, bottom)), (_, (top, _)) in pairwise(column):
        _arrow(ax, (middle, bottom), (middle, top))
        if part.output_shape != shape or every_shape:
            # At the end of the arrow without a frame's edge.
            height = top - _GAP / 2 if part.block else bottom + _GAP / 2
            ax.text(middle + 0.12, height, part.output_shape, size=8, va="center", color="#404040")
        shape = part.output_shape
    for index, (part, (top, bottom)) in enumerate(column):
        _draw_part(ax, part, left, top, bottom)
        if part.kind == "sum":
            start, end, aside = column[index - part.skips][1][0] - 0.13, (top + bottom) / 2, left - 0.22
            ax.plot([middle, aside, aside], [start, start, end], color=RED, lw=1.4, ls=(0, (5, 1.5)))
            _arrow(ax, (aside, end), (middle - 0.13, end), RED)
            ax.text(aside - 0.07, end - 0.04, "residual", size=8, rotation=90, ha="right", va="bottom")
    for caption, framed in groupby(column, lambda item: item[0].block):
        if caption:
            inside = list(framed)
            _draw_frame(ax, caption, inside[0][1][0] - _CAPTION - 0.06, inside[-1][1][1] + 0.12, left)


def _draw_part(ax: Axes, part: Part, left: float, top: float, bottom: float) -> None:
    ground: dict[str, Any] = {"facecolor": _GROUND[part.kind], "edgecolor": "black", "lw": 0.9, "zorder": 3}
    text: dict[str, Any] = {"va": "center", "zorder": 4}
    if part.kind == "sum":
        ax.add_patch(Circle((left + _WIDTH / 2, (top + bottom) / 2), 0.13, **ground))
        ax.text(left + _WIDTH / 2, (top + bottom) / 2, "+", ha="center", size=12, **text)
        return
    ax.add_patch(FancyBboxPatch((left, top), _WIDTH, bottom - top, boxstyle=_ROUND, **ground))
    ax.text(left + 0.12, top + 0.15, part.name, weight="bold", size=9.5, **text)
    if part.parameters:
        each = f"{part.parameters // part.times:,} parameters"
        count = f"{part.times} x {each}" if part.times > 1 else each
        ax.text(left + _WIDTH - 0.12, top + 0.15, count, ha="right", size=8.5, **text)
    for number, line in enumerate(_lines(part)):
        ax.text(left + 0.12, top + 0.15 + _LINE * (number + 1), line, size=8.5, **text)


def _draw_frame(ax: Axes, caption: str, top: float, bottom: float, left: float) -> None:
    frame = FancyBboxPatch((left - 0.5, top), _WIDTH + 0.65, bottom - top, boxstyle=_ROUND)
    frame.set(facecolor="none", edgecolor="#606060", lw=0.9, ls=(0, (2, 2)))
    ax.add_patch(frame)
    ax.text(left - 0.4, top + 0.14, caption, size=8.5, style="italic", va="center")


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str = "black") -> None:
    look = {"arrowstyle": "-|>", "color": color, "lw": 1.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
    ax.annotate("", end, start, arrowprops=look, zorder=2)
