"""The two LayerNorms: their ratio, what bounds their difference, and what eps does, against the formulas."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from glassformer.labs.sentiment.course import LayerNorm
from glassformer.labs.sentiment.experiments.norms import NormsResult, draw_norms, measure_norms


@pytest.fixture(scope="module")
def norms() -> NormsResult:
    return measure_norms()


def test_the_ratio_is_the_predicted_one(norms: NormsResult) -> None:
    assert norms.predicted_ratio == pytest.approx(0.99216, abs=5e-6)
    # What is left is eps against a variance of 25.
    assert norms.ratio == pytest.approx(norms.predicted_ratio, rel=1e-6)
    assert 0 < norms.largest <= norms.bound + 1e-6
    assert json.loads(json.dumps(dataclasses.asdict(norms))) == dataclasses.asdict(norms)


def test_the_bound_is_reached_by_one_number_among_equal_ones(norms: NormsResult) -> None:
    x = torch.zeros(1, 64, dtype=torch.float64)
    x[0, 0] = 1e6
    apart = (LayerNorm(64).double()(x) - torch.nn.LayerNorm(64).double()(x)).abs().max()
    assert apart.item() == pytest.approx(norms.bound, rel=1e-6)


def test_the_largest_difference_is_that_of_the_formulas(norms: NormsResult) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 10 + 5 * torch.randn(1000, 64, generator=generator, dtype=torch.float64).numpy()
    centred = x - x.mean(1, keepdims=True)
    course = centred / (np.sqrt((centred**2).sum(1, keepdims=True) / 63) + 1e-6)
    plain = centred / np.sqrt((centred**2).sum(1, keepdims=True) / 64 + 1e-5)
    assert norms.largest == pytest.approx(np.abs(course - plain).max(), abs=1e-12)


def test_eps_acts_where_the_formulas_say(norms: NormsResult) -> None:
    for each in norms.sizes:
        d = each.deviation
        assert each.course == pytest.approx(d / (d * (64 / 63) ** 0.5 + 1e-6), rel=1e-9)
        assert each.torch == pytest.approx(d / (d**2 + 1e-5) ** 0.5, rel=1e-9)
    (tiny,) = (each for each in norms.sizes if each.deviation == 1e-3)  # which the report shows
    assert tiny.torch < 0.5 < 0.99 < tiny.course


def test_the_figure_shows_the_sample_and_the_scales(
    norms: NormsResult, check_readable: Callable[[Figure], None]
) -> None:
    figure = draw_norms(norms)
    check_readable(figure)
    for ax, name in zip(figure.axes, norms.sample, strict=False):
        assert sum(bar.get_height() for bar in ax.patches) == 20 * 64
        assert ax.get_title(loc="left").startswith(name)
    for drawn, name in zip(figure.axes[3].lines, ("course", "torch"), strict=True):
        np.testing.assert_array_equal(drawn.get_ydata(), [getattr(each, name) for each in norms.sizes])
