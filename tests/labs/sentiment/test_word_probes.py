"""Probes against a judge whose answers are known, pairs against what they promise, heads against loops."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from glassformer.classifier import Classifier
from glassformer.data.examples import Example, SentimentData
from glassformer.data.sentiment import reviews
from glassformer.data.tokenizer import WordTokenizer, split_words
from glassformer.labs.sentiment.experiments.heads import attention_spread, measure_heads
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH, TrainingRecipe, build_classifier
from glassformer.labs.sentiment.experiments.word_probes import (
    GROUPS,
    PAIRS,
    SHOWN,
    Group,
    Look,
    Pair,
    PairProbe,
    draw_effects,
    look_at,
    probe_pairs,
    probe_words,
)
from glassformer.labs.sentiment.rivals import TfidfClassifier, TfidfRecipe
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.observe.capture import capture

KNOWN = ("alpha", "beta", "gamma", "is", "was", "here", "there", ".")
POSITIVE = {"alpha": 0.2, "beta": 0.6, "gamma": 0.4}


class Fixed(Classifier):
    """Gives a text the probability of its word, and 0.3 more for "there"."""

    def probabilities(self, texts: Sequence[str], batch_size: int = 64) -> torch.Tensor:
        positive = [sum(p for word, p in POSITIVE.items() if word in text) + 0.3 * ("there" in text) for text in texts]
        return torch.tensor([[1 - p, p] for p in positive])


def fixed() -> Fixed:
    tokenizer = WordTokenizer(KNOWN)
    return Fixed(Encoder(EncoderConfig(tokenizer.vocab_size, 1, 8, 8, 2, num_classes=2)), tokenizer, ("bad", "good"))


def test_the_largest_difference_of_two_words_is_found() -> None:
    sentences = ["{word} is here.", "{word} was there."]
    (group,) = probe_words(fixed(), {"letters": Group(["alpha", "beta", "gamma", "omega"], sentences)})
    assert (group.group, group.num_words, group.num_sentences) == ("letters", 4, 2)
    assert group.unknown == ["omega"]
    assert group.largest_gap == pytest.approx(0.6)
    assert (group.low_word, group.high_word, group.sentence) == ("omega", "beta", sentences[0])
    assert group.flipped == 2  # 0 and 0.6; 0.3 and 0.9


def test_an_encoder_gives_unknown_words_the_same_probability() -> None:
    tokenizer = WordTokenizer(KNOWN)
    encoder = Encoder(EncoderConfig(tokenizer.vocab_size, 1, 8, 8, 2, num_classes=2)).eval()
    for group in probe_words(Classifier(encoder, tokenizer, ("bad", "good"))):
        assert group.unknown == GROUPS[group.group].words
        assert group.largest_gap < 1e-6
        assert group.flipped == 0


def test_the_groups_are_what_they_are_said_to_be() -> None:
    assert sum(len(words) * len(sentences) for words, sentences in GROUPS.values()) == 144
    for words, sentences in GROUPS.values():
        assert len(set(words)) == len(words) >= 2
        assert all(sentence.count("{word}") == 1 for sentence in sentences)


def test_pairs_are_counted_by_kind() -> None:
    pairs = (
        Pair("one", "beta is here", "alpha is here"),  # 0.6, 0.2: right
        Pair("one", "alpha was there", "alpha was here"),  # 0.5, 0.2: in order alone
        Pair("two", "alpha here", "beta here"),  # 0.2, 0.6: wrong
        Pair("two", "gamma there", "gamma there"),  # the same
    )
    result = probe_pairs(fixed(), pairs)
    assert result.told_apart == {"one": 0.5, "two": 0.0}
    assert result.in_order == 0.5
    assert result.overall == 0.25
    assert [each.p_positive for each in result.pairs] == pytest.approx([0.6, 0.5, 0.2, 0.7])


def test_the_pairs_are_what_they_are_said_to_be() -> None:
    assert Counter(pair.kind for pair in PAIRS) == {"negation": 8, "contrast": 8, "word order": 8}
    texts = [text for pair in PAIRS for text in pair[1:]]
    assert len(set(texts)) == len(texts)
    for pair in PAIRS:
        if pair.kind == "word order":
            assert sorted(split_words(pair.positive)) == sorted(split_words(pair.negative))


def test_counting_words_cannot_tell_word_order() -> None:
    judge = TfidfClassifier(reviews(), TfidfRecipe("words"))
    result = probe_pairs(judge, [pair for pair in PAIRS if pair.kind == "word order"])
    assert result.told_apart == {"word order": 0.0}


def test_rounding_is_no_order() -> None:
    assert not PairProbe("word order", "a b", "b a", 0.5 + 1e-8, 0.5).in_order
    assert PairProbe("word order", "a b", "b a", 0.51, 0.5).in_order


def test_each_effect_is_the_change_that_leaving_a_token_out_makes() -> None:
    texts = [example.text for example in reviews()]
    classifier = build_classifier(FROM_SCRATCH, texts, ("negative", "positive"), seed=0)
    looks = look_at(classifier)
    assert [look.text for look in looks] == list(SHOWN)
    for look, row in zip(looks, classifier.probabilities(list(SHOWN)), strict=True):
        assert look.label == int(row.argmax())
        assert look.probability == pytest.approx(float(row.max()), abs=1e-6)
        assert len(look.tokens) == len(look.effects) > 4
    (short,) = look_at(classifier, {"good film": None})
    # The encoder has no positions, so that a token left out is as if it had never been there.
    without = float(classifier.probabilities(["good"])[0, short.label])
    assert short.effects[1] == pytest.approx(short.probability - without, abs=1e-6)


def test_what_a_text_needs() -> None:
    needed, spare = Look("a b", 0, 1, 0.9, ["a", "b"], [0.3, -0.2]), Look("a b", 1, 1, 0.9, ["a", "b"], [0.01, -0.02])
    assert needed.strongest == ("a", 0.3)
    assert (needed.redundant, needed.right) == (False, False)
    assert (spare.redundant, spare.right) == (True, True)


def test_effects_share_one_scale_and_rounding_is_no_effect(check_readable: Callable[[Figure], None]) -> None:
    looks = [
        Look("good and bad", None, 1, 0.9, ["good", "and", "bad"], [0.4, -0.004, -0.2]),
        Look("fine", None, 1, 0.6, ["fine"], [0.1]),
    ]
    figure = draw_effects(looks, ("negative", "positive"))
    for ax in figure.axes[:-1]:
        ax.set(xticks=[], yticks=[])  # switched off with their axes, and still in the list of texts
    check_readable(figure)
    assert [ax.get_title(loc="left") for ax in figure.axes[:-1]] == ["positive, 90.0 %", "positive, 60.0 %"]
    assert [len(ax.lines) for ax in figure.axes[:-1]] == [1, 0]  # only "bad" is underlined
    assert figure.axes[-1].get_xlim() == (-0.4, 0.4)


THINGS = ("film", "book", "soup", "phone", "song", "play")
TRAIN = tuple(
    Example(f"a {word} {thing}{' .' * index}", label)
    for index, thing in enumerate(THINGS)
    for word, label in (("good", 1), ("bad", 0))
)
DATA = SentimentData(TRAIN, TRAIN[::3], TRAIN[:1])
TINY = dataclasses.replace(
    FROM_SCRATCH,
    training=TrainingRecipe(2, 4, 0.01, 0.0),
    model={**FROM_SCRATCH.model, "num_layers": 2, "hidden_dim": 16, "ff_dim": 16, "num_heads": 2},
)


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    """As the mean of both divergences from the mixture, in a loop."""
    halves = [x * math.log(2 * x / (one + other)) for one, other in zip(p, q, strict=True) for x in (one, other) if x]
    return sum(halves) / 2


def test_spreads_and_divergences_are_means_over_queries() -> None:
    classifier = build_classifier(TINY, [example.text for example in TRAIN], DATA.classes, seed=0)
    rows = classifier.rows([example.text for example in DATA.validation])
    classifier.encoder.eval()
    found = attention_spread(classifier, rows)
    entropies, between = np.zeros((2, 2)), np.zeros(2)
    for row in rows:  # one text at a time, without padding
        tokens = torch.tensor([row])
        with torch.no_grad(), capture(classifier.encoder, what=("q", "k")) as seen:
            classifier.encoder.hidden(tokens, tokens >= 0)
        for layer, (q, k) in enumerate(zip(seen.last("q").values(), seen.last("k").values(), strict=True)):
            weights = (q[0] @ k[0].mT / math.sqrt(q.shape[-1])).softmax(-1)
            for query in range(len(row)):
                both = weights[:, query].double().numpy()
                between[layer] += jensen_shannon(*both)
                for head, row_weights in enumerate(both):
                    entropies[layer, head] -= sum(w * math.log(w) for w in row_weights)
    queries = sum(map(len, rows))
    np.testing.assert_allclose(found[0], entropies.ravel() / queries, rtol=1e-5)
    np.testing.assert_allclose(found[1], between / queries, rtol=1e-3)


def test_every_model_is_trained_once_and_the_test_part_is_left_alone() -> None:
    result = measure_heads(DATA, counts=(1, 2), seeds=(0,), recipe=TINY)
    assert [(run.num_heads, run.positions) for run in result.runs] == [(1, "none"), (2, "none"), (2, "sinusoidal")]
    assert (result.num_heads, result.positions) == (2, "none")
    one, two, placed = result.runs
    assert one.divergences == [0.0, 0.0]
    assert all(each > 0 for each in two.divergences)
    assert len(two.entropies) == 4
    assert result.accuracy() == result.accuracy(2) == two.validation_accuracy
    assert result.accuracy(positions="sinusoidal") == placed.validation_accuracy
    # A head that sees n tokens alike has the entropy ln n.
    lengths = [3 + THINGS.index(example.text.split()[2]) + 1 for example in DATA.validation]
    assert result.uniform_entropy == pytest.approx(sum(n * math.log(n) for n in lengths) / sum(lengths))
    other = dataclasses.replace(DATA, test=(Example("something else altogether", 0),))
    assert measure_heads(other, counts=(1, 2), seeds=(0,), recipe=TINY) == result
