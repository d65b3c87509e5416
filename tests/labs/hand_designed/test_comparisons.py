"""What is measured of two heads, against loops over the sequences; what is drawn and claimed of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.verification import Failure
from glassformer.labs.hand_designed.experiments import Results, comparisons
from glassformer.labs.hand_designed.experiments.comparisons import Comparison, compare


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare("unique", steps=50, seed=3, again=True)


def judged(head: HeadWeights):
    """Letters, attention and output without CLS's row, for every sequence of the unique task."""
    for length in range(1, 5):
        for letters in itertools.product(range(3), repeat=length):
            trace = NumpyHead(head).trace(np.eye(4)[[3, *letters]])
            yield letters, trace.weights[1:], trace


def test_attention_shares_are_means_over_all_judged_queries(compared: Comparison) -> None:
    for name in ("hand", "learned"):
        sums = {sign: dict.fromkeys(("itself", "same letter", "other letters", "CLS"), 0.0) for sign in ("+1", "-1")}
        queries, on_wanted = {"+1": 0, "-1": 0}, 0.0
        for letters, weights, _ in judged(compared.head(name)):
            for place, letter in enumerate(letters):
                group = "+1" if letters.count(letter) == 1 else "-1"
                queries[group] += 1
                sums[group]["CLS"] += weights[place, 0]
                for other, key in enumerate(letters):
                    kind = "itself" if other == place else "same letter" if key == letter else "other letters"
                    sums[group][kind] += weights[place, 1 + other]
                same = [1 + i for i, key in enumerate(letters) if key == letter and i != place]
                on_wanted += weights[place, same or [0]].sum()
        for group, kinds in sums.items():
            for kind, total in kinds.items():
                assert compared.spread[name][group][kind] == pytest.approx(total / queries[group], abs=1e-12)
        assert compared.on_wanted[name] == pytest.approx(on_wanted / sum(queries.values()), abs=1e-12)


def test_crossed_errors_take_attention_and_values_from_different_heads(compared: Comparison) -> None:
    for first, second in itertools.product(("hand", "learned"), repeat=2):
        pairs = zip(judged(compared.head(first)), judged(compared.head(second)), strict=True)
        errors = []
        for (letters, weights, _), (_, _, other) in pairs:
            wanted = [1 if letters.count(letter) == 1 else -1 for letter in letters]
            errors += list(np.abs(weights @ other.V[:, 0] - wanted))
        assert compared.crossed[first][second] == pytest.approx(np.mean(errors), abs=1e-12)


def test_values_are_compared_position_by_position(compared: Comparison) -> None:
    gaps = []
    for position in range(5):
        tokens = np.eye(4)[[3]] if position == 0 else np.eye(4)[:3]
        values = [
            np.concatenate([tokens, np.repeat(head.pos[[position]], len(tokens), axis=0)], axis=1) @ head.Vm
            for head in (compared.head("hand"), compared.head("learned"))
        ]
        gaps.append(np.abs(values[0] - values[1]).mean())
    assert compared.value_gap == pytest.approx(gaps, abs=1e-12)


def test_entries_and_circuits_of_the_pairs(compared: Comparison) -> None:
    first, second = compared.head("hand").Qm.ravel(), compared.head("learned").Qm.ravel()
    cosine = first @ second / np.sqrt(first @ first * (second @ second))
    assert compared.hand_learned.entries["Qm"] == pytest.approx(cosine, abs=1e-12)
    assert set(compared.hand_learned.entries) == {"Km", "Qm", "Vm", "pos"}
    moved = compared.learned_moved
    assert moved.distance.output_max < 1e-12
    assert moved.distance.qk_cosine == pytest.approx(1)
    assert max(abs(cosine) for cosine in moved.entries.values()) < 0.99
    assert compared.learned_again.distance.output_max > 1e-3


def test_the_seed_decides_the_trained_head_and_the_design_is_the_design(compared: Comparison) -> None:
    assert np.array_equal(compared.head("hand").Km, design(TASKS["unique"]()).weights.Km)
    again = compare("unique", steps=50, seed=3, again=False)
    assert again == dataclasses.replace(compared, learned_again=None)
    assert compare("unique", steps=50, seed=4, again=False).learned != compared.learned
    assert compared.certificate.criterion == "every sign right"


def test_part_scores_of_the_design_are_its_sharpness(results: Results) -> None:
    (same, others), (itself, elsewhere) = results.comparisons["unique"].part_scores("hand")
    assert (same - others, elsewhere - itself) == pytest.approx((47, 47))
    assert results.comparisons["identity"].own_keys("hand") == pytest.approx((1, 0))


def image(ax) -> np.ndarray:
    return np.ma.filled(ax.images[0].get_array(), np.nan)


def test_the_heads_are_drawn_on_the_courses_sequence(results: Results) -> None:
    comparison = results.comparisons["unique"]
    attention = [image(ax) for ax in comparisons.draw_heads(comparison).axes if ax.get_title() == "Attn"]
    for drawn, name in zip(attention, ("hand", "learned"), strict=True):
        weights = NumpyHead(comparison.head(name)).trace(np.eye(4)[[3, 0, 1, 2, 2]]).weights.T
        np.testing.assert_allclose(drawn, (weights - weights.min()) / np.ptp(weights), atol=1e-12)


def test_the_last_figure_shows_signs_with_their_numbers(results: Results) -> None:
    comparison = results.comparisons["unique"]
    axes = comparisons.draw_signs(comparison).axes
    assert [ax.get_title() for ax in axes] == ["Hand-designed", "Trained", "Expected"]
    assert image(axes[0]).tolist() == image(axes[2]).tolist() == [[1, 1, -1, -1]]
    outputs = NumpyHead(comparison.head("learned"))(np.eye(4)[[3, 0, 1, 2, 2]])[1:, 0]
    assert image(axes[1]).tolist() == [np.sign(outputs).tolist()]
    assert [text.get_text() for text in axes[1].texts] == [f"{output:+.2f}" for output in outputs]


def test_cosines_are_drawn_where_they_were_measured(results: Results) -> None:
    compared = list(results.comparisons.values())
    for ax, comparison in zip(comparisons.draw_cosines(compared).axes, compared, strict=True):
        lines = {line.get_label(): line.get_xdata() for line in ax.lines}
        pairs = comparison.hand_learned, comparison.learned_again, comparison.learned_moved
        assert list(lines["entries of Qm"]) == [pair.entries["Qm"] for pair in pairs]
        assert list(lines["QK circuit"]) == [pair.distance.qk_cosine for pair in pairs]
    without = [dataclasses.replace(comparison, learned_again=None) for comparison in compared]
    assert len(comparisons.draw_cosines(without).axes[0].get_yticks()) == 2


@pytest.fixture
def compare_report(results: Results, report: Callable[..., str]) -> Callable[..., str]:
    """The report with other values in the comparison for a task."""
    made = results.comparisons
    return lambda task, **values: report(comparisons={**made, task: dataclasses.replace(made[task], **values)})


def test_a_head_that_fails_is_reported(results: Results, compare_report: Callable[..., str]) -> None:
    failure = Failure("AB", 1, (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), 1.0)
    changes = {"verdict": "fails", "num_right": 5, "num_outputs": 10, "counterexample": failure}
    fails = dataclasses.replace(results.comparisons["identity"].certificate, **changes)
    text = compare_report("identity", certificate=fails)
    assert "50.0 % of its 10 outputs" in text
    assert "AB, position 1" in text
    assert "reads every output correctly for copy_first and unique." in text


def test_claims_turn_with_the_numbers(results: Results, compare_report: Callable[..., str]) -> None:
    comparison = results.comparisons["identity"]
    harm = {"hand": {"hand": 0.0, "learned": 0.1}, "learned": {"hand": 0.2, "learned": 0.3}}
    assert "undo part of the leaked attention" in compare_report("identity")
    assert "They do not help" in compare_report("identity", crossed=harm)
    certificate = dataclasses.replace(comparison.certificate, margin=3.158)
    assert "at least 3.15 more" in compare_report("identity", certificate=certificate), "a lower bound"
    certificate = dataclasses.replace(comparison.certificate, margin=-2.0, largest_error=0.1622)
    text = compare_report("identity", certificate=certificate)
    assert "scores 2.0 more than the best wanted key" in text
    assert "off by up to 0.17" in text, "an upper bound"
    far = dataclasses.replace(comparison.hand_learned.distance, qk_cosine=0.1)
    pair = dataclasses.replace(comparison.hand_learned, distance=far)
    assert "0.100: their preferences differ" in compare_report("identity", hand_learned=pair)
    assert "hardly matter" not in compare_report("copy_first", value_gap=[0.2, 0.5, 0.5, 0.5])
    none = {"hand": {"hand": 0.0, "learned": 0.1}, "learned": {"hand": 0.5, "learned": 0.1}}
    assert "A swap does no harm" in compare_report("unique", crossed=none)
