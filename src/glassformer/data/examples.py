"""Labelled texts, and honest splits of them: no text stands in two parts."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from glassformer.errors import require

CLASSES = ("negative", "positive")
KINDS = ("plain", "negation", "contrast", "irony")
"""What a review's verdict rests on: its words; words under a negation; the last clause against the first; the opposite
of what the words say."""


@dataclass(frozen=True)
class Example:
    """A text and its class.

    Attributes:
        text: What was written.
        label: The number of its class, from 0; 0 is negative and 1 positive where nothing else is said.
        kind: One of :data:`KINDS`; "plain" where nobody said.
    """

    text: str
    label: int
    kind: str = "plain"


@dataclass(frozen=True)
class SentimentData:
    """Examples to learn from, to choose by, and to judge with.

    Attributes:
        train: For the weights, and for the vocabulary.
        validation: For hyperparameters and the moment to stop.
        test: For the number that is reported.
        classes: The name of each label.

    Raises:
        InputError: An empty part, or a label without a class.
    """

    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    classes: tuple[str, ...] = CLASSES

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            part = getattr(self, name)
            require(len(part) > 0, f"no {name} examples", "at least one in each part", "Split with split_by_text.")
            labels = {example.label for example in part}
            require(
                labels <= set(range(len(self.classes))),
                f"the labels {sorted(labels)} in {name}",
                f"0 to {len(self.classes) - 1}, one for each of the classes {', '.join(self.classes)}",
                "Name every class.",
            )


def normalized(text: str) -> str:
    """What two texts have in common when they count as equal: their letters and digits, in lower case.

    So "It's good!" equals "it 's good". A text without letters and digits is kept as it is.
    """
    plain = unicodedata.normalize("NFKC", text).lower()
    return "".join(re.findall(r"[^\W_]", plain)) or plain.strip()


def fingerprint(data: SentimentData) -> str:
    """SHA-256 of all that a training sees of ``data``, as 64 hexadecimal digits: equal for equal data.

    It covers the names of the classes, and the text and label of every example of each part, in order.
    """
    parts = [[[example.text, example.label] for example in part] for part in (data.train, data.validation, data.test)]
    # As ASCII, since half a surrogate pair has no UTF-8.
    return hashlib.sha256(json.dumps([data.classes, parts]).encode("ascii")).hexdigest()


def split_by_text(
    examples: Sequence[Example], fractions: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0
) -> tuple[tuple[Example, ...], ...]:
    """Split into parts of these fractions so that equal texts (:func:`normalized`) stay together.

    Texts are shuffled within each label and kind; each then goes to the part that is furthest behind its share. So
    every part has about its fraction of each label and kind.

    Args:
        examples: What to split.
        fractions: The share of each part, of all examples; they sum to 1.
        seed: Seed of the shuffling.

    Returns:
        The parts, in the order of ``fractions``; within a part examples are in their original order.

    Raises:
        InputError: Fractions that are not above 0 or do not sum to 1, a negative seed, or too few texts to go round.
    """
    require(
        len(fractions) > 0 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-9,
        f"fractions = {tuple(fractions)}",
        "numbers above 0 that sum to 1",
        "For example (0.8, 0.1, 0.1).",
    )
    require(seed >= 0, f"seed = {seed}", "a seed of at least 0", "Pass seed >= 0.")
    groups: dict[str, list[int]] = defaultdict(list)
    for row, example in enumerate(examples):
        groups[normalized(example.text)].append(row)
    require(
        len(groups) >= len(fractions),
        f"{len(groups)} different texts for {len(fractions)} parts",
        "at least one for each",
        "Bring more texts or ask for fewer parts.",
    )
    strata: dict[tuple[int, str], list[list[int]]] = defaultdict(list)
    for rows in groups.values():
        strata[examples[rows[0]].label, examples[rows[0]].kind].append(rows)
    rng = np.random.default_rng(seed)
    behind = np.zeros(len(fractions))
    parts: list[list[int]] = [[] for _ in fractions]
    for stratum in sorted(strata):
        for index in rng.permutation(len(strata[stratum])):
            rows = strata[stratum][index]
            behind += np.array(fractions) * len(rows)
            furthest = int(behind.argmax())
            behind[furthest] -= len(rows)
            parts[furthest] += rows
    for part, fraction in zip(parts, fractions, strict=True):
        require(
            len(part) > 0,
            f"{len(groups)} different texts, of which none falls into a part of {fraction:g}",
            "at least one in each part",
            "Bring more texts or ask for a larger fraction.",
        )
    return tuple(tuple(examples[row] for row in sorted(part)) for part in parts)


def leaked(train: Iterable[Example], held_out: Iterable[Example]) -> tuple[Example, ...]:
    """The held-out examples whose text (:func:`normalized`) stands in ``train`` too."""
    known = {normalized(example.text) for example in train}
    return tuple(example for example in held_out if normalized(example.text) in known)
