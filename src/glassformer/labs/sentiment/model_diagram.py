"""Diagrams of an encoder, or of one of its blocks with its residual paths."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from torch import nn

from glassformer.errors import InputError
from glassformer.figures.style import RED, in_style, new_figure
from glassformer.layers.blocks import Block
from glassformer.models.encoder import Encoder

Kind = Literal["data", "embedding", "norm", "attention", "feed-forward", "sum", "head"]

_ACTIVATIONS = {"gelu": "GELU", "gelu_tanh": "GELU (tanh)", "relu": "ReLU"}
_POOLED = {
    "mean": "mean over real tokens",
    "cls": "first token",
    "max": "largest of each coordinate over real tokens",
}
_GROUND: dict[Kind, str] = {
    "data": "#ffffff",
    "embedding": "#d4ebf8",
    "norm": "#ececec",
    "attention": "#fae3b4",
    "feed-forward": "#bfe6d9",
    "sum": "#ffffff",
    "head": "#c5dcee",
}
_WIDTH = 4.3
_LEFT = 0.75
_GAP = 0.36
_CAPTION = 0.3
_LINE = 0.165
"""Inches: of a box, left of it, between two boxes, above boxes in a frame, and of a line of
details.
"""

_ROUND = "round,pad=0,rounding_size=0.06"
_SEES = "every token sees every real token"


@dataclass(frozen=True)
class Part:
    """One step of a model's computation: a box, or a residual sum over the last ``skips`` boxes."""

    name: str
    kind: Kind
    details: tuple[str, ...] = ()  # lines below the name
    parameters: int = 0  # of all repetitions together
    output_shape: str = ""
    skips: int = 0
    times: int = 1  # the number of blocks that have it
    block: str = ""  # the caption of its block's frame, which neighbours share; "" for none


def architecture(model: Encoder) -> Figure:
    """The whole encoder from tokens to logits with its sizes; equal blocks are drawn once."""
    parts = whole(model)
    return draw(
        parts, f"{type(model).__name__}: {sum(part.parameters for part in parts):,} parameters"
    )


def block(model: Encoder, layer: int = 0) -> Figure:
    """Block ``layer``, from 0, part by part, with its residual paths and the shapes between parts."""
    parts = one_block(model, layer)
    count = len(model.layers)
    total = sum(part.parameters for part in parts)
    return draw(parts, f"Block {layer + 1} of {count}: {total:,} parameters", every_shape=True)


def whole(model: Encoder) -> list[Part]:
    """The parts of an encoder in order; their parameters add up to the model's."""
    layers = _blocks(model)
    config = model.config
    width = model.config.hidden_dim
    stream = f"[batch, position, {width}]"
    vector = f"[batch, {width}]"
    scale = f", times sqrt({width})" if config.scale_embeddings else ""
    size = f"{config.vocab_size:,} x {width}{scale}"
    parts = [
        Part(
            "Tokens", "data", (f"at most {config.max_seq_len:,}",), output_shape="[batch, position]"
        ),
        Part("Token embedding", "embedding", (size,), _count(model.embedding), stream),
    ]
    if model.positions is not None:
        if isinstance(model.positions, nn.Embedding):
            kind = "learned"
        else:
            kind = "sines and cosines"
        size = f"{kind}, {config.max_seq_len:,} x {width}, added"
        parts.append(Part("Positions", "embedding", (size,), _count(model.positions), stream))
    if model.token_types is not None:
        size = f"{config.token_types} x {width}, added"
        parts.append(Part("Token types", "embedding", (size,), _count(model.token_types), stream))
    parts += _norm([model.embedding_norm], stream, "Embedding ")
    if layers:
        first = layers[0]
        times = len(layers)
        heads = f"{first.attention.num_heads} heads of {first.attention.head_dim}"
        counts = (
            _count(*(layer.attention for layer in layers)),
            _count(*(layer.ffn for layer in layers)),
        )
        ffn = (f"{width} → {config.ff_dim} → {width}, {_ACTIVATIONS[config.activation]}",)
        halves = [
            [Part("Attention", "attention", (heads, _SEES), counts[0], stream)],
            [Part("Feed-forward", "feed-forward", ffn, counts[1], stream)],
        ]
        if times > 1:
            caption = f"{times} blocks, one after another"
        else:
            caption = "1 block"
        parts += [
            replace(part, times=times, block=caption) for part in _with_residuals(layers, halves)
        ]
    parts += _norm([model.final_norm], stream, "Last ")
    parts.append(Part("Pooling", "head", (_POOLED[config.pooling],), output_shape=vector))
    if model.classifier is None:
        return [*parts, Part("Text vector", "data", ("no classification head",))]
    classes = model.classifier.out_features
    head = Part(
        "Head",
        "head",
        (f"{width} → {classes} classes",),
        _count(model.classifier),
        f"[batch, {classes}]",
    )
    return [*parts, head, Part("Logits", "data")]


def one_block(model: Encoder, layer: int = 0) -> list[Part]:
    """The parts of block ``layer``, from 0, in order; their parameters add up to the block's."""
    layers = _blocks(model)
    if not 0 <= layer < len(layers):
        raise InputError(
            got=f"layer = {layer}",
            expected=f"0 to {len(layers) - 1}",
            fix="The first block is 0.",
        )
    attention = layers[layer].attention
    ffn = layers[layer].ffn
    width = model.config.hidden_dim
    ff = model.config.ff_dim
    heads = attention.num_heads
    size = attention.head_dim
    maps = _count(attention.query, attention.key, attention.value)
    stream = f"[batch, position, {width}]"
    details = f"{width} → {heads} x {size}"
    formula = f"softmax(query · key / {math.sqrt(size):.4g})"
    each = (f"query {details}", f"key and value each {details}")
    inside = f"[batch, position, {ff}]"
    halves = [
        [
            Part(
                "Query, key, value", "attention", each, maps, f"{heads} x [batch, position, {size}]"
            ),
            Part("Weights", "attention", (formula, _SEES), 0, f"[batch, {heads}, query, key]"),
            Part("Weighted sums of values", "attention", ("heads side by side",), 0, stream),
            Part("Output", "attention", (f"{width} → {width}",), _count(attention.output), stream),
        ],
        [
            Part("Up", "feed-forward", (f"{width} → {ff}",), _count(ffn.up), inside),
            Part(_ACTIVATIONS[model.config.activation], "feed-forward", (), 0, inside),
            Part("Down", "feed-forward", (f"{ff} → {width}",), _count(ffn.down), stream),
        ],
    ]
    begin = Part("Residual stream", "data", output_shape=stream)
    return [begin, *_with_residuals([layers[layer]], halves), replace(begin, output_shape="")]


def _blocks(model: Encoder) -> list[Any]:
    if not isinstance(model, Encoder):
        raise InputError(
            got=f"a {type(model).__name__}",
            expected="an Encoder",
            fix="Use print(model).",
        )
    return list(model.layers)


def _with_residuals(layers: Sequence[Block], halves: Iterable[list[Part]]) -> list[Part]:
    """The two halves of a block with their norms and sums."""
    pre_norm = layers[0].norm_place == "before"
    parts = []
    for half, inner in zip(("attention_norm", "ffn_norm"), halves, strict=True):
        norm = _norm([getattr(layer, half) for layer in layers], inner[-1].output_shape)
        within = [*norm, *inner] if pre_norm else inner
        total = Part("+", "sum", output_shape=inner[-1].output_shape, skips=len(within))
        parts += [*within, total, *([] if pre_norm else norm)]
    return parts


def _norm(norms: Sequence[nn.Module | None], stream: str, before: str = "") -> list[Part]:
    found = [norm for norm in norms if norm is not None]
    if found:
        return [Part(f"{before}{type(found[0]).__name__}", "norm", (), _count(*found), stream)]
    return []


def _count(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())


@in_style
def draw(parts: Sequence[Part], title: str, *, every_shape: bool = False) -> Figure:
    """Boxes from top to bottom, with residual paths on the left and frames around blocks.

    ``every_shape`` writes every shape, not only those that differ from the previous one.
    """
    places = _places(parts)
    width = _LEFT + _WIDTH + 0.35
    height = places[-1][1] + 0.3
    figure, (ax,) = new_figure(width, height)
    figure.set_layout_engine("none")
    ax.set(position=(0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    ax.text(0.3, 0.3, title, weight="bold", size=11, va="center")
    _draw_column(ax, list(zip(parts, places, strict=True)), _LEFT, every_shape)
    return figure


def _places(parts: Sequence[Part]) -> list[tuple[float, float]]:
    """Top and bottom of each part, in inches from the top."""
    places: list[tuple[float, float]] = []
    top = 0.6
    frame = ""
    for part in parts:
        if part.block != frame:
            top += _CAPTION if part.block else 0.16
        bottom = top + (0.26 if part.kind == "sum" else 0.3 + _LINE * len(part.details))
        places.append((top, bottom))
        top = bottom + _GAP
        frame = part.block
    return places


def _draw_column(
    ax: Axes, column: list[tuple[Part, tuple[float, float]]], left: float, every_shape: bool
) -> None:
    middle = left + _WIDTH / 2
    shape = ""
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
            start = column[index - part.skips][1][0] - 0.13
            end = (top + bottom) / 2
            aside = left - 0.22
            ax.plot(
                [middle, aside, aside], [start, start, end], color=RED, lw=1.4, ls=(0, (5, 1.5))
            )
            _arrow(ax, (aside, end), (middle - 0.13, end), RED)
            ax.text(
                aside - 0.07, end - 0.04, "residual", size=8, rotation=90, ha="right", va="bottom"
            )
    for caption, framed in groupby(column, lambda item: item[0].block):
        if caption:
            inside = list(framed)
            _draw_frame(
                ax, caption, inside[0][1][0] - _CAPTION - 0.06, inside[-1][1][1] + 0.12, left
            )


def _draw_part(ax: Axes, part: Part, left: float, top: float, bottom: float) -> None:
    ground: dict[str, Any] = {
        "facecolor": _GROUND[part.kind],
        "edgecolor": "black",
        "lw": 0.9,
        "zorder": 3,
    }
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
    for number, line in enumerate(part.details):
        ax.text(left + 0.12, top + 0.15 + _LINE * (number + 1), line, size=8.5, **text)


def _draw_frame(ax: Axes, caption: str, top: float, bottom: float, left: float) -> None:
    frame = FancyBboxPatch((left - 0.5, top), _WIDTH + 0.65, bottom - top, boxstyle=_ROUND)
    frame.set(facecolor="none", edgecolor="#606060", lw=0.9, ls=(0, (2, 2)))
    ax.add_patch(frame)
    ax.text(left - 0.4, top + 0.14, caption, size=8.5, style="italic", va="center")


def _arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str = "black"
) -> None:
    look = {
        "arrowstyle": "-|>",
        "color": color,
        "lw": 1.2,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 9,
    }
    ax.annotate("", end, start, arrowprops=look, zorder=2)
