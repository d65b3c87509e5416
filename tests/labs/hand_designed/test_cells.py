"""Each cell changed alone: shares against loops over sequences, what the report says of them, and the figure."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed import LAB
from glassformer.labs.hand_designed.experiments import Results, cells, study
from glassformer.labs.hand_designed.experiments.cells import Way, change_cells, draw_cells, measure_cells
from glassformer.labs.run import render


def share_misread(head: HeadWeights, letters: int, max_len: int) -> float:
    """Of the outputs of copy_first, over a loop of all sequences; a tie is misread."""
    wrong = total = 0
    for length in range(1, max_len + 1):
        for sequence in product(range(letters), repeat=length):
            for output in NumpyHead(head)(np.eye(letters)[list(sequence)]):
                others = np.delete(output, sequence[0])
                wrong, total = wrong + int(output[sequence[0]] <= others.max()), total + 1
    return wrong / total


@pytest.mark.parametrize("seed", [None, 0])
def test_shares_are_those_of_a_loop_over_all_sequences(seed: int | None) -> None:
    task = TASKS["copy_first"](letters="AB", max_len=3)
    head = design(task).weights
    if seed is not None:
        rng = np.random.default_rng(seed)
        head = HeadWeights(**{name: matrix + rng.normal(size=matrix.shape) for name, matrix in head.matrices.items()})
    found, whole = change_cells(head, task, None), share_misread(head, 2, 3)
    assert whole == 0 or seed is not None
    for name, matrix in head.matrices.items():
        for row, column in np.ndindex(matrix.shape):
            kind = slice(None) if name == "pos" else slice(2) if row < 2 else slice(2, None)
            values: dict[Way, float] = {"zero": 0.0, "mean": matrix[kind, column].mean()}
            for way, value in values.items():
                changed = matrix.copy()
                changed[row, column] = value
                expected = share_misread(HeadWeights(**{**head.matrices, name: changed}), 2, 3)
                assert found.misread[way][name][row][column] == pytest.approx(expected - whole, abs=1e-12)


def test_a_letter_without_its_value_is_always_misread() -> None:
    found = change_cells(design(TASKS["identity"]()).weights, TASKS["identity"](), 1e-9)
    np.testing.assert_allclose(found.misread["zero"]["Vm"], np.eye(3) / 3)
    assert (found.nonzero, found.broken["zero"], found.needed("zero"), len(found.shares("zero"))) == (9, 9, 9, 27)


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
