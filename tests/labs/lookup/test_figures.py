"""Figures hold what the results say, and are the same for the same results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from glassformer.labs.lookup.figures import (
    draw_cross_attention,
    draw_figures,
    draw_scrambling,
    draw_sharpness,
    draw_training,
)
from glassformer.labs.lookup.results import Results


@pytest.mark.slow
def test_every_figure_is_drawn_twice_over_and_always_the_same(
    make_results: Callable[..., Results], tmp_path: Path
) -> None:
    first, second = (draw_figures(make_results(), tmp_path / name) for name in ("one", "two"))
    assert set(first) == {
        "accuracy",
        "changes",
        "cross-attention",
        "finding",
        "scrambling",
        "sharpness",
        "training",
    }
    for name, path in first.items():
        assert path.name == f"{name}.png"
        assert path.read_bytes() == second[name].read_bytes()
        assert path.with_suffix(".svg").exists()
    assert "changes" not in draw_figures(make_results(changes=False, seeds=1), tmp_path / "three")


def test_heat_maps_show_the_weights_of_each_head(results: Results) -> None:
    model = results.course[0]
    axes = [ax for ax in draw_cross_attention(model).axes if ax.images]
    maps = [*model.map_before.weights, *model.map_after.weights]
    for ax, weights in zip(axes, maps, strict=False):
        np.testing.assert_allclose(ax.images[0].get_array(), weights)
        assert [label.get_text() for label in ax.get_xticklabels()] == model.map_after.source
    assert [label.get_text() for label in axes[0].get_yticklabels()] == model.map_after.target


def test_bars_of_sharpness_stand_on_one_another(results: Results) -> None:
    left, right = draw_sharpness(results).axes
    tops = sorted(bar.get_y() + bar.get_height() for bar in left.patches)
    shares = [*results.course[0].before, *results.course[0].after]
    np.testing.assert_allclose(tops, sorted([s.key for s in shares] + [s.fact for s in shares]))
    slots = results.of_encoding("slots")[0]
    heights = [bar.get_height() for bar in right.patches]
    np.testing.assert_allclose(heights, [*slots.sharpness_before, *slots.lengths[2].sharpness])


def test_changes_of_logits_lie_on_either_side_of_what_is_allowed(results: Results) -> None:
    (ax,) = draw_scrambling(results).axes
    control, course, allowed = ax.lines
    np.testing.assert_allclose(control.get_ydata(), np.maximum(results.control.scrambling.largest_changes, 1e-8))
    np.testing.assert_allclose(course.get_ydata(), np.maximum(results.course[0].scrambling.largest_changes, 1e-8))
    assert list(allowed.get_ydata()) == [1e-5, 1e-5]


def test_training_curves_have_a_line_for_every_model(results: Results) -> None:
    left, right = draw_training(results).axes
    assert len(left.lines) == len(right.lines) == len(results.course) + 1
    np.testing.assert_allclose(left.lines[0].get_xydata(), [[1, 1.1], [2, 0.5], [3, 0.3]])
    np.testing.assert_allclose(right.lines[0].get_ydata(), [0.9, 1, 1])
