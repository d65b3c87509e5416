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
from jaxtyping import Float
from torch import Tensor

from glassformer.checkpoints.bert import load_encoder, write_encoder
from glassformer.checkpoints.hub import find_directory
from glassformer.data.batches import TextBatches
from glassformer.data.examples import Example, SentimentData, fingerprint
from glassformer.data.subword import load_subwords, tokenizer_from_json, train_subwords
from glassformer.data.tokenizer import Tokenizer, WordTokenizer
from glassformer.errors import InputError, require
from glassformer.files import new_directory, write_text
from glassformer.labs.sentiment.measured import Measured, measure
from glassformer.labs.sentiment.recipes import PretrainedRecipe, ScratchRecipe, minilm
from glassformer.labs.sentiment.text import require_texts
from glassformer.models.encoder import Encoder
from glassformer.training import TrainingResult, train
from glassformer.training.classification import ClassificationTask, predict

MAX_LEN = 128
_ENCODER, _RUN, _MEASURED = "encoder", "run", "measured.json"
_TOKENIZER, _CLASSES = "tokenizer.json", "classes.json"


@dataclass(frozen=True)
class Classifier:
    """An encoder with what belongs to it: from text to classes.

    Attributes:
        encoder: With a classification head.
        tokenizer: The one that it was trained with.
        classes: The name of each class.
    """

    encoder: Encoder
    tokenizer: Tokenizer
    classes: tuple[str, ...]

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, cut to what the encoder reads.

        Raises:
            InputError: One text instead of several, or one that is no string.
        """
        require_texts(texts)
        longest = min(MAX_LEN, self.encoder.config.max_seq_len)
        return [self.tokenizer.encode(text, longest) for text in texts]

    def probabilities(self, texts: Sequence[str], batch_size: int = 64) -> Float[Tensor, "text num_classes"]:
        """The probability of each class for each text, in the order of ``texts``.

        Raises:
            InputError: No texts, one text instead of several, or one that is no string.
        """
        return predict(self.encoder, self.rows(texts), self.tokenizer.pad_id, batch_size)


def save_classifier(classifier: Classifier, directory: Path) -> None:
    """Write a directory that :func:`load_classifier` reads: complete or, whatever happens, as it was before.

    One that is there is replaced.
    """
    with new_directory(Path(directory), replace=True) as draft:
        write_encoder(classifier.encoder, draft)
        write_text(draft / _CLASSES, json.dumps(classifier.classes) + "\n")
        write_text(draft / _TOKENIZER, classifier.tokenizer.to_json())


def load_classifier(directory: Path | str) -> Classifier:
    """The classifier of a directory of :func:`save_classifier`, or of one of :func:`train_recipe`; ready to predict.

    Raises:
        InputError: A file that is missing or damaged, an encoder without a head or of other classes, two classes of one
            name, or a tokenizer that does not fit: one of words has exactly the encoder's number of tokens, one of
            parts of words may have fewer.
    """
    directory = Path(directory)
    if (directory / _ENCODER).is_dir():
        directory = directory / _ENCODER
    tokenizer = tokenizer_from_json(_read(directory / _TOKENIZER))
    try:
        classes = json.loads(_read(directory / _CLASSES))
    except (ValueError, RecursionError) as error:
        got = f"{directory / _CLASSES}, which is no JSON: {error}"
        raise InputError(got, "a list of names", "Train again.") from error
    encoder = load_encoder(directory)
    head = encoder.config.num_classes
    require(
        isinstance(classes, list) and all(isinstance(name, str) for name in classes) and len(classes) == head,
        f"{directory} with the classes {classes!r} and a head for {head}",
        "one name for each class of the head",
        "Train again.",
    )
    require(
        len(set(classes)) == len(classes),
        f"{directory} with the classes {classes!r}",
        "a name of its own for each class",
        "Train again with other names.",
    )
    # Pretrained encoders are often padded to a round number of rows; ours are made for their words.
    exact = isinstance(tokenizer, WordTokenizer)
    there, known = encoder.config.vocab_size, tokenizer.vocab_size
    require(
        known == there or (known < there and not exact),
        f"{directory} with a tokenizer of {known:,} tokens",
        f"{'exactly' if exact else 'at most'} the encoder's {there:,}",
        "Take both from the same training.",
    )
    return Classifier(encoder.eval(), tokenizer, tuple(classes))


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
        return Trained(classifier, Measured.from_json(_read(directory / _MEASURED)), epochs)
    save_classifier(classifier, directory / _ENCODER)
    measured = measure(
        recipe.name,
        seed,
        data,
        classifier.probabilities,
        num_parameters=sum(weight.numel() for weight in classifier.encoder.parameters()),
        training_seconds=result.seconds,
        validation_accuracy=result.evaluations[-1][1]["accuracy"],
    )
    write_text(directory / _MEASURED, measured.to_json())
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "Pass a directory that training has finished."
        raise InputError(f"{path}, which cannot be read: {error}", "a UTF-8 text file", fix) from error
