"""What is measured, against loops over the sequences and heads whose measures are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed import measure
from glassformer.labs.hand_designed.course_training import set_random_seed
from glassformer.labs.hand_designed.results import Comparison


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return measure.compare("unique", steps=50, seed=3)


def judged(head: HeadWeights):
    """Letters, attention and output without CLS's row, for every sequence of the unique task."""
    for length in range(1, 5):
        for letters in itertools.product(range(3), repeat=length):
            trace = NumpyHead(head).trace(np.eye(4)[[3, *letters]])
            yield letters, trace.weights[1:], trace


def test_designs_are_certified_in_both_formats_and_for_more_letters() -> None:
    for name in ("unique", "majority_letter"):
        made = measure.measure_design(name, large_len=9)
        assert (made.float64.verdict, made.float64.dtype, made.float64.num_checked) == ("holds", "float64", 120)
        assert (made.float32.verdict, made.float32.dtype) == ("holds", "float32")
        assert made.float64.largest_error < 1e-9
        assert made.float32.largest_error < 1e-6
        assert made.large.rests_on == "the bound"
        assert made.large.num_possible == sum(26**length for length in range(1, 10))
        assert made.large_len == 9
    assert (made.qk_dim, made.pos_dim, made.description) == (1, 0, "attend to everything")


def test_parity_is_refuted() -> None:
    refuted = measure.refute("parity", num_random=5, steps=3, seed=0)
    assert (refuted.num_random, refuted.num_refuted) == (5, 5)
    assert 1 <= refuted.longest <= 3
    assert refuted.trained.verdict == "fails"


def test_random_batches_are_the_tasks_own_cases() -> None:
    task = TASKS["unique"]()
    make_batch = measure.random_batches(task, seed=1)
    seen = set()
    for _ in range(40):
        sequence, target = make_batch()
        letters = sequence[1:].argmax(dim=1).tolist()
        assert sequence[0].tolist() == [0, 0, 0, 1]
        assert target[:, 0].tolist() == [1 if letters.count(letter) == 1 else -1 for letter in letters]
        seen.add(tuple(letters))
    assert len(seen) > 20


def test_attention_shares_are_means_over_all_judged_queries(compared: Comparison) -> None:
    found = {"hand": compared.hand_head, "learned": compared.learned_head}
    for name, head in found.items():
        sums = {sign: dict.fromkeys(("itself", "same letter", "other letters", "CLS"), 0.0) for sign in ("+1", "-1")}
        queries, on_wanted = {"+1": 0, "-1": 0}, 0.0
        for letters, weights, _ in judged(head):
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
    heads = {"hand": compared.hand_head, "learned": compared.learned_head}
    for first, second in itertools.product(heads, heads):
        errors = []
        for (letters, weights, _), (_, _, other) in zip(judged(heads[first]), judged(heads[second]), strict=True):
            wanted = [1 if letters.count(letter) == 1 else -1 for letter in letters]
            errors += list(np.abs(weights @ other.V[:, 0] - wanted))
        assert compared.crossed[first][second] == pytest.approx(np.mean(errors), abs=1e-12)


def test_values_are_compared_position_by_position(compared: Comparison) -> None:
    hand, learned = compared.hand_head, compared.learned_head
    gaps = []
    for position in range(5):
        tokens = np.eye(4)[[3]] if position == 0 else np.eye(4)[:3]
        values = [
            np.concatenate([tokens, np.repeat(head.pos[[position]], len(tokens), axis=0)], axis=1) @ head.Vm
            for head in (hand, learned)
        ]
        gaps.append(np.abs(values[0] - values[1]).mean())
    assert compared.value_gap == pytest.approx(gaps, abs=1e-12)


def test_entries_and_circuits_of_the_pairs(compared: Comparison) -> None:
    first, second = compared.hand_head.Qm.ravel(), compared.learned_head.Qm.ravel()
    cosine = first @ second / np.sqrt(first @ first * (second @ second))
    assert compared.hand_learned.entries["Qm"] == pytest.approx(cosine, abs=1e-12)
    assert set(compared.hand_learned.entries) == {"Km", "Qm", "Vm", "pos"}
    moved = compared.learned_moved
    assert moved.distance.output_max < 1e-12
    assert moved.distance.qk_cosine == pytest.approx(1)
    assert max(abs(cosine) for cosine in moved.entries.values()) < 0.99
    assert compared.learned_again.distance.output_max > 1e-3


def test_the_designed_head_is_the_design_and_the_seed_decides_the_trained_one(compared: Comparison) -> None:
    made = design(TASKS["unique"]()).weights
    assert np.array_equal(compared.hand_head.Km, made.Km)
    again = measure.compare("unique", steps=50, seed=3)
    assert again == compared
    assert measure.compare("unique", steps=50, seed=4).learned != compared.learned
    set_random_seed(0)
    assert compared.steps == 50
    assert compared.certificate.criterion == "every sign right"
