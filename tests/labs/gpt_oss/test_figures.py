"""The lab's figures show what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from glassformer.labs.gpt_oss import LAB
from glassformer.labs.gpt_oss.experiments import Results, generation, models
from glassformer.labs.gpt_oss.experiments.models import MODELS


def test_accuracy_is_drawn_beside_the_optimum_and_losses_below(results: Results) -> None:
    above, below = LAB.figures["accuracy-by-position"](results).axes
    optimum, first = results.optimum, results.models["course"][0]
    lines = [line.get_ydata().tolist() for line in above.get_lines()]
    assert lines[:2] == [optimum.by_position, first.by_position]
    best = max(results.models.values(), key=lambda seeds: seeds[0].accuracy)[0]
    assert lines[2] == best.by_position
    labels = [text.get_text() for text in above.get_legend().get_texts()]
    assert labels[0] == f"optimal ({optimum.mean:.4f})"
    assert labels[1] == f"{MODELS['course'].title} ({first.accuracy:.4f})"
    lost = np.asarray(below.images[0].get_array())
    assert lost.shape == (len(results.models), len(models.RANGES))
    assert lost[0, 0] == pytest.approx(100 * (optimum.by_position[0] - first.by_position[0]))
    ranges = np.array([3, 6, 20, 32])  # positions 3 to 5, 6 to 11, 12 to 31, 32 to 63
    whole = (lost[0, :3].sum() + lost[0, 3:] @ ranges) / 64
    assert whole == pytest.approx(100 * optimum.gap(first.by_position))


def test_training_curves_are_those_that_were_logged(results: Results) -> None:
    panels = LAB.figures["training"](results).axes
    columns = len(panels) // 2
    drawn = [line.get_ydata().tolist() for axes in panels[:columns] for line in axes.get_lines()]
    assert sorted(map(len, drawn)) == sorted(len(seeds[0].losses) for seeds in results.models.values())
    assert [value for _, value in results.models["course"][0].losses] in drawn
    assert set(panels[columns].get_lines()[-1].get_ydata()) == {results.optimum.test}
    assert all(axes.get_xscale() == "linear" for axes in panels)


def test_bars_are_the_probabilities(results: Results) -> None:
    shown = results.generation.next_token
    panels = generation.draw_next_token(results.generation).axes
    assert [panel.get_title(loc="left") for panel in panels] == list(shown.model)
    assert [bar.get_height() for bar in panels[0].patches] == next(iter(shown.model.values()))
    assert {text.get_text() for text in panels[0].texts} == {"rule", "+1"}


def test_shares_of_steps_fill_each_bar(results: Results) -> None:
    left, right = generation.draw_rules(results.generation).axes
    rows = [results.generation.true, *results.generation.rules.values()]
    widths = np.array([bar.get_width() for bar in left.patches]).reshape(3, len(rows))
    assert widths.sum(axis=0) == pytest.approx(np.ones(len(rows)))
    assert widths[:, 1].tolist() == pytest.approx([rows[1].rule, rows[1].increment, rows[1].neither])
    assert len(right.patches) == 2 * len(rows)


def test_the_grid_is_compared_with_the_true_shares(results: Results) -> None:
    shown = results.generation
    panels = generation.draw_grid(shown).axes
    for panel, part in zip(panels, ("rule", "increment", "neither"), strict=False):
        shares = np.array([[getattr(cell, part) for cell in row] for row in shown.grid])
        np.testing.assert_allclose(panel.images[0].get_array(), shares - getattr(shown.true, part))
        assert f"(true: {100 * getattr(shown.true, part):.1f} %)" in panel.get_title(loc="left")
        (box,) = panel.patches
        assert shown.temperatures[round(box.get_y() + 0.5)] == shown.closest()[0]
