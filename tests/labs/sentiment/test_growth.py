"""Growth with the length: counted by torch as predicted, with the exponents that theory has."""

from __future__ import annotations

import pytest

from glassformer.labs.kept import to_json
from glassformer.labs.sentiment.growth import D_FF, D_MODEL, GrowthResult, measure_growth
from refusals import refused


@pytest.fixture(scope="module")
def found() -> GrowthResult:
    return measure_growth((16, 32, 64), rounds=1)


def test_torch_counts_what_is_predicted(found: GrowthResult) -> None:
    assert found.counted
    assert [growth.lengths for growth in found.growths] == [(16, 32, 64)] * 4
    assert (found.overtakes, found.overtakes_with_projections) == (D_FF + 1, D_FF - 2 * D_MODEL + 1)


def test_exponents_lie_between_linear_and_quadratic(found: GrowthResult) -> None:
    for growth in found.growths:
        exponents = found.exponents(growth)
        assert 1.0 <= exponents["operations"] < 1.1  # short texts: the projections and the feed-forward network
        assert set(exponents) == {"seconds", "operations", "peak_bytes", "predicted_bytes"}
        assert min(growth.measured.seconds) > 0
    fused, held, *_ = found.growths
    # At 64 tokens the feed-forward network may be the peak of both.
    assert held.measured.peak_bytes[-1] >= fused.measured.peak_bytes[-1]


def test_it_can_be_stored(found: GrowthResult) -> None:
    assert '"counted": true' in to_json(found, GrowthResult)


def test_one_length_is_refused() -> None:
    with refused(expected="at least two"):
        measure_growth((16,))
