"""Designs are certified and parity refuted; each cell changed alone, against loops over sequences; the quick lab."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed import LAB
from glassformer.labs.hand_designed.experiments import Results, cells, study
from glassformer.labs.hand_designed.experiments.cells import Way, change_cells, draw_cells, measure_cells
from glassformer.labs.hand_designed.experiments.designs import measure_design, refute
from glassformer.labs.run import read, run


@pytest.mark.parametrize("name", ["unique", "majority_letter"])
def test_designs_are_certified_in_both_formats_and_for_more_letters(name: str) -> None:
    made = measure_design(name, large_len=9)
    assert (made.float64.verdict, made.float64.dtype, made.float64.num_checked) == ("holds", "float64", 120)
    assert (made.float32.verdict, made.float32.dtype) == ("holds", "float32")
    assert made.float64.largest_error < 1e-9
    assert made.float32.largest_error < 1e-6
    assert made.large.rests_on == "the bound"
    assert made.large.num_possible == sum(26**length for length in range(1, 10))
    if name == "majority_letter":
        assert (made.qk_dim, made.pos_dim, made.description) == (1, 0, "attend to everything")


def test_parity_is_refuted() -> None:
    refuted = refute(num_random=5, steps=3, seed=0)
    assert (refuted.num_random, refuted.num_refuted, refuted.steps) == (5, 5, 3)
    assert 1 <= refuted.longest <= 3
    assert refuted.trained.verdict == "fails"
    cases = TASKS["parity"]().all_cases
    assert refuted.constant == pytest.approx(max((cases.target[cases.counted] == sign).mean() for sign in (1, -1)))


def test_all_tasks_that_one_head_can_do_are_designed(results: Results) -> None:
    assert {design.task for design in results.designs} | {"parity"} == set(TASKS)
    assert all(each.holds for design in results.designs for each in (design.float64, design.float32, design.large))


def test_a_certificate_that_does_not_hold_is_counted(results: Results, report: Callable[..., str]) -> None:
    first, *others = results.designs
    text = report(designs=[replace(first, float32=replace(first.float32, verdict="fails")), *others])
    assert "6 of 7 float32 certificates hold" in text
    assert "All 7 float64 certificates hold" in text


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


def test_claims_turn_with_the_numbers(results: Results, report: Callable[..., str]) -> None:
    text = report()
    assert "With a cell at 0 that never happens" in text
    assert "further heads" in text
    broken = replace(results.cells.designed["unique"], broken={"zero": 27, "mean": 96})
    text = report(cells=replace(results.cells, designed={**results.cells.designed, "unique": broken}, further={}))
    assert "With a cell at 0 that never happens" not in text
    assert "further heads" not in text


def test_a_panel_for_each_matrix_of_both_heads(results: Results) -> None:
    shown = {"designed": results.cells.designed["unique"], "trained": results.cells.trained["unique"]}
    figure = draw_cells("unique", shown)
    assert [ax.get_title() for ax in figure.axes] == 2 * ["Km", "Qm", "Vm", "pos"]
    table = np.array(shown["designed"].misread["zero"]["Km"])
    np.testing.assert_allclose(np.asarray(figure.axes[0].images[0].get_array()), 100 * table.T)


@pytest.mark.slow
def test_the_quick_version_leaves_a_report_and_the_submission_log(tmp_path: Path) -> None:
    settings = {"steps": 20, "parity_steps": 5, "num_random": 2, "large_len": 5, "program_steps": 2}
    report = run(LAB, tmp_path, quick=True, seed=3, **settings).read_text(encoding="utf-8")
    results = read(tmp_path / "results.json", Results)
    assert json.loads((tmp_path / "submission_log.json").read_text(encoding="utf-8")) == results.submission
    assert (results.study, results.stories) == ([], [])
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert drawn == set(LAB.figures) - {"study", "unique-failures"}
    assert all(f"figures/{name}.png" in report for name in drawn)
