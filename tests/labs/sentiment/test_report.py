"""The report: what is published is what the results say, and other results say other things."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from glassformer.labs.sentiment import report
from glassformer.labs.sentiment.report import report_text, write_report
from glassformer.labs.sentiment.results import Results

NAMES = re.findall(r'images\["([a-z-]+)"\]', Path(report.__file__).read_text(encoding="utf-8"))


def text_of(results: Results) -> str:
    return report_text(results, {name: f"figures/{name}.png" for name in NAMES})


def test_the_published_report_is_what_the_results_say(results: Results, published: Path) -> None:
    assert (published / "report.md").read_text(encoding="utf-8") == text_of(results)


def test_every_image_of_the_published_report_is_there(published: Path) -> None:
    images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (published / "report.md").read_text(encoding="utf-8"))
    assert len(images) >= 15
    assert all((published / image).is_file() for image in images)


def test_claims_turn_with_the_numbers(results: Results) -> None:
    counts = max(model.measured.test_accuracy for model in results.models if model.measured.seed is None)
    worse = [
        model
        if model.measured.seed is None
        else dataclasses.replace(model, measured=dataclasses.replace(model.measured, test_accuracy=counts / 2))
        for model in results.models
    ]
    assert "None of the networks gets more test texts right" not in text_of(results)
    assert "None of the networks gets more test texts right" in text_of(dataclasses.replace(results, models=worse))
    growth = dataclasses.replace(results.experiments.growth, counted=False)
    wrong = dataclasses.replace(results.experiments, growth=growth)
    assert "number of operations equals what torch" in text_of(results)
    assert "number of operations differs from what torch" in text_of(dataclasses.replace(results, experiments=wrong))


def test_the_quick_version_and_what_is_missing_are_told(results: Results) -> None:
    quick = dataclasses.replace(results, plan="quick", missing={"a model": "no internet"})
    assert "This is the quick version" in text_of(quick)
    assert "The a model is missing: no internet." in text_of(quick)
    assert "quick version" not in text_of(results)


def test_addresses_are_relative_to_the_report(results: Results, tmp_path: Path) -> None:
    figures = {name: tmp_path / "figures" / f"{name}.png" for name in NAMES}
    path = write_report(results, figures, tmp_path / "report.md")
    assert "](figures/training.png)" in path.read_text(encoding="utf-8")
