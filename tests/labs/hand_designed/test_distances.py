"""Distances between heads, against loops over the NumPy twin, and the laws a distance has to keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.circuits import change_basis, random_basis
from glassformer.handcraft.designs import design
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed.distances import circuit_similarity, head_distance
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


def random_head(space: SequenceSpace, seed: int) -> HeadWeights:
    rng = np.random.default_rng(seed)
    qk_dim, pos_dim = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    rows = space.num_tokens + pos_dim
    pos = rng.normal(size=(space.num_positions, pos_dim))
    Km, Qm, Vm = rng.normal(size=(rows, qk_dim)), rng.normal(size=(rows, qk_dim)), rng.normal(size=(rows, 2))
    return HeadWeights(Km, Qm, Vm, pos)


def bits(p: np.ndarray, q: np.ndarray) -> float:
    """The divergence by its definition, term by term."""
    total = 0.0
    for a, b in zip(p.tolist(), q.tolist(), strict=True):
        middle = (a + b) / 2
        total += (a * math.log2(a / middle) if a > 0 else 0.0) + (b * math.log2(b / middle) if b > 0 else 0.0)
    return total / 2


@settings(deadline=None, max_examples=30)
@given(space=spaces, seed=seeds)
def test_the_distance_is_that_of_a_loop_over_all_sequences(space: SequenceSpace, seed: int) -> None:
    heads = random_head(space, seed), random_head(space, seed + 1)
    block = next(space.blocks(10_000))
    divergences, differences, texts = [], [], []
    first = int(space.has_cls)
    for tokens, x, real in zip(block.tokens, space.one_hot(block), block.real, strict=True):
        one, other = (NumpyHead(head).trace(x[real]) for head in heads)
        for query in range(first, int(real.sum())):
            divergences.append(bits(one.weights[query], other.weights[query]))
            texts.append(space.decode(tokens[real][first:]))
        differences.append(np.abs(one.output - other.output)[first:].ravel())
    found = head_distance(*heads, space)
    assert found.attention_mean == pytest.approx(np.mean(divergences), abs=1e-12)
    assert found.attention_max == pytest.approx(max(divergences), abs=1e-12)
    # Several sequences may be equally far.
    assert found.farthest in {
        text for text, far in zip(texts, divergences, strict=True) if far > max(divergences) - 1e-9
    }
    assert found.output_mean == pytest.approx(np.concatenate(differences).mean(), abs=1e-12)
    assert found.output_max == pytest.approx(np.concatenate(differences).max(), abs=1e-12)
    assert found.num_sequences == found.num_possible == len(block.tokens)


@settings(deadline=None, max_examples=30)
@given(space=spaces, seed=seeds)
def test_distance_is_symmetric_and_sees_no_basis(space: SequenceSpace, seed: int) -> None:
    first, second = random_head(space, seed), random_head(space, seed + 1)
    there, back = head_distance(first, second, space), head_distance(second, first, space)
    turned = change_basis(second, random_basis(second.qk_dim, seed))
    seen = head_distance(first, turned, space)
    for name in ("attention_mean", "attention_max", "output_mean", "output_max", "qk_cosine", "value_cosine"):
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
    even, other = design(task).weights, design(TASKS["copy_first"]()).weights
    assert circuit_similarity(even, even, task.space) == (1.0, 1.0)
    assert circuit_similarity(even, other, task.space)[0] == 0.0


def test_constants_on_values_count() -> None:
    space = SequenceSpace(("A", "B", "C"), 3)
    head = HeadWeights(np.eye(3), 5 * np.eye(3), np.eye(3))
    lifted = HeadWeights(head.Km, head.Qm, head.Vm + 1)
    found = head_distance(head, lifted, space)
    assert (found.output_mean, found.output_max) == pytest.approx((1, 1))
    assert (found.attention_max, found.qk_cosine) == pytest.approx((0, 1), abs=1e-12)
    assert found.value_cosine == pytest.approx(2 / math.sqrt(1 * (4 + 1 + 1)))


def test_many_sequences_are_sampled_and_said_to_be() -> None:
    space = SequenceSpace(tuple("ABCDEF"), 12)
    first = HeadWeights(np.eye(6), 20 * np.eye(6), np.eye(6))
    found = head_distance(first, HeadWeights(np.eye(6), 0 * np.eye(6), np.eye(6)), space, limit=500, seed=3)
    assert (found.num_sequences, found.num_possible) == (500, space.count)
    assert 0 < found.attention_mean < found.attention_max <= 1
    assert len(space.encode(found.farthest)) <= 12
    again = head_distance(first, HeadWeights(np.eye(6), 0 * np.eye(6), np.eye(6)), space, limit=500, seed=3)
    assert again == found


def test_heads_that_cannot_be_compared_are_refused() -> None:
    space = SequenceSpace(("A", "B"), 2)
    head = HeadWeights(np.eye(2), np.eye(2), np.eye(2))
    with refused("values of length 2 and 1"):
        head_distance(head, HeadWeights(np.eye(2), np.eye(2), np.ones((2, 1))), space)
    with refused("limit = 0"):
        head_distance(head, head, space, limit=0)
    with refused("inputs of length 2"):
        head_distance(head, head, SequenceSpace(("A", "B", "C"), 2))
