"""Closed forms compared with counts: pairs by masks, operations by torch's counter, memory by what autograd keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from autograd_memory import kept_bytes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassformer.generation.compiled import step
from glassformer.kernels.dispatch import slow_bfloat16
from glassformer.kernels.native import Library
from glassformer.kernels.options import Clamp
from glassformer.kernels.pattern import Pattern
from glassformer.layers.attention import attend
from glassformer.layers.blocks import Block
from glassformer.layers.experts import MixtureOfExperts
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder, EncoderConfig, Pooling
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.observe.complexity import (
    Operations,
    complexity,
    executed_pairs,
)
from glassformer.observe.complexity_measured import count_operations

# What is counted is what fast forms execute.
pytestmark = pytest.mark.usefixtures("fast_forms")

SMALL: dict[str, Any] = {
    "vocab_size": 19,
    "num_layers": 3,
    "hidden_dim": 24,
    "ff_dim": 40,
    "num_heads": 4,
    "head_dim": 10,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": {},
    "grouped": {"num_kv_heads": 2},
    "one key-value head": {"num_kv_heads": 1, "attention_bias": True, "ff_bias": True},
    "windowed": {"window": 5, "num_kv_heads": 2},
    "all windowed": {"window": 16, "windowed_layers": "all", "sinks": True},
    "experts": {"num_experts": 5, "top_k": 2},
    "experts of odd width": {"num_experts": 5, "top_k": 3, "ff_dim": 7, "ff_bias": True},
    "gpt-oss": {
        "num_experts": 4,
        "ff_bias": True,
        "attention_bias": True,
        "sinks": True,
        "num_kv_heads": 2,
        "window": 8,
        "windowed_layers": "even",
        "clamp": Clamp(),
    },
    "experts, clamped": {"num_experts": 5, "clamp": Clamp(), "sinks": True},
    "clamped": {"clamp": Clamp(), "ff_bias": True},
    "attention only": {"ff_dim": 0},
    "tied, key weights": {"tied_output": True, "key_weights": True},
}
each_family = pytest.mark.parametrize("family", FAMILIES)


def make(family: str) -> Decoder:
    return Decoder(DecoderConfig(**{**SMALL, **FAMILIES[family]}))


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, SMALL["vocab_size"], (batch, length))


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 90), st.integers(1, 150))
@example(3300, 0, 1200)  # blocks of the longest kind
def test_executed_pairs_are_those_that_attention_multiplies_out(queries: int, before: int, window: int) -> None:
    q, k = torch.zeros(1, 1, queries, 2), torch.zeros(1, 1, queries + before, 2)
    counted = count_operations(lambda: attend(q, k, k, Pattern(True, window)))
    executed = executed_pairs(queries, queries + before, window)
    assert counted == 4 * 2 * executed
    needed = int(Pattern(True, window).mask(queries, queries + before).sum())
    assert needed <= executed <= queries * (queries + before)


def test_without_a_window_every_pair_is_executed() -> None:
    assert executed_pairs(7, 9) == executed_pairs(7, 9, 9) == 63


@pytest.mark.parametrize("window", [1, 64, 128, 2048])
def test_a_window_executes_at_most_half_again_what_it_needs_or_32_keys_more(window: int) -> None:
    length = 64 * 1024
    executed = executed_pairs(length, length, window)
    needed = sum(min(position + 1, window) for position in range(length))
    assert needed <= executed <= max(1.5 * window, window + 32) * length


@each_family
@pytest.mark.parametrize("length", [1, 9, 77])
@pytest.mark.parametrize("grad", [False, True])
def test_operations_of_a_decoder_are_what_torch_counts(family: str, length: int, grad: bool) -> None:
    model, text = make(family).eval(), tokens(2, length)
    with torch.set_grad_enabled(grad):
        counted = count_operations(lambda: model(text))
    assert complexity(model.config, 2, length).operations.total == counted


@each_family
@pytest.mark.parametrize(("cached", "new"), [(3, 1), (40, 1), (6, 3), (40, 50)])
@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_operations_after_a_cache_are_what_torch_counts(family: str, cached: int, new: int, batch: int) -> None:
    model, text = make(family).eval(), tokens(batch, cached + new)
    cache = model.new_cache(batch, cached + new)
    model(text[:, :cached], cache=cache)
    counted = count_operations(lambda: model(text[:, cached:], cache=cache))
    predicted = complexity(model.config, batch, new, cached=cached)
    assert predicted.operations.total == counted
    assert predicted.kv_cache == sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@each_family
@torch.no_grad()
def test_a_step_of_fixed_shapes_costs_as_much_as_after_a_full_cache(family: str) -> None:
    model = make(family).eval()
    cache = model.new_cache(2, 40)
    counted = count_operations(lambda: step(model, tokens(2, 1), torch.tensor([3]), cache))
    assert complexity(model.config, 2, 1, cached=39).operations.total == counted


def test_the_parts_are_those_that_modules_execute() -> None:
    model = make("gpt-oss").eval()
    parts = complexity(model.config, 2, 30).operations
    x = torch.randn(2, 30, 24)
    blocks = [block for block in model.layers if isinstance(block, Block)]
    experts = blocks[0].ffn
    assert isinstance(experts, MixtureOfExperts)
    attention = count_operations(lambda: [block.attention(x) for block in blocks])
    assert parts.projections + parts.attention == attention
    assert parts.scores == parts.values > 0
    assert parts.router == 3 * count_operations(lambda: experts.router(x))
    assert parts.after_attention == 3 * count_operations(lambda: experts(x))
    assert parts.head == count_operations(lambda: model.output(x))
    assert parts.feed_forward == 0
    dense = complexity(make("dense").config, 2, 30).operations
    assert (dense.experts, dense.router) == (0, 0)
    assert dense.after_attention == dense.feed_forward == 6 * 60 * 3 * 24 * 40


@each_family
def test_parameters_of_a_decoder(family: str) -> None:
    model = make(family)
    cost = complexity(model.config, 1, 1)
    assert cost.parameters == sum(weight.numel() for weight in model.parameters())
    idle = 0
    if model.config.num_experts is not None:
        experts = sum(
            weight.numel() for name, weight in model.named_parameters() if ".ffn." in name and "router" not in name
        )
        idle = experts // model.config.num_experts * (model.config.num_experts - model.config.top_k)
    assert cost.active_parameters == cost.parameters - idle


def omitted(config: DecoderConfig, batch: int, length: int, dtype: torch.dtype) -> int:
    """The bytes that autograd keeps of a decoder without windows and complexity() leaves out."""
    angles = 2 * length * SMALL["head_dim"] // 2 * dtype.itemsize  # cosines and sines of the rotation, for all layers
    if config.num_experts is None or dtype != torch.bfloat16:
        return angles
    token = 4 * (config.hidden_dim + config.top_k)  # the router's input and softmax
    if slow_bfloat16():
        token += 2 * config.top_k * 2 * config.ff_dim  # gate and up take two bytes more
    weights = 4 * config.num_experts * config.hidden_dim
    return angles + config.num_layers * (batch * length * token + weights)


@pytest.mark.parametrize("family", [name for name, fields in FAMILIES.items() if "window" not in fields])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_activations_of_a_decoder_are_what_autograd_keeps(family: str, dtype: torch.dtype) -> None:
    model, text = make(family).to(dtype), tokens(2, 30)
    predicted = complexity(model.config, 2, 30, itemsize=dtype.itemsize)
    kept = kept_bytes(model, lambda: model(text))
    assert predicted.activations == kept - omitted(model.config, 2, 30, dtype)


@pytest.mark.parametrize("family", [name for name, fields in FAMILIES.items() if "window" in fields])
def test_activations_of_windowed_layers_are_what_autograd_keeps_with_the_library(family: str, library: Library) -> None:
    if library.level == 0:
        pytest.skip("attention is not the library's on a processor without vectors that pay")
    model, text = make(family), tokens(2, 200)
    kept = kept_bytes(model, lambda: model(text))
    assert complexity(model.config, 2, 200).activations == kept - omitted(model.config, 2, 200, torch.float32)


def test_activations_of_windowed_layers_are_a_lower_bound_that_grows_as_they_do() -> None:
    model = make("all windowed")
    kept, predicted = (
        [function(length) for length in (200, 400, 800)]
        for function in (
            lambda length: kept_bytes(model, lambda: model(tokens(1, length))),
            lambda length: complexity(model.config, 1, length).activations,
        )
    )
    assert all(low < high < 2.5 * low for low, high in zip(predicted, kept, strict=True))
    assert kept[2] - kept[1] == pytest.approx(2 * (kept[1] - kept[0]), rel=0.05)


def test_stored_weights_are_query_by_key_for_every_head_and_layer() -> None:
    cost = complexity(make("grouped").config, 2, 30, itemsize=2)
    assert cost.attention_weights == 3 * 2 * 4 * 30 * 30 * 2


ENCODERS: dict[str, dict[str, Any]] = {
    "course": {},
    "relu, before": {"activation": "relu", "norm_first": True},
    "BERT": {
        "final_norm": False,
        "positions": "learned",
        "scale_embeddings": False,
        "embedding_norm": True,
        "token_types": 2,
        "pooling": "cls",
    },
    "largest": {"pooling": "max", "positions": "none", "final_norm": False, "norm_first": True},
    "no head": {"num_classes": None},
}


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder(family: str, padded: bool) -> None:
    sizes: dict[str, Any] = {"vocab_size": 19, "num_layers": 3, "hidden_dim": 24, "ff_dim": 40, "num_heads": 4}
    config = EncoderConfig(**{**sizes, "num_classes": 5, "dropout": 0.0, **ENCODERS[family]})
    model, text = Encoder(config), torch.randint(1, 19, (2, 30))
    if padded:
        text[1, 20:] = 0
    call = model.hidden if config.num_classes is None else model
    cost = complexity(config, 2, 30)
    assert cost.operations.total == count_operations(lambda: call(text))
    assert cost.parameters == cost.active_parameters == sum(weight.numel() for weight in model.parameters())
    assert cost.attention_weights == 3 * 2 * 4 * 30 * 30 * 4
    assert kept_bytes(model, lambda: call(text)) == cost.activations  # the mask stays boolean: no further numbers


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
def test_an_encoder_of_short_texts(pooling: Pooling, length: int, batch: int) -> None:
    config = EncoderConfig(19, 1, 24, 40, 4, num_classes=5, dropout=0.0, pooling=pooling)
    model, text = Encoder(config), torch.randint(1, 19, (batch, length))
    assert complexity(config, batch, length).operations.total == count_operations(lambda: model(text))


TWO_STACKS: dict[str, dict[str, Any]] = {
    "lookup course": {"fields_per_slot": 2},
    "first transformer": {"source_positions": "sinusoidal", "num_encoder_layers": 3, "num_decoder_layers": 1},
    "learned, before": {
        "source_positions": "learned",
        "target_positions": "learned",
        "norm_first": True,
        "final_norm": True,
        "activation": "gelu",
        "num_encoder_layers": 1,
        "num_decoder_layers": 3,
        "target_vocab_size": 13,
    },
    "last norms alone": {"final_norm": True, "target_positions": "none", "scale_embeddings": False},
    "before, without last norms": {"norm_first": True, "fields_per_slot": 3},
}
each_pair = pytest.mark.parametrize("family", TWO_STACKS)


def two_stacks(family: str) -> EncoderDecoder:
    sizes: dict[str, Any] = {"vocab_size": 19, "hidden_dim": 24, "ff_dim": 40, "num_heads": 4, "dropout": 0.0}
    sizes |= {"num_encoder_layers": 2, "num_decoder_layers": 2, "max_source_len": 30, "max_target_len": 20}
    return EncoderDecoder(EncoderDecoderConfig(**{**sizes, **TWO_STACKS[family]}))


def pair(model: EncoderDecoder, batch: int, source: int, target: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A source and a target without padding."""
    fields, few = model.config.fields_per_slot, model.config.target_vocab
    shape = (batch, source) if fields == 1 else (batch, source, fields)
    return torch.randint(1, 19, shape), torch.randint(1, few, (batch, target))


@each_pair
@pytest.mark.parametrize(("batch", "source", "target"), [(2, 30, 20), (3, 7, 1), (1, 1, 9)])
def test_an_encoder_decoder(family: str, batch: int, source: int, target: int) -> None:
    model = two_stacks(family)
    read, written = pair(model, batch, source, target)
    cost = complexity(model.config, batch, source, target_length=target)
    assert cost.operations.total == count_operations(lambda: model(read, written))
    assert cost.parameters == cost.active_parameters == sum(weight.numel() for weight in model.parameters())
    assert cost.activations == kept_bytes(model, lambda: model(read, written))
    below, above = model.config.num_encoder_layers, model.config.num_decoder_layers
    weights = below * source**2 + above * target * (target + source)
    assert cost.attention_weights == weights * batch * 4 * 4


@each_pair
@pytest.mark.parametrize(("cached", "new"), [(1, 1), (12, 1), (5, 4)])
@torch.no_grad()
def test_an_encoder_decoder_after_its_cache(family: str, cached: int, new: int) -> None:
    model = two_stacks(family).eval()
    read, written = pair(model, 2, 11, cached + new)
    memory = model.encode(read)
    cache = model.new_cache(memory, cached + new)
    model.decode(written[:, :cached], memory, cache=cache)
    counted = count_operations(lambda: model.decode(written[:, cached:], memory, cache=cache))
    predicted = complexity(model.config, 2, 11, target_length=new, cached=cached)
    assert predicted.operations.total == counted
    stored = [each for layer in cache.own.layers for each in (layer.keys, layer.values)]
    stored += [each for keys_and_values in cache.read for each in keys_and_values]
    assert predicted.kv_cache == sum(each.nbytes for each in stored)


@torch.no_grad()
def test_reading_the_source_and_the_first_token_of_a_cached_decoding_cost_one_whole_pass() -> None:
    model = two_stacks("lookup course").eval()
    read, written = pair(model, 2, 11, 1)

    def first() -> None:
        memory = model.encode(read)
        model.decode(written, memory, cache=model.new_cache(memory))

    assert complexity(model.config, 2, 11, target_length=1).operations.total == count_operations(first)


def test_the_parts_of_an_encoder_decoder_are_those_that_modules_execute() -> None:
    model = two_stacks("learned, before")
    cost = complexity(model.config, 2, 9, target_length=6)
    source, target = torch.randn(2, 9, 24), torch.randn(2, 6, 24)
    attention = count_operations(
        lambda: (
            [layer.attention(source) for layer in model.encoder_layers],
            [layer.self_attention(target) for layer in model.decoder_layers],
            [layer.cross_attention(target, source) for layer in model.decoder_layers],
        )
    )
    assert cost.operations.projections + cost.operations.attention == attention
    assert cost.operations.feed_forward == count_operations(
        lambda: (
            [layer.ffn(source) for layer in model.encoder_layers],
            [layer.ffn(target) for layer in model.decoder_layers],
        )
    )
    assert cost.operations.head == count_operations(lambda: model.output(target))


def test_the_total_is_the_sum_of_the_parts() -> None:
    parts = Operations(1, 2, 4, 8, 16, 32, 64, 128)
    assert parts.total == sum(dataclasses.astuple(parts)) == 255
    assert (parts.attention, parts.after_attention) == (6, 56)
