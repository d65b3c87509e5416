"""The door to the closed forms: its families, its refusals, the course's count, and where attention overtakes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoderConfig
from glassformer.observe import complexity as module
from glassformer.observe.complexity import complexity, overtakes
from refusals import refused

SEED = EncoderConfig(vocab_size=1000, num_layers=2, hidden_dim=512, ff_dim=2048, num_heads=8, num_classes=2)
"""The sizes at which the course counts."""

LOOKUP = EncoderDecoderConfig(64, 24, 48, 4, 2, 2, max_source_len=10, max_target_len=6, fields_per_slot=2)


def decoder(**fields: Any) -> DecoderConfig:
    sizes = {"vocab_size": 11, "num_layers": 2, "hidden_dim": 8, "ff_dim": 12, "num_heads": 2, "head_dim": 4}
    return DecoderConfig(**{**sizes, **fields})


def attention_and_feed_forward(
    config: DecoderConfig | EncoderConfig, length: int, projections: bool
) -> tuple[int, int]:
    parts = complexity(config, 3, length).operations
    return parts.attention + (parts.projections if projections else 0), parts.after_attention


@pytest.mark.parametrize("config", [SEED, decoder(), decoder(num_experts=3), LOOKUP])
def test_two_texts_cost_twice_what_one_does(config: Any) -> None:
    one, two = (complexity(config, batch, 7) for batch in (1, 2))
    assert two.operations.total == 2 * one.operations.total
    assert two.activations == 2 * one.activations
    assert two.attention_weights == 2 * one.attention_weights
    assert two.parameters == one.parameters


@pytest.mark.parametrize("config", [SEED, decoder(window=3, num_kv_heads=1), LOOKUP])
def test_half_precision_halves_all_but_the_statistics(config: Any) -> None:
    wide, narrow = (complexity(config, 2, 9, itemsize=size) for size in (4, 2))
    assert narrow.operations == wide.operations
    assert narrow.attention_weights * 2 == wide.attention_weights
    assert narrow.kv_cache * 2 == wide.kv_cache
    assert wide.activations / 2 < narrow.activations < wide.activations


def test_parameters_of_released_models() -> None:
    # Totals are those of the released checkpoints; what is active as the reports round it. OpenAI leaves out the
    # embedding there, Mistral does not.
    mixtral = DecoderConfig(32000, 32, 4096, 14336, 32, 128, 8, num_experts=8, top_k=2)
    cost = complexity(mixtral, 1, 1)
    assert cost.parameters == 46_702_792_704
    assert round(cost.active_parameters / 1e9, 1) == 12.9
    biases: dict[str, Any] = {"sinks": True, "attention_bias": True, "ff_bias": True}
    gpt_oss = DecoderConfig(201088, 24, 2880, 2880, 64, 64, 8, window=128, num_experts=32, top_k=4, **biases)
    cost = complexity(gpt_oss, 1, 1)
    assert cost.parameters == 20_914_757_184
    assert round((cost.active_parameters - 201088 * 2880) / 1e9, 2) == 3.61


def test_the_courses_count_is_a_quarter_of_attention_and_feed_forward() -> None:
    parts = complexity(dataclasses.replace(SEED, num_layers=1), 1, 128).operations
    assert parts.attention == 4 * 128**2 * 512
    assert parts.feed_forward == 4 * 128 * 512 * 2048
    assert parts.projections == 8 * 128 * 512**2
    # The course's memory: sequence_length ** 2 * num_heads numbers.
    assert complexity(SEED, 1, 128).attention_weights == 2 * 128**2 * 8 * 4


def test_at_the_courses_sizes_attention_overtakes_after_2048_tokens() -> None:
    assert overtakes(SEED) == 2049
    assert overtakes(SEED, with_projections=True) == 1025


def test_projections_alone_can_be_more_than_the_feed_forward_part() -> None:
    assert overtakes(dataclasses.replace(SEED, ff_dim=64), with_projections=True) == 1


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.sampled_from([1, 2]),
    st.none() | st.integers(1, 90),
    st.sampled_from(["odd", "even", "all"]),
    st.none() | st.integers(1, 4),
    st.booleans(),
)
def test_the_length_is_the_first_that_a_search_finds(
    layers: int, ff_dim: int, kv: int, window: int | None, windowed: Any, experts: int | None, projections: bool
) -> None:
    config = decoder(
        num_layers=layers,
        ff_dim=ff_dim,
        num_kv_heads=kv,
        window=window,
        windowed_layers=windowed,
        num_experts=experts,
        top_k=1,
    )
    searched = 1000
    first = None
    for length in range(1, searched):
        attention, feed_forward = attention_and_feed_forward(config, length, projections)
        if attention > feed_forward:
            first = length
            break
    found = overtakes(config, with_projections=projections)
    assert found == first or (first is None and found is not None and found >= searched)


@given(st.integers(1, 200), st.integers(1, 900), st.booleans())
def test_an_encoders_length_is_the_last_but_one_that_does_not(heads: int, ff_dim: int, projections: bool) -> None:
    config = EncoderConfig(vocab_size=5, num_layers=1, hidden_dim=2 * heads, ff_dim=ff_dim, num_heads=heads)
    length = overtakes(config, with_projections=projections)
    assert length == max(ff_dim + 1 - (4 * heads if projections else 0), 1)
    attention, feed_forward = attention_and_feed_forward(config, length, projections)
    assert attention > feed_forward
    if length > 1:
        attention, feed_forward = attention_and_feed_forward(config, length - 1, projections)
        assert attention <= feed_forward


def test_a_window_keeps_attention_below_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 5000)
    config = decoder(hidden_dim=64, ff_dim=128, window=16, windowed_layers="all")
    assert overtakes(config) is None
    assert overtakes(dataclasses.replace(config, windowed_layers="odd")) is not None


def test_a_target_is_as_long_as_its_source_by_default_and_both_count() -> None:
    assert complexity(LOOKUP, 2, 7) == complexity(LOOKUP, 2, 7, target_length=7)
    costs = {
        (source, target): complexity(LOOKUP, 2, source, target_length=target).operations.total
        for source in (5, 10)
        for target in (5, 10)
    }
    assert costs[5, 5] < min(costs[5, 10], costs[10, 5]) < max(costs[5, 10], costs[10, 5]) < costs[10, 10]
    first, later = (complexity(LOOKUP, 2, 10, target_length=1, cached=cached) for cached in (0, 5))
    assert later.operations.total < first.operations.total / 4  # the source has been read
    assert later.kv_cache == first.kv_cache * (6 + 10) // (1 + 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch = 0"),
        ({"length": 0}, "length = 0"),
        ({"itemsize": 0}, "itemsize = 0"),
        ({"cached": -1}, "cached = -1"),
        ({"config": SEED, "cached": 1}, "EncoderConfig"),
        ({"config": torch.nn.Linear(1, 1)}, "Linear"),
        ({"config": LOOKUP, "target_length": 0}, "target_length = 0"),
        ({"config": LOOKUP, "cached": -1}, "cached = -1"),
        ({"config": SEED, "target_length": 1}, "target_length = 1 for EncoderConfig"),
        ({"target_length": 3}, "target_length = 3 for DecoderConfig"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_what_costs_nothing_known_is_refused(arguments: dict[str, Any], message: str) -> None:
    with refused(message):
        complexity(**{"config": decoder(), "batch": 1, "length": 1, **arguments})


@pytest.mark.usefixtures("without_type_checks")
def test_two_lengths_have_no_length_to_overtake_at() -> None:
    with refused("EncoderDecoderConfig", fix="compare the operations"):
        overtakes(LOOKUP)  # type: ignore[arg-type]
