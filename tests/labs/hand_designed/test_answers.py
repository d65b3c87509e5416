"""The written answers: their numbers are those of the results, and their claims turn with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from glassformer.handcraft.verification import Failure
from glassformer.labs.hand_designed import answers
from glassformer.labs.hand_designed.results import Comparison, Results


def changed(results: Results, task: str, **values: Any) -> Results:
    """The results with another comparison for ``task``."""
    comparisons = [dataclasses.replace(each, **values) if each.task == task else each for each in results.comparisons]
    return dataclasses.replace(results, comparisons=comparisons)


def certificate(comparison: Comparison, **values: Any):
    return dataclasses.replace(comparison.certificate, **values)


@pytest.mark.parametrize("answer", [answers.by_content, answers.by_position, answers.by_both])
def test_each_answer_names_what_is_alike_and_what_differs(answer, results: Results) -> None:
    alike, first, different, second = answer(results)
    assert (alike, different) == ("**What is alike, and why.**", "**What differs, and why.**")
    for text in (first, second):
        assert text.count("\n") >= 2
        assert all(line.startswith("- ") and line.endswith(".") for line in text.splitlines())


def test_numbers_come_from_the_results(results: Results) -> None:
    comparison = results.comparison("identity")
    text = "\n".join(answers.by_content(results))
    for number in (
        f"{comparison.hand_learned.entries['Km']:.2f}",
        f"{comparison.hand_learned.distance.qk_cosine:.3f}",
        f"{comparison.on_wanted['learned']:.1%}",
        f"{comparison.learned_moved.distance.output_max:.0e}",
        f"{comparison.certificate.largest_error:.2f}",
    ):
        assert number in text
    spread = results.comparison("unique").spread["learned"]["+1"]
    assert f"CLS {spread['CLS']:.1%}" in "\n".join(answers.by_both(results))


def test_a_head_that_fails_is_not_praised(results: Results) -> None:
    comparison = results.comparison("identity")
    failure = Failure("AB", 1, (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), 1.0)
    fails = certificate(comparison, verdict="fails", num_right=5, num_outputs=10, counterexample=failure)
    text = "\n".join(answers.by_content(changed(results, "identity", certificate=fails)))
    assert "50.0% of the 10 outputs" in text
    assert "AB, position 1" in text
    holds = certificate(comparison, verdict="holds", counterexample=None)
    assert "is read rightly" in "\n".join(answers.by_content(changed(results, "identity", certificate=holds)))


def test_claims_turn_with_the_numbers(results: Results) -> None:
    comparison = results.comparison("identity")

    def text(**values: Any) -> str:
        return "\n".join(answers.by_content(changed(results, "identity", **values)))

    helps = {"hand": {"hand": 0.0, "learned": 0.1}, "learned": {"hand": 0.3, "learned": 0.2}}
    assert "take back part" in text(crossed=helps)
    harms = {"hand": {"hand": 0.0, "learned": 0.1}, "learned": {"hand": 0.2, "learned": 0.3}}
    assert "do not help" in text(crossed=harms)
    assert "stands at least 3.0 above" in text(certificate=certificate(comparison, margin=3.0))
    assert "stands 2.0 above the best wanted" in text(certificate=certificate(comparison, margin=-2.0))
    assert "cannot be compared" in text(certificate=certificate(comparison, margin=None))
    near = dataclasses.replace(comparison.hand_learned.distance, qk_cosine=0.9)
    far = dataclasses.replace(near, qk_cosine=0.1)
    for distance, words in ((near, "the same preferences"), (far, "other preferences")):
        pair = dataclasses.replace(comparison.hand_learned, distance=distance)
        assert words in text(hand_learned=pair)


def test_what_nobody_attends_to_is_told_apart_from_what_was_learned(results: Results) -> None:
    first = "\n".join(answers.by_position(changed(results, "copy_first", value_gap=[0.01, 0.5, 0.5, 0.5])))
    assert "Nearly nothing attends there" in first
    second = "\n".join(answers.by_position(changed(results, "copy_first", value_gap=[0.2, 0.5, 0.5, 0.5])))
    assert "Nearly nothing attends there" not in second


def test_compensation_is_claimed_where_a_swap_does_harm(results: Results) -> None:
    harm = {"hand": {"hand": 0.0, "learned": 1.6}, "learned": {"hand": 0.5, "learned": 0.1}}
    assert "compensates" in "\n".join(answers.by_both(changed(results, "unique", crossed=harm)))
    none = {"hand": {"hand": 0.0, "learned": 0.1}, "learned": {"hand": 0.5, "learned": 0.1}}
    assert "does no harm" in "\n".join(answers.by_both(changed(results, "unique", crossed=none)))
    own = {"itself": 0.0, "same letter": 0.0, "other letters": 0.1, "CLS": 0.9}
    comparison = results.comparison("unique")
    spread = {**comparison.spread, "learned": {**comparison.spread["learned"], "+1": own}}
    assert "leave its own place out" not in "\n".join(answers.by_both(changed(results, "unique", spread=spread)))
