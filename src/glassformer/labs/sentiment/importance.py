"""Which tokens of a text a classifier's verdict rests on: each left out in turn."""

from __future__ import annotations

from typing import NamedTuple

import torch

from glassformer.data.batches import pad
from glassformer.errors import require, require_positive
from glassformer.labs.sentiment.training_runs import Classifier


class TokenEffect(NamedTuple):
    """How much one token speaks for a class.

    Attributes:
        token: A word, or a part of one.
        effect: By how much the class would be less probable without it, in [-1, 1]; below 0 it speaks against it.
    """

    token: str
    effect: float


def token_effects(classifier: Classifier, text: str, label: int, batch_size: int = 64) -> list[TokenEffect]:
    """What each token of ``text`` does to the probability of class ``label``::

        effect[i] = p(label | all tokens) - p(label | all tokens but i)

    A token that is left out is treated as padding: no other token sees it and it has no part in the pooled vector,
    while the others stay at their positions. So the effects are exact answers to "what if this token were not there".
    They need not sum to anything, since tokens act together: of two that say the same, neither may matter alone.

    Args:
        classifier: What judges. It predicts without dropout.
        text: What is judged, cut to what the encoder reads.
        label: The number of the class.
        batch_size: Tokens left out in one forward pass.

    Returns:
        One for each token in order, without those that stand around every text; none for an empty text.

    Raises:
        InputError: A ``text`` that is no string, a ``label`` that is no class, or ``batch_size`` below 1.

    Source: Li, Monroe and Jurafsky 2016, "Understanding Neural Networks through Representation Erasure", arXiv
    1612.08220, section 3.
    """
    require_positive(batch_size=batch_size)
    classes = len(classifier.classes)
    require(0 <= label < classes, f"label = {label}", f"a class from 0 to {classes - 1}", "Pass the number of a class.")
    tokenizer, encoder = classifier.tokenizer, classifier.encoder
    (row,) = classifier.rows([text])
    around = set(tokenizer.encode(""))
    places = [place for place, token in enumerate(row) if token not in around]
    device = next(encoder.parameters()).device
    tokens, real = pad([row], tokenizer.pad_id)
    probabilities = []
    training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode():
            for first in range(0, len(places) + 1, batch_size):
                # In the first place stands the whole text.
                left_out = [None, *places][first : first + batch_size]
                seen = real.repeat(len(left_out), 1)
                for index, place in enumerate(left_out):
                    if place is not None:
                        seen[index, place] = False
                logits = encoder(tokens.expand(len(left_out), -1).to(device), seen.to(device))
                probabilities += logits.double().softmax(-1)[:, label].tolist()
    finally:
        encoder.train(training)
    whole, *without = probabilities
    pieces = tokenizer.pieces([row[place] for place in places])
    return [TokenEffect(piece, whole - rest) for piece, rest in zip(pieces, without, strict=True)]
