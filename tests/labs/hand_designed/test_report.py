"""The report: every figure is shown, numbers are those of the results, claims turn with them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from glassformer.labs.hand_designed.report import report_text, write_report
from glassformer.labs.hand_designed.results import Results


@pytest.fixture
def results(tiny_run: Path) -> Results:
    """What the tiny run measured."""
    return Results.read(tiny_run / "results.json")


def text(results: Results, tiny_run: Path) -> str:
    return report_text(results, {path.stem: f"figures/{path.name}" for path in (tiny_run / "figures").glob("*.png")})


def test_every_figure_is_shown_once_and_is_there(tiny_run: Path) -> None:
    report = (tiny_run / "report.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", report)
    assert sorted(shown) == sorted(f"figures/{path.name}" for path in (tiny_run / "figures").glob("*.png"))
    assert all((tiny_run / address).exists() for address in shown)


def test_the_table_has_every_design_with_its_numbers(results: Results, tiny_run: Path) -> None:
    report = text(results, tiny_run)
    for design in results.designs:
        row = next(line for line in report.splitlines() if line.startswith(f"| {design.task} |"))
        assert design.description in row
        assert f"{design.float64.largest_error:.1e} | {design.float64.bound:.1e}" in row
    assert "All 7 certificates in float64 hold (every error at most 1e-09)." in report
    assert "up to 5 of them" in report


def test_a_certificate_that_does_not_hold_is_counted(results: Results, tiny_run: Path) -> None:
    first = dataclasses.replace(results.designs[0].float32, verdict="fails")
    designs = [dataclasses.replace(results.designs[0], float32=first), *results.designs[1:]]
    assert "6 of 7 certificates in float32 hold" in text(dataclasses.replace(results, designs=designs), tiny_run)


def test_refutations_are_told_as_they_went(results: Results, tiny_run: Path) -> None:
    assert "Of 3 heads with random weights the verifier refuted every one" in text(results, tiny_run)
    weaker = dataclasses.replace(results.refutation, num_refuted=2)
    assert "the verifier refuted 2," in text(dataclasses.replace(results, refutation=weaker), tiny_run)
    assert str(results.refutation.trained.counterexample) in text(results, tiny_run)


def test_the_quick_version_says_so(results: Results, tiny_run: Path) -> None:
    assert "quick version" not in text(results, tiny_run)
    assert "quick version" in text(dataclasses.replace(results, plan="quick"), tiny_run)


def test_both_questions_are_answered(results: Results, tiny_run: Path) -> None:
    report = text(results, tiny_run)
    assert report.count("*Question:") == 2
    assert report.count("**What is alike, and why.**") == report.count("**What differs, and why.**") == 3


def test_it_is_written_with_paths_relative_to_it(results: Results, tiny_run: Path) -> None:
    figures = {path.stem: path for path in (tiny_run / "figures").glob("*.png")}
    report = write_report(results, figures, tiny_run / "more" / "report.md")
    assert "](../figures/identity-heads.png)" in report.read_text(encoding="utf-8")
