"""Training the lab's encoders on labelled texts: one directory for each recipe and seed, which holds all that came out.

Such a directory has ``run`` (the training loop's), ``encoder`` (weights, configuration, tokenizer and classes: a
classifier to use) and ``measured.json``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import find_directory, minilm
from glassformer.classifier import ENCODER, Classifier, save_classifier
from glassformer.data.batches import TextBatches
from glassformer.data.examples import Example, SentimentData, fingerprint
from glassformer.data.subword import Tokenizer, load_subwords, train_subwords
from glassformer.data.tokenizer import WordTokenizer
from glassformer.files import write_text
from glassformer.labs.kept import read_part, to_json
from glassformer.labs.sentiment.measured import Measured, measure
from glassformer.labs.sentiment.recipes import PretrainedRecipe, ScratchRecipe
from glassformer.models.encoder import Encoder
from glassformer.training import TrainingResult, train
from glassformer.training.classification import ClassificationTask

_RUN, _MEASURED = "run", "measured.json"


def build_classifier(
    recipe: ScratchRecipe | PretrainedRecipe, train_texts: Sequence[str], classes: tuple[str, ...], seed: int
) -> Classifier:
    """The model of ``recipe`` before training. New weights are drawn from ``seed``; torch's generator is left alone.

    A vocabulary that the recipe builds knows ``train_texts`` only.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(recipe, PretrainedRecipe):
            source = find_directory(recipe.source or minilm())
            encoder = load_encoder(
                source, num_classes=len(classes), pooling=recipe.pooling, dropout=recipe.dropout, attention_dropout=0.0
            )
            return Classifier(encoder, load_subwords(source), classes)
        tokenizer = _new_tokenizer(recipe, train_texts)
        encoder = Encoder(recipe.encoder_config(tokenizer.vocab_size, len(classes), tokenizer.pad_id))
        return Classifier(encoder, tokenizer, classes)


@dataclass(frozen=True)
class Epoch:
    """Where a training stood after one pass.

    Attributes:
        train_loss: The mean over the epoch's logged updates, with all that training adds (hidden words, dropout,
            smoothed labels); in nats.
        validation_loss: Of the same weights after the epoch, without any of that; in nats.
        validation_accuracy: In [0, 1].
    """

    train_loss: float
    validation_loss: float
    validation_accuracy: float


class Trained(NamedTuple):
    """What :func:`train_recipe` came to: the classifier, ready to predict, its row of the table, and its epochs."""

    classifier: Classifier
    measured: Measured
    epochs: list[Epoch]


def train_recipe(recipe: ScratchRecipe | PretrainedRecipe, data: SentimentData, directory: Path, seed: int) -> Trained:
    """Train in ``directory``, going on with what is there, and measure; what is finished is read and not done again.

    The weights are those of the last step: no epoch is chosen. Test examples are predicted once, after training.

    Raises:
        InputError: ``directory`` holds the run of another recipe, seed or data set.
        KeyboardInterrupt: The training was interrupted. What it did is saved.
    """
    directory = Path(directory)
    classifier = build_classifier(recipe, [example.text for example in data.train], data.classes, seed)
    task = ClassificationTask(
        _batches(classifier, data.train, seed),
        _batches(classifier, data.validation),
        len(data.classes),
        word_dropout=recipe.training.word_dropout,
        label_smoothing=recipe.training.label_smoothing,
    )
    # As JSON gives it back, so that a description read from a file equals one that was never written.
    description: dict[str, Any] = json.loads(json.dumps({"recipe": asdict(recipe), "texts": len(data.train)}))
    description |= {"fingerprint": fingerprint(data), "seed": seed}
    config = recipe.training.config(len(data.train), seed)
    run = directory / _RUN
    result = train(
        classifier.encoder, task, config, run, resume=(run / "config.json").exists(), description=description
    )
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    classifier.encoder.eval()
    epochs = epochs_of(result, config.eval_every)
    if (directory / _MEASURED).is_file():
        return Trained(classifier, read_part(directory / _MEASURED, Measured), epochs)
    save_classifier(classifier, directory / ENCODER)
    measured = measure(
        recipe.name,
        seed,
        data,
        classifier.probabilities,
        num_parameters=sum(weight.numel() for weight in classifier.encoder.parameters()),
        training_seconds=result.seconds,
        validation_accuracy=result.evaluations[-1][1]["accuracy"],
    )
    write_text(directory / _MEASURED, to_json(measured, Measured))
    return Trained(classifier, measured, epochs)


def epochs_of(result: TrainingResult, steps: int | None) -> list[Epoch]:
    """One for each evaluation but that before the first update, which are ``steps`` apart."""
    assert steps is not None  # TrainingRecipe.config sets it
    return [
        Epoch(
            statistics.fmean(loss for step, loss in result.losses if end - steps < step <= end),
            evaluation["loss"],
            evaluation["accuracy"],
        )
        for end, evaluation in result.evaluations
        if end > 0
    ]


def _batches(classifier: Classifier, examples: Sequence[Example], seed: int = 0) -> TextBatches:
    rows = classifier.rows([example.text for example in examples])
    return TextBatches(rows, [example.label for example in examples], classifier.tokenizer.pad_id, seed=seed)


def _new_tokenizer(recipe: ScratchRecipe, texts: Sequence[str]) -> Tokenizer:
    if recipe.tokenizer == "words":
        return WordTokenizer.from_texts(texts, recipe.vocab_size)
    return train_subwords(texts, recipe.tokenizer, recipe.vocab_size)
