"""Figures of classifiers: what was measured is what is drawn, with the intervals that its counts allow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

pytest.importorskip("sklearn")

from glassformer.labs.sentiment.experiments.models import (
    ModelResult,
    draw_calibration,
    draw_kinds,
    draw_training,
    reliability,
)
from glassformer.labs.sentiment.experiments.recipes import Epoch

KINDS = {"words": {"plain": 0.9, "irony": 0.2}, "encoder": {"plain": 1.0, "irony": 0.5}}
COUNTS = {"plain": 40, "irony": 10}


def model(name: str, sharp: bool) -> ModelResult:
    rng = np.random.default_rng(0)
    probability = rng.random(400)
    labels = (rng.random(400) < probability).astype(int)
    p = np.where(probability > 0.5, 0.97, 0.02) if sharp else probability
    bins = reliability(np.stack([1 - p, p], 1), labels)
    epochs = [] if sharp else [Epoch(epoch, 1 / epoch, 1.2 / epoch, 0.5 + epoch / 20) for epoch in (2, 4, 6)]
    return ModelResult(name, 0, "", True, 9, 0.8, 0.8, 0.8, 0.4, 0.031, KINDS["words"], bins, epochs)


MODELS = [model("honest", False), model("sure", True)]


def test_training_is_drawn_by_epoch_of_what_has_epochs(check_readable: Callable[[Figure], None]) -> None:
    figure = draw_training(MODELS)
    check_readable(figure)
    (accuracy,) = figure.axes[1].lines
    np.testing.assert_allclose(accuracy.get_data(), [[2, 4, 6], [60, 70, 80]])
    assert [len(ax.lines) for ax in figure.axes] == [2, 1]


def test_calibration_shows_share_against_probability(check_readable: Callable[[Figure], None]) -> None:
    figure = draw_calibration(MODELS)
    check_readable(figure)
    for ax, each in zip(figure.axes, MODELS, strict=True):
        np.testing.assert_array_equal(ax.lines[0].get_data(), [[0, 1], [0, 1]])
        points = np.asarray(ax.containers[0][0].get_data())
        np.testing.assert_array_equal(points, [[b.predicted for b in each.bins], [b.actual for b in each.bins]])
        assert ax.get_title(loc="left") == f"{each.name}\nerror 0.031"
    assert len(draw_calibration([*MODELS, *MODELS]).axes) == 6


def test_bars_are_the_accuracies_in_groups(check_readable: Callable[[Figure], None]) -> None:
    figure = draw_kinds(KINDS, COUNTS)
    check_readable(figure)
    (ax,) = figure.axes
    bars = [container for container in ax.containers if not hasattr(container, "has_yerr")]
    assert [[bar.get_height() for bar in container] for container in bars] == [[0.9, 0.2], [1.0, 0.5]]
    assert [container.get_label() for container in bars] == ["words", "encoder"]
    middles = [[bar.get_x() + bar.get_width() / 2 for bar in container] for container in bars]
    np.testing.assert_allclose(np.mean(middles, axis=0), [0, 1], atol=1e-12)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["plain\n40 reviews", "irony\n10 reviews"]
    looks = {(to_rgb(container[0].get_facecolor()), container[0].get_hatch()) for container in bars}
    assert len({hatch for _, hatch in looks}) == len({colour for colour, _ in looks}) == 2
