"""The two LayerNorms: their ratio, and what eps does, against the formulas in NumPy."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from glassformer.labs.sentiment.norms import measure_norms
from refusals import refused


def test_the_ratio_at_width_64_is_the_predicted_one() -> None:
    result = measure_norms(positions=50)
    at_64 = next(each for each in result.widths if each.width == 64)
    assert at_64.predicted_ratio == pytest.approx(0.99216, abs=5e-6)
    for each in result.widths:
        # What is left is eps against a variance of 25.
        assert each.ratio == pytest.approx(each.predicted_ratio, rel=1e-6)
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


def test_the_differences_are_those_of_the_formulas() -> None:
    result = measure_norms(hidden_dim=16, widths=(5,), deviations=(1e-3,), positions=7, seed=3)
    generator = torch.Generator().manual_seed(3)
    torch.randn(7, 16, generator=generator, dtype=torch.float64)  # those of the scales come first
    x = 10 + 5 * torch.randn(7, 5, generator=generator, dtype=torch.float64).numpy()
    centred = x - x.mean(1, keepdims=True)
    course = centred / (np.sqrt((centred**2).sum(1, keepdims=True) / 4) + 1e-6)
    plain = centred / np.sqrt((centred**2).sum(1, keepdims=True) / 5 + 1e-5)
    assert result.widths[0].largest == pytest.approx(np.abs(course - plain).max(), abs=1e-12)
    assert result.widths[0].mean == pytest.approx(np.abs(course - plain).mean(), abs=1e-12)
    assert (result.course_eps, result.torch_eps) == (1e-6, 1e-5)


def test_eps_acts_where_it_is_said_to() -> None:
    first = measure_norms(positions=20)
    for each in first.scales:
        assert each.course == pytest.approx(each.predicted_course, rel=1e-9)
        assert each.torch == pytest.approx(each.predicted_torch, rel=1e-9)
    halves = measure_norms(deviations=(first.course_half, first.torch_half), widths=(), positions=20).scales
    assert halves[0].course == pytest.approx(0.5 * (63 / 64) ** 0.5, rel=1e-9)
    assert halves[1].torch == pytest.approx(0.5, rel=1e-9)
    assert halves[1].course > 0.99  # where torch's has faded by half, the course's has not


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"positions": 0}, "positions = 0"),
        ({"deviations": (1.0, 0.0)}, "the deviation 0"),
        ({"widths": (1,)}, "features = 1"),
    ],
)
def test_impossible_requests_are_refused(arguments: dict[str, object], message: str) -> None:
    with refused(message):
        measure_norms(**arguments)
