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
    return measure_norms(positions=50)


def test_the_ratio_is_the_predicted_one(norms: NormsResult) -> None:
    assert norms.width(64).predicted_ratio == pytest.approx(0.99216, abs=5e-6)
    for each in norms.widths:
        # What is left is eps against a variance of 25.
        assert each.ratio == pytest.approx(each.predicted_ratio, rel=1e-6)
        assert 0 < each.largest <= each.bound + 1e-6
    assert json.loads(json.dumps(dataclasses.asdict(norms))) == dataclasses.asdict(norms)


@pytest.mark.parametrize("width", [8, 64])
def test_the_bound_is_reached_by_one_number_among_equal_ones(norms: NormsResult, width: int) -> None:
    x = torch.zeros(1, width, dtype=torch.float64)
    x[0, 0] = 1e6
    apart = (LayerNorm(width).double()(x) - torch.nn.LayerNorm(width).double()(x)).abs().max()
    assert apart.item() == pytest.approx(norms.width(width).bound, rel=1e-6)


def test_the_largest_difference_is_that_of_the_formulas() -> None:
    result = measure_norms(hidden_dim=16, widths=(5,), deviations=(1e-3,), positions=7, seed=3)
    generator = torch.Generator().manual_seed(3)
    x = 10 + 5 * torch.randn(7, 5, generator=generator, dtype=torch.float64).numpy()
    centred = x - x.mean(1, keepdims=True)
    course = centred / (np.sqrt((centred**2).sum(1, keepdims=True) / 4) + 1e-6)
    plain = centred / np.sqrt((centred**2).sum(1, keepdims=True) / 5 + 1e-5)
    assert result.widths[0].largest == pytest.approx(np.abs(course - plain).max(), abs=1e-12)


def test_eps_acts_where_the_formulas_say(norms: NormsResult) -> None:
    for each in norms.scales:
        d = each.deviation
        assert each.course == pytest.approx(d / (d * (64 / 63) ** 0.5 + 1e-6), rel=1e-9)
        assert each.torch == pytest.approx(d / (d**2 + 1e-5) ** 0.5, rel=1e-9)
    assert norms.scale(1e-3).torch < 0.5 < 0.99 < norms.scale(1e-3).course


def test_the_figure_shows_the_sample_and_the_scales(
    norms: NormsResult, check_readable: Callable[[Figure], None]
) -> None:
    figure = draw_norms(norms)
    check_readable(figure)
    for ax, name in zip(figure.axes, norms.sample, strict=False):
        assert sum(bar.get_height() for bar in ax.patches) == 20 * 64
        assert ax.get_title(loc="left").startswith(name)
    for drawn, name in zip(figure.axes[3].lines, ("course", "torch"), strict=True):
        np.testing.assert_array_equal(drawn.get_ydata(), [getattr(each, name) for each in norms.scales])
