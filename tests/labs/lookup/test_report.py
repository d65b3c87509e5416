"""The report and the figures follow from the results: what went badly is not reported as if it had
gone well.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from glassformer.labs.lookup import LAB
from glassformer.labs.lookup.experiments import Results
from glassformer.labs.lookup.experiments.course_runs import shares
from glassformer.labs.lookup.experiments.fresh_facts import Answers, Order
from glassformer.labs.lookup.experiments.recipes import BAG, POSITIONS, SLOTS, shortened
from glassformer.labs.run import read, run


def reaching(model: Answers, accuracy: float) -> Answers:
    """The model with this accuracy with all numbers of facts."""
    return replace(model, lengths=[replace(each, accuracy=accuracy) for each in model.lengths])


def check(text: str, *claims: str) -> None:
    for claim in claims:
        assert claim in text, claim


def test_a_good_run(report: Callable[..., str]) -> None:
    text = report()
    check(
        text,
        "answers all 72 contexts right",
        "binds what is in one position",
        "No token that is written changes",
    )
    check(text, "exceeds a bag's limit", "They have learned to look up")
    assert text.count("**") == 4  # none of the bold warnings


def test_a_bad_run(results: Results, report: Callable[..., str]) -> None:
    poor = []
    for model in results.course:
        points = [(epoch, loss, 0.35) for epoch, loss, _ in model.evaluations]
        looks = {key: (0.3 * np.array(heads)).tolist() for key, heads in model.after.items()}
        poor.append(replace(model, contexts_accuracy=0.35, evaluations=points, after=looks))
    models = [reaching(model, 0.1) for model in results.encodings["slots"]]
    text = report(course=poor, encodings={**results.encodings, "slots": models})
    check(
        text,
        "answers 35.0 % of the contexts right at worst",
        "Slots do not clearly do better here: 10.0 %",
    )
    check(
        text,
        "They have not learned to look up well.",
        "exists in 0 of 9 cases",
        "1 of 4 models ever answer",
    )
    assert "binds what is in one position" not in text
    text = report(
        encodings={**results.encodings, "slots": [*results.encodings["slots"][1:], models[0]]}
    )
    check(text, "2 of them have learned to look up, not memorised pairings.")


def test_claims_turn_with_their_numbers(results: Results, report: Callable[..., str]) -> None:
    def encoded(name: str, change: Callable[[Answers], Answers]) -> str:
        return report(
            encodings={**results.encodings, name: list(map(change, results.encodings[name]))}
        )

    check(
        encoded("bag", lambda model: reaching(model, 0.9)),
        "**more than is possible**",
        "**which cannot be**",
    )
    better = encoded("positions", lambda model: reaching(model, 0.9))
    check(better, "Tokens with positions bind within 4,000 steps")
    moved = encoded("slots", lambda model: replace(model, order=Order(1000, 2, 0.1)))
    check(moved, "Another order of the slots changes 6 of 3,000 answers")
    check(report(control=results.course[0]), "passes as well, so the test shows nothing")
    broken = replace(results.course[0], scrambling=results.control.scrambling)
    check(report(course=[broken]), "**The test fails**")


def test_what_was_not_seen_is_not_said(results: Results, report: Callable[..., str]) -> None:
    still = [
        replace(reaching(each, 0.1), order=Order(1000, 0, 0.0))
        for each in results.encodings["positions"]
    ]
    text = report(encodings={**results.encodings, "positions": still})
    check(
        text,
        "do not learn it",
        "changes 0.0 % of their answers (the 95 % intervals reach from 0.0 % to 0.4 %)",
    )
    assert "depend on the order" not in text
    once = [replace(results.course[0], evaluations=results.course[0].evaluations[:1], best_epoch=1)]
    assert "still falling" not in report(course=once, control=once[0])
    points = results.course[0].evaluations
    late = [
        replace(results.course[0], evaluations=[(e, loss, e >= n) for e, loss, _ in points])
        for n in (2, 3, 5)
    ]
    check(report(course=late, control=late[0]), "answered right after epoch 2 to 5 already")


def lines(ax: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.array(line.get_xydata()) for line in ax.lines}


def test_figures_hold_what_the_results_say(results: Results) -> None:
    figures = {name: draw(results) for name, draw in LAB.figures.items()}
    (shown,) = figures["accuracy"].axes
    bags = np.array(
        [[each.accuracy for each in model.lengths] for model in results.encodings["bag"]]
    )
    np.testing.assert_allclose(
        lines(shown)["bag of tokens, 64 keys"][:, 1], np.median(bags, axis=0)
    )
    ends = [model.lengths[-1].accuracy for model in results.encodings["slots"]]
    assert lines(shown)["slots, 256 keys"][-1].tolist() == [128, np.median(ends)]
    (loss,) = figures["training"].axes
    assert len(loss.lines) == 4
    short = [replace(each, evaluations=each.evaluations[:2]) for each in results.course]
    (loss,) = LAB.figures["training"](replace(results, course=short, control=short[0])).axes
    assert all(tick == round(tick) for tick in loss.get_xticks())
    changes = lines(figures["scrambling"].axes[0])["no positions in it"][:, 1]
    assert changes.tolist() == [
        each.largest_change for each in results.course[0].scrambling.contexts
    ]
    bars = figures["sharpness"].axes[0].patches
    tops = sorted(bar.get_y() + bar.get_height() for bar in bars)
    first = results.course[0]
    expected = np.concatenate(
        [[each[:, 0], each.sum(1)] for each in map(shares, (first.before, first.after))]
    ).ravel()
    np.testing.assert_allclose(tops, sorted(expected))


@pytest.mark.slow
def test_a_tiny_run_is_decided_by_its_seed(tmp_path: Path) -> None:
    recipes = tuple(replace(shortened(recipe), steps=3) for recipe in (SLOTS, BAG, POSITIONS))
    options = {"epochs": 1, "encodings": recipes, "num_questions": 20}
    report = run(LAB, tmp_path / "one", quick=True, seed=5, **options)
    assert "This is the quick version" in report.read_text()
    names = {path.name for path in (tmp_path / "one" / "trainings").iterdir()}
    assert names == {"course-5", "course-sinusoidal-5", "slots-5", "bag-5", "positions-5"}
    shown = {path.stem for path in (tmp_path / "one" / "figures").glob("*.png")}
    assert shown == set(LAB.figures)
    run(LAB, tmp_path / "two", quick=True, seed=5, **options)
    first, second = (read(tmp_path / name / "results.json", Results) for name in ("one", "two"))
    assert first == second


def test_the_standard_error_is_that_of_the_shares_in_the_table(
    results: Results, report: Callable[..., str]
) -> None:
    largest = 0.0
    for models in results.encodings.values():
        for model in models:
            for length in model.lengths:
                right = round(length.accuracy * length.num_questions)
                outcomes = np.repeat([1.0, 0.0], [right, length.num_questions - right])
                largest = max(largest, 200 * outcomes.std() / length.num_questions**0.5)
    (printed,) = re.findall(
        r"two standard errors of one seed's share are at most ([\d.]+) points", report()
    )
    assert largest <= float(printed) < largest + 0.1


def test_the_intervals_of_changed_answers_are_wilsons(
    results: Results, report: Callable[..., str]
) -> None:
    orders = [model.order for model in results.encodings["positions"]]
    ends = [wilson_ends(order.answers_changed, order.num_questions) for order in orders]
    low, high = map(
        float, re.findall(r"the 95 % intervals reach from ([\d.]+) % to ([\d.]+) %", report())[0]
    )
    assert low <= 100 * min(ends)[0] < low + 0.1
    assert high - 0.1 < 100 * max(ends)[1] <= high


def wilson_ends(count: int, number: int) -> tuple[float, float]:
    """The shares p from which count / number is 1.96 standard deviations sqrt(p (1 - p) / number)
    away.
    """
    square = 1.959963984540054**2 / number
    share = count / number
    low, high = sorted(np.roots([1 + square, -(2 * share + square), share**2]))
    return float(low), float(high)
