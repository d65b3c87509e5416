"""The parts of a loaded model in the order of computation, from tokens to logits, for drawings and tables.

A new kind of model needs a branch in :func:`describe` and :func:`stack_of`. The two stacks of an encoder-decoder differ
in ``stack``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from torch import nn

from glassformer.errors import InputError, require
from glassformer.layers.blocks import Block, CrossBlock, EncoderBlock
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.feedforward import MLP, NoFeedForward, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.options import LongRope, RopeScaling
from glassformer.layers.positions import RotaryEmbedding
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder

Kind = Literal["data", "embedding", "norm", "attention", "feed-forward", "sum", "head"]
AnyBlock: TypeAlias = EncoderBlock | Block | CrossBlock
StackName = Literal["encoder", "decoder"]

_ACTIVATIONS = {"silu": "SiLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)", "relu": "ReLU", "relu2": "ReLU squared"}
_POOLED = {"mean": "mean over real tokens", "cls": "first token", "max": "largest of each coordinate over real tokens"}


@dataclass(frozen=True)
class Part:
    """One step of a model's computation."""

    name: str
    kind: Kind
    details: tuple[str, ...] = ()
    """Lines below the name."""
    parameters: int = 0
    """Of all repetitions together; shared ones count where they come first."""
    output_shape: str = ""
    module: str = ""
    """Its module's name, in the first of several blocks; "" for steps that are not one module."""
    skips: int = 0
    """Of a sum: the number of parts before it that the residual path skips."""
    times: int = 1
    """The number of blocks that have it."""
    block: str = ""
    """The caption of its block's frame, which neighbours of the same caption share; "" for none."""
    stack: int = 0
    reads: int | None = None
    """Another stack whose output it reads as well."""


@dataclass(frozen=True, eq=False)
class Stack:
    """The blocks of a model, or of one half of an encoder-decoder."""

    name: str
    """"Encoder" or "Decoder" in an encoder-decoder, otherwise ""."""
    layers: Sequence[Any]
    """Each a :data:`AnyBlock`."""
    module: str
    """The name of ``layers`` in the model."""
    width: int
    """Of the residual stream."""
    position: str = "position"
    """The name of its positions in shapes."""
    unit: str = "token"
    """What one position holds."""
    memory_position: str = ""
    """The name of the memory's positions in shapes; "" without cross-attention."""
    index: int = 0
    rotary: RotaryEmbedding | None = None

    @property
    def stream(self) -> str:
        """The shape of the residual stream."""
        return f"[batch, {self.position}, {self.width}]"


def stack_of(model: nn.Module, stack: StackName | None = None) -> Stack:
    """The blocks of a model; of an encoder-decoder those of its ``stack``, of its decoder when None."""
    names = get_args(StackName)
    require(stack is None or stack in names, f"stack = {stack!r}", f"one of {', '.join(names)}", "Omit it for decoder.")
    if isinstance(model, EncoderDecoder):
        width, slots = model.config.hidden_dim, model.config.fields_per_slot > 1
        place, unit = ("slot", "slot") if slots else ("source", "token")
        if stack == "encoder":
            return Stack("Encoder", list(model.encoder_layers), "encoder_layers", width, place, unit)
        return Stack("Decoder", list(model.decoder_layers), "decoder_layers", width, memory_position=place, index=1)
    if not isinstance(model, Encoder | Decoder):
        fix = "Pass its .encoder, or draw() parts of your own."
        raise InputError(f"a {type(model).__name__}", "an Encoder, a Decoder or an EncoderDecoder", fix)
    require(stack is None, f"stack = {stack!r} for {type(model).__name__}", "None: it has one stack", "Omit stack.")
    if isinstance(model, Decoder):
        known = ("norm", "attention_bias", "rope_scaling", "activation", "gated", "attention_scale", "qk_norm")
        found = [part for part in model.config.extensions() if part.split(" ")[0] not in known]
        got = f"a summary of a decoder with {', '.join(found)}"
        require(not found, got, f"no other new parts than {', '.join(known)}", "Use print(model).")
    rotary = model.rotary if isinstance(model, Decoder) else None
    return Stack("", list(model.layers), "layers", model.config.hidden_dim, rotary=rotary)


def describe(model: nn.Module) -> tuple[Part, ...]:
    """The parts of a model in order; their parameters add up to the model's.

    For an encoder-decoder the encoder's parts, in stack 0, come before the decoder's, in stack 1, whose
    cross-attentions read stack 0.

    Raises:
        InputError: A module that is no Encoder, Decoder or EncoderDecoder.
    """
    if isinstance(model, EncoderDecoder):
        return (*_source_side(model), *(replace(part, stack=1) for part in _target_side(model)))
    stack = stack_of(model)
    assert isinstance(model, Encoder | Decoder)
    config, stream = model.config, stack.stream
    parts = [
        Part("Tokens", "data", (f"at most {config.max_seq_len:,}",), output_shape="[batch, position]"),
        _embedding("Token embedding", f"{config.vocab_size:,}", model.embedding, config, stream),
    ]
    if isinstance(model, Encoder):
        parts += _positions(model.positions, config.max_seq_len, stack)
        if model.token_types is not None:
            size = f"{model.config.token_types} x {stack.width}, added"
            parts.append(Part("Token types", "embedding", (size,), count_parameters([model.token_types]), stream))
        parts += _norm(model.embedding_norm, "embedding_norm", stream, "Embedding ")
    parts += [*block_summary(stack), *_norm(model.final_norm, "final_norm", stream)]
    if isinstance(model, Encoder):
        return (*parts, *_encoder_end(model))
    return (*parts, *_output(model.output, model.output.weight is model.embedding.weight))


def describe_block(model: nn.Module, layer: int = 0, *, stack: StackName | None = None) -> tuple[Part, ...]:
    """The parts of block ``layer``, from 0, in order; their parameters add up to the block's.

    For a block of an encoder-decoder's decoder they are in stack 1, and the memory that it reads in stack 0.

    Raises:
        InputError: As for :func:`stack_of`, or a layer out of range.
    """
    own = stack_of(model, stack)
    require(0 <= layer < len(own.layers), f"layer = {layer}", f"0 to {len(own.layers) - 1}", "The first block is 0.")
    stream = Part("Residual stream", "data", output_shape=own.stream)
    steps = [stream, *block_steps(own, layer), replace(stream, output_shape="")]
    memory = []
    if isinstance(model, EncoderDecoder) and own.name == "Decoder":
        memory = [Part("Memory", "data", (stack_of(model, "encoder").stream,))]
    return (*memory, *(replace(part, stack=own.index) for part in steps))


def _source_side(model: EncoderDecoder) -> list[Part]:
    config, stack = model.config, stack_of(model, "encoder")
    fields = config.fields_per_slot
    shape = f"[batch, slot, {fields}]" if fields > 1 else "[batch, source]"
    rows, note = f"{config.vocab_size:,}", ""
    if fields > 1:
        rows, note = f"{fields} tables of {rows}", ", one for each field of a slot, added"
    return [
        Part("Source", "data", (f"at most {config.max_source_len:,} {stack.unit}s",), output_shape=shape),
        _embedding("Source embedding", rows, model.source_embeddings, config, stack.stream, note),
        *_positions(model.source_positions, config.max_source_len, stack),
        *block_summary(stack),
        *_norm(model.encoder_norm, "encoder_norm", stack.stream),
        Part("Memory", "data"),
    ]


def _target_side(model: EncoderDecoder) -> list[Part]:
    config, stack = model.config, stack_of(model, "decoder")
    return [
        Part("Target", "data", (f"at most {config.max_target_len:,} tokens",), output_shape="[batch, position]"),
        _embedding("Target embedding", f"{config.target_vocab:,}", model.target_embedding, config, stack.stream),
        *_positions(model.target_positions, config.max_target_len, stack),
        *block_summary(stack),
        *_norm(model.decoder_norm, "decoder_norm", stack.stream),
        *_output(model.output, tied=False),
    ]


def _embedding(name: str, rows: str, table: nn.Module, config: Any, stream: str, note: str = "") -> Part:
    width = config.hidden_dim
    scale = f", times sqrt({width})" if getattr(config, "scale_embeddings", False) else ""
    return Part(name, "embedding", (f"{rows} x {width}{note}{scale}",), count_parameters([table]), stream)


def _positions(positions: nn.Module | None, length: int, stack: Stack) -> list[Part]:
    if positions is None:
        return []
    kind = "learned" if isinstance(positions, nn.Embedding) else "sines and cosines"
    size = f"{kind}, {length:,} x {stack.width}, added"
    return [Part("Positions", "embedding", (size,), count_parameters([positions]), stack.stream)]


def _norm(norm: nn.Module | None, module: str, stream: str, before: str = "Last ") -> list[Part]:
    return [] if norm is None else [norm_part([norm], module, stream, before)]


def _encoder_end(model: Encoder) -> list[Part]:
    vector = f"[batch, {model.config.hidden_dim}]"
    parts = [Part("Pooling", "head", (_POOLED[model.config.pooling],), output_shape=vector)]
    if model.classifier is None:
        return [*parts, Part("Text vector", "data", ("no classification head",))]
    inside, classes = model.classifier.in_features, model.classifier.out_features
    size, count = f"{inside} → {classes} classes", count_parameters([model.classifier])
    return [*parts, Part("Head", "head", (size,), count, f"[batch, {classes}]", "classifier"), Part("Logits", "data")]


def _output(output: nn.Linear, tied: bool) -> list[Part]:
    tokens = f"{output.out_features:,}"
    details = (f"{output.in_features} → {tokens}", *(["the weights of the token embedding"] if tied else []))
    count = 0 if tied else count_parameters([output])
    projection = Part("Output projection", "head", details, count, f"[batch, position, {tokens}]", "output")
    return [projection, Part("Logits", "data")]


def block_summary(stack: Stack) -> list[Part]:
    """The parts of one block in a frame, with the parameters of all blocks of the stack."""
    layers, name = stack.layers, f"{stack.module}.0"
    halves: dict[str, list[Part]] = {}
    for half in _attentions(layers[0]):
        attentions = [_attentions(layer)[half] for layer in layers]
        details, count = _attention_details(attentions, stack, half), count_parameters(attentions)
        title, reads = half.replace("_", "-").capitalize(), 0 if half == "cross_attention" else None
        halves[half] = [Part(title, "attention", details, count, stack.stream, f"{name}.{half}", reads=reads)]
    if not isinstance(layers[0].ffn, NoFeedForward):
        ffn, count = _ffn_details(layers[0].ffn), count_parameters(layer.ffn for layer in layers)
        halves["ffn"] = [Part("Feed-forward", "feed-forward", ffn, count, stack.stream, f"{name}.ffn")]
    caption = f"{len(layers)} blocks, one after another" if len(layers) > 1 else "1 block"
    return [replace(part, times=len(layers)) for part in _block_parts(layers, halves, name, caption)]


def block_steps(stack: Stack, layer: int) -> list[Part]:
    """The parts of block ``layer`` in detail."""
    chosen, name = stack.layers[layer], f"{stack.module}.{layer}"
    halves: dict[str, list[Part]] = {}
    for half, attention in _attentions(chosen).items():
        halves[half] = _attention_steps(attention, stack, f"{name}.{half}", half)
    if not isinstance(chosen.ffn, NoFeedForward):
        halves["ffn"] = _ffn_steps(chosen.ffn, name, stack)
    return _block_parts([chosen], halves, name, "")


def norm_part(norms: Sequence[nn.Module], module: str, stream: str, before: str = "") -> Part:
    """Norms of several blocks as one part, named by their class after ``before``."""
    return Part(f"{before}{type(norms[0]).__name__}", "norm", (), count_parameters(norms), stream, module)


def count_parameters(modules: Iterable[nn.Module]) -> int:
    """The number of parameters of all modules; shared ones count once, packed ones as unpacked."""
    sizes: dict[int, int] = {}
    for module in modules:
        sizes.update((id(weight), weight.numel()) for weight in module.parameters())
        for part in module.modules():
            if isinstance(part, PackedMixture):  # two parameters in a byte
                sizes[id(part)] = 2 * (part.gate_up_blocks.numel() + part.down_blocks.numel())
    return sum(sizes.values())


def _attentions(block: AnyBlock) -> dict[str, GroupedQueryAttention]:
    if isinstance(block, CrossBlock):
        return {"self_attention": block.self_attention, "cross_attention": block.cross_attention}
    return {"attention": block.attention}


def _block_parts(layers: Sequence[AnyBlock], halves: Mapping[str, list[Part]], name: str, caption: str) -> list[Part]:
    """Norms, attentions, feed-forward network and sums of a block, in the order of computation."""
    first, parts = layers[0], []
    post_norm = isinstance(first, EncoderBlock | CrossBlock) and not first.norm_first
    for half, inner in halves.items():
        stream = inner[-1].output_shape
        norm = norm_part([getattr(layer, f"{half}_norm") for layer in layers], f"{name}.{half}_norm", stream)
        within = inner if post_norm else [norm, *inner]
        parts += [*within, Part("+", "sum", output_shape=stream, skips=len(within)), *([norm] if post_norm else [])]
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
    pattern, unit = attention.pattern, stack.unit
    if half == "cross_attention":
        return f"a {unit} sees all that is real in the memory"
    if not pattern.causal:
        return f"every {unit} sees every real {unit}"
    before = "all before" if pattern.window is None else f"the {pattern.window - 1:,} before"
    return f"a {unit} sees itself and {before}"


def _extras(attention: GroupedQueryAttention, rotary: RotaryEmbedding | None) -> list[str]:
    extras = []
    if rotary is not None:
        stretch = _stretch(rotary.scaling)
        extras.append(f"rotary positions, base {rotary.base:,.0f}{stretch}")
    learned = {"sink": attention.sinks, "key weight": attention.key_weights}
    names = [name for name, weight in learned.items() if weight is not None]
    return [*extras, f"a learned {' and '.join(names)} in each head"] if names else extras


def _stretch(scaling: RopeScaling | None) -> str:
    if scaling is None:
        return ""
    name = {"yarn": "YaRN", "linear": "linear scaling", "llama3": "Llama 3's rule", "longrope": "LongRoPE"}[
        scaling.kind
    ]
    return (
        f", stretched by {name}" if isinstance(scaling, LongRope) else f", stretched {scaling.factor:g} times by {name}"
    )


def _ffn_details(ffn: nn.Module) -> tuple[str, ...]:
    if isinstance(ffn, MixtureOfExperts | PackedMixture):
        inside = f"each {ffn.hidden_dim} → {ffn.ff_dim} → {ffn.hidden_dim}, {_activation(ffn)}"
        return (f"{ffn.num_experts} experts, {ffn.top_k} for each token", inside)
    assert isinstance(ffn, MLP | SwiGLU)
    return (f"{ffn.up.in_features} → {ffn.up.out_features} → {ffn.up.in_features}, {_activation(ffn)}",)


def _activation(ffn: MLP | SwiGLU | MixtureOfExperts | PackedMixture) -> str:
    if isinstance(ffn, MLP):
        return _ACTIVATIONS[ffn.activation]
    if isinstance(ffn, SwiGLU) and ffn.activation != "silu":
        return f"gated by {_ACTIVATIONS[ffn.activation]}"
    return "SwiGLU" if ffn.clamp is None else f"SwiGLU clamped at {ffn.clamp.limit:g}"


def _attention_steps(attention: GroupedQueryAttention, stack: Stack, name: str, half: str) -> list[Part]:
    heads, shared, size = attention.num_heads, attention.num_kv_heads, attention.head_dim
    width, inside = attention.query.in_features, heads * size
    query, pair = f"{width} → {heads} x {size}", f"each {width} → {shared} x {size}"
    one = f"[batch, {stack.position}, {size}]"
    asked, read = count_parameters([attention.query]), count_parameters([attention.key, attention.value])
    first = Part("Query", "attention", (query,), asked, f"{heads} x {one}", f"{name}.query")
    if half == "cross_attention":
        given = f"2 x {shared} x [batch, {stack.memory_position}, {size}]"
        maps = [first, Part("Key and value of the memory", "attention", (pair,), read, given, f"{name}.key", reads=0)]
    else:
        count = f"{heads} x" if shared == heads else f"{heads}, {shared}, {shared} x"
        details, shape = (f"query {query}", f"key and value {pair}"), f"{count} {one}"
        maps = [replace(first, name="Query, key, value", details=details, parameters=asked + read, output_shape=shape)]
    seen = (_seen(attention, stack, half), *_extras(attention, stack.rotary))
    learned = sum(weight.numel() for weight in (attention.sinks, attention.key_weights) if weight is not None)
    merged = f"[batch, {stack.position}, {inside}]"
    formula, last = f"softmax(query · key / {math.sqrt(size):.4g})", count_parameters([attention.output])
    return [
        *maps,
        Part("Weights", "attention", (formula, *seen), learned, f"[batch, {heads}, query, key]"),
        Part("Weighted sums of values", "attention", ("heads side by side",), 0, merged),
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
    inside = f"[batch, {stack.position}, {wide}]"
    return [
        Part(title, kind, (f"{width} → {wide}",), count_parameters(maps), inside, f"{name}.ffn.up"),
        Part(formula, kind, (), 0, inside),
        Part("Down", kind, (f"{wide} → {width}",), count_parameters([ffn.down]), stream, f"{name}.ffn.down"),
    ]
