"""Recipes of the lab's classifiers: models, training settings, and functions that train them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import find_directory, minilm
from glassformer.classifier import ENCODER, Classifier, save_classifier
from glassformer.data.examples import SentimentData, fingerprint
from glassformer.data.subword import load_subwords
from glassformer.data.tokenizer import WordTokenizer
from glassformer.labs.sentiment.tfidf import TfidfRecipe
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.modes import seeded
from glassformer.training.classification import ClassificationTask
from glassformer.training.config import TrainingConfig
from glassformer.training.loop import train_in

_EVALUATIONS = 12
"""Approximate maximum number of evaluations in one training."""


@dataclass(frozen=True)
class TrainingRecipe:
    """Settings of AdamW, whose learning rate warms up over a tenth of the updates and then decays.

    The decay follows a cosine.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.99)
    word_dropout: float = 0.0
    label_smoothing: float = 0.0
    min_updates: int = 0
    """Minimum number of updates, for which small data sets take more than ``epochs`` epochs."""

    def config(self, num_examples: int, seed: int) -> TrainingConfig:
        """Return the configuration of the training loop for ``num_examples`` training texts."""
        per_epoch = -(-num_examples // self.batch_size)
        epochs = max(self.epochs, -(-self.min_updates // per_epoch))
        eval_every = per_epoch * -(-epochs // _EVALUATIONS)
        return TrainingConfig(
            steps=epochs * per_epoch,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            betas=self.betas,
            warmup_steps=epochs * per_epoch // 10,
            eval_every=eval_every,
            checkpoint_every=eval_every,
            keep_checkpoints=1,
            seed=seed,
            log_every=max(1, per_epoch // 10),
        )


COURSE_TFIDF = TfidfRecipe("TF-IDF, 500 words", max_features=500, stop_words="english")
FULL_TFIDF = TfidfRecipe("TF-IDF, all words", strengths=(1.0, 3.0, 10.0))
BASELINES = (COURSE_TFIDF, FULL_TFIDF)


@dataclass(frozen=True)
class ScratchRecipe:
    """An encoder with random initial weights and the most frequent words of the training texts."""

    name: str
    training: TrainingRecipe
    vocab_size: int
    """Maximum size of the vocabulary."""
    model: dict[str, Any]
    """Arguments of EncoderConfig other than vocab_size, num_classes and pad_id."""


@dataclass(frozen=True)
class PretrainedRecipe:
    """All-MiniLM-L6-v2 with its own vocabulary and a new head; all weights are fine-tuned."""

    name: str
    training: TrainingRecipe
    dropout: float = 0.1


# Selected on SST-2's validation sentences only. SST-2 is so large that min_updates has no effect.
FROM_SCRATCH = ScratchRecipe(
    "encoder from scratch",
    TrainingRecipe(6, 64, 3e-3, 0.1, word_dropout=0.4, label_smoothing=0.1, min_updates=150),
    vocab_size=8000,
    model={
        "num_layers": 1,
        "hidden_dim": 64,
        "ff_dim": 128,
        "num_heads": 4,
        "max_seq_len": 128,
        "norm_first": True,
        "positions": "none",
        "dropout": 0.4,
    },
)
FROM_MINILM = PretrainedRecipe(
    "encoder from MiniLM",
    TrainingRecipe(3, 32, 5e-5, 0.01, betas=(0.9, 0.999), label_smoothing=0.1, min_updates=50),
)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, which is faster for networks as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def build_classifier(
    recipe: ScratchRecipe | PretrainedRecipe,
    train_texts: Sequence[str],
    classes: tuple[str, ...],
    seed: int,
) -> Classifier:
    """Build the model of ``recipe`` before training, with new weights drawn from ``seed``.

    The state of torch's random generator is preserved.
    """
    with seeded(seed):
        if isinstance(recipe, PretrainedRecipe):
            source = find_directory(minilm())
            encoder = load_encoder(
                source, num_classes=len(classes), dropout=recipe.dropout, attention_dropout=0.0
            )
            return Classifier(encoder, load_subwords(source), classes)
        tokenizer = WordTokenizer.from_texts(train_texts, recipe.vocab_size)
        config = EncoderConfig(
            vocab_size=tokenizer.vocab_size,
            num_classes=len(classes),
            pad_id=tokenizer.pad_id,
            **recipe.model,
        )
        return Classifier(Encoder(config), tokenizer, classes)


def train_recipe(
    recipe: ScratchRecipe | PretrainedRecipe, data: SentimentData, directory: Path, seed: int
) -> Classifier:
    """Train an encoder on ``data.train`` and return its classifier in evaluation mode.

    The classifier has the weights of the last update: validation texts select nothing, and test
    texts are not used. ``directory`` stores the run in "run", where an interrupted run continues,
    and the classifier beside it.
    """
    classifier = build_classifier(
        recipe, [example.text for example in data.train], data.classes, seed
    )
    training = recipe.training
    task = ClassificationTask.of(
        data.train,
        data.validation,
        classifier.tokenizer.encode,
        classifier.tokenizer.pad_id,
        seed=seed,
        num_classes=len(data.classes),
        word_dropout=training.word_dropout,
        label_smoothing=training.label_smoothing,
    )
    description = {
        "recipe": asdict(recipe),
        "texts": len(data.train),
        "fingerprint": fingerprint(data),
        "seed": seed,
    }
    train_in(
        directory / "run",
        classifier.encoder,
        task,
        training.config(len(data.train), seed),
        description,
    )
    if not (directory / ENCODER).is_dir():
        save_classifier(classifier, directory / ENCODER)
    return classifier
