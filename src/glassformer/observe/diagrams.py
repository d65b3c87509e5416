"""A network as a drawing, made from the model that is loaded: all of it, or one block with its residual paths.

A model is first described as :class:`Part` after :class:`Part`, from tokens to logits, and the parts are drawn. A new
kind of model needs a description alone; one of two stacks gives their parts two values of ``stack``.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from torch import nn

from glassformer.errors import InputError, require
from glassformer.layers.block import Block
from glassformer.layers.encoder_block import EncoderBlock
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.feedforward import MLP, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.observe.style import BLUE, RED, in_style, new_figure

Kind = Literal["data", "embedding", "norm", "attention", "feed-forward", "sum", "head"]

_GROUND: dict[Kind, str] = {
    "data": "#ffffff",
    "embedding": "#d4ebf8",
    "norm": "#ececec",
    "attention": "#fae3b4",
    "feed-forward": "#bfe6d9",
    "sum": "#ffffff",
    "head": "#c5dcee",
}
_POOLED = {"mean": "mean over real tokens", "cls": "first token", "max": "largest of each coordinate over real tokens"}
_WIDTH, _LEFT, _GAP, _CAPTION, _LINE = 4.3, 0.75, 0.36, 0.3, 0.165
"""Inches: of a box, left of it, between two boxes, above those in a frame, and of a line of details."""

_ROUND = "round,pad=0,rounding_size=0.06"


@dataclass(frozen=True)
class Part:
    """One step of a model.

    Attributes:
        name: What it is called.
        kind: What it is.
        details: Lines below the name.
        parameters: How many weights it has, all repetitions together. Shared ones count where they come first.
        gives: The shape of what leaves it.
        module: Its name among the model's modules, in the first of several blocks; "" where no module is this alone.
        around: For a sum: how many of the parts before it the residual path goes around. 0 elsewhere.
        times: How many blocks have it, all with equally many parameters.
        block: The caption of the frame that it stands in with its neighbours of the same caption; "" for none.
        stack: The column that it stands in, from 0.
        reads: Another stack whose last part it reads as well, or None.
    """

    name: str
    kind: Kind
    details: tuple[str, ...] = ()
    parameters: int = 0
    gives: str = ""
    module: str = ""
    around: int = 0
    times: int = 1
    block: str = ""
    stack: int = 0
    reads: int | None = None


def architecture(model: nn.Module) -> Figure:
    """The whole model from tokens to logits with its sizes; equal blocks are drawn once.

    Args:
        model: An :class:`~glassformer.models.encoder.Encoder` or :class:`~glassformer.models.decoder.Decoder`.

    Raises:
        InputError: Another module.
    """
    parts = describe(model)
    return draw(parts, f"{type(model).__name__}: {sum(part.parameters for part in parts):,} parameters")


def block(model: nn.Module, layer: int = 0) -> Figure:
    """Block ``layer``, from 0, step by step, with its two residual paths and the shapes of what passes.

    Raises:
        InputError: Another module than those of :func:`architecture`, or a block that it does not have.
    """
    parts = describe_block(model, layer)
    total = sum(part.parameters for part in parts)
    return draw(parts, f"Block {layer + 1} of {len(_layers(model))}: {total:,} parameters", every_shape=True)


def describe(model: nn.Module) -> tuple[Part, ...]:
    """The steps of a model in order; their parameters add up to the model's.

    Raises:
        InputError: Another module than those of :func:`architecture`.
    """
    layers, width = _layers(model), _layers(model)[0].attention.query.in_features
    assert isinstance(model, Encoder | Decoder)
    config, stream = model.config, f"[batch, position, {width}]"
    scale = f", times sqrt({width})" if isinstance(model, Encoder) and model.config.scale_embeddings else ""
    embedding = Part("Token embedding", "embedding", (f"{config.vocab_size:,} x {width}{scale}",), gives=stream)
    parts = [
        Part("Tokens", "data", (f"at most {config.max_seq_len:,}",), gives="[batch, position]"),
        replace(embedding, parameters=_count([model.embedding])),
        *(_added(model, embedding) if isinstance(model, Encoder) else ()),
    ]
    details = _attention_details(model), _ffn_details(layers[0].ffn)
    attention = Part("Attention", "attention", details[0], _count(layer.attention for layer in layers), stream)
    ffn = Part("Feed-forward", "feed-forward", details[1], _count(layer.ffn for layer in layers), stream)
    caption = f"{len(layers)} blocks, one after another" if len(layers) > 1 else "1 block"
    inner = [replace(attention, module="layers.0.attention")], [replace(ffn, module="layers.0.ffn")]
    parts += [replace(part, times=len(layers)) for part in _block_parts(layers, *inner, "layers.0", caption)]
    if model.final_norm is not None:
        parts.append(_norm_part([model.final_norm], "final_norm", stream, "Last "))
    return (*parts, *(_encoder_end(model) if isinstance(model, Encoder) else _decoder_end(model)))


def describe_block(model: nn.Module, layer: int = 0) -> tuple[Part, ...]:
    """The steps of one block in order; their parameters add up to the block's.

    Raises:
        InputError: As for :func:`block`.
    """
    layers = _layers(model)
    require(0 <= layer < len(layers), f"layer = {layer}", f"0 to {len(layers) - 1}", "Blocks are numbered from 0.")
    chosen, name = layers[layer], f"layers.{layer}"
    stream = f"[batch, position, {chosen.attention.query.in_features}]"
    attention = _attention_steps(chosen.attention, getattr(model, "rotary", None), name)
    inner = _block_parts([chosen], attention, _ffn_steps(chosen.ffn, name, stream), name, "")
    return (Part("Residual stream", "data", gives=stream), *inner, Part("Residual stream", "data"))


def _layers(model: nn.Module) -> list[EncoderBlock | Block]:
    if not isinstance(model, Encoder | Decoder):
        name = type(model).__name__
        raise InputError(f"a {name}", "an Encoder or a Decoder", "Pass its .encoder, or draw() parts of your own.")
    return [layer for layer in model.layers if isinstance(layer, EncoderBlock | Block)]


def _added(model: Encoder, embedding: Part) -> list[Part]:
    """What an encoder adds to the token embedding, and its norm."""
    width, parts = model.config.hidden_dim, []
    if model.positions is not None:
        kind = "learned" if isinstance(model.positions, nn.Embedding) else "sines and cosines"
        parts.append(("Positions", f"{kind}, {model.config.max_seq_len:,} x {width}, added", model.positions))
    if model.token_types is not None:
        parts.append(("Token types", f"{model.config.token_types} x {width}, added", model.token_types))
    found = [replace(embedding, name=name, details=(size,), parameters=_count([own])) for name, size, own in parts]
    if model.embedding_norm is not None:
        found.append(_norm_part([model.embedding_norm], "embedding_norm", embedding.gives, "Embedding "))
    return found


def _encoder_end(model: Encoder) -> list[Part]:
    vector = f"[batch, {model.config.hidden_dim}]"
    parts = [Part("Pooling", "head", (_POOLED[model.config.pooling],), gives=vector)]
    if model.classifier is None:
        return [*parts, Part("Text vector", "data", ("no classification head",))]
    inside, classes = model.classifier.in_features, model.classifier.out_features
    size, count = f"{inside} → {classes} classes", _count([model.classifier])
    return [*parts, Part("Head", "head", (size,), count, f"[batch, {classes}]", "classifier"), Part("Logits", "data")]


def _decoder_end(model: Decoder) -> list[Part]:
    width, tokens = model.output.in_features, f"{model.output.out_features:,}"
    tied = model.output.weight is model.embedding.weight
    details = (f"{width} → {tokens}", *(["the weights of the token embedding"] if tied else []))
    count = 0 if tied else _count([model.output])
    output = Part("Output projection", "head", details, count, f"[batch, position, {tokens}]", "output")
    return [output, Part("Logits", "data")]


def _block_parts(
    layers: Sequence[EncoderBlock | Block], attention: list[Part], ffn: list[Part], name: str, caption: str
) -> list[Part]:
    """Norms, both parts and both sums of a block, in the order in which they are computed."""
    first, stream = layers[0], attention[-1].gives
    parts: list[Part] = []
    for which, inner in (("attention_norm", attention), ("ffn_norm", ffn)):
        norm = _norm_part([getattr(layer, which) for layer in layers], f"{name}.{which}", stream)
        behind = isinstance(first, EncoderBlock) and not first.norm_first
        within = inner if behind else [norm, *inner]
        parts += [*within, Part("+", "sum", gives=stream, around=len(within)), *([norm] if behind else [])]
    return [replace(part, block=caption) for part in parts]


def _norm_part(norms: Sequence[nn.Module], module: str, stream: str, before: str = "") -> Part:
    return Part(f"{before}{type(norms[0]).__name__}", "norm", (), _count(norms), stream, module)


def _attention_details(model: Encoder | Decoder) -> tuple[str, ...]:
    attentions = [layer.attention for layer in _layers(model)]
    windowed = [attention for attention in attentions if attention.pattern.window is not None]
    first, shared = attentions[0], attentions[0].num_kv_heads
    heads = f"{first.num_heads} heads of {first.head_dim}"
    if shared != first.num_heads:
        heads += f", {shared} of keys and values"
    seen = _seen(first)
    if 0 < len(windowed) < len(attentions):
        seen = f"{_seen(windowed[0])}, in {len(windowed)} of {len(attentions)} blocks"
    return (heads, seen, *_extras(first, getattr(model, "rotary", None)))


def _seen(attention: GroupedQueryAttention) -> str:
    pattern = attention.pattern
    if not pattern.causal:
        return "every token sees every real token"
    before = "all before" if pattern.window is None else f"the {pattern.window - 1:,} before"
    return f"a token sees itself and {before}"


def _extras(attention: GroupedQueryAttention, rotary: RotaryEmbedding | None) -> list[str]:
    extras = []
    if rotary is not None:
        stretch = "" if rotary.yarn is None else f", stretched {rotary.yarn.factor:g} times by YaRN"
        extras.append(f"rotary positions, base {rotary.base:,.0f}{stretch}")
    learned = {"sink": attention.sinks, "key weight": attention.key_weights}
    names = [name for name, weight in learned.items() if weight is not None]
    return [*extras, f"a learned {' and '.join(names)} in each head"] if names else extras


def _ffn_details(ffn: nn.Module) -> tuple[str, ...]:
    if isinstance(ffn, MixtureOfExperts):
        inside = f"each {ffn.hidden_dim} → {ffn.ff_dim} → {ffn.hidden_dim}, {_activation(ffn)}"
        return (f"{ffn.num_experts} experts, {ffn.top_k} for each token", inside)
    assert isinstance(ffn, MLP | SwiGLU)
    return (f"{ffn.up.in_features} → {ffn.up.out_features} → {ffn.up.in_features}, {_activation(ffn)}",)


def _activation(ffn: MLP | SwiGLU | MixtureOfExperts) -> str:
    if isinstance(ffn, MLP):
        return {"relu": "ReLU", "gelu": "GELU"}[ffn.activation]
    return "SwiGLU" if ffn.clamp is None else f"SwiGLU clamped at {ffn.clamp.limit:g}"


def _attention_steps(attention: GroupedQueryAttention, rotary: RotaryEmbedding | None, name: str) -> list[Part]:
    heads, shared, size = attention.num_heads, attention.num_kv_heads, attention.head_dim
    width, inside = attention.query.in_features, heads * size
    maps = (f"query {width} → {heads} x {size}", f"key and value each {width} → {shared} x {size}")
    count = f"{heads} x" if shared == heads else f"{heads}, {shared}, {shared} x"
    weights = (f"softmax(query · key / {math.sqrt(size):.4g})", _seen(attention), *_extras(attention, rotary))
    own = sum(weight.numel() for weight in (attention.sinks, attention.key_weights) if weight is not None)
    mapped, last = _count([attention.query, attention.key, attention.value]), _count([attention.output])
    result, output = f"{inside} → {width}", f"{name}.attention.output"
    return [
        Part(
            "Query, key, value",
            "attention",
            maps,
            mapped,
            f"{count} [batch, position, {size}]",
            f"{name}.attention.query",
        ),
        Part("Weights", "attention", weights, own, f"[batch, {heads}, query, key]"),
        Part("Weighted sums of values", "attention", ("heads side by side",), 0, f"[batch, position, {inside}]"),
        Part("Output", "attention", (result,), last, f"[batch, position, {width}]", output),
    ]


def _ffn_steps(ffn: nn.Module, name: str, stream: str) -> list[Part]:
    kind: Kind = "feed-forward"
    if isinstance(ffn, MixtureOfExperts):
        chosen, router = f"the {ffn.top_k} of {ffn.num_experts} with the highest scores", _count([ffn.router])
        return [
            Part("Router", kind, (chosen,), router, f"{ffn.top_k} experts and their weights"),
            Part("Experts", kind, (_ffn_details(ffn)[1], "weighted sum"), _count([ffn]) - router, stream),
        ]
    assert isinstance(ffn, MLP | SwiGLU)
    width, wide = ffn.up.in_features, ffn.up.out_features
    title, formula = ("Up", _activation(ffn)) if isinstance(ffn, MLP) else ("Gate and up, each", _activation(ffn))
    maps = [ffn.up] if isinstance(ffn, MLP) else [ffn.gate, ffn.up]
    inside = f"[batch, position, {wide}]"
    return [
        Part(title, kind, (f"{width} → {wide}",), _count(maps), inside, f"{name}.ffn.up"),
        Part(formula, kind, (), 0, inside),
        Part("Down", kind, (f"{wide} → {width}",), _count([ffn.down]), stream, f"{name}.ffn.down"),
    ]


def _count(modules: Iterable[nn.Module]) -> int:
    return sum({id(weight): weight.numel() for module in modules for weight in module.parameters()}.values())


@in_style
def draw(parts: Sequence[Part], title: str, *, every_shape: bool = False) -> Figure:
    """Boxes from top to bottom, a column for each stack, with residual paths beside them and frames around blocks.

    Args:
        parts: In order, within each stack.
        title: Above them.
        every_shape: Write every shape, instead of those that differ from the one before.

    Raises:
        InputError: No parts.
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
            # Down from the end of the stack that is read, and up again beside the one that reads.
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
        if part.gives != shape or every_shape:
            # At the end of the arrow where there is no frame's edge.
            height = top - _GAP / 2 if part.block else bottom + _GAP / 2
            ax.text(middle + 0.12, height, part.gives, size=8, va="center", color="#404040")
        shape = part.gives
    for index, (part, (top, bottom)) in enumerate(column):
        _draw_part(ax, part, left, top, bottom)
        if part.kind == "sum":
            start, end, aside = column[index - part.around][1][0] - 0.13, (top + bottom) / 2, left - 0.22
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
