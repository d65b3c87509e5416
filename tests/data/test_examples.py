import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from glassformer.data.examples import (
    Example,
    SentimentData,
    fingerprint,
    leaked,
    normalized,
    split_by_text,
)
from glassformer.data.sentiment import leaky_examples, reviews
from glassformer.errors import InputError
from refusals import refused

TEXTS = st.sampled_from(
    [
        "Good.",
        "good",
        "GOOD!",
        "bad",
        "Bad :(",
        "so-so",
        "so so",
        "meh",
        "it's",
        "it 's",
        "wow",
        "ok",
    ]
)
EXAMPLES = st.lists(st.builds(Example, TEXTS, st.integers(0, 1)), min_size=30, max_size=80)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Good!", "good", True),
        ("it's  fine", "it 's fine.", True),
        ("well-made", "Well made", True),
        ("ﬁne", "fine", True),
        ("good", "not good", False),
        (":)", ":(", False),
        (" :) ", ":)", True),
        ("5 stars", "1 star", False),
    ],
)
def test_texts_that_differ_in_form_only_are_equal(one: str, other: str, equal: bool) -> None:
    assert (normalized(one) == normalized(other)) == equal


@given(examples=EXAMPLES, seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_split_has_every_example_once_and_no_text_twice(
    examples: list[Example], seed: int
) -> None:
    try:
        parts = split_by_text(examples, (0.6, 0.4), seed)
    except InputError:
        reject()
    assert Counter(example for part in parts for example in part) == Counter(examples)
    texts = [{normalized(example.text) for example in part} for part in parts]
    assert not texts[0] & texts[1]
    assert parts == split_by_text(examples, (0.6, 0.4), seed)


def test_every_label_and_kind_has_its_share_in_every_part() -> None:
    examples = reviews()
    whole = Counter((example.kind, example.label) for example in examples)
    fractions = (0.7, 0.1, 0.2)
    for seed in range(5):
        for part, fraction in zip(split_by_text(examples, fractions, seed), fractions, strict=True):
            assert abs(len(part) - fraction * len(examples)) <= 1
            counts = Counter((example.kind, example.label) for example in part)
            assert all(abs(counts[stratum] - fraction * whole[stratum]) <= 2 for stratum in whole)


def test_the_seed_decides_who_goes_where() -> None:
    examples = reviews()
    held_out = {split_by_text(examples, (0.9, 0.1), seed)[1] for seed in range(5)}
    assert len(held_out) == 5
    order = {example: row for row, example in enumerate(examples)}
    for part in held_out:
        assert [order[example] for example in part] == sorted(order[example] for example in part)


def test_a_random_split_leaks_and_ours_does_not() -> None:
    examples = leaky_examples()
    order = np.random.default_rng(42).permutation(len(examples))
    held_out = [examples[row] for row in order[:40]]
    train = [examples[row] for row in order[40:]]
    # That none of ten copies is among 160 of 200 has a probability of 1e-7.
    assert leaked(train, held_out) == tuple(held_out)
    train_too, held_out_too = split_by_text(examples, (0.8, 0.2), seed=42)
    assert leaked(train_too, held_out_too) == ()
    assert (len(train_too), len(held_out_too)) == (160, 40)
    assert sum(example.label for example in held_out_too) == 20


def test_impossible_splits_are_refused() -> None:
    examples = leaky_examples()
    with refused(expected="sum to 1"):
        split_by_text(examples, (0.5, 0.4))
    with refused("1 different texts for 2 parts"):
        split_by_text([Example("good", 1), Example("Good!", 1)], (0.5, 0.5))
    with refused(r"none of them in a part of 0\.01"):
        split_by_text(examples, (0.99, 0.01))


def test_data_without_a_part_or_a_class_is_refused() -> None:
    good, bad, third = (
        Example(text, label) for text, label in (("good", 1), ("bad", 0), ("meh", 2))
    )
    data = SentimentData((good, bad), (good,), (bad,))
    assert data.classes == ("negative", "positive")
    with refused("no test examples"):
        SentimentData((good, bad), (good,), ())
    with refused(r"labels \[2\] in validation"):
        SentimentData((good, bad), (third,), (bad,))
    assert SentimentData((good,), (third,), (bad,), ("no", "yes", "perhaps")).validation == (third,)


def test_a_fingerprint_tells_every_change_and_nothing_else() -> None:
    good = Example("good", 1)
    bad = Example("bad \ud800", 0)
    data = SentimentData((good, bad), (good,), (bad,))
    same = SentimentData((Example("good", 1), bad), (good,), (bad,), ("negative", "positive"))
    assert fingerprint(data) == fingerprint(same)
    assert len(fingerprint(data)) == 64
    changed = [
        dataclasses.replace(data, train=(bad, good)),
        dataclasses.replace(data, train=(Example("good ", 1), bad)),
        dataclasses.replace(data, train=(Example("good", 0), bad)),
        dataclasses.replace(data, validation=(bad,)),
        dataclasses.replace(data, test=(good,)),
        dataclasses.replace(data, classes=("no", "yes")),
        SentimentData((good,), (bad, good), (bad,)),  # the same texts, cut elsewhere
        SentimentData((good, bad, good), (bad,), (bad,)),
    ]
    assert len({fingerprint(each) for each in (data, *changed)}) == len(changed) + 1
