"""Designs are certified and parity refuted; the quick version of the lab."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed import LAB
from glassformer.labs.hand_designed.experiments import Results
from glassformer.labs.hand_designed.experiments.designs import measure_design, refute
from glassformer.labs.run import read, run


@pytest.mark.parametrize("name", ["unique", "majority_letter"])
def test_designs_are_certified_in_both_formats_and_for_more_letters(name: str) -> None:
    made = measure_design(name, large_len=9)
    assert (made.float64.verdict, made.float64.dtype, made.float64.num_checked) == (
        "holds",
        "float64",
        120,
    )
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
    assert refuted.constant == pytest.approx(
        max((cases.target[cases.counted] == sign).mean() for sign in (1, -1))
    )


def test_all_tasks_that_one_head_can_do_are_designed(results: Results) -> None:
    assert {design.task for design in results.designs} | {"parity"} == set(TASKS)
    assert all(
        each.holds
        for design in results.designs
        for each in (design.float64, design.float32, design.large)
    )


def test_a_certificate_that_does_not_hold_is_counted(
    results: Results, report: Callable[..., str]
) -> None:
    first, *others = results.designs
    text = report(
        designs=[replace(first, float32=replace(first.float32, verdict="fails")), *others]
    )
    assert "6 of 7 float32 certificates hold" in text
    assert "All 7 float64 certificates hold" in text


@pytest.mark.parametrize(("longest", "said"), [(1, "1 letter."), (3, "3 letters.")])
def test_letters_are_counted(
    results: Results, report: Callable[..., str], longest: int, said: str
) -> None:
    text = report(refutation=replace(results.refutation, longest=longest))
    assert f"with counterexamples of at most {said}" in " ".join(text.split())


@pytest.mark.slow
def test_the_quick_version_leaves_a_report_and_the_submission_log(tmp_path: Path) -> None:
    settings = {"steps": 20, "trainings": 2, "parity_steps": 5, "num_random": 2, "large_len": 5}
    report = run(LAB, tmp_path, quick=True, seed=3, **settings).read_text(encoding="utf-8")
    results = read(tmp_path / "results.json", Results)
    assert (
        json.loads((tmp_path / "submission_log.json").read_text(encoding="utf-8"))
        == results.submission
    )
    assert [each.seed for each in results.trainings] == [230, 231]
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert drawn == set(LAB.figures)
    assert all(f"figures/{name}.png" in report for name in drawn)
