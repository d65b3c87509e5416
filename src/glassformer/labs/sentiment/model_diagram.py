"""Diagrams of an encoder, or of one of its blocks with its residual paths."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
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
"""Sizes in inches: a box, the space left of it, the gap between boxes, captions, lines of text."""

_ROUND = "round,pad=0,rounding_size=0.06"
_SEES = "every token sees every real token"


@dataclass(frozen=True)
class Part:
    """A step of a model's computation: a box, or a residual sum over the last ``skips`` boxes."""

    name: str
    kind: Kind
    details: tuple[str, ...] = ()
    """Lines below the name."""
    parameters: int = 0
    """Number of parameters in all blocks together."""
    output_shape: str = ""
    skips: int = 0
    times: int = 1
    """Number of blocks with this part."""
    block: str = ""
    """Caption of the frame around the block; "" for a part outside of blocks."""


def architecture(model: Encoder) -> Figure:
    """Draw the whole encoder from tokens to logits with its sizes; equal blocks are drawn once."""
    parts = whole(model)
    total = sum(part.parameters for part in parts)
    return draw(parts, f"{type(model).__name__}: {total:,} parameters")


def block(model: Encoder, layer: int = 0) -> Figure:
    """Draw the parts of block ``layer``, from 0, with residual paths and all shapes."""
    parts = one_block(model, layer)
    count = len(model.layers)
    total = sum(part.parameters for part in parts)
    return draw(parts, f"Block {layer + 1} of {count}: {total:,} parameters", every_shape=True)


def whole(model: Encoder) -> list[Part]:
    """List the parts of an encoder in order; their parameters add up to the model's."""
    layers = _blocks(model)
    stream = f"[batch, position, {model.config.hidden_dim}]"
    parts = _embedding_parts(model, stream)
    if layers:
        parts += _all_blocks(model, layers, stream)
    parts += _norm([model.final_norm], stream, "Last ")
    return parts + _head_parts(model)


def _embedding_parts(model: Encoder, stream: str) -> list[Part]:
    config = model.config
    width = config.hidden_dim
    scale = f", times sqrt({width})" if config.scale_embeddings else ""
    size = f"{config.vocab_size:,} x {width}{scale}"
    limit = f"at most {config.max_seq_len:,}"
    parts = [
        Part("Tokens", "data", (limit,), output_shape="[batch, position]"),
        Part("Token embedding", "embedding", (size,), _count(model.embedding), stream),
    ]
    if model.positions is not None:
        is_learned = isinstance(model.positions, nn.Embedding)
        kind = "learned" if is_learned else "sines and cosines"
        size = f"{kind}, {config.max_seq_len:,} x {width}, added"
        parts.append(Part("Positions", "embedding", (size,), _count(model.positions), stream))
    if model.token_types is not None:
        size = f"{config.token_types} x {width}, added"
        parts.append(Part("Token types", "embedding", (size,), _count(model.token_types), stream))
    return parts + _norm([model.embedding_norm], stream, "Embedding ")


def _all_blocks(model: Encoder, layers: Sequence[Block], stream: str) -> list[Part]:
    """List the parts of equal blocks, which are drawn once."""
    config = model.config
    width = config.hidden_dim
    attention: Any = layers[0].attention
    heads = f"{attention.num_heads} heads of {attention.head_dim}"
    num_attention = _count(*(layer.attention for layer in layers))
    num_ffn = _count(*(layer.ffn for layer in layers))
    ffn = f"{width} → {config.ff_dim} → {width}, {_ACTIVATIONS[config.activation]}"
    halves = [
        [Part("Attention", "attention", (heads, _SEES), num_attention, stream)],
        [Part("Feed-forward", "feed-forward", (ffn,), num_ffn, stream)],
    ]
    times = len(layers)
    caption = f"{times} blocks, one after another" if times > 1 else "1 block"
    parts = _with_residuals(layers, halves)
    return [replace(part, times=times, block=caption) for part in parts]


def _head_parts(model: Encoder) -> list[Part]:
    width = model.config.hidden_dim
    pooling = Part(
        "Pooling", "head", (_POOLED[model.config.pooling],), output_shape=f"[batch, {width}]"
    )
    if model.classifier is None:
        return [pooling, Part("Text vector", "data", ("no classification head",))]
    classes = model.classifier.out_features
    sizes = f"{width} → {classes} classes"
    head = Part("Head", "head", (sizes,), _count(model.classifier), f"[batch, {classes}]")
    return [pooling, head, Part("Logits", "data")]


def one_block(model: Encoder, layer: int = 0) -> list[Part]:
    """List the parts of block ``layer``, from 0; their parameters add up to the block's."""
    layers = _blocks(model)
    if not 0 <= layer < len(layers):
        raise InputError(
            got=f"layer = {layer}",
            expected=f"0 to {len(layers) - 1}",
            fix="Count blocks from 0.",
        )
    attention = layers[layer].attention
    ffn = layers[layer].ffn
    width = model.config.hidden_dim
    ff = model.config.ff_dim
    heads = attention.num_heads
    size = attention.head_dim
    num_qkv = _count(attention.query, attention.key, attention.value)
    stream = f"[batch, position, {width}]"
    sizes = f"{width} → {heads} x {size}"
    qkv_details = (f"query {sizes}", f"key and value each {sizes}")
    qkv_shape = f"{heads} x [batch, position, {size}]"
    formula = f"softmax(query · key / {math.sqrt(size):.4g})"
    inside = f"[batch, position, {ff}]"
    halves = [
        [
            Part("Query, key, value", "attention", qkv_details, num_qkv, qkv_shape),
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
    start = Part("Residual stream", "data", output_shape=stream)
    end = replace(start, output_shape="")
    return [start, *_with_residuals([layers[layer]], halves), end]


def _blocks(model: Encoder) -> list[Any]:
    if not isinstance(model, Encoder):
        raise InputError(
            got=f"a {type(model).__name__}",
            expected="an Encoder",
            fix="Use print(model).",
        )
    return list(model.layers)


def _with_residuals(layers: Sequence[Block], halves: Iterable[list[Part]]) -> list[Part]:
    """List the two halves of a block with their norms and residual sums."""
    pre_norm = layers[0].norm_place == "before"
    parts: list[Part] = []
    for norm_name, inner in zip(("attention_norm", "ffn_norm"), halves, strict=True):
        shape = inner[-1].output_shape
        norm = _norm([getattr(layer, norm_name) for layer in layers], shape)
        if pre_norm:
            inner = [*norm, *inner]
        parts += [*inner, Part("+", "sum", output_shape=shape, skips=len(inner))]
        if not pre_norm:
            parts += norm
    return parts


def _norm(modules: Sequence[nn.Module | None], stream: str, prefix: str = "") -> list[Part]:
    """Return the part of equal norms, or [] if there is none."""
    norms = [module for module in modules if module is not None]
    if not norms:
        return []
    return [Part(f"{prefix}{type(norms[0]).__name__}", "norm", (), _count(*norms), stream)]


def _count(*modules: nn.Module) -> int:
    parameters = chain.from_iterable(module.parameters() for module in modules)
    return sum(parameter.numel() for parameter in parameters)


@in_style
def draw(parts: Sequence[Part], title: str, *, every_shape: bool = False) -> Figure:
    """Draw boxes from top to bottom, with residual paths on the left and frames around blocks.

    A shape is written where it differs from the previous shape; with ``every_shape``, everywhere.
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
    """Return top and bottom of each part, in inches from the top."""
    places: list[tuple[float, float]] = []
    top = 0.6
    frame = ""
    for part in parts:
        if part.block != frame:
            top += _CAPTION if part.block else 0.16
        height = 0.26 if part.kind == "sum" else 0.3 + _LINE * len(part.details)
        bottom = top + height
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
            # At the end of the arrow that no frame's edge crosses.
            height = top - _GAP / 2 if part.block else bottom + _GAP / 2
            ax.text(middle + 0.12, height, part.output_shape, size=8, va="center", color="#404040")
        shape = part.output_shape
    for index, (part, (top, bottom)) in enumerate(column):
        _draw_part(ax, part, left, top, bottom)
        if part.kind == "sum":
            skipped_top = column[index - part.skips][1][0]
            _draw_residual(ax, left, skipped_top - 0.13, (top + bottom) / 2)
    for caption, group in groupby(column, lambda item: item[0].block):
        if caption:
            places = [place for _, place in group]
            frame_top = places[0][0] - _CAPTION - 0.06
            _draw_frame(ax, caption, frame_top, places[-1][1] + 0.12, left)


def _draw_residual(ax: Axes, left: float, start: float, end: float) -> None:
    """Draw a residual path left of the boxes, between two heights."""
    middle = left + _WIDTH / 2
    x = left - 0.22
    ax.plot([middle, x, x], [start, start, end], color=RED, lw=1.4, ls=(0, (5, 1.5)))
    _arrow(ax, (x, end), (middle - 0.13, end), RED)
    ax.text(x - 0.07, end - 0.04, "residual", size=8, rotation=90, ha="right", va="bottom")


def _draw_part(ax: Axes, part: Part, left: float, top: float, bottom: float) -> None:
    box: dict[str, Any] = {
        "facecolor": _GROUND[part.kind],
        "edgecolor": "black",
        "lw": 0.9,
        "zorder": 3,
    }
    text: dict[str, Any] = {"va": "center", "zorder": 4}
    if part.kind == "sum":
        ax.add_patch(Circle((left + _WIDTH / 2, (top + bottom) / 2), 0.13, **box))
        ax.text(left + _WIDTH / 2, (top + bottom) / 2, "+", ha="center", size=12, **text)
        return
    ax.add_patch(FancyBboxPatch((left, top), _WIDTH, bottom - top, boxstyle=_ROUND, **box))
    ax.text(left + 0.12, top + 0.15, part.name, weight="bold", size=9.5, **text)
    if part.parameters:
        count = f"{part.parameters // part.times:,} parameters"
        if part.times > 1:
            count = f"{part.times} x {count}"
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
