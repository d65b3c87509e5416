"""The lab's figures show what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from glassformer.labs.gpt_oss import figures
from glassformer.labs.gpt_oss.results import Results


@pytest.mark.slow
def test_every_figure_is_written_as_png_and_svg_and_is_not_blank(results: Results, tmp_path: Path) -> None:
    drawn = figures.draw_figures(results, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")}
    for name, png in drawn.items():
        picture = imread(png)
        assert min(picture.shape[:2]) > 300, name
        assert 0.01 < (picture[..., :3].min(axis=-1) < 0.9).mean() < 0.9, name
        shades = (picture[..., :3] * 8).astype(int) @ np.array([100, 10, 1])
        assert len(np.unique(shades)) > 3, name


def test_accuracy_is_drawn_beside_the_optimum_and_its_gap_below(results: Results) -> None:
    above, below = figures.draw_accuracy(results).axes
    lines = [line.get_ydata().tolist() for line in above.get_lines()]
    assert lines == [results.optimum_by_position, *(model.accuracy_by_position for model in results.models)]
    labels = [text.get_text() for text in above.get_legend().get_texts()]
    assert labels[0] == f"optimal ({results.optimum:.4f})"
    assert labels[1:] == [f"{model.title} ({model.accuracy:.4f})" for model in results.models]
    gap = np.array(results.optimum_by_position) - results.models[0].accuracy_by_position
    assert below.get_lines()[0].get_ydata() == pytest.approx(gap)


def test_training_curves_are_those_that_were_logged(results: Results) -> None:
    losses, accuracies = figures.draw_training(results).axes
    assert [line.get_ydata().tolist() for line in losses.get_lines()] == [
        [loss for _, loss in model.losses] for model in results.models
    ]
    assert accuracies.get_lines()[0].get_ydata().tolist() == [0.4, 0.9]
    assert set(accuracies.get_lines()[-1].get_ydata()) == {results.optimum_test}


def test_bars_are_the_probabilities(results: Results) -> None:
    shown = results.generation.next_token
    panels = figures.draw_next_token(shown).axes
    assert [panel.get_title(loc="left") for panel in panels] == list(shown.model)
    assert [bar.get_height() for bar in panels[0].patches] == next(iter(shown.model.values()))
    assert {text.get_text() for text in panels[0].texts} == {"rule", "+1"}


def test_shares_of_steps_fill_each_bar(make_results: Callable[..., Results]) -> None:
    left, right = figures.draw_generation(make_results(generation="bad")).axes
    rows = 7
    widths = np.array([bar.get_width() for bar in left.patches]).reshape(3, rows)
    assert widths.sum(axis=0) == pytest.approx(np.ones(rows))
    assert widths[:, 1].tolist() == pytest.approx([0.2, 0.4, 0.4])
    assert len(right.patches) == 2 * rows


def test_the_grid_shows_every_cell_and_the_truth(results: Results) -> None:
    panels = figures.draw_grid(results).axes
    cells = results.generation.grid
    for panel, part in zip(panels, ("rule", "increment", "neither"), strict=True):
        values = [round(getattr(cell, part), 2) for row in cells for cell in row]
        assert [float(text.get_text()) for text in panel.texts] == values
        assert f"(true: {getattr(results.generation.true, part):.2f})" in panel.get_title(loc="left")
