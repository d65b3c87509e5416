"""What a classifier makes of single texts: its verdict, and what each token does to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.classifier import Classifier, token_effects

SHOWN_TEXTS = (
    "I love this amazing movie!",
    "This film is terrible and boring.",
    "Great acting but poor story.",
    "Not a bad film at all.",
    "Oh great, another two hours of my life that I will never get back.",
    "The plot is thin and the jokes are old, yet I left the cinema happy.",
)
"""The course's three, and what counting words gets wrong: a negation, irony, and a contrast."""


@dataclass(frozen=True)
class Look:
    """One text as a classifier reads it.

    Attributes:
        text: The text.
        label: The number of its most likely class.
        probability: Of that class.
        tokens: Of the text, as the classifier cuts it.
        effects: By how much the class would be less probable without each token.
    """

    text: str
    label: int
    probability: float
    tokens: list[str]
    effects: list[float]


def look_at(classifier: Classifier, texts: Sequence[str] = SHOWN_TEXTS) -> list[Look]:
    """Classify each of ``texts`` and leave out each of its tokens in turn.

    Raises:
        InputError: No texts, or one that is no string.
    """
    found = []
    for text, row in zip(texts, classifier.probabilities(texts).tolist(), strict=True):
        label = max(range(len(row)), key=row.__getitem__)
        effects = token_effects(classifier, text, label)
        found.append(Look(text, label, row[label], [each.token for each in effects], [each.effect for each in effects]))
    return found
