"""What a loaded model consists of: step after step, from tokens to logits, as drawings and tables want it.

A new kind of model needs a description here alone. One of two stacks gives their steps two values of ``stack``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from torch import nn

from glassformer.errors import InputError, require
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.block_parts import (
    AnyBlock,
    Part,
    Stack,
    block_steps,
    block_summary,
    count_parameters,
    norm_part,
)

StackName = Literal["encoder", "decoder"]

_POOLED = {"mean": "mean over real tokens", "cls": "first token", "max": "largest of each coordinate over real tokens"}


def stack_of(model: nn.Module, stack: StackName | None = None) -> Stack:
    """The blocks of a model; of an encoder-decoder those of its ``stack``, of its decoder when None.

    Raises:
        InputError: Another module than a model that :func:`describe` knows, a stack that there is not, or one for a
            model that has no choice.
    """
    require(
        stack is None or stack in get_args(StackName), f"stack = {stack!r}", "'encoder' or 'decoder'", "Leave it away."
    )
    if isinstance(model, EncoderDecoder):
        width, slots = model.config.hidden_dim, model.config.fields_per_slot > 1
        place, reader = ("slot", "slot") if slots else ("source", "token")
        if stack == "encoder":
            return Stack("Encoder", _blocks(model.encoder_layers), "encoder_layers", width, place, reader)
        return Stack("Decoder", _blocks(model.decoder_layers), "decoder_layers", width, read=place, index=1)
    if not isinstance(model, Encoder | Decoder):
        name, fix = type(model).__name__, "Pass its .encoder, or draw() parts of your own."
        raise InputError(f"a {name}", "an Encoder, a Decoder or an EncoderDecoder", fix)
    require(
        stack is None, f"stack = {stack!r} for {type(model).__name__}", "none: it has one stack", "Leave stack away."
    )
    rotary = model.rotary if isinstance(model, Decoder) else None
    return Stack("", _blocks(model.layers), "layers", model.config.hidden_dim, rotary=rotary)


def describe(model: nn.Module) -> tuple[Part, ...]:
    """The steps of a model in order; their parameters add up to the model's.

    Of an encoder-decoder first those of the encoder, in stack 0, then those of the decoder, in stack 1; each of its
    cross-attentions reads stack 0.

    Raises:
        InputError: A module that is no Encoder, Decoder or EncoderDecoder.
    """
    if isinstance(model, EncoderDecoder):
        return (*_source_side(model), *(replace(part, stack=1) for part in _target_side(model)))
    stack = stack_of(model)
    assert isinstance(model, Encoder | Decoder)
    config = model.config
    scale = _scale(config.hidden_dim, isinstance(model, Encoder) and model.config.scale_embeddings)
    table, count = f"{config.vocab_size:,} x {config.hidden_dim}{scale}", count_parameters([model.embedding])
    parts = [
        Part("Tokens", "data", (f"at most {config.max_seq_len:,}",), gives="[batch, position]"),
        Part("Token embedding", "embedding", (table,), count, stack.stream),
        *(_added(model, stack.stream) if isinstance(model, Encoder) else ()),
        *block_summary(stack),
        *_last_norm(model.final_norm, "final_norm", stack.stream),
    ]
    if isinstance(model, Encoder):
        return (*parts, *_encoder_end(model))
    return (*parts, *_output(model.output, model.output.weight is model.embedding.weight))


def describe_block(model: nn.Module, layer: int = 0, *, stack: StackName | None = None) -> tuple[Part, ...]:
    """The steps of one block in order; their parameters add up to the block's.

    The block of an encoder-decoder's decoder stands in stack 1, and reads the memory, which stands in stack 0.

    Args:
        model: What :func:`describe` knows.
        layer: Which block, from 0.
        stack: As for :func:`stack_of`.

    Raises:
        InputError: As for :func:`stack_of`, or a block that the model does not have.
    """
    own = stack_of(model, stack)
    require(0 <= layer < len(own.layers), f"layer = {layer}", f"0 to {len(own.layers) - 1}", "The first block is 0.")
    stream = Part("Residual stream", "data", gives=own.stream)
    steps = [stream, *block_steps(own, layer), replace(stream, gives="")]
    memory = []
    if isinstance(model, EncoderDecoder) and own.name == "Decoder":
        memory = [Part("Memory", "data", (stack_of(model, "encoder").stream,))]
    return (*memory, *(replace(part, stack=own.index) for part in steps))


def _blocks(layers: nn.ModuleList) -> list[AnyBlock]:
    return [layer for layer in layers if isinstance(layer, AnyBlock)]


def _source_side(model: EncoderDecoder) -> list[Part]:
    config, stack = model.config, stack_of(model, "encoder")
    fields, size = config.fields_per_slot, f"{config.vocab_size:,} x {config.hidden_dim}"
    scale = _scale(config.hidden_dim, config.scale_embeddings)
    taken = f"[batch, slot, {fields}]" if fields > 1 else "[batch, source]"
    if fields > 1:
        size = f"{fields} tables of {size}, one for each field of a slot, added"
    count = count_parameters([model.source_embeddings])
    return [
        Part("Source", "data", (f"at most {config.max_source_len:,} {stack.reader}s",), gives=taken),
        Part("Source embedding", "embedding", (size + scale,), count, stack.stream),
        *_positions(model.source_positions, config.max_source_len, config.hidden_dim, stack.stream),
        *block_summary(stack),
        *_last_norm(model.encoder_norm, "encoder_norm", stack.stream),
        Part("Memory", "data"),
    ]


def _target_side(model: EncoderDecoder) -> list[Part]:
    config, stack = model.config, stack_of(model, "decoder")
    table = f"{config.target_vocab:,} x {config.hidden_dim}{_scale(config.hidden_dim, config.scale_embeddings)}"
    count = count_parameters([model.target_embedding])
    return [
        Part("Target", "data", (f"at most {config.max_target_len:,} tokens",), gives="[batch, position]"),
        Part("Target embedding", "embedding", (table,), count, stack.stream),
        *_positions(model.target_positions, config.max_target_len, config.hidden_dim, stack.stream),
        *block_summary(stack),
        *_last_norm(model.decoder_norm, "decoder_norm", stack.stream),
        *_output(model.output, tied=False),
    ]


def _added(model: Encoder, stream: str) -> list[Part]:
    """What an encoder adds to the token embedding, and its norm."""
    width = model.config.hidden_dim
    parts = _positions(model.positions, model.config.max_seq_len, width, stream)
    if model.token_types is not None:
        size = f"{model.config.token_types} x {width}, added"
        parts.append(Part("Token types", "embedding", (size,), count_parameters([model.token_types]), stream))
    if model.embedding_norm is not None:
        parts.append(norm_part([model.embedding_norm], "embedding_norm", stream, "Embedding "))
    return parts


def _positions(positions: nn.Module | None, length: int, width: int, stream: str) -> list[Part]:
    if positions is None:
        return []
    kind = "learned" if isinstance(positions, nn.Embedding) else "sines and cosines"
    size = f"{kind}, {length:,} x {width}, added"
    return [Part("Positions", "embedding", (size,), count_parameters([positions]), stream)]


def _scale(width: int, scaled: bool) -> str:
    return f", times sqrt({width})" if scaled else ""


def _last_norm(norm: nn.Module | None, module: str, stream: str) -> list[Part]:
    return [] if norm is None else [norm_part([norm], module, stream, "Last ")]


def _encoder_end(model: Encoder) -> list[Part]:
    vector = f"[batch, {model.config.hidden_dim}]"
    parts = [Part("Pooling", "head", (_POOLED[model.config.pooling],), gives=vector)]
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
