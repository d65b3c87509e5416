"""The report: its length, its five elements, and claims that follow from the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.labs.gpt_oss.report import report_text, write_report
from glassformer.labs.gpt_oss.results import Results

IMAGES = {
    name: f"figures/{name}.png"
    for name in ("accuracy-by-position", "training", "next-token", "generation", "sampling-grid")
}


def sections(text: str) -> dict[str, list[str]]:
    """The paragraphs of prose under each heading; tables and images are none."""
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        heading: [block for block in body.strip().split("\n\n") if block and block[0] not in "!|"]
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    }


def prose_words(text: str) -> int:
    return sum(len(paragraph.split()) for paragraphs in sections(text).values() for paragraph in paragraphs)


@pytest.mark.parametrize("level", [0.3, 0.7, 0.915, 0.95])
@pytest.mark.parametrize("generation", ["good", "bad"])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("plan", ["full", "quick"])
def test_length_and_elements_whatever_was_measured(
    level: float, generation: str, fresh: bool, plan: str, make_results: Callable[..., Results]
) -> None:
    text = report_text(make_results(level, generation, fresh, plan), IMAGES)
    assert 300 <= prose_words(text) <= 600
    parts = sections(text)
    nucleus = next(heading for heading in parts if heading.startswith("Nucleus sampling"))
    assert [len(parts[heading]) for heading in ("Cross-entropy", "Generation", "Temperature")] == [1, 1, 1]
    assert len(parts["Accuracy at each position"]) == 1
    assert 1 <= len(parts[nucleus]) <= 2
    for one_sentence in ("Cross-entropy", "Generation"):
        assert parts[one_sentence][0].count(". ") == 0
    assert "cross-entropy" in parts["Cross-entropy"][0]


def test_the_tiny_runs_report_is_long_enough_and_its_images_exist(tiny_run: Path) -> None:
    text = (tiny_run / "report.md").read_text(encoding="utf-8")
    assert 300 <= prose_words(text) <= 600
    addresses = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert len(addresses) == 5
    assert all((tiny_run / address).is_file() for address in addresses)


def test_numbers_are_the_measured_ones(results: Results) -> None:
    text = report_text(results, IMAGES)
    for model in results.models:
        row = next(line for line in text.splitlines() if line.startswith(f"| {model.title} "))
        assert f"| {model.accuracy:.4f} | {results.gap(model):.4f} |" in row
    assert f"*{results.optimum:.4f}*" in text
    assert "| *optimum* | | | *0.8800* |" in text


def test_claims_follow_what_was_measured(make_results: Callable[..., Results]) -> None:
    good, bad = (report_text(make_results(generation=kind), IMAGES) for kind in ("good", "bad"))
    assert "Nucleus sampling cuts the errors" in good
    assert "Nucleus sampling cuts the errors" not in bad
    assert "cuts real variety: just 3.0% are steps of plus one" in good
    assert "no genuine variety is lost" in bad
    assert "falls from 96.0% at temperature 0.5 to 90.0% at 1" in good
    assert "repeats itself more than nucleus" in good
    assert "repeats itself no more than nucleus" in bad
    assert "does not add errors" not in good
    learned, unlearned, perfect = (report_text(make_results(level), IMAGES) for level in (0.9, 0.3, 0.95))
    assert "both rise steeply" in learned
    assert "the model does not follow yet" in unlearned
    assert "is lost at positions 12 and later" in learned
    assert "the single position with the largest gap is 6, with 0.016" in learned
    assert "misses nothing" in perfect
    assert "quick version" in report_text(make_results(plan="quick"), IMAGES)
    assert "quick version" not in learned
    assert "longer-run model, with new sequences" in learned
    assert "longer-run" not in report_text(make_results(fresh=False), IMAGES)


def test_images_are_addressed_from_where_the_report_lies(results: Results, tmp_path: Path) -> None:
    figures = {name: tmp_path / "figures" / f"{name}.png" for name in IMAGES}
    path = write_report(results, figures, tmp_path / "report.md")
    assert path.read_text(encoding="utf-8") == report_text(results, IMAGES)
