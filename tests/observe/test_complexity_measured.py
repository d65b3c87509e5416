"""Counting and measuring: against products whose cost is known, allocations that are known, and exact powers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from autograd_memory import kept_bytes
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from glassformer.errors import InputError
from glassformer.layers.attention import attend
from glassformer.layers.experts import MixtureOfExperts
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.observe.complexity import complexity
from glassformer.observe.complexity_measured import (
    count_operations,
    fitted_exponent,
    measure_together,
    peak_bytes,
)
from refusals import refused


def heads(count: int, length: int, width: int = 8) -> torch.Tensor:
    return torch.randn(2, count, length, width, requires_grad=True)


@pytest.mark.parametrize("width", [8, 5])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.usefixtures("fast_forms")
def test_attention_is_counted_whatever_kernel_runs(width: int, groups: int) -> None:
    q, k, v = heads(4, 7), heads(4 // groups, 9), heads(4 // groups, 9, width)
    assert count_operations(lambda: attend(q, k, v)) == 2 * 2 * 4 * 7 * 9 * (8 + width)
    sinks = torch.zeros(4)
    dropping = count_operations(lambda: attend(q, k, v, sinks=sinks, dropout=0.5))
    assert dropping == 2 * 2 * 4 * 7 * (9 + 1) * (8 + width)  # a sink is a key more off the fused path


@pytest.mark.parametrize("width", [16, 7])
@pytest.mark.usefixtures("fast_forms")
def test_experts_are_counted_as_grouped_single_and_as_one_operator(width: int) -> None:
    layer = MixtureOfExperts(width, 12, 5, 2)
    router, experts = 2 * width * 5, 6 * width * 12 * 2
    for rows, context in ((11, torch.enable_grad()), (1, torch.no_grad())):
        x = torch.randn(rows, width)
        with context:
            assert count_operations(lambda: layer(x)) == rows * (router + experts)  # noqa: B023
    x = torch.randn(11, width)
    weights, indices, _ = layer.router.choose(x)
    parts = (x, weights, indices, layer.gate, layer.up, layer.down, None, None, None, None, None)
    with torch.no_grad():
        assert count_operations(lambda: torch.ops.glassformer.mix_experts(*parts)) == 11 * experts


@pytest.mark.parametrize("num_experts", [None, 4])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("fast_forms")
def test_a_training_step_takes_three_times_the_forward_pass_and_half_its_attention(
    num_experts: int | None, sinks: bool, dtype: torch.dtype
) -> None:
    config = DecoderConfig(19, 2, 16, 24, 4, 4, num_experts=num_experts, sinks=sinks)
    model, tokens = Decoder(config).to(dtype), torch.randint(0, 19, (2, 30))
    forward = complexity(config, 2, 30).operations
    # Backward repeats each product twice; the fused attention makes its scores anew besides, and each of the five
    # norms multiplies its rows by its weights.
    expected = 3 * forward.total + forward.scores + 5 * 2 * 60 * 16
    assert count_operations(lambda: model(tokens).sum().backward()) == expected


def test_what_is_kept_counts_memory_once_and_no_weights() -> None:
    layer = nn.Linear(10, 20)
    x = torch.randn(7, 10)

    def twice() -> torch.Tensor:
        hidden = layer(x)  # keeps x
        return hidden.exp() + hidden.sigmoid() * x[0].sum()  # keeps both results, and the sum they are scaled by

    with torch.no_grad():
        assert kept_bytes(layer, twice) == 4 * (7 * 10 + 2 * 7 * 20 + 1)


def test_the_peak_is_what_is_held_at_once() -> None:
    x = torch.randn(1000)

    def chain() -> torch.Tensor:
        for_a_while = x + 1  # 4,000 bytes
        total = for_a_while * 2  # 4,000 more
        del for_a_while
        return total + 1  # and 4,000 instead of the first

    assert 8000 <= peak_bytes(chain) == peak_bytes(chain) < 8100  # the numbers 1 and 2 take some bytes too


def test_a_call_that_allocates_nothing_is_refused() -> None:
    with refused("allocates nothing"):
        peak_bytes(lambda: None)


@pytest.mark.usefixtures("fast_forms")
def test_memory_of_fused_attention_is_linear_in_the_length_and_that_of_kept_weights_is_not() -> None:
    def build(dropout: float) -> Callable[[int], Callable[[], object]]:
        def of_length(length: int) -> Callable[[], object]:
            q = heads(1, length)
            return lambda: attend(q, q, q, dropout=dropout)

        return of_length

    lengths = (1024, 2048)  # above 768 the kernel's own blocks stay as large as they are
    fused, held = measure_together([build(0.0), build(0.1)], lengths, rounds=1)
    assert fitted_exponent(lengths, fused.peak_bytes) < 1.1
    assert fitted_exponent(lengths, held.peak_bytes) > 1.9


def test_lengths_are_run_in_turn() -> None:
    ran: list[int] = []

    def build(length: int) -> Callable[[], object]:
        def call() -> torch.Tensor:
            ran.append(length)
            return torch.zeros(length)

        return call

    (measured,) = measure_together([build], (10, 20), rounds=3)
    assert ran[-6:] == [10, 20] * 3
    assert measured.lengths == (10, 20)
    assert measured.peak_bytes == (40, 80)
    assert all(seconds > 0 for seconds in measured.seconds)


def test_several_calls_are_run_in_turn_too() -> None:
    ran: list[tuple[str, int]] = []

    def named(name: str) -> Callable[[int], Callable[[], object]]:
        def build(length: int) -> Callable[[], object]:
            def call() -> torch.Tensor:
                ran.append((name, length))
                return torch.zeros(length if name == "a" else 2 * length)

            return call

        return build

    one, other = measure_together([named("a"), named("b")], (10, 20), rounds=2)
    assert ran[-8:] == [("a", 10), ("b", 10), ("a", 20), ("b", 20)] * 2
    assert (one.peak_bytes, other.peak_bytes) == ((40, 80), (80, 160))


@pytest.mark.parametrize("lengths", [(), (0, 1), (2, 1), (1, 1)])
def test_lengths_must_ascend(lengths: tuple[int, ...]) -> None:
    with refused("lengths"):
        measure_together([lambda length: lambda: torch.zeros(length)], lengths)


def test_rounds_are_checked() -> None:
    with refused("rounds = 0"):
        measure_together([lambda length: lambda: torch.zeros(length)], (1, 2), rounds=0)


@given(st.floats(-3, 3), st.floats(0.01, 100), st.lists(st.integers(1, 10_000), min_size=2, max_size=9, unique=True))
def test_a_power_is_found_again(exponent: float, factor: float, lengths: list[int]) -> None:
    values = [factor * length**exponent for length in lengths]
    assert fitted_exponent(lengths, values) == pytest.approx(exponent, abs=1e-6)


def test_the_fit_is_numpys_and_its_tail_that_of_the_last_points() -> None:
    lengths = [32, 64, 128, 256, 512]
    values = [each + each**2 / 100 for each in lengths]
    line = np.polyfit(np.log(lengths), np.log(values), 1)[0]
    assert fitted_exponent(lengths, values) == pytest.approx(line)
    tail = np.log(values[-1] / values[-2]) / np.log(2)
    assert fitted_exponent(lengths, values, tail=2) == pytest.approx(tail)
    assert 1 < line < tail < 2


@pytest.mark.parametrize(
    ("lengths", "values", "tail"),
    [
        ([1], [1], None),
        ([1, 2], [1], None),
        ([1, 2], [0, 1], None),
        ([1, -2], [1, 1], None),
        ([1, 2], [1, float("nan")], None),
        ([3, 3], [1, 2], None),
        ([1, 2], [1, 2], 1),
        ([1, 2], [1, 2], 3),
    ],
)
def test_points_that_no_line_goes_through_are_refused(
    lengths: list[float | int], values: list[float | int], tail: int | None
) -> None:
    with pytest.raises(InputError):
        fitted_exponent(lengths, values, tail=tail)
