"""The report: every answer is there in the asked length, and its claims turn with the numbers and
know their noise.
"""

import re
from dataclasses import replace

import pytest

from glassformer.labs.run import render
from glassformer.labs.sentiment import LAB
from glassformer.labs.sentiment.experiments import Results
from glassformer.labs.sentiment.published import published


def sections(text: str) -> dict[str, str]:
    """The text below each heading of the second and third level."""
    found = re.split(r"^###? (.+)$", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_sections_are_quoted_whole() -> None:
    assert re.findall(
        r"^### (\d)\.", published("The course's questions"), flags=re.MULTILINE
    ) == list("1234567")
    assert len(published("Takeaways").splitlines()) == 5
    with pytest.raises(AssertionError, match="no section"):
        published("Take")


def with_accuracies(results: Results, **accuracies: float) -> Results:
    """``results`` with all seeds of a model at one test accuracy; names are first words."""
    rows = [
        replace(
            row, test_accuracy=accuracies.get(row.name.split()[-1].strip(","), row.test_accuracy)
        )
        for row in results.models.rows
    ]
    return replace(results, models=replace(results.models, rows=rows))


def test_every_question_is_answered(results: Results) -> None:
    found = sections(render(LAB, results))
    answers = [text for heading, text in found.items() if re.match(r"\d\. ", heading)]
    assert len(answers) == 7
    assert all(len(answer.split()) > 70 for answer in answers)
    assert 200 <= len(found["Reflection"].split()) <= 300
    assert re.findall(r"^\d\.", found["Takeaways"], flags=re.MULTILINE) == [
        "1.",
        "2.",
        "3.",
        "4.",
        "5.",
    ]
    for aspect in (
        "Bias and fairness",
        "Misinformation",
        "Economic impact",
        "Privacy and security",
    ):
        assert (
            f"**{aspect}.**"
            in found["5. What are the ethical concerns with large language models such as GPT-4?"]
        )


def test_near_accuracies_are_not_ranked(results: Results) -> None:
    counts = results.models.counts.test_accuracy
    near = render(LAB, with_accuracies(results, scratch=counts + 0.005))
    assert "Not clearly different: encoder from scratch." in near
    assert "all words, right on 100 % (99 % to 100 %) of" in render(
        LAB, with_accuracies(results, words=1.0)
    )
    far = render(LAB, with_accuracies(results, scratch=counts - 0.2))
    assert "Clearly worse: encoder from scratch." in far
    assert "Not clearly different" not in far


def test_one_training_is_not_compared_with_other_seeds(results: Results) -> None:
    assert "and by more than trainings from other seeds differ." in render(LAB, results)
    rows = list({row.name: row for row in results.models.rows}.values())
    one = render(LAB, replace(results, models=replace(results.models, rows=rows)))
    assert "; how much trainings from other seeds differ was not measured." in one
    assert "by more than trainings" not in one


def test_an_uncertain_kind_is_not_called_below_chance(results: Results) -> None:
    assert "On irony the encoder from MiniLM is clearly below chance" in render(LAB, results)
    few = replace(
        results, models=replace(results.models, kinds={**results.models.kinds, "irony": 6})
    )
    assert "clearly below chance" not in render(LAB, few)


def test_it_is_no_longer_than_a_lesson_needs(results: Results) -> None:
    prose = [line for line in render(LAB, results).splitlines() if not line.startswith(("|", "!["))]
    assert len(" ".join(prose).split()) <= 2000


def test_a_model_at_chance_is_said_to_be_at_chance(results: Results) -> None:
    assert "is not clearly above chance on these texts" not in render(LAB, results)
    best = results.models.best_encoder.name.split()[-1]
    assert "is not clearly above chance on these texts" in render(
        LAB, with_accuracies(results, **{best: results.models.majority})
    )


def test_claims_turn_with_their_numbers(results: Results) -> None:
    text = render(LAB, results)
    claims = (
        "Most probabilities of praise are below 0.1 or above 0.9.",
        "recognition of known sentences",
        "do not show it",
        "turned 100 %",
    )
    assert all(claim in text for claim in claims)
    rows = [
        replace(row, bins=[replace(each, predicted=0.6) for each in row.bins])
        for row in results.models.rows
    ]
    leak = replace(results.leak, leaky=results.leak.clean)
    claims += ("depending on the training",)
    runs = [
        replace(run, validation_accuracy=0.5 + 0.4 * (run.way == "seen"))
        for run in results.padding.runs[::3] * 2
    ]
    models = replace(results.models, rows=rows)
    padding = replace(results.padding, runs=runs)
    text = render(LAB, replace(results, models=models, leak=leak, padding=padding))
    assert not any(claim in text for claim in claims)
    other = render(LAB, replace(results, models=replace(results.models, data="mine")))
    assert "C on these, so that column is optimistic for word counts" in other


def test_the_quick_version_and_what_is_missing_are_named(results: Results) -> None:
    quick = replace(
        results, quick=True, models=replace(results.models, missing={"A": "no internet"})
    )
    assert "This is the quick version" in render(LAB, quick)
    assert "The A is missing: no internet." in render(LAB, quick)
    assert "quick version" not in render(LAB, results)


def test_the_reflection_speaks_of_kinds_that_were_measured(results: Results) -> None:
    reflection = sections(render(LAB, results))["Reflection"]
    kinds = re.search(r"One accuracy says nothing about (\w+) or (\w+)", reflection)
    assert kinds is not None
    assert set(kinds.groups()) <= set(results.models.kinds)
    assert "neutral" not in reflection


def test_most_probabilities_are_near_0_or_1(results: Results) -> None:
    """The report says so of the encoder of the highest validation accuracy."""
    bins = results.models.median(results.models.best_encoder.name).bins
    outer = sum(each.count for each in bins if not 0.1 < each.predicted < 0.9)
    assert outer > 0.5 * results.models.num_test
    assert "Most probabilities of praise are below 0.1 or above 0.9." in render(LAB, results)
