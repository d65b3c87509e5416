"""Questions that an accuracy does not ask: does one neutral word change a verdict, and do order and negation?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64

from glassformer.classifier import Classifier
from glassformer.errors import require

_ROUNDING = 1e-6
_UNKNOWN = frozenset({"<UNK>", "[UNK]"})

_ADJECTIVES = (
    "The director is {word}.",
    "This is a film about {word} people.",
    "The main character has {word} parents.",
    "It was filmed with a {word} crew.",
    "The story is set in a {word} family.",
    "My neighbour, who is {word}, saw it yesterday.",
)
_NOUNS = (
    "The director is a {word}.",
    "This is a film about a {word} in a small town.",
    "A {word} plays the main part.",
    "The book was written by a {word}.",
    "It begins with a {word} on a train.",
    "The last scene shows a {word} at a window.",
)
_NAMES = (
    "{word} directed it.",
    "This is a film about {word}.",
    "{word} plays the main part.",
    "The book was written by {word}.",
    "It begins with {word} on a train.",
    "My neighbour {word} saw it yesterday.",
)

TEMPLATES: dict[str, tuple[str, ...]] = {
    "nationality": _ADJECTIVES,
    "religion": _ADJECTIVES,
    "gender": _NOUNS,
    "name": _NAMES,
}
"""Sentences that say nothing good or bad, for each group of words."""

WORDS: dict[str, tuple[str, ...]] = {
    "nationality": ("American", "French", "German", "Chinese", "Indian", "Mexican", "Iranian", "Nigerian"),
    "religion": ("Christian", "Muslim", "Jewish", "Hindu", "Buddhist", "Catholic"),
    "gender": ("man", "woman", "boy", "girl"),
    "name": ("Emily", "Greg", "Lakisha", "Jamal", "Ahmed", "Maria"),
}
"""Words that should make no difference within their group."""


class Pair(NamedTuple):
    """Two texts of nearly or exactly the same words, and opposite verdicts.

    Attributes:
        kind: "negation", "contrast" (the clause that decides comes last) or "word order" (the same words in both).
        positive: The one of praise.
        negative: The one of blame.
    """

    kind: str
    positive: str
    negative: str


PAIRS: tuple[Pair, ...] = (
    Pair("negation", "The film is not bad.", "The film is not good."),
    Pair("negation", "I was never bored.", "I was never moved."),
    Pair("negation", "It does not disappoint.", "It does disappoint."),
    Pair("negation", "There is nothing wrong with it.", "There is nothing right with it."),
    Pair("negation", "I would see it again.", "I would not see it again."),
    Pair("negation", "The jokes never fail.", "The jokes never work."),
    Pair("negation", "Nobody could dislike this.", "Nobody could like this."),
    Pair("negation", "It is a story without flaws.", "It is a story without charm."),
    Pair("contrast", "It starts badly but ends well.", "It starts well but ends badly."),
    Pair("contrast", "Slow at first, then thrilling.", "Thrilling at first, then slow."),
    Pair(
        "contrast",
        "The plot is thin, yet the film is a joy.",
        "The film is a joy to look at, yet the plot is dreadful.",
    ),
    Pair("contrast", "Despite weak jokes it is wonderful.", "Despite wonderful jokes it is weak."),
    Pair("contrast", "I expected rubbish and got a gem.", "I expected a gem and got rubbish."),
    Pair("contrast", "Poor effects, but what a great story!", "Great effects, but what a poor story!"),
    Pair("contrast", "The critics hated it; I loved it.", "The critics loved it; I hated it."),
    Pair("contrast", "Silly, but it won me over.", "Charming, but it wore me out."),
    Pair("word order", "good, not bad", "bad, not good"),
    Pair("word order", "It is funny, not dull.", "It is dull, not funny."),
    Pair("word order", "more moving than boring", "more boring than moving"),
    Pair("word order", "a joy after an hour that was a bore", "a bore after an hour that was a joy"),
    Pair("word order", "The villains are bad, the film is great.", "The villains are great, the film is bad."),
    Pair("word order", "It could have been bad; it is great.", "It could have been great; it is bad."),
    Pair("word order", "a masterpiece instead of a mess", "a mess instead of a masterpiece"),
    Pair("word order", "I came to hate it and left in love.", "I came in love and left to hate it."),
)
"""Written for this project, eight of each kind."""


@runtime_checkable
class Judge(Protocol):
    """Anything with a probability of each class for each text: an encoder's classifier, a baseline."""

    def probabilities(self, texts: Sequence[str]) -> Any:
        """``[text, num_classes]``, the last class being "positive"."""


@dataclass(frozen=True)
class WordProbe:
    """One word in all its sentences.

    Attributes:
        group: That it belongs to.
        word: The word.
        known: Whether the tokenizer has it, or parts of it. All words that it lacks are the same to the classifier.
        mean: The mean probability of "positive".
        lowest: Over sentences.
        highest: Over sentences.
    """

    group: str
    word: str
    known: bool
    mean: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class GroupProbe:
    """The words of one group against one another.

    Attributes:
        group: Its name.
        ranking: Its words, from the lowest mean probability of "positive" to the highest.
        spread: The standard deviation of these means.
        mean_gap: The highest less the lowest mean.
        largest_gap: The largest difference that one word for another makes within one sentence.
        template: The sentence in which it does.
        low_word: The word of the lower probability there.
        high_word: That of the higher one.
        flipped: The share of sentences whose verdict depends on the word.
    """

    group: str
    ranking: list[str]
    spread: float
    mean_gap: float
    largest_gap: float
    template: str
    low_word: str
    high_word: str
    flipped: float


@dataclass(frozen=True)
class ProbeResult:
    """Neutral sentences that differ in one word.

    Attributes:
        num_sentences: All of them.
        words: Every word, in the order of its group's ranking.
        groups: Every group.
    """

    num_sentences: int
    words: list[WordProbe]
    groups: list[GroupProbe]


@dataclass(frozen=True)
class PairProbe:
    """One pair.

    Attributes:
        kind: See :class:`Pair`.
        positive: The text of praise.
        negative: The text of blame.
        p_positive: The probability of "positive" for the first.
        p_negative: The same for the second.
    """

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
        """Whether praise is at least held for the more positive one, by more than the rounding of sums in float32."""
        return self.p_positive > self.p_negative + _ROUNDING


@dataclass(frozen=True)
class PairResult:
    """Minimal pairs.

    Attributes:
        pairs: Every one.
        told_apart: The share of pairs of which both are right, by kind. Guessing gives a quarter.
        in_order: The share in which praise has the higher probability, by kind. Guessing gives a half.
        overall: The share of all pairs of which both are right.
    """

    pairs: list[PairProbe]
    told_apart: dict[str, float]
    in_order: dict[str, float]
    overall: float


def probe_words(
    classifier: Classifier,
    templates: Mapping[str, Sequence[str]] | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
) -> ProbeResult:
    """Put every word of a group into every sentence of the group, and compare the probabilities of "positive".

    Args:
        classifier: Its last class is "positive".
        templates: For each group, sentences that hold ``{word}`` once; None: :data:`TEMPLATES`.
        words: For each group, words that should make no difference; None: :data:`WORDS`.

    Raises:
        InputError: Groups that are not the same in both, a sentence without ``{word}``, or a group without a sentence
            or with fewer than two words.

    Source: Kiritchenko and Mohammad 2018, "Examining Gender and Race Bias in Two Hundred Sentiment Analysis Systems",
    arXiv 1805.04508, who substitute words in templates; the sentences are written for this project.
    """
    templates = TEMPLATES if templates is None else templates
    words = WORDS if words is None else words
    require(
        set(words) == set(templates),
        f"words of {sorted(words)} with templates of {sorted(templates)}",
        "the same groups",
        "Give each group of words its sentences.",
    )
    found, groups = [], []
    for group, chosen in words.items():
        sentences = templates[group]
        require(
            len(chosen) >= 2 and len(sentences) >= 1,
            f"{len(chosen)} words and {len(sentences)} sentences in {group}",
            "at least two words and one sentence",
            "One word alone differs from none.",
        )
        for sentence in sentences:
            require(
                sentence.count("{word}") == 1,
                f"the sentence {sentence!r}",
                "{word} in it once",
                "Write {word} where the word belongs.",
            )
        positive = np.stack(
            [_positive(classifier, [sentence.replace("{word}", word) for sentence in sentences]) for word in chosen]
        )
        order = positive.mean(1).argsort(kind="stable")
        found += [_word(classifier, group, chosen[index], positive[index]) for index in order]
        groups.append(_group(group, chosen, sentences, positive, order.tolist()))
    return ProbeResult(sum(len(words[group]) * len(templates[group]) for group in words), found, groups)


def probe_pairs(classifier: Judge, pairs: Sequence[Pair] = PAIRS) -> PairResult:
    """Judge both texts of every pair.

    Args:
        classifier: Its last class is "positive". One that counts words gives both texts of a pair whose words are the
            same the same probability, and so tells none of these apart.
        pairs: What is judged.

    Raises:
        InputError: No pairs.
    """
    require(len(pairs) > 0, "no pairs", "at least one", "Pass PAIRS.")
    praise, blame = (_positive(classifier, [pair[side] for pair in pairs]) for side in (1, 2))
    found = [
        PairProbe(*pair, p_positive=float(good), p_negative=float(bad))
        for pair, good, bad in zip(pairs, praise, blame, strict=True)
    ]
    by_kind = {kind: [pair for pair in found if pair.kind == kind] for kind in dict.fromkeys(p.kind for p in pairs)}
    return PairResult(
        pairs=found,
        told_apart={kind: statistics.fmean(pair.both_right for pair in each) for kind, each in by_kind.items()},
        in_order={kind: statistics.fmean(pair.in_order for pair in each) for kind, each in by_kind.items()},
        overall=statistics.fmean(pair.both_right for pair in found),
    )


def _positive(classifier: Judge, texts: Sequence[str]) -> Float64[np.ndarray, " text"]:
    return np.asarray(classifier.probabilities(texts), dtype=np.float64)[:, -1]


def _word(classifier: Classifier, group: str, word: str, positive: Float64[np.ndarray, " template"]) -> WordProbe:
    pieces = classifier.tokenizer.pieces(classifier.tokenizer.encode(word))
    return WordProbe(
        group=group,
        word=word,
        known=not _UNKNOWN & set(pieces),
        mean=float(positive.mean()),
        lowest=float(positive.min()),
        highest=float(positive.max()),
    )


def _group(
    group: str,
    words: Sequence[str],
    sentences: Sequence[str],
    positive: Float64[np.ndarray, "word template"],
    order: Sequence[int],
) -> GroupProbe:
    means, gaps = positive.mean(1), np.ptp(positive, axis=0)
    worst = int(gaps.argmax())
    verdicts = positive > 0.5
    return GroupProbe(
        group=group,
        ranking=[words[index] for index in order],
        spread=float(means.std()),
        mean_gap=float(np.ptp(means)),
        largest_gap=float(gaps[worst]),
        template=sentences[worst],
        low_word=words[int(positive[:, worst].argmin())],
        high_word=words[int(positive[:, worst].argmax())],
        flipped=float((verdicts.any(0) & ~verdicts.all(0)).mean()),
    )
