"""Results: means and gaps, and the same results from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.labs.gpt_oss.results import Behaviour, Results
from refusals import refused


def test_json_gives_the_same_results_back(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results
    stored = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert stored["optimum"] == pytest.approx(results.optimum)
    assert stored["models"][1]["accuracy"] == pytest.approx(results.models[1].accuracy)


def test_gaps_of_all_parts_add_up_to_the_whole(results: Results) -> None:
    model = results.models[0]
    parts = [results.gap(model, 0, 3), results.gap(model, 3, 12), results.gap(model, 12)]
    assert parts[0] == 0
    assert sum(parts) == pytest.approx(results.gap(model))
    assert results.gap(model) == pytest.approx(results.optimum - model.accuracy)
    assert model.test_accuracy == 0.9


def test_distance_is_the_total_variation_between_mixtures() -> None:
    one, other = Behaviour(0.9, 0.1, 0.0, 0.5, 0.5), Behaviour(0.6, 0.2, 0.2, 0.0, 0.0)
    assert one.distance(other) == pytest.approx(0.3)
    assert one.distance(one) == 0


def test_the_closest_cell_of_the_grid_is_found(make_results: Callable[..., Results]) -> None:
    generation = make_results().generation
    assert generation.closest() == (1.0, 1.0, generation.grid[1][1])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"optimum": 1, "models": 3}'])
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    with refused(fix="Remove the file"):
        Results.read(path)
    with refused(r"nothing\.json"):
        Results.read(tmp_path / "nothing.json")
