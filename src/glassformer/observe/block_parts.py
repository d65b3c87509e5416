"""What a block consists of: the same steps once for all blocks of a stack, or one block in full."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torch import nn

from glassformer.layers.blocks import Block, CrossBlock, EncoderBlock
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.feedforward import MLP, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding
from glassformer.quantized.packed_experts import PackedMixture

Kind = Literal["data", "embedding", "norm", "attention", "feed-forward", "sum", "head"]
AnyBlock: TypeAlias = EncoderBlock | Block | CrossBlock

_NAMES = {"attention": "Attention", "self_attention": "Self-attention", "cross_attention": "Cross-attention"}


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


@dataclass(frozen=True, eq=False)
class Stack:
    """Blocks that stand one after another.

    Attributes:
        name: "Encoder" or "Decoder" where a model has both, otherwise "".
        layers: The blocks.
        module: Their name among the model's modules.
        width: Of what passes through them.
        place: What the positions of a text are called in shapes.
        reader: What one position is.
        read: What the positions of the memory are called in shapes; "" where none is read.
        index: Its column in a drawing.
        rotary: The rotation that its attentions share, or None.
    """

    name: str
    layers: Sequence[AnyBlock]
    module: str
    width: int
    place: str = "position"
    reader: str = "token"
    read: str = ""
    index: int = 0
    rotary: RotaryEmbedding | None = None

    @property
    def stream(self) -> str:
        """The shape of what passes through them."""
        return f"[batch, {self.place}, {self.width}]"


def block_summary(stack: Stack) -> list[Part]:
    """A block of the stack in a frame of its own, with the parameters of all its blocks."""
    layers, name = stack.layers, f"{stack.module}.0"
    halves: dict[str, list[Part]] = {}
    for half in _attentions(layers[0]):
        attentions = [_attentions(layer)[half] for layer in layers]
        details, count = _attention_details(attentions, stack, half), count_parameters(attentions)
        part = Part(_NAMES[half], "attention", details, count, stack.stream, f"{name}.{half}")
        halves[half] = [replace(part, reads=0) if half == "cross_attention" else part]
    ffn, count = _ffn_details(layers[0].ffn), count_parameters(layer.ffn for layer in layers)
    halves["ffn"] = [Part("Feed-forward", "feed-forward", ffn, count, stack.stream, f"{name}.ffn")]
    caption = f"{len(layers)} blocks, one after another" if len(layers) > 1 else "1 block"
    return [replace(part, times=len(layers)) for part in _block_parts(layers, halves, name, caption)]


def block_steps(stack: Stack, layer: int) -> list[Part]:
    """Block ``layer`` of the stack, step by step; the parameters add up to the block's. The block must be there."""
    chosen, name = stack.layers[layer], f"{stack.module}.{layer}"
    halves: dict[str, list[Part]] = {}
    for half, attention in _attentions(chosen).items():
        halves[half] = _attention_steps(attention, stack, f"{name}.{half}", half)
    halves["ffn"] = _ffn_steps(chosen.ffn, name, stack)
    return _block_parts([chosen], halves, name, "")


def norm_part(norms: Sequence[nn.Module], module: str, stream: str, before: str = "") -> Part:
    """Norms of several blocks as one step, called after their class with ``before`` in front."""
    return Part(f"{before}{type(norms[0]).__name__}", "norm", (), count_parameters(norms), stream, module)


def count_parameters(modules: Iterable[nn.Module]) -> int:
    """How many weights the modules have together; one that several share counts once, packed ones as unpacked."""
    sizes: dict[int, int] = {}
    for module in modules:
        sizes.update((id(weight), weight.numel()) for weight in module.parameters())
        for part in module.modules():
            if isinstance(part, PackedMixture):  # two weights in a byte
                sizes[id(part)] = 2 * (part.gate_up_blocks.numel() + part.down_blocks.numel())
    return sum(sizes.values())


def _attentions(block: AnyBlock) -> dict[str, GroupedQueryAttention]:
    if isinstance(block, CrossBlock):
        return {"self_attention": block.self_attention, "cross_attention": block.cross_attention}
    return {"attention": block.attention}


def _block_parts(layers: Sequence[AnyBlock], halves: Mapping[str, list[Part]], name: str, caption: str) -> list[Part]:
    """Norms, attentions, feed-forward network and sums of a block, in the order in which they are computed."""
    first, parts = layers[0], []
    behind = isinstance(first, EncoderBlock | CrossBlock) and not first.norm_first
    for half, inner in halves.items():
        stream = inner[-1].gives
        norm = norm_part([getattr(layer, f"{half}_norm") for layer in layers], f"{name}.{half}_norm", stream)
        within = inner if behind else [norm, *inner]
        parts += [*within, Part("+", "sum", gives=stream, around=len(within)), *([norm] if behind else [])]
    return [replace(part, block=caption) for part in parts]


def _attention_details(attentions: Sequence[GroupedQueryAttention], stack: Stack, half: str) -> tuple[str, ...]:
    windowed = [attention for attention in attentions if attention.pattern.window is not None]
    first, shared = attentions[0], attentions[0].num_kv_heads
    heads = f"{first.num_heads} heads of {first.head_dim}"
    if shared != first.num_heads:
        heads += f", {shared} of keys and values"
    seen = _seen(first, stack, half)
    if 0 < len(windowed) < len(attentions):
        seen = f"{_seen(windowed[0], stack, half)}, in {len(windowed)} of {len(attentions)} blocks"
    return (heads, seen, *_extras(first, stack.rotary))


def _seen(attention: GroupedQueryAttention, stack: Stack, half: str) -> str:
    pattern, reader = attention.pattern, stack.reader
    if half == "cross_attention":
        return f"a {reader} sees all that is real in the memory"
    if not pattern.causal:
        return f"every {reader} sees every real {reader}"
    before = "all before" if pattern.window is None else f"the {pattern.window - 1:,} before"
    return f"a {reader} sees itself and {before}"


def _extras(attention: GroupedQueryAttention, rotary: RotaryEmbedding | None) -> list[str]:
    extras = []
    if rotary is not None:
        stretch = "" if rotary.yarn is None else f", stretched {rotary.yarn.factor:g} times by YaRN"
        extras.append(f"rotary positions, base {rotary.base:,.0f}{stretch}")
    learned = {"sink": attention.sinks, "key weight": attention.key_weights}
    names = [name for name, weight in learned.items() if weight is not None]
    return [*extras, f"a learned {' and '.join(names)} in each head"] if names else extras


def _ffn_details(ffn: nn.Module) -> tuple[str, ...]:
    if isinstance(ffn, MixtureOfExperts | PackedMixture):
        inside = f"each {ffn.hidden_dim} → {ffn.ff_dim} → {ffn.hidden_dim}, {_activation(ffn)}"
        return (f"{ffn.num_experts} experts, {ffn.top_k} for each token", inside)
    assert isinstance(ffn, MLP | SwiGLU)
    return (f"{ffn.up.in_features} → {ffn.up.out_features} → {ffn.up.in_features}, {_activation(ffn)}",)


def _activation(ffn: MLP | SwiGLU | MixtureOfExperts | PackedMixture) -> str:
    if isinstance(ffn, MLP):
        return {"relu": "ReLU", "gelu": "GELU"}[ffn.activation]
    return "SwiGLU" if ffn.clamp is None else f"SwiGLU clamped at {ffn.clamp.limit:g}"


def _attention_steps(attention: GroupedQueryAttention, stack: Stack, name: str, half: str) -> list[Part]:
    heads, shared, size = attention.num_heads, attention.num_kv_heads, attention.head_dim
    width, inside = attention.query.in_features, heads * size
    query, pair = f"{width} → {heads} x {size}", f"each {width} → {shared} x {size}"
    one = f"[batch, {stack.place}, {size}]"
    asked, read = count_parameters([attention.query]), count_parameters([attention.key, attention.value])
    first = Part("Query", "attention", (query,), asked, f"{heads} x {one}", f"{name}.query")
    if half == "cross_attention":
        given = f"2 x {shared} x [batch, {stack.read}, {size}]"
        maps = [first, Part("Key and value of the memory", "attention", (pair,), read, given, f"{name}.key", reads=0)]
    else:
        count = f"{heads} x" if shared == heads else f"{heads}, {shared}, {shared} x"
        details, shape = (f"query {query}", f"key and value {pair}"), f"{count} {one}"
        maps = [replace(first, name="Query, key, value", details=details, parameters=asked + read, gives=shape)]
    seen = (_seen(attention, stack, half), *_extras(attention, stack.rotary))
    learned = sum(weight.numel() for weight in (attention.sinks, attention.key_weights) if weight is not None)
    formula, last = f"softmax(query · key / {math.sqrt(size):.4g})", count_parameters([attention.output])
    return [
        *maps,
        Part("Weights", "attention", (formula, *seen), learned, f"[batch, {heads}, query, key]"),
        Part("Weighted sums of values", "attention", ("heads side by side",), 0, f"[batch, {stack.place}, {inside}]"),
        Part("Output", "attention", (f"{inside} → {width}",), last, stack.stream, f"{name}.output"),
    ]


def _ffn_steps(ffn: nn.Module, name: str, stack: Stack) -> list[Part]:
    kind: Kind = "feed-forward"
    stream = stack.stream
    if isinstance(ffn, MixtureOfExperts | PackedMixture):
        chosen, router = f"the {ffn.top_k} of {ffn.num_experts} with the highest scores", count_parameters([ffn.router])
        return [
            Part("Router", kind, (chosen,), router, f"{ffn.top_k} experts and their weights"),
            Part("Experts", kind, (_ffn_details(ffn)[1], "weighted sum"), count_parameters([ffn]) - router, stream),
        ]
    assert isinstance(ffn, MLP | SwiGLU)
    width, wide = ffn.up.in_features, ffn.up.out_features
    title, formula = ("Up", _activation(ffn)) if isinstance(ffn, MLP) else ("Gate and up, each", _activation(ffn))
    maps = [ffn.up] if isinstance(ffn, MLP) else [ffn.gate, ffn.up]
    inside = f"[batch, {stack.place}, {wide}]"
    return [
        Part(title, kind, (f"{width} → {wide}",), count_parameters(maps), inside, f"{name}.ffn.up"),
        Part(formula, kind, (), 0, inside),
        Part("Down", kind, (f"{wide} → {width}",), count_parameters([ffn.down]), stream, f"{name}.ffn.down"),
    ]
