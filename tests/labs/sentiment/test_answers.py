"""The written answers: all there, of the asked length, and with the numbers of the results."""

from __future__ import annotations

import dataclasses

from glassformer.labs.sentiment.answers import (
    answers,
    from_earlier_models,
    looking_forward,
    reflection,
    takeaways,
)
from glassformer.labs.sentiment.results import Results
from glassformer.labs.sentiment.wording import percent


def test_seven_questions_each_with_an_answer(results: Results) -> None:
    found = answers(results)
    assert len(found) == 7
    for number, answer in enumerate(found, start=1):
        assert answer.startswith(f"### {number}. ")
        assert len(answer.split()) > 90


def test_the_reflection_has_the_asked_length(results: Results) -> None:
    assert 200 <= len(reflection(results).split()) <= 300


def test_takeaways_and_the_way_there(results: Results) -> None:
    assert [line[:2] for line in takeaways(results).splitlines()] == ["1.", "2.", "3.", "4.", "5."]
    assert len(from_earlier_models(results)) == 3
    assert len(looking_forward(results).split()) > 60


def test_numbers_are_those_of_the_results(results: Results) -> None:
    leak = results.experiments.leak
    assert percent(leak.mean("clean", "transformer")) in reflection(results)
    best = results.median(results.asked.model).measured
    assert percent(best.test_accuracy) in answers(results)[3]
    pairs = dataclasses.replace(results.asked.pairs, overall=0.123)
    other = dataclasses.replace(results, asked=dataclasses.replace(results.asked, pairs=pairs))
    assert "12.3 %" in answers(other)[5]
