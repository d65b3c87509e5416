"""The models of the table: accuracy by kind and calibration against counting by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment.baselines import TfidfRecipe
from glassformer.labs.sentiment.compare import accuracy_by_kind, baseline_result, encoder_result, reliability
from glassformer.labs.sentiment.recipes import FROM_SCRATCH, quick

TEXTS = [Example(f"{word} {number}", label) for number in range(6) for word, label in (("good", 1), ("bad", 0))]
DATA = SentimentData(tuple(TEXTS[:8]), tuple(TEXTS[8:10]), tuple(TEXTS[10:]))
KINDS = (Example("good", 1), Example("bad", 0, "irony"), Example("good", 0, "irony"))


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40), st.integers(1, 7))
def test_reliability_counts_every_text_once(pairs: list[tuple[float, bool]], num_bins: int) -> None:
    chosen, actual = np.array([p for p, _ in pairs]), [int(label) for _, label in pairs]
    bins = reliability(np.stack([1 - chosen, chosen], axis=1), actual, num_bins)
    assert sum(each.count for each in bins) == len(pairs)
    assert sum(each.count * each.predicted for each in bins) == pytest.approx(chosen.sum())
    assert sum(each.count * each.actual for each in bins) == pytest.approx(sum(actual))
    assert len(bins) <= num_bins
    assert [each.predicted for each in bins] == sorted(each.predicted for each in bins)


def test_bins_by_hand() -> None:
    chosen = np.array([0.05, 0.15, 0.12, 1.0])
    low, middle, high = reliability(np.stack([1 - chosen, chosen], axis=1), [0, 1, 0, 1])
    assert (low.predicted, low.actual, low.count) == (pytest.approx(0.05), 0.0, 1)
    assert (middle.predicted, middle.actual, middle.count) == (pytest.approx(0.135), 0.5, 2)
    assert (high.predicted, high.actual, high.count) == (1.0, 1.0, 1)


def test_accuracy_by_kind() -> None:
    probabilities = np.array([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])
    assert accuracy_by_kind(probabilities, KINDS) == {"plain": 1.0, "irony": 0.5}


def test_a_baseline_is_looked_at() -> None:
    found = baseline_result(TfidfRecipe("words", strengths=(10.0,)), DATA, KINDS)
    assert found.measured.test_accuracy == 1.0
    assert found.kinds == {"plain": 1.0, "irony": 0.5}
    assert sum(each.count for each in found.bins) == len(DATA.test)
    assert found.epochs == []


def test_an_encoder_is_trained_and_looked_at(tmp_path: Path) -> None:
    found = encoder_result(quick(FROM_SCRATCH), DATA, KINDS, tmp_path, seed=0)
    assert len(found.epochs) == 1
    assert found.epochs[0].validation_accuracy == found.measured.validation_accuracy
    assert set(found.kinds) == {"plain", "irony"}
    assert encoder_result(quick(FROM_SCRATCH), DATA, KINDS, tmp_path, seed=0) == found
