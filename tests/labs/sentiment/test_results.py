"""Results: written and read, and the median model among seeds."""

from __future__ import annotations

import statistics
from pathlib import Path

from glassformer.labs.kept import read_part, to_json
from glassformer.labs.sentiment.results import Results


def test_they_come_back_as_they_were(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(to_json(results, Results), encoding="utf-8")
    assert read_part(path, Results) == results


def test_names_come_once_and_in_order(results: Results) -> None:
    assert len(results.names) == len(set(results.names)) < len(results.models)
    assert results.names[0] == results.models[0].measured.name


def test_the_median_is_among_the_models(results: Results) -> None:
    for name in results.names:
        accuracies = [each.measured.test_accuracy for each in results.models if each.measured.name == name]
        assert results.median(name).measured.test_accuracy == statistics.median_low(accuracies)
