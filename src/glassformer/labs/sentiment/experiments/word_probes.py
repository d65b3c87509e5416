"""What the best encoder says to words put in a sentence, to pairs of texts, and to texts without a token."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from glassformer.classifier import Classifier, load_classifier, save_classifier, token_effects
from glassformer.figures.coloured_words import DIVERGING, coloured_text
from glassformer.figures.style import in_style, new_figure
from glassformer.labs.run import Run
from glassformer.models.encoder import EncoderConfig

_ROUNDING = 1e-6
_UNKNOWN = frozenset({"<UNK>", "[UNK]"})


class Group(NamedTuple):
    """Words that should make no difference within their group, and sentences that say nothing good or bad."""

    words: list[str]
    sentences: list[str]  # each with {word} once


class Pair(NamedTuple):
    """A text of praise and one of blame. Kinds: negation, contrast (the clause that decides comes last), word order
    (the same words in both)."""

    kind: str
    positive: str
    negative: str


_TEXTS = json.loads((Path(__file__).parents[1] / "probes.json").read_text(encoding="utf-8"))
GROUPS = {name: Group(**group) for name, group in _TEXTS["groups"].items()}
PAIRS = tuple(Pair(*pair) for pair in _TEXTS["pairs"])
SHOWN: dict[str, int | None] = dict(_TEXTS["texts"])  # texts with their class, None where both could be said


@dataclass(frozen=True)
class GroupProbe:
    """The words of one group against one another, by the probability of "positive"."""

    group: str
    num_words: int
    num_sentences: int
    unknown: list[str]  # words that the tokenizer lacks, which are all the same to the classifier
    largest_gap: float  # the largest difference that one word for another makes within one sentence
    sentence: str  # in which it does
    low_word: str
    high_word: str
    flipped: int  # sentences whose verdict depends on the word


@dataclass(frozen=True)
class PairProbe:
    """One pair, with the probability of "positive" for each text."""

    kind: str
    positive: str
    negative: str
    p_positive: float
    p_negative: float

    @property
    def both_right(self) -> bool:
        """Whether both verdicts are right."""
        return self.p_positive > 0.5 >= self.p_negative

    @property
    def in_order(self) -> bool:
        """Whether praise has the higher probability, by more than the rounding of sums in float32."""
        return self.p_positive > self.p_negative + _ROUNDING


@dataclass(frozen=True)
class PairResult:
    """Every pair, and shares of them by kind."""

    pairs: list[PairProbe]

    @property
    def told_apart(self) -> dict[str, float]:
        """The share of each kind's pairs of which both verdicts are right. Guessing gives a quarter."""
        kinds = dict.fromkeys(pair.kind for pair in self.pairs)
        return {kind: statistics.fmean(p.both_right for p in self.pairs if p.kind == kind) for kind in kinds}

    @property
    def overall(self) -> float:
        """The share of all pairs of which both verdicts are right."""
        return statistics.fmean(pair.both_right for pair in self.pairs)

    @property
    def in_order(self) -> float:
        """The share of all pairs in which praise has the higher probability. Guessing gives a half."""
        return statistics.fmean(pair.in_order for pair in self.pairs)


@dataclass(frozen=True)
class Look:
    """One text as a classifier reads it: its most likely class, and by how much less probable that is without each
    token."""

    text: str
    expected: int | None  # None where both classes could be meant
    label: int
    probability: float
    tokens: list[str]
    effects: list[float]

    @property
    def right(self) -> bool:
        """Whether the verdict is not clearly wrong."""
        return self.expected in (None, self.label)

    @property
    def strongest(self) -> tuple[str, float]:
        """The token without which the verdict loses most, and how much."""
        return max(zip(self.tokens, self.effects, strict=True), key=lambda each: each[1])

    @property
    def redundant(self) -> bool:
        """Whether the verdict survives the loss of any single token nearly unchanged."""
        return max(map(abs, self.effects)) < 0.05


def probe_words(classifier: Classifier, groups: Mapping[str, Group] = GROUPS) -> list[GroupProbe]:
    """Put every word of a group into every sentence of the group.

    Source: Kiritchenko and Mohammad 2018, "Examining Gender and Race Bias in Two Hundred Sentiment Analysis Systems",
    arXiv 1805.04508, who substitute words in templates; the sentences are written for this project.
    """
    found, tokenizer = [], classifier.tokenizer
    for name, (words, sentences) in groups.items():
        positive = np.stack(
            [_positive(classifier, [each.replace("{word}", word) for each in sentences]) for word in words]
        )
        gaps, verdicts = np.ptp(positive, axis=0), positive > 0.5
        worst = int(gaps.argmax())
        found.append(
            GroupProbe(
                group=name,
                num_words=len(words),
                num_sentences=len(sentences),
                unknown=[word for word in words if _UNKNOWN & set(tokenizer.pieces(tokenizer.encode(word)))],
                largest_gap=float(gaps[worst]),
                sentence=sentences[worst],
                low_word=words[int(positive[:, worst].argmin())],
                high_word=words[int(positive[:, worst].argmax())],
                flipped=int((verdicts.any(0) & ~verdicts.all(0)).sum()),
            )
        )
    return found


def probe_pairs(classifier: Any, pairs: Sequence[Pair] = PAIRS) -> PairResult:
    """Judge both texts of every pair. Whatever only counts words cannot tell apart a pair of the same words."""
    praise, blame = (_positive(classifier, [pair[side] for pair in pairs]) for side in (1, 2))
    return PairResult(
        [PairProbe(*pair, float(good), float(bad)) for pair, good, bad in zip(pairs, praise, blame, strict=True)]
    )


def look_at(classifier: Classifier, texts: Mapping[str, int | None] = SHOWN) -> list[Look]:
    """Classify each of ``texts`` and leave out each of its tokens in turn."""
    found = []
    for (text, expected), row in zip(texts.items(), classifier.probabilities(list(texts)).tolist(), strict=True):
        label = max(range(len(row)), key=row.__getitem__)
        tokens, effects = zip(*token_effects(classifier, text, label), strict=True)
        found.append(Look(text, expected, label, row[label], list(tokens), list(effects)))
    return found


def _positive(classifier: Any, texts: Sequence[str]) -> Float64[np.ndarray, " text"]:
    return np.asarray(classifier.probabilities(texts), dtype=np.float64)[:, -1]


@dataclass(frozen=True)
class Asked:
    """What the best encoder said."""

    model: str
    config: EncoderConfig
    classes: list[str]
    words: list[GroupProbe]
    pairs: PairResult
    looks: list[Look]

    @property
    def worst(self) -> GroupProbe:
        """The group with the largest difference within one sentence."""
        return max(self.words, key=lambda group: group.largest_gap)


def measure_asked(run: Run) -> Asked:
    """Question the best encoder of the run, and keep it as ``classifier/`` for ``glassformer classify``."""
    best, kept = run.done.models.best_encoder, run.out / "classifier"
    classifier = load_classifier(run.out / "trainings" / best.slug)
    save_classifier(classifier, kept)
    print(f"  the best encoder: glassformer classify --run {kept} TEXT", flush=True)
    return Asked(
        best.name,
        classifier.encoder.config,
        list(classifier.classes),
        probe_words(classifier),
        probe_pairs(classifier),
        look_at(classifier),
    )


@in_style
def draw_effects(looks: Sequence[Look], classes: Sequence[str]) -> Figure:
    """Each text, its tokens coloured by what they do to its verdict; effects below half a percent are drawn as 0."""
    figure, panels = new_figure(7.5, 0.85 * len(looks) + 0.9, rows=len(looks))
    largest = max(abs(effect) for look in looks for effect in look.effects)
    for ax, look in zip(panels, looks, strict=True):
        title = f"{classes[look.label]}, {100 * look.probability:.1f} %"
        effects = [effect if abs(effect) >= 0.005 else 0.0 for effect in look.effects]
        coloured_text(look.tokens, effects, title, signed=True, ax=ax, largest=largest)
    label = "drop of the verdict's probability without the token; underlined: it rises"
    scale = ScalarMappable(Normalize(-largest, largest), DIVERGING)
    figure.colorbar(scale, ax=panels, orientation="horizontal", label=label, shrink=0.7, aspect=40)
    figure.suptitle("What the verdict loses without each token", fontsize=11, fontweight="bold")
    return figure
