"""Continuations of the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.labs.gpt_oss.experiments import Results
from glassformer.labs.gpt_oss.experiments.generation import RULES
from glassformer.labs.run import read


def test_the_most_accurate_unseeing_model_generates_under_every_rule(tiny_run: Path) -> None:
    results: Results = read(tiny_run / "results.json", Results)
    generation = results.generation
    unseen = ("base", "all-together", "long-new")
    assert generation.model == max(unseen, key=lambda name: results.models[name][0].accuracy)
    assert list(generation.rules) == list(RULES)
    assert [len(row) for row in generation.grid] == [2, 2]
    for cell in [generation.true, *generation.rules.values(), *(cell for row in generation.grid for cell in row)]:
        assert cell.rule + cell.increment + cell.neither == pytest.approx(1)
    assert generation.true.neither == 0
    temperature, top_p, cell = generation.closest()
    assert cell == generation.grid[[0.5, 2.0].index(temperature)][[0.5, 1.0].index(top_p)]
    assert cell.distance(generation.true) == min(
        each.distance(generation.true) for row in generation.grid for each in row
    )


def test_the_next_token_shown_is_one_where_rule_and_increment_differ(tiny_run: Path) -> None:
    shown = read(tiny_run / "results.json", Results).generation.next_token
    assert shown.by_rule != shown.by_increment
    assert list(shown.model) == list(RULES)
    for probabilities in [shown.optimal, *shown.model.values()]:
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    # The optimum knows the generator after forty tokens.
    assert max(range(7), key=shown.optimal.__getitem__) == shown.by_rule
