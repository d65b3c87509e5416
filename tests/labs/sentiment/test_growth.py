"""Growth with the length: counted by torch as predicted, with the exponents that theory has."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.labs.run import kept
from glassformer.labs.sentiment.experiments.growth import D_FF, D_MODEL, GrowthResult, measure_growth


@pytest.fixture(scope="module")
def found() -> GrowthResult:
    return measure_growth((16, 32, 64))


def test_torch_counts_what_is_predicted(found: GrowthResult) -> None:
    assert found.counted
    assert [growth.lengths for growth in found.growths] == [(16, 32, 64)] * 4
    assert (found.overtakes, found.overtakes_with_projections) == (D_FF + 1, D_FF - 2 * D_MODEL + 1)
    assert found.course_overtakes == 257


def test_exponents_lie_between_linear_and_quadratic(found: GrowthResult) -> None:
    for growth in found.growths:
        assert 1.0 <= found.exponents(growth)["operations"] < 1.1  # short texts: projections and feed-forward network


def test_memory_is_about_what_is_predicted_and_quadratic_where_weights_are_held() -> None:
    fused, held, *_ = measure_growth((512, 1024)).growths
    for growth in (fused, held):
        assert 0.8 < growth.measured.peak_bytes[-1] / growth.held[-1] < 1.1
    assert held.measured.peak_bytes[-1] > 2 * fused.measured.peak_bytes[-1]


def test_it_is_kept(found: GrowthResult, tmp_path: Path) -> None:
    assert kept(tmp_path / "growth.json", GrowthResult, lambda: found) == found
