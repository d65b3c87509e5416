"""Results survive the way through their file, and a damaged file is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from glassformer.handcraft.verification import Certificate
from glassformer.labs.hand_designed.results import Results, comparison_text, read_comparison
from glassformer.labs.hand_designed.study import Story
from refusals import refused


def test_what_is_written_is_read(results: Results, stories: list[Story], tmp_path: Path) -> None:
    results = dataclasses.replace(results, stories=stories)
    results.write(tmp_path / "again.json")
    again = Results.read(tmp_path / "again.json")
    assert again == results
    assert isinstance(again.designs[0].large, Certificate)
    assert str(again.comparison("identity").certificate) == str(results.comparison("identity").certificate)
    for comparison in results.comparisons:
        assert read_comparison(comparison_text(comparison)) == comparison


def test_parts_are_found_by_task(results: Results) -> None:
    assert results.design("last_token").task == results.designs[4].task == "last_token"
    comparison = results.comparison("copy_first")
    assert comparison.task == "copy_first"
    assert np.array_equal(comparison.learned_head.Km, comparison.learned["Km"])
    assert np.array_equal(comparison.hand_head.pos, np.eye(4))


def test_a_damaged_file_is_refused(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with refused("cannot be read"):
        Results.read(path)
    results.write(path)
    values = json.loads(path.read_text(encoding="utf-8"))
    for damage in ("{", json.dumps({**values, "more": 1}), json.dumps({**values, "designs": [{}]}), "[]"):
        path.write_text(damage, encoding="utf-8")
        with refused(fix="Remove it"):
            Results.read(path)
