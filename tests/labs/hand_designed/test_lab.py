"""The lab as a whole, with few steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.labs.hand_designed import LAB
from glassformer.labs.hand_designed.experiments import Results
from glassformer.labs.run import read, run


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
