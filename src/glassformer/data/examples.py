"""Labelled texts, and splits in which no text occurs in two parts."""

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile

import numpy as np

from glassformer.data.random_streams import generator, require_fractions
from glassformer.data.unicode_words import is_mark, unified
from glassformer.errors import InputError

CLASSES = ("negative", "positive")
KINDS = ("plain", "negation", "contrast", "irony")
"""Kinds of reviews, by what decides the class: words, negation, the last clause, the opposite."""


@dataclass(frozen=True)
class Example:
    """A text and its class."""

    text: str
    label: int
    """Number of the class, from 0; by default 0 is negative and 1 positive."""
    kind: str = "plain"
    """One of :data:`KINDS`."""


@dataclass(frozen=True)
class SentimentData:
    """A training, a validation and a test set."""

    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    classes: tuple[str, ...] = CLASSES

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            part = getattr(self, name)
            if len(part) == 0:
                raise InputError(
                    got=f"no {name} examples",
                    expected="at least one in each part",
                    fix="Split with split_by_text.",
                )
            labels = {example.label for example in part}
            if labels - set(range(len(self.classes))):
                raise InputError(
                    got=f"the labels {sorted(labels)} in {name}",
                    expected=(
                        f"0 to {len(self.classes) - 1}, one for each of the classes "
                        f"{', '.join(self.classes)}"
                    ),
                    fix="Name every class.",
                )


def normalized(text: str) -> str:
    """Return the form in which texts are compared: without spaces and punctuation.

    So "It's good!" equals "it 's good". Letters in lower case with their marks, digits and symbols
    stay, in any script, because they distinguish texts. So do vowel signs, tones, emoji and a point
    between two digits: 1.5 is not 15. A text without any of these is not changed.
    """
    plain = unified(text)
    if not plain.isascii():
        # An accent without a letter is an apostrophe, as in it´s.
        plain = " ".join("".join(dropwhile(is_mark, word)) for word in plain.split())
    # A symbol between two numbers keeps them apart without their punctuation.
    separated = re.sub(r"(?<=\d)(?=\W+\d)", "|", plain)
    dropped = dict.fromkeys(ord(sign) for sign in set(separated) if not _distinguishes(sign))
    return separated.translate(dropped) or plain.strip() or text


def _distinguishes(sign: str) -> bool:
    kind = unicodedata.category(sign)
    return kind[0] in "LN" or kind in ("Sc", "Sm", "So") or is_mark(sign)


def fingerprint(data: SentimentData) -> str:
    """Return the SHA-256 of class names, texts and labels in order, as 64 hexadecimal digits."""
    parts = [
        [[example.text, example.label] for example in part]
        for part in (data.train, data.validation, data.test)
    ]
    # JSON in ASCII, since an unpaired surrogate has no UTF-8 encoding.
    content = json.dumps([data.classes, parts]).encode("ascii")
    return hashlib.sha256(content).hexdigest()


def split_by_text(
    examples: Sequence[Example], fractions: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0
) -> tuple[tuple[Example, ...], ...]:
    """Split into parts of these fractions so that equal texts (:func:`normalized`) stay together.

    Texts are shuffled with ``seed`` within each label and kind; each is then assigned to the part
    with the largest deficit. So every part has about its fraction of each label and kind. Within a
    part, examples keep their order.
    """
    require_fractions(fractions)
    rng = generator(seed)
    groups: dict[str, list[int]] = defaultdict(list)
    for row, example in enumerate(examples):
        groups[normalized(example.text)].append(row)
    strata: dict[tuple[int, str], list[list[int]]] = defaultdict(list)
    for rows in groups.values():
        strata[examples[rows[0]].label, examples[rows[0]].kind].append(rows)
    deficits = np.zeros(len(fractions))
    parts: list[list[int]] = [[] for _ in fractions]
    for stratum in sorted(strata):
        for index in rng.permutation(len(strata[stratum])):
            rows = strata[stratum][index]
            deficits += np.array(fractions) * len(rows)
            largest = int(deficits.argmax())
            deficits[largest] -= len(rows)
            parts[largest] += rows
    for part, fraction in zip(parts, fractions, strict=True):
        if len(part) == 0:
            raise InputError(
                got=(
                    f"{len(groups)} different texts for {len(fractions)} parts, none of them in a "
                    f"part of {fraction:g}"
                ),
                expected="at least one in each part",
                fix="Pass more texts or larger fractions.",
            )
    return tuple(tuple(examples[row] for row in sorted(part)) for part in parts)


def leaked(train: Iterable[Example], held_out: Iterable[Example]) -> tuple[Example, ...]:
    """Return the held-out examples whose text (:func:`normalized`) is in ``train`` too."""
    known = {normalized(example.text) for example in train}
    return tuple(example for example in held_out if normalized(example.text) in known)
