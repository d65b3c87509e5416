"""Text classifiers: prediction, saving, and the effect of each token."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.checkpoints.bert import ENCODER_DIRECTORY, load_encoder, write_encoder
from glassformer.data.batches import in_length_order, pad
from glassformer.data.subword import Tokenizer, tokenizer_from_json
from glassformer.data.tokenizer import MAX_LEN, WordTokenizer
from glassformer.errors import InputError, require_positive
from glassformer.files import Written, local_path, new_directory, write_text
from glassformer.models.encoder import Encoder
from glassformer.modes import evaluating
from glassformer.untrusted import in_file, json_value, read_text

ENCODER = "encoder"
"""Subdirectory of a training run with its classifier."""
_TOKENIZER = "tokenizer.json"
_CLASSES = "classes.json"
CLASSIFIER_DIRECTORY = Written(
    "a classifier that was saved before",
    (*ENCODER_DIRECTORY.names, _TOKENIZER, _CLASSES),
    lambda directory: (directory / _CLASSES).is_file() and ENCODER_DIRECTORY.recognises(directory),
)


@dataclass(frozen=True)
class Classifier:
    """A text classifier: an encoder with a head, its tokenizer, and the names of the classes."""

    encoder: Encoder
    tokenizer: Tokenizer
    classes: tuple[str, ...]

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, at most 128 or the encoder's ``max_seq_len``."""
        if isinstance(texts, str):
            raise InputError(
                got="one text",
                expected="a sequence of texts",
                fix="Put it into a list.",
            )
        max_len = min(MAX_LEN, self.encoder.config.max_seq_len)
        return [self.tokenizer.encode(text, max_len) for text in texts]

    def probabilities(
        self, texts: Sequence[str], batch_size: int = 64
    ) -> Float[Tensor, "text num_classes"]:
        """Return the probability of each class for each text, in the order of ``texts``."""
        return predict(self.encoder, self.rows(texts), self.tokenizer.pad_id, batch_size)


@torch.no_grad()
def predict(
    model: nn.Module, rows: Sequence[Sequence[int]], pad_id: int, batch_size: int = 64
) -> Float[Tensor, "text num_classes"]:
    """Return the probability of each class for each row of token ids, in the order of ``rows``.

    Rows are batched by length to keep padding small. The model runs in evaluation mode; its mode is
    restored.

    Args:
        model: Called as ``model(tokens, real)``; returns logits.
        rows: Token ids of each text; at least one row, and at least one token in each.
        pad_id: Token that fills up short rows.
        batch_size: Rows in one forward pass.
    """
    if len(rows) == 0:
        raise InputError(
            got="no texts",
            expected="at least one",
            fix="Pass a list with the tokens of each text.",
        )
    device = next(model.parameters()).device
    order = []
    parts = []
    with evaluating(model):
        for numbers in in_length_order([len(row) for row in rows], batch_size):
            tokens, real = pad([rows[number] for number in numbers], pad_id)
            parts.append(model(tokens.to(device), real.to(device)).float().softmax(-1).cpu())
            order += numbers
    return torch.cat(parts)[torch.tensor(order).argsort()]


class TokenEffect(NamedTuple):
    """The effect of one token on the probability of a class.

    Attributes:
        token: A word, or a part of one.
        effect: The decrease of the probability when the token is left out, in [-1, 1].
    """

    token: str
    effect: float


@torch.inference_mode()
def token_effects(
    classifier: Classifier, text: str, label: int, batch_size: int = 64
) -> list[TokenEffect]:
    """Return the effect of each token of ``text`` on the probability of class ``label``::

        effect[i] = p(label | all tokens) - p(label | all tokens except i)

    Each token is left out in turn: it is masked like padding, so that no other token attends to it
    and it is not pooled. The other tokens keep their positions. Effects do not sum to a fixed
    value, since tokens interact: without one of two equivalent tokens, nothing may change.

    Args:
        classifier: The classifier; it runs in evaluation mode.
        text: Text, cut as by :meth:`Classifier.rows`.
        label: Index of the class.
        batch_size: Number of tokens left out in one forward pass.

    Returns:
        One effect for each token in order, without the special tokens around every text.

    Source: Li, Monroe and Jurafsky 2016, "Understanding Neural Networks through Representation
    Erasure", arXiv 1612.08220, section 3.
    """
    require_positive(batch_size=batch_size)
    classes = len(classifier.classes)
    if not 0 <= label < classes:
        raise InputError(
            got=f"label = {label}",
            expected=f"a class from 0 to {classes - 1}",
            fix="Pass the index of a class.",
        )
    tokenizer = classifier.tokenizer
    encoder = classifier.encoder
    (row,) = classifier.rows([text])
    special = set(tokenizer.encode(""))
    positions = [position for position, token in enumerate(row) if token not in special]
    device = next(encoder.parameters()).device
    tokens, real = pad([row], tokenizer.pad_id)
    # Row 0 is the whole text; row i leaves out positions[i - 1].
    seen = real.repeat(len(positions) + 1, 1)
    seen[torch.arange(1, len(seen)), positions] = False
    with evaluating(encoder):
        logits = [
            encoder(tokens.expand(len(part), -1).to(device), part.to(device))
            for part in seen.split(batch_size)
        ]
    whole, *without = torch.cat(logits).double().softmax(-1)[:, label].tolist()
    pieces = tokenizer.pieces([row[position] for position in positions])
    return [TokenEffect(piece, whole - rest) for piece, rest in zip(pieces, without, strict=True)]


def save_classifier(classifier: Classifier, directory: Path | str) -> None:
    """Write a directory that :func:`load_classifier` reads.

    A directory of an earlier classifier is replaced as a whole; after an error it is unchanged.

    Raises:
        InputError: If the directory exists and has anything else.
    """
    with new_directory(local_path(directory), replaces=CLASSIFIER_DIRECTORY) as draft:
        write_encoder(classifier.encoder, draft)
        write_text(draft / _CLASSES, json.dumps(classifier.classes) + "\n")
        write_text(draft / _TOKENIZER, classifier.tokenizer.to_json())


def load_classifier(directory: Path | str) -> Classifier:
    """Read a classifier written by :func:`save_classifier`; in evaluation mode.

    Args:
        directory: The classifier's directory, or that of a training run with the classifier in
            ``encoder``.
    """
    directory = local_path(directory)
    if (directory / ENCODER).is_dir():
        directory = directory / ENCODER
    if not directory.is_dir():
        raise InputError(
            got=f"no directory {directory}",
            expected="a directory that save_classifier() or the lab 'sentiment' wrote",
            fix="Train one: glassformer lab sentiment --quick.",
        )
    if not (directory / _CLASSES).exists():
        raise InputError(
            got=f"{directory} without {_CLASSES}",
            expected="a classifier that was trained here",
            fix=(
                "Name its directory. For a classifier of transformers, use "
                "glassformer.explore(model, tokenizer=...)."
            ),
        )
    words = read_text(directory / _TOKENIZER, inside=True)
    names = read_text(directory / _CLASSES, inside=True)
    tokenizer = tokenizer_from_json(words)
    with in_file(directory / _CLASSES):
        classes = json_value(names)
    encoder = load_encoder(directory)
    _check_classes(directory, classes, encoder.config.num_classes)
    # Pretrained encoders often pad their embedding to a round number of rows; encoders with a word
    # tokenizer are ours.
    num_rows = encoder.config.vocab_size
    num_tokens = tokenizer.vocab_size
    is_ours = isinstance(tokenizer, WordTokenizer)
    if num_tokens > num_rows or (is_ours and num_tokens < num_rows):
        raise InputError(
            got=f"{directory} with a tokenizer of {num_tokens:,} tokens",
            expected=f"{'exactly' if is_ours else 'at most'} the encoder's {num_rows:,}",
            fix="Take both from the same training run.",
        )
    return Classifier(encoder.eval(), tokenizer, tuple(classes))


def _check_classes(directory: Path, classes: Any, num_classes: int | None) -> None:
    """Refuse class names that do not fit the encoder's head."""
    are_names = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    if not are_names or len(classes) != num_classes:
        raise InputError(
            got=f"{directory} with the classes {classes!r} and a head for {num_classes}",
            expected="one name for each class of the head",
            fix="Train again.",
        )
    if len(set(classes)) != len(classes):
        raise InputError(
            got=f"{directory} with the classes {classes!r}",
            expected="a different name for each class",
            fix="Train again with other names.",
        )
