"""Words for numbers: lists, shares, and when two accuracies are called alike."""

from __future__ import annotations

import dataclasses

import pytest

from glassformer.labs.sentiment.results import Results
from glassformer.labs.sentiment.wording import alike, listed, percent, recalled, verdict_of


def test_lists_and_shares() -> None:
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert percent(0.8816) == "88.2 %"


def test_alike_is_within_two_standard_errors() -> None:
    assert alike(0.80, 0.83, 872)  # two standard errors: 0.037
    assert not alike(0.80, 0.85, 872)
    assert alike(0.50, 0.505, 10**9)
    assert not alike(0.50, 0.52, 10**9)


@pytest.mark.parametrize(("gru", "words"), [(1.0, "learn to reach back"), (0.3, "the short path decides")])
def test_recall_is_told_at_every_rate(gru: float, words: str, results: Results) -> None:
    reach = results.experiments.reach
    rates = sorted({run.learning_rate for run in reach.recalled})
    runs = [
        dataclasses.replace(run, accuracy=1.0 if run.name != "GRU" else gru if run.learning_rate == rates[-1] else 0.25)
        for run in reach.recalled
    ]
    experiments = dataclasses.replace(results.experiments, reach=dataclasses.replace(reach, recalled=runs))
    text = recalled(dataclasses.replace(results, experiments=experiments))
    assert words in text
    assert all(f"rate of {rate:g}" in text for rate in rates)


def test_relations_follow_the_accuracies(results: Results) -> None:
    def with_accuracy(value: float) -> str:
        models = [
            dataclasses.replace(model, measured=dataclasses.replace(model.measured, test_accuracy=value))
            if model.measured.name == "convolutions"
            else model
            for model in results.models
        ]
        return verdict_of(
            dataclasses.replace(results, models=models), "convolutions", "encoder from scratch", "{relation}"
        )

    other = results.median("encoder from scratch").measured.test_accuracy
    assert with_accuracy(other) == "do about as well as"
    assert with_accuracy(other + 0.1) == "do better than"
    assert with_accuracy(other - 0.1) == "do less well than"
