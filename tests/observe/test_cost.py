"""What models cost: operations counted against closed forms, memory against allocations that are
known.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.kernels.dispatch import slow_bfloat16
from glassformer.kernels.native import Library
from glassformer.kernels.options import Clamp
from glassformer.kernels.pattern import Pattern
from glassformer.layers.attention import attend
from glassformer.layers.experts import MixtureOfExperts
from glassformer.models import (
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
)
from glassformer.observe.cost import count_operations, peak_bytes
from refusals import refused
from small_models import BERT

# What is counted is what fast forms execute.
pytestmark = pytest.mark.usefixtures("fast_forms")

BATCH = 2
HIDDEN = 24
FF = 40
HEADS = 4
HEAD_DIM = 10
LAYERS = 3
VOCAB = 19
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": {},
    "grouped": {"num_kv_heads": 2},
    "one key-value head": {"num_kv_heads": 1, "attention_bias": True, "ff_bias": True},
    "windowed": {"window": 5, "num_kv_heads": 2},
    "all windowed": {"window": 16, "windowed_layers": "all", "sinks": True},
    "experts": {"num_experts": 5, "top_k": 2},
    "experts of odd width": {"num_experts": 5, "top_k": 3, "ff_dim": 7, "ff_bias": True},
    "gpt-oss": {
        **{
            "num_experts": 4,
            "ff_bias": True,
            "clamp": Clamp(),
            "window": 8,
            "windowed_layers": "even",
        },
        **{"attention_bias": True, "sinks": True, "num_kv_heads": 2},
    },
    "experts, clamped": {"num_experts": 5, "clamp": Clamp(), "sinks": True},
    "clamped": {"clamp": Clamp(), "ff_bias": True},
    "attention only": {"ff_dim": 0},
    "tied, key weights": {"tied_output": True, "key_weights": True},
}
each_family = pytest.mark.parametrize("family", FAMILIES)


def make(family: str) -> Decoder:
    return Decoder(
        replace(DecoderConfig(VOCAB, LAYERS, HIDDEN, FF, HEADS, HEAD_DIM), **FAMILIES[family])
    )


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (batch, length))


def kept_bytes(model: nn.Module, call: Callable[[], object]) -> int:
    """Bytes of floating-point tensors that ``call`` keeps for a backward pass, each piece of memory
    counted once.

    Parameters and buffers of ``model`` are left out: they are kept anyway.
    """
    own = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    kept: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in own:
            # Holding the tensor keeps its address from being given to another one.
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = call()
    del result
    return sum(size for size, _ in kept.values())


def pairs(queries: int, keys: int, window: int | None) -> int:
    """Queries times keys that attention multiplies in one head, a multiplication and an addition in
    each product.
    """
    q = torch.zeros(1, 1, queries, 1)
    k = torch.zeros(1, 1, keys, 1)
    return count_operations(lambda: attend(q, k, k, Pattern(True, window))) // 4


def closed_form(config: DecoderConfig, batch: int, length: int, cached: int = 0) -> int:
    """The operations of a decoder on ``length`` tokens after ``cached`` ones."""
    windows = [config.layer_window(layer) for layer in range(LAYERS)]
    # A windowed layer's cache returns only the keys that the new queries can see.
    keys = [length + (cached if window is None else min(cached, window - 1)) for window in windows]
    executed = sum(pairs(length, seen, window) for seen, window in zip(keys, windows, strict=True))
    projections = 2 * HIDDEN * HEAD_DIM * (2 * HEADS + 2 * (config.num_kv_heads or HEADS))
    router = 2 * HIDDEN * (config.num_experts or 0)
    ffn = 6 * HIDDEN * config.ff_dim * (config.top_k if config.num_experts else 1)
    head = 2 * HIDDEN * VOCAB
    return batch * (
        length * (LAYERS * (projections + router + ffn) + head) + 4 * HEADS * HEAD_DIM * executed
    )


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 90), st.integers(1, 150))
@example(3300, 0, 1200)  # blocks of the longest kind
def test_a_window_multiplies_at_least_what_is_allowed_and_at_most_all(
    queries: int, before: int, window: int
) -> None:
    needed = int(Pattern(True, window).mask(queries, queries + before).sum())
    assert needed <= pairs(queries, queries + before, window) <= queries * (queries + before)


@pytest.mark.parametrize("window", [1, 64, 128, 2048])
def test_a_window_executes_at_most_half_again_what_it_needs_or_32_keys_more(window: int) -> None:
    length = 16 * 1024
    needed = sum(min(position + 1, window) for position in range(length))
    assert needed <= pairs(length, length, window) <= max(1.5 * window, window + 32) * length


@each_family
@pytest.mark.parametrize("length", [1, 9, 77])
@pytest.mark.parametrize("grad", [False, True])
def test_a_decoder(family: str, length: int, grad: bool) -> None:
    model = make(family).eval()
    text = tokens(BATCH, length)
    with torch.set_grad_enabled(grad):
        assert count_operations(lambda: model(text)) == closed_form(model.config, BATCH, length)


@each_family
@pytest.mark.parametrize(("cached", "new"), [(3, 1), (40, 1), (6, 3), (40, 50)])
@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_a_decoder_after_a_cache(family: str, cached: int, new: int, batch: int) -> None:
    model = make(family).eval()
    text = tokens(batch, cached + new)
    cache = model.new_cache(batch, cached + new)
    model(text[:, :cached], cache=cache)
    counted = count_operations(lambda: model(text[:, cached:], cache=cache))
    assert counted == closed_form(model.config, batch, new, cached)
    config = model.config
    kept = [
        min(window or cached + new, cached + new)
        for window in map(config.layer_window, range(LAYERS))
    ]
    wanted = 2 * batch * (config.num_kv_heads or HEADS) * HEAD_DIM * 4 * sum(kept)
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) == wanted


@torch.no_grad()
def test_the_parts_of_a_model_and_its_head_are_all_there_is() -> None:
    model = make("gpt-oss").eval()
    x = torch.randn(2, 30, HIDDEN)
    parts = [part for block in model.layers for part in (block.attention, block.ffn)]
    found = [count_operations(lambda part=part: part(x)) for part in parts]
    assert sum(found) + 2 * 2 * 30 * HIDDEN * VOCAB == closed_form(model.config, 2, 30)
    assert count_operations(lambda: None) == 0


def kept_of_a_decoder(config: DecoderConfig, batch: int, length: int, dtype: torch.dtype) -> int:
    """The bytes that autograd keeps: inputs of products and activations, queries, keys, values,
    outputs, statistics.
    """
    wide = HEADS * HEAD_DIM
    narrow = HEAD_DIM * (config.num_kv_heads or HEADS)
    ff = config.ff_dim
    norms = 1 + (ff > 0)
    # Gate and up, and what enters the last product, which experts compute again.
    inside = 3 * ff if config.num_experts is None else config.top_k * (2 * ff + 1)
    numbers = 2 * norms * HIDDEN + wide * (3 if config.key_weights else 2) + 2 * narrow + inside
    statistics = LAYERS * (norms + HEADS) + 1  # of norms and softmax, in float32 or wider
    kept = (LAYERS * numbers + 2 * HIDDEN) * dtype.itemsize + statistics * max(dtype.itemsize, 4)
    # cosines and sines of the rotation, for all layers
    extra = 2 * length * HEAD_DIM // 2 * dtype.itemsize
    if config.num_experts is not None and dtype == torch.bfloat16:
        token = 4 * (HIDDEN + config.top_k)  # the router's input and softmax
        # gate and up take two bytes more
        token += 2 * config.top_k * 2 * ff if slow_bfloat16() else 0
        extra += LAYERS * (batch * length * token + 4 * config.num_experts * HIDDEN)
    return batch * length * kept + extra


@pytest.mark.parametrize(
    "family", [name for name, fields in FAMILIES.items() if "window" not in fields]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_autograd_keeps_of_a_decoder(family: str, dtype: torch.dtype) -> None:
    model = make(family).to(dtype)
    text = tokens(2, 30)
    assert kept_bytes(model, lambda: model(text)) == kept_of_a_decoder(model.config, 2, 30, dtype)


@pytest.mark.parametrize(
    "family", [name for name, fields in FAMILIES.items() if "window" in fields]
)
def test_what_autograd_keeps_of_windowed_layers_with_the_library(
    family: str, library: Library
) -> None:
    if library.level == 0:
        pytest.skip("attention is not the library's on a processor without vectors that pay")
    model = make(family)
    text = tokens(2, 200)
    assert kept_bytes(model, lambda: model(text)) == kept_of_a_decoder(
        model.config, 2, 200, torch.float32
    )


def test_what_autograd_keeps_of_windowed_layers_grows_linearly() -> None:
    model = make("all windowed")
    kept = [kept_bytes(model, lambda: model(tokens(1, length))) for length in (200, 400, 800)]
    assert kept[2] - kept[1] == pytest.approx(2 * (kept[1] - kept[0]), rel=0.05)


ENCODERS: dict[str, dict[str, Any]] = {
    "course": {},
    "relu, before": {"activation": "relu", "norm_first": True},
    "BERT": {**BERT, "num_classes": 5, "pooling": "cls"},
    "largest": {"pooling": "max", "positions": "none", "final_norm": False, "norm_first": True},
}


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("length", "padded"), [(1, False), (2, False), (30, False), (30, True)])
def test_an_encoder(family: str, batch: int, length: int, padded: bool) -> None:
    changes = {"num_classes": 5, "dropout": 0.0, **ENCODERS[family]}
    config = EncoderConfig(VOCAB, LAYERS, HIDDEN, FF, HEADS, **changes)
    model = Encoder(config)
    text = torch.randint(1, VOCAB, (batch, length))
    number = batch * length
    if padded:
        text[-1, 20:] = 0
    # For one position the mean is no matrix product.
    mean = 2 * number * HIDDEN if config.pooling == "mean" and length > 1 else 0
    layer = number * (8 * HIDDEN**2 + 4 * HIDDEN * FF) + 4 * batch * HIDDEN * length**2
    assert count_operations(lambda: model(text)) == LAYERS * layer + mean + 2 * batch * HIDDEN * 5
    if length == 1:
        return
    # Inputs of norms and products; the mask stays boolean.
    norms = 2 * LAYERS + config.final_norm + config.embedding_norm
    numbers = LAYERS * (8 * HIDDEN + FF * (2 if config.activation == "gelu" else 1))
    numbers += HIDDEN * (config.final_norm + config.embedding_norm) + (
        1 if config.pooling == "mean" else HIDDEN
    )
    pooled = {"mean": 1, "max": 2, "cls": 0}[config.pooling] * HIDDEN
    kept = 4 * (number * (numbers + 2 * norms + LAYERS * HEADS) + batch * pooled)
    assert kept_bytes(model, lambda: model(text)) == kept


TWO_STACKS: dict[str, dict[str, Any]] = {
    "lookup course": {"fields_per_slot": 2},
    "first transformer": {
        "source_positions": "sinusoidal",
        "num_encoder_layers": 3,
        "num_decoder_layers": 1,
    },
    "learned, before": {
        **{
            "source_positions": "learned",
            "target_positions": "learned",
            "norm_first": True,
            "final_norm": True,
        },
        **{
            "activation": "gelu",
            "num_encoder_layers": 1,
            "num_decoder_layers": 3,
            "target_vocab_size": 13,
        },
    },
    "last norms alone": {"final_norm": True, "target_positions": "none", "scale_embeddings": False},
}


@pytest.mark.parametrize("family", TWO_STACKS)
@pytest.mark.parametrize(
    ("batch", "source", "target", "cached"), [(2, 30, 20, 0), (1, 1, 9, 0), (2, 11, 1, 12)]
)
def test_an_encoder_decoder(family: str, batch: int, source: int, target: int, cached: int) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_dim": HIDDEN,
        "ff_dim": FF,
        "num_heads": HEADS,
    }
    sizes |= {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_source_len": 30,
        "max_target_len": 20,
    }
    model = EncoderDecoder(
        EncoderDecoderConfig(**{**sizes, "dropout": 0.0, **TWO_STACKS[family]})
    ).eval()
    config = model.config
    shape = (
        (batch, source) if config.fields_per_slot == 1 else (batch, source, config.fields_per_slot)
    )
    read = torch.randint(1, VOCAB, shape)
    written = torch.randint(1, config.target_vocab, (batch, cached + target))
    above = config.num_decoder_layers
    below = config.num_encoder_layers
    h = HIDDEN
    # After the first step the source has been read, and its keys and values are in the cache.
    sources = 0 if cached else batch * source
    targets = batch * target
    multiplied = below * sources * source + above * targets * (cached + target + source)
    expected = (
        below * 8 * sources * h**2
        + above * (12 * targets + 4 * sources) * h**2
        + 4 * h * multiplied
    )
    expected += (
        4 * h * FF * (below * sources + above * targets) + 2 * targets * h * config.target_vocab
    )
    if not cached:
        assert count_operations(lambda: model(read, written)) == expected
        inside = FF * (2 if config.activation == "gelu" else 1)
        last = int(config.final_norm)
        of_source = (
            below * (8 * h + inside) + (1 + last + 2 * above) * h + below * (4 + HEADS) + 2 * last
        )
        of_target = above * (12 * h + inside) + (1 + last) * h + above * (6 + 2 * HEADS) + 2 * last
        assert kept_bytes(model, lambda: model(read, written)) == 4 * (
            sources * of_source + targets * of_target
        )
        return
    with torch.no_grad():
        memory = model.encode(read)
        cache = model.new_cache(memory, cached + target)
        model.decode(written[:, :cached], memory, cache=cache)
        assert (
            count_operations(lambda: model.decode(written[:, cached:], memory, cache=cache))
            == expected
        )
    stored = [each for layer in cache.own.layers for each in (layer.keys, layer.values)]
    stored += [each for keys_and_values in cache.read for each in keys_and_values]
    assert sum(each.nbytes for each in stored) == 2 * above * batch * h * 4 * (
        cached + target + source
    )


def heads(count: int, length: int, width: int = 8) -> torch.Tensor:
    return torch.randn(2, count, length, width, requires_grad=True)


@pytest.mark.parametrize("width", [8, 5])
@pytest.mark.parametrize("groups", [1, 2])
def test_attention_is_counted_whatever_kernel_runs(width: int, groups: int) -> None:
    q = heads(4, 7)
    k = heads(4 // groups, 9)
    v = heads(4 // groups, 9, width)
    assert count_operations(lambda: attend(q, k, v)) == 2 * 2 * 4 * 7 * 9 * (8 + width)
    sinks = torch.zeros(4)
    dropping = count_operations(lambda: attend(q, k, v, sinks=sinks, dropout=0.5))
    # a sink is a key more off the fused path
    assert dropping == 2 * 2 * 4 * 7 * (9 + 1) * (8 + width)


def test_products_with_a_vector_and_those_added_in_place_are_counted() -> None:
    vector = torch.randn(5)
    matrix = torch.randn(3, 5)
    batch = torch.randn(2, 3, 5)
    assert count_operations(lambda: vector @ vector) == 2 * 5
    assert count_operations(lambda: torch.addmv(torch.zeros(3), matrix, vector)) == 2 * 3 * 5
    assert (
        count_operations(lambda: torch.zeros(2, 3, 3).baddbmm_(batch, batch.mT))
        == 2 * 2 * 3 * 5 * 3
    )


@pytest.mark.parametrize("width", [16, 7])
def test_experts_are_counted_as_grouped_single_and_as_one_operator(width: int) -> None:
    layer = MixtureOfExperts(width, 12, 5, 2)
    router = 2 * width * 5
    experts = 6 * width * 12 * 2
    for rows, context in ((11, torch.enable_grad()), (1, torch.no_grad())):
        x = torch.randn(rows, width)
        with context:
            assert count_operations(lambda: layer(x)) == rows * (router + experts)
    x = torch.randn(11, width)
    weights, indices, _ = layer.router.choose(x)
    parts = (x, weights, indices, layer.gate, layer.up, layer.down, None, None, None, None, None)
    with torch.no_grad():
        assert count_operations(lambda: torch.ops.glassformer.mix_experts(*parts)) == 11 * experts


@pytest.mark.parametrize("num_experts", [None, 4])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_training_step_takes_three_times_the_forward_pass_and_half_its_attention(
    num_experts: int | None, sinks: bool, dtype: torch.dtype
) -> None:
    config = DecoderConfig(VOCAB, 2, 16, 24, 4, 4, num_experts=num_experts, sinks=sinks)
    model = Decoder(config).to(dtype)
    text = tokens(2, 30)
    forward = count_operations(lambda: model(text))
    scores = 2 * 2 * 2 * 16 * 30**2
    # Backward repeats each product twice; the fused attention makes its scores anew besides, and
    # each of the five norms multiplies its rows by its weights.
    expected = 3 * forward + scores + 5 * 2 * 60 * 16
    assert count_operations(lambda: model(text).sum().backward()) == expected


def test_the_peak_is_what_is_held_at_once() -> None:
    x = torch.randn(1000)

    def chain() -> torch.Tensor:
        for_a_while = x + 1  # 4,000 bytes
        total = for_a_while * 2  # 4,000 more
        del for_a_while
        return total + 1  # and 4,000 instead of the first

    # the numbers 1 and 2 take some bytes too
    assert 8000 <= peak_bytes(chain) == peak_bytes(chain) < 8100
    with refused("allocates nothing"):
        peak_bytes(lambda: None)


def test_memory_of_fused_attention_is_linear_in_the_length_and_that_of_kept_weights_is_not() -> (
    None
):
    def peak(length: int, dropout: float) -> int:
        q = heads(1, length)
        return peak_bytes(lambda: attend(q, q, q, dropout=dropout))

    # Above 768 the kernel's own blocks stay as large as they are.
    assert peak(2048, 0.0) < 2**1.1 * peak(1024, 0.0)
    assert peak(2048, 0.1) > 2**1.9 * peak(1024, 0.1)
