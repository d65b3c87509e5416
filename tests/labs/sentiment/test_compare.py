"""The models of the table: accuracy by kind and calibration against counting by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment.baselines import TfidfRecipe
from glassformer.labs.sentiment.compare import (
    Contestant,
    ModelResult,
    accuracy_by_kind,
    best_encoder,
    compete,
    contestants,
    reliability,
)
from glassformer.labs.sentiment.measured import Measured
from glassformer.labs.sentiment.recipes import FROM_MINILM
from refusals import refused

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


def test_everything_enters_once_for_each_seed() -> None:
    entered = contestants(2, 5)
    assert len({each.slug for each in entered}) == len(entered) == 3 + 2 * 4
    assert "encoder-from-scratch-6" in {each.slug for each in entered}
    assert {each.seed for each in entered if isinstance(each.recipe, TfidfRecipe)} == {None}
    short = contestants(1, 0, pretrained=False, short=True)
    assert all(each.seed is None or each.recipe.training.epochs == 1 for each in short)
    assert FROM_MINILM not in {each.recipe for each in entered if each.seed is None}
    assert "encoder-from-minilm-0" not in {each.slug for each in short}


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3, 6))
def test_networks_are_trained_and_looked_at(place: int, tmp_path: Path) -> None:
    contestant = contestants(1, 0, pretrained=False, short=True)[place]
    found = compete(contestant, DATA, KINDS, tmp_path)
    assert len(found.epochs) == contestant.recipe.training.config(len(DATA.train), 0).steps  # one update an epoch
    assert found.epochs[-1].validation_accuracy == found.measured.validation_accuracy
    assert set(found.kinds) == {"plain", "irony"}
    assert sum(each.count for each in found.bins) == len(DATA.test)
    again = compete(contestant, DATA, KINDS, tmp_path)
    assert (again.kinds, again.bins, again.epochs) == (found.kinds, found.bins, found.epochs)
    assert found.encoder == (place == 5)


def test_a_baseline_is_looked_at(tmp_path: Path) -> None:
    found = compete(Contestant(TfidfRecipe("words", strengths=(10.0,)), None), DATA, KINDS, tmp_path)
    assert found.measured.test_accuracy == 1.0
    assert found.kinds == {"plain": 1.0, "irony": 0.5}
    assert found.epochs == []
    assert list(tmp_path.iterdir()) == []


def test_the_best_encoder_is_chosen_by_validation(tmp_path: Path) -> None:
    row = Measured("", 0, "", 1, 1.0, 1.0, 10, 0.5, 0.5, 0.5, 0.5, 0.5)
    models = [
        ModelResult(f"{name}-{seed}", encoder, replace(row, name=name, seed=seed, **scores), {}, [], [])
        for name, encoder, seed, scores in (
            ("counts", False, 0, {"validation_accuracy": 0.99}),
            ("one", True, 0, {"validation_accuracy": 0.9, "test_accuracy": 0.2}),
            ("one", True, 1, {"validation_accuracy": 0.8, "test_accuracy": 0.9}),
            ("other", True, 0, {"validation_accuracy": 0.7, "test_accuracy": 1.0}),
            ("other", True, 1, {"validation_accuracy": 0.91, "test_accuracy": 1.0}),
        )
    ]
    assert best_encoder(models).slug == "one-0"
    with refused("no encoder"):
        best_encoder(models[:1])
