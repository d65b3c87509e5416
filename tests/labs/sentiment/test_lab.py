"""The lab from start to end in the smallest sizes: what it leaves, how it goes on, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer.classifier import load_classifier
from glassformer.labs.run import Run, run
from glassformer.labs.sentiment import LAB
from refusals import refused

ROWS = [f"{word} number {number}\t{label}" for number in range(20) for word, label in (("good", 1), ("bad", 0))]
TINY = {
    "course_epochs": 1,
    "leak_seeds": 2,
    "reach_distance": 2,
    "reach_length": 4,
    "reach_updates": 2,
    "growth_lengths": (16, 32),
}


def stopped(name: str) -> Any:
    """The lab, interrupted in the step of this name."""

    def stop(current: Run) -> None:
        raise KeyboardInterrupt

    return replace(LAB, steps={**LAB.steps, name: stop})


@pytest.mark.slow
def test_it_leaves_a_report_and_a_classifier_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, texts = tmp_path / "run", tmp_path / "mine.tsv"
    texts.write_text("\n".join(ROWS) + "\n", encoding="utf-8")
    asked = {"quick": True, "seed": 1, "data": str(texts), **TINY}
    with pytest.raises(KeyboardInterrupt):
        run(stopped("asked"), out, **asked)
    assert "GRU, both directions, seed 1" in capsys.readouterr().out
    report = run(LAB, out, resume=True, **asked)
    printed = capsys.readouterr().out
    assert "GRU" not in printed  # what was finished is kept
    assert f"classify --run {out / 'classifier'}" in printed
    text = report.read_text(encoding="utf-8")
    assert "This is the quick version" in text
    assert "trained on mine (32 training" in text
    assert "### 7. " in text
    left_out = set(LAB.figures) - {path.stem for path in (out / "figures").iterdir()}
    assert left_out == {"heads-praise", "heads-blame", "ranking"}  # these texts have three words
    assert len(json.loads((out / "results.json").read_text(encoding="utf-8"))["models"]["rows"]) == 6
    assert load_classifier(out / "classifier").probabilities(["A fine film."]).shape == (1, 2)


def test_other_texts_under_the_same_name_are_refused(tmp_path: Path) -> None:
    texts, out = tmp_path / "mine.tsv", tmp_path / "run"
    texts.write_text("\n".join(ROWS) + "\n", encoding="utf-8")
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            run(stopped("models"), out, data=str(texts), resume=resume)
    texts.write_text("\n".join(["very " + ROWS[0], *ROWS[1:]]) + "\n", encoding="utf-8")
    with refused("another texts"):
        run(stopped("models"), out, data=str(texts), resume=True)
    with refused("not there"):
        run(stopped("models"), tmp_path / "other", data=str(tmp_path / "none.tsv"))
