"""The report's claims follow from the results: a bad run is not told as a good one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.labs.lookup.report import report_text, write_report
from glassformer.labs.lookup.results import Results

PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "labs" / "lookup"
NAMES = ("accuracy", "finding", "cross-attention", "sharpness", "scrambling", "training", "changes")
FIGURES = {name: f"figures/{name}.png" for name in NAMES}


def test_the_published_report_is_what_the_published_results_say() -> None:
    results, published = Results.read(PUBLISHED / "results.json"), (PUBLISHED / "report.md").read_text(encoding="utf-8")
    assert published == report_text(results, FIGURES)
    assert all((PUBLISHED / address).is_file() for address in FIGURES.values())
    assert {address.split("/")[1][:-4] for address in FIGURES.values()} == set(
        re.findall(r"]\(figures/([a-z-]+)\.png\)", published)
    )


def test_a_good_run_is_told_as_one(results: Results) -> None:
    text = report_text(results, FIGURES)
    for claim in (
        "it answers all of them",
        "no model can be right in more than 12.5% of the questions",
        "do bind",
        "No token that is written changes",
        "fails the test: no token changes, and a logit by 0.3",
        "has at least 0.950 of its weight",
        "right after epoch 1 to 2; the course allows 50",
        "0.930 lies on tokens that stand in one fact alone",
    ):
        assert claim in text, claim
    assert all(f"]({address})" in text for address in FIGURES.values())
    assert "quick" not in text
    assert "**" not in text


def test_a_bad_run_is_told_as_one(make_results: Callable[..., Results]) -> None:
    text = report_text(make_results(good=False), FIGURES)
    for claim in (
        "it answers 35.0% of them at worst",
        "do not bind better here",
        "**The test fails**: 14 tokens change, and a logit by 3.0e-01",
        "has 0.500 of its weight",
        "no seed answers all validation examples right",
        "| never |",
    ):
        assert claim in text, claim
    assert "Nor does it rely on RED" not in text


def test_a_control_that_passes_shows_nothing(make_results: Callable[..., Results]) -> None:
    results = make_results()
    text = report_text(Results(**{**vars(results), "control": results.course[0]}), FIGURES)
    assert "passes as well, so that the test shows nothing" in text


def test_sentences_turn_with_their_numbers(results: Results) -> None:
    moved = [replace(each, order=replace(each.order, answers_changed=3)) for each in results.encodings]
    text = report_text(replace(results, encodings=moved), FIGURES)
    assert "So what makes one position is bound" in report_text(results, FIGURES)
    assert "So what makes one position is bound" not in text
    assert "Another order of the slots changes 6 answers" in text
    course = [
        replace(model, after=[replace(model.after[0], key=key), model.after[1]])
        for key, model in zip((0.2, 0.4), results.course, strict=True)
    ]
    assert "has 0.550 to 0.750, by seed, of its weight" in report_text(replace(results, course=course), FIGURES)
    failed = [replace(model, scrambling=replace(model.scrambling, largest_changes=[0.3])) for model in results.course]
    text = report_text(replace(results, course=failed), FIGURES)
    assert "**The test fails**: no tokens change, and a logit by 3.0e-01" in text
    slow = [results.course[0], replace(results.course[1], epochs_needed=None)]
    assert "after epoch 1 in 1 of 2 seeds" in report_text(replace(results, course=slow), FIGURES)
    bag = [
        replace(each, lengths=tuple(replace(length, accuracy=0.9) for length in each.lengths))
        if each.encoding == "bag"
        else each
        for each in results.encodings
    ]
    assert "**which is more than chance allows**" in report_text(replace(results, encodings=bag), FIGURES)


def test_the_quick_version_says_so_and_needs_no_changes(make_results: Callable[..., Results]) -> None:
    text = report_text(make_results(plan="quick", changes=False, seeds=1), FIGURES)
    assert "This is the quick version" in text
    assert "figures/changes.png" not in text
    assert "the median of" not in text


def test_the_side_by_side_lines_are_shown(results: Results) -> None:
    text = report_text(results, FIGURES)
    assert "```text\noriginal   NAME RED  ->  BLUE [EOS]\nscrambled  RED NAME  ->  BLUE [EOS]\n```" in text


def test_images_are_addressed_from_the_report(results: Results, tmp_path: Path) -> None:
    figures = {name: tmp_path / "figures" / f"{name}.png" for name in NAMES}
    path = write_report(results, figures, tmp_path / "report.md")
    assert "](figures/accuracy.png)" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("good", [True, False])
def test_every_number_of_the_course_stands_in_the_table(good: bool, make_results: Callable[..., Results]) -> None:
    results = make_results(good=good)
    rows = [row for row in report_text(results, FIGURES).splitlines() if row.startswith("| seed ")]
    assert len(rows) == 3
    for row, model in zip(rows, [*results.course, results.control], strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2:4] == [f"{model.test_accuracy:.2%}", f"{model.contexts_accuracy:.2%}"]
        assert int(cells[5]) == model.scrambling.changed_tokens
        assert float(cells[6]) == pytest.approx(model.scrambling.largest_change, rel=0.05)
    assert "with positions" in rows[-1]
