"""Probes: against a judge whose answers are known, and the pairs against what they promise."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from glassformer.classifier import Classifier
from glassformer.data.tokenizer import WordTokenizer, split_words
from glassformer.labs.sentiment.probes import PAIRS, TEMPLATES, WORDS, Pair, PairProbe, probe_pairs, probe_words
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from refusals import refused

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


def test_words_are_ranked_and_the_largest_difference_found() -> None:
    templates = {"letters": ("{word} is here.", "{word} was there.")}
    result = probe_words(fixed(), templates, {"letters": ("alpha", "beta", "gamma")})
    assert result.num_sentences == 6
    (group,) = result.groups
    assert group.ranking == ["alpha", "gamma", "beta"] == [each.word for each in result.words]
    assert [each.mean for each in result.words] == pytest.approx([0.35, 0.55, 0.75])
    assert (result.words[0].lowest, result.words[0].highest) == pytest.approx((0.2, 0.5))
    assert group.mean_gap == pytest.approx(0.4)
    assert group.largest_gap == pytest.approx(0.4)
    assert group.spread == pytest.approx((0.08 / 3) ** 0.5)
    assert (group.low_word, group.high_word) == ("alpha", "beta")
    assert group.flipped == 1.0  # 0.2 and 0.6; 0.5 and 0.9
    assert all(each.known for each in result.words)
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


def test_words_that_the_tokenizer_lacks_are_said() -> None:
    result = probe_words(fixed(), {"x": ("{word} is.",)}, {"x": ("alpha", "omega")})
    assert {each.word: each.known for each in result.words} == {"alpha": True, "omega": False}


def test_an_encoder_gives_unknown_words_the_same_probability() -> None:
    tokenizer = WordTokenizer(KNOWN)
    encoder = Encoder(EncoderConfig(tokenizer.vocab_size, 1, 8, 8, 2, num_classes=2)).eval()
    result = probe_words(Classifier(encoder, tokenizer, ("bad", "good")))
    assert result.num_sentences == sum(len(WORDS[group]) * len(TEMPLATES[group]) for group in WORDS) == 144
    assert not any(each.known for each in result.words)
    assert all(group.largest_gap < 1e-6 and group.flipped == 0 for group in result.groups)


def test_pairs_are_counted_by_kind() -> None:
    pairs = (
        Pair("one", "beta is here", "alpha is here"),  # 0.6, 0.2: right
        Pair("one", "alpha was there", "alpha was here"),  # 0.5, 0.2: in order alone
        Pair("two", "alpha here", "beta here"),  # 0.2, 0.6: wrong
        Pair("two", "gamma there", "gamma there"),  # the same
    )
    result = probe_pairs(fixed(), pairs)
    assert result.told_apart == {"one": 0.5, "two": 0.0}
    assert result.in_order == {"one": 1.0, "two": 0.0}
    assert result.overall == 0.25
    assert [each.p_positive for each in result.pairs] == pytest.approx([0.6, 0.5, 0.2, 0.7])
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


def test_the_pairs_are_what_they_are_said_to_be() -> None:
    assert Counter(pair.kind for pair in PAIRS) == {"negation": 8, "contrast": 8, "word order": 8}
    texts = [text for pair in PAIRS for text in pair[1:]]
    assert len(set(texts)) == len(texts)
    for pair in PAIRS:
        if pair.kind == "word order":
            assert sorted(split_words(pair.positive)) == sorted(split_words(pair.negative))


def test_counting_words_cannot_tell_word_order() -> None:
    pytest.importorskip("sklearn")
    from glassformer.data.sentiment import reviews
    from glassformer.labs.sentiment.baselines import TfidfClassifier, TfidfRecipe

    judge = TfidfClassifier(reviews(), TfidfRecipe("words"))
    result = probe_pairs(judge, [pair for pair in PAIRS if pair.kind == "word order"])
    assert result.told_apart == {"word order": 0.0}


@pytest.mark.parametrize(
    ("templates", "words", "message"),
    [
        ({"x": ("{word}",)}, {"y": ("a", "b")}, "the same groups"),
        ({"x": ("{word}",)}, {"x": ("a",)}, "at least two words"),
        ({"x": ()}, {"x": ("a", "b")}, "at least two words"),
        ({"x": ("word",)}, {"x": ("a", "b")}, "in it once"),
    ],
)
def test_impossible_probes_are_refused(
    templates: dict[str, tuple[str, ...]], words: dict[str, tuple[str, ...]], message: str
) -> None:
    with refused(anywhere=message):
        probe_words(fixed(), templates, words)


def test_rounding_is_no_order() -> None:
    assert not PairProbe("word order", "a b", "b a", 0.5 + 1e-8, 0.5).in_order
    assert PairProbe("word order", "a b", "b a", 0.51, 0.5).in_order


def test_no_pairs_are_refused() -> None:
    with refused("no pairs"):
        probe_pairs(fixed(), ())
