"""The study's figures: a mark for every training, a line for every head that was followed."""

from __future__ import annotations

import dataclasses

import numpy as np

from glassformer.labs.hand_designed.results import Results
from glassformer.labs.hand_designed.study import Story
from glassformer.labs.hand_designed.study_figures import draw_failures, draw_study


def points(ax, marker: str) -> list[tuple[float, float]]:
    lines = [line for line in ax.lines if line.get_marker() == marker]
    return [(x, y) for line in lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def test_every_training_has_a_mark_for_its_error_and_its_time(results: Results) -> None:
    cells = [dataclasses.replace(cell, solved=cell.seed % 2 == 0) for cell in results.cells]
    figure = draw_study(dataclasses.replace(results, cells=cells))
    for task, ax in zip(("identity", "copy_first", "unique"), figure.axes[:3], strict=True):
        own = [cell for cell in cells if cell.task == task]
        assert ax.get_title(loc="left") == task
        for marker, solved in (("o", True), ("X", False)):
            drawn = sorted(y for _, y in points(ax, marker))
            assert drawn == sorted(cell.largest_error for cell in own if cell.solved == solved)
    times = [y for marker in "oX" for ax in figure.axes[3:6] for _, y in points(ax, marker)]
    assert sorted(times) == sorted(cell.seconds for cell in cells)
    labels = [tick.get_text() for tick in figure.axes[3].get_xticklabels()]
    assert [label.splitlines()[0] for label in labels] == ["course", "fast"]
    assert labels[0].endswith(f"{results.summaries[0].solved} of {results.summaries[0].seeds} solved")


def test_failing_heads_are_followed_and_all_heads_are_placed(stories: list[Story]) -> None:
    left, right = draw_failures(stories).axes
    assert points(left, "^") == [(100, 0.98), (300, 1.0)]
    assert len(points(left, "X")) == 4
    assert points(left, "o") == []
    placed = [point for marker in "o^X" for point in points(right, marker)]
    np.testing.assert_allclose(placed, [(0.97, 0.15), (0.98, 0.4), (0.5, 0.2), (0.5, 0.2)])
    assert [label.get_text() for label in left.get_xticklabels()] == ["100", "300", "1,000"]
