"""The published reports: each follows from the results beside it, and shows all its figures."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from glassformer.labs.run import Lab, read, render

LABS = ("hand_designed", "sentiment", "lookup", "gpt_oss")


@pytest.mark.parametrize("name", LABS)
def test_a_published_report_follows_from_its_results(name: str, published: Path) -> None:
    lab: Lab = importlib.import_module(f"glassformer.labs.{name}").LAB
    directory = published / lab.name
    report = (directory / "report.md").read_text(encoding="utf-8")
    assert render(lab, read(directory / "results.json", lab.results)) == report
    shown = re.findall(r"!\[.+?\]\(figures/(.+?)\.png\)", report)
    assert sorted(shown) == sorted(lab.figures) == sorted(path.stem for path in directory.glob("figures/*.png"))
