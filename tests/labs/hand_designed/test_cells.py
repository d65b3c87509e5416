"""What the report says of the cells, and how they are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glassformer.figures.single_heads import draw_cells
from glassformer.labs.hand_designed import LAB
from glassformer.labs.hand_designed.experiments import Results, cells, study
from glassformer.labs.hand_designed.experiments.cells import measure_cells
from glassformer.labs.run import render


@pytest.mark.slow
def test_heads_of_further_seeds_that_solve_the_task_are_counted(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "course_recipe", lambda task: study.fast_recipe(task).scaled(0.5))
    found = measure_cells({"copy_first": results.comparisons["copy_first"]}, seeds=range(2))
    assert found.num_further == 2
    assert found.trained["copy_first"] == results.cells.trained["copy_first"]
    assert {way: len(shares) for way, shares in found.further["copy_first"].items()} == {"zero": 2, "mean": 2}
    assert all(0 <= share < 0.5 for shares in found.further["copy_first"].values() for share in shares)


def test_claims_turn_with_the_numbers(results: Results) -> None:
    report = render(LAB, results)
    assert "With a cell at 0 that never happens" in report
    assert "further heads" in report
    broken = replace(results.cells.designed["unique"], broken={"zero": 27, "mean": 96})
    changed = replace(results.cells, designed={**results.cells.designed, "unique": broken}, further={})
    report = render(LAB, replace(results, cells=changed))
    assert "With a cell at 0 that never happens" not in report
    assert "further heads" not in report


def test_a_panel_for_each_matrix_of_both_heads(results: Results) -> None:
    shown = {"designed": results.cells.designed["unique"], "trained": results.cells.trained["unique"]}
    figure = draw_cells("unique", shown)
    assert [ax.get_title() for ax in figure.axes] == 2 * ["Km", "Qm", "Vm", "pos"]
    table = np.array(shown["designed"].misread["zero"]["Km"])
    np.testing.assert_allclose(np.asarray(figure.axes[0].images[0].get_array()), 100 * table.T)
