"""Distances between heads and what is measured of two, against loops; laws of a distance; figures
and claims.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr

from glassformer.handcraft.circuits import change_basis, random_basis
from glassformer.handcraft.designs import design
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.verification import Failure
from glassformer.labs.hand_designed.distances import circuit_similarity, head_distance
from glassformer.labs.hand_designed.experiments import Results, comparisons
from glassformer.labs.hand_designed.experiments.comparisons import Comparison, compare, train_again
from random_heads import random_head
from refusals import refused

spaces = st.sampled_from(
    [
        SequenceSpace(tuple(text), longest, cls)
        for text in ("AB", "ABC")
        for longest in (1, 2, 3)
        for cls in (False, True)
    ]
)
seeds = st.integers(0, 10_000)


def bits(p: np.ndarray, q: np.ndarray) -> float:
    """The divergence of Jensen and Shannon."""
    middle = (p + q) / 2
    return float((rel_entr(p, middle) + rel_entr(q, middle)).sum()) / math.log(4)


@settings(deadline=None, max_examples=30)
@given(space=spaces, seed=seeds)
def test_the_distance_is_that_of_a_loop_over_all_sequences(space: SequenceSpace, seed: int) -> None:
    heads = random_head(space, seed), random_head(space, seed + 1)
    block = next(space.blocks(10_000))
    divergences = []
    differences = []
    first = int(space.has_cls)
    for x, real in zip(space.one_hot(block), block.real, strict=True):
        one, other = (NumpyHead(head).trace(x[real]) for head in heads)
        rows = range(first, int(real.sum()))
        divergences += [bits(one.weights[query], other.weights[query]) for query in rows]
        differences.append(np.abs(one.output - other.output)[first:].ravel())
    found = head_distance(*heads, space)
    assert found.attention_mean == pytest.approx(np.mean(divergences), abs=1e-12)
    assert found.attention_max == pytest.approx(max(divergences), abs=1e-12)
    assert found.output_max == pytest.approx(np.concatenate(differences).max(), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(space=spaces, seed=seeds)
def test_distance_is_symmetric_and_sees_no_basis(space: SequenceSpace, seed: int) -> None:
    first = random_head(space, seed)
    second = random_head(space, seed + 1)
    there = head_distance(first, second, space)
    back = head_distance(second, first, space)
    turned = change_basis(second, random_basis(second.qk_dim, seed))
    seen = head_distance(first, turned, space)
    for name in ("attention_mean", "attention_max", "output_max", "qk_cosine", "value_cosine"):
        assert getattr(back, name) == pytest.approx(getattr(there, name), abs=1e-12)
        assert getattr(seen, name) == pytest.approx(getattr(there, name), abs=1e-10)
    same = head_distance(second, turned, space)
    assert (same.attention_max, same.output_max) == pytest.approx((0, 0), abs=1e-12)
    assert (same.qk_cosine, same.value_cosine) == pytest.approx((1, 1), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(space=spaces, seed=seeds)
def test_sharpness_and_query_constants_leave_the_cosine(space: SequenceSpace, seed: int) -> None:
    head = random_head(space, seed)
    sharper = HeadWeights(head.Km, 10 * head.Qm, 3 * head.Vm, head.pos)
    assert circuit_similarity(head, sharper, space) == pytest.approx((1, 1), abs=1e-9)
    reversed_ = HeadWeights(head.Km, -head.Qm, -head.Vm, head.pos)
    expected = -1 if space.num_positions > 1 else 1
    assert circuit_similarity(head, reversed_, space) == pytest.approx((expected, -1), abs=1e-9)


def test_cosine_against_a_loop_over_pairs() -> None:
    space = SequenceSpace(("A", "B"), 2, has_cls=True)
    heads = random_head(space, 1), random_head(space, 2)
    rows = []
    for head in heads:
        inputs = [
            np.concatenate([np.eye(3)[token], head.pos[position]])  # type: ignore[index]
            for token, position in zip(*space.places, strict=True)
        ]
        table = []
        for i, query in enumerate(inputs):
            if i == 0:
                continue
            here = space.places[1][i]
            keys = [j for j in range(len(inputs)) if j == i or space.places[1][j] != here]
            scores = [float((query @ head.Qm) @ (inputs[j] @ head.Km)) for j in keys]
            table += [score - sum(scores) / len(scores) for score in scores]
        rows.append(table)
    dot = sum(a * b for a, b in zip(*rows, strict=True))
    expected = dot / math.sqrt(sum(a * a for a in rows[0]) * sum(b * b for b in rows[1]))
    assert circuit_similarity(*heads, space)[0] == pytest.approx(expected, abs=1e-12)


def test_heads_that_prefer_nothing() -> None:
    task = TASKS["majority_letter"]()
    even = design(task).weights
    other = design(TASKS["copy_first"]()).weights
    assert circuit_similarity(even, even, task.space) == (1.0, 1.0)
    assert circuit_similarity(even, other, task.space)[0] == 0.0


def test_constants_on_values_count() -> None:
    space = SequenceSpace(("A", "B", "C"), 3)
    head = HeadWeights(np.eye(3), 5 * np.eye(3), np.eye(3))
    lifted = HeadWeights(head.Km, head.Qm, head.Vm + 1)
    found = head_distance(head, lifted, space)
    assert found.output_max == pytest.approx(1)
    assert (found.attention_max, found.qk_cosine) == pytest.approx((0, 1), abs=1e-12)
    assert found.value_cosine == pytest.approx(2 / math.sqrt(1 * (4 + 1 + 1)))


def test_heads_that_cannot_be_compared_are_refused() -> None:
    space = SequenceSpace(("A", "B"), 2)
    head = HeadWeights(np.eye(2), np.eye(2), np.eye(2))
    with refused("values of length 2 and 1"):
        head_distance(head, HeadWeights(np.eye(2), np.eye(2), np.ones((2, 1))), space)
    with refused("inputs of length 2"):
        head_distance(head, head, SequenceSpace(("A", "B", "C"), 2))


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
        sums = {
            sign: dict.fromkeys(("itself", "same letter", "other letters", "CLS"), 0.0)
            for sign in ("+1", "-1")
        }
        queries = {"+1": 0, "-1": 0}
        on_wanted = 0.0
        for letters, weights, _ in judged(compared.head(name)):
            for place, letter in enumerate(letters):
                group = "+1" if letters.count(letter) == 1 else "-1"
                queries[group] += 1
                sums[group]["CLS"] += weights[place, 0]
                for other, key in enumerate(letters):
                    kind = (
                        "itself"
                        if other == place
                        else "same letter"
                        if key == letter
                        else "other letters"
                    )
                    sums[group][kind] += weights[place, 1 + other]
                same = [1 + i for i, key in enumerate(letters) if key == letter and i != place]
                on_wanted += weights[place, same or [0]].sum()
        for group, kinds in sums.items():
            for kind, total in kinds.items():
                assert compared.spread[name][group][kind] == pytest.approx(
                    total / queries[group], abs=1e-12
                )
        assert compared.on_wanted[name] == pytest.approx(
            on_wanted / sum(queries.values()), abs=1e-12
        )


def test_crossed_errors_take_attention_and_values_from_different_heads(
    compared: Comparison,
) -> None:
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
            np.concatenate([tokens, np.repeat(head.pos[[position]], len(tokens), axis=0)], axis=1)
            @ head.Vm
            for head in (compared.head("hand"), compared.head("learned"))
        ]
        gaps.append(np.abs(values[0] - values[1]).mean())
    assert compared.value_gap == pytest.approx(gaps, abs=1e-12)


def test_entries_and_circuits_of_the_pairs(compared: Comparison) -> None:
    first = compared.head("hand").Qm.ravel()
    second = compared.head("learned").Qm.ravel()
    cosine = first @ second / np.sqrt(first @ first * (second @ second))
    assert compared.hand_learned.entries["Qm"] == pytest.approx(cosine, abs=1e-12)
    assert set(compared.hand_learned.entries) == {"Km", "Qm", "Vm", "pos"}
    moved = compared.learned_moved
    assert moved.distance.output_max < 1e-12
    assert moved.distance.qk_cosine == pytest.approx(1)
    assert max(abs(cosine) for cosine in moved.entries.values()) < 0.99
    assert compared.learned_again.distance.output_max > 1e-3


def test_the_seed_decides_the_trained_head_and_the_design_is_the_design(
    compared: Comparison,
) -> None:
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
    axes = comparisons.draw_heads(comparison).axes
    attention = [image(ax) for ax in axes if ax.get_title().startswith("Attn")]
    for drawn, name in zip(attention, ("hand", "learned"), strict=True):
        weights = NumpyHead(comparison.head(name)).trace(np.eye(4)[[3, 0, 1, 2, 2]]).weights.T
        np.testing.assert_allclose(drawn, weights, atol=1e-12)


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
    return lambda task, **values: report(
        comparisons={**made, task: dataclasses.replace(made[task], **values)}
    )


def test_a_head_that_fails_is_reported(
    results: Results, compare_report: Callable[..., str]
) -> None:
    failure = Failure("AB", 1, (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), 1.0)
    changes = {"verdict": "fails", "num_right": 5, "num_outputs": 10, "counterexample": failure}
    fails = dataclasses.replace(results.comparisons["identity"].certificate, **changes)
    text = compare_report("identity", certificate=fails)
    assert "50.0 % of its 10 outputs" in text
    assert "AB, position 1" in text
    assert "reads every output correctly for copy_first and unique; " in text
    similar, different = text.split("## Attention by content")[1].split("**Differences**")[:2]
    assert "**Out.**" not in similar
    assert "**Out.** The trained head gives 50.0 %" in different


def test_all_eight_panels_are_compared_for_each_task(report: Callable[..., str]) -> None:
    for section in report().split("\n## Attention by ")[1:]:
        bullets = " ".join(re.findall(r"^- .+$", section.split("\n## ")[0], flags=re.MULTILINE))
        assert {"Km", "Qm", "Vm", "K", "Q", "V", "Attn", "Out"} <= {*re.findall(r"\w+", bullets)}


def test_claims_turn_with_the_numbers(results: Results, compare_report: Callable[..., str]) -> None:
    comparison = results.comparisons["identity"]
    harm = {"hand": {"hand": 0.0, "learned": 0.1}, "learned": {"hand": 0.2, "learned": 0.3}}
    assert (
        "undo part of the leaked attention: with designed values the mean error is larger"
        in compare_report("identity")
    )
    assert "They do not help" in compare_report("identity", crossed=harm)
    certificate = dataclasses.replace(comparison.certificate, margin=3.158)
    text = compare_report("identity", certificate=certificate)
    assert "trained margin is at least 3.15." in text, "a lower bound"
    assert "| margin: designed, trained | 24.0, 3.15 |" in text
    certificate = dataclasses.replace(comparison.certificate, margin=-2.0, largest_error=0.1622)
    text = compare_report("identity", certificate=certificate)
    assert "scores 2.00 more than the best wanted key" in text
    assert "off by up to 0.17" in text, "an upper bound"
    assert "| largest error: designed, trained | 1.9e-10, 0.17 |" in text
    for cosine, said in (
        ("0.100", "differ"),
        ("0.798", "are similar in part"),
        ("0.800", "are similar"),
    ):
        distance = dataclasses.replace(comparison.hand_learned.distance, qk_cosine=float(cosine))
        pair = dataclasses.replace(comparison.hand_learned, distance=distance)
        assert f"{cosine}: their preferences {said}." in compare_report(
            "identity", hand_learned=pair
        )
    assert "hardly matter" in compare_report("copy_first")
    assert "hardly matter" not in compare_report("copy_first", value_gap=[0.2, 0.5, 0.5, 0.5])
    assert "hardly matter" not in compare_report(
        "copy_first", on_wanted={"hand": 1.0, "learned": 0.5}
    )
    assert "on average." in compare_report("copy_first", value_gap=[0.2, 0.5, 0.5, 0.5])
    none = {"hand": {"hand": 0.0, "learned": 0.1}, "learned": {"hand": 0.5, "learned": 0.1}}
    assert "each part compensates" in compare_report("unique")
    assert "Not every swap does harm" in compare_report("unique", crossed=none)


def test_training_is_not_said_to_see_scores(compare_report: Callable[..., str]) -> None:
    """Its loss is of outputs."""
    text = compare_report("identity")
    assert "Training sees only scores" not in text
    assert (
        "A change of basis changes no output, so that the loss does not prefer these directions."
        in text
    )


def test_one_more_training_is_that_of_the_comparison() -> None:
    compared = compare("unique", steps=3, seed=5, again=False)
    again = train_again("unique", steps=3, seed=5)
    assert again.seed == 5
    assert again.certificate == compared.certificate
    assert again.distance == compared.hand_learned.distance


def test_trainings_are_counted(results: Results, report: Callable[..., str]) -> None:
    right, wrong = (
        next(each for each in results.trainings if each.certificate.holds == holds)
        for holds in (True, False)
    )
    text = report(trainings=[right, wrong, right])
    assert (
        "Of 3 heads, each from another seed, 2 read every output correctly (95 % interval: 21 % "
        "to 94 %)" in text
    )
    failure = str(wrong.certificate.counterexample)
    assert f"| {wrong.seed} | {wrong.certificate.num_right} of 426 | {failure} |" in text
    assert text.count("of 426 | none |") == 2


def test_the_quick_version_says_so(report: Callable[..., str]) -> None:
    text = report(quick=True, trainings=[])
    assert "This is the quick version" in text
    assert "How often training succeeds" not in text
    assert "quick version" not in report()
