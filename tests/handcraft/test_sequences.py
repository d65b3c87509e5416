from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.handcraft.sequences import Block, SequenceSpace
from refusals import refused

# Made here and not in a strategy: the checks of annotations draw random numbers of their own.
spaces = st.sampled_from(
    [
        SequenceSpace(tuple("ABCD"[:size]), longest, has_cls)
        for size in range(1, 5)
        for longest in range(1, 5)
        for has_cls in (False, True)
    ]
)


def listed(space: SequenceSpace) -> list[str]:
    return [
        "".join(x)
        for length in range(1, space.max_len + 1)
        for x in product(space.letters, repeat=length)
    ]


def read(space: SequenceSpace, block: Block) -> list[str]:
    first = int(space.has_cls)
    return [
        space.decode(row[first:][real[first:]])
        for row, real in zip(block.tokens, block.real, strict=True)
    ]


@settings(max_examples=40, deadline=None)
@given(space=spaces, size=st.integers(1, 50))
def test_blocks_are_all_sequences_in_order_whatever_their_size(
    space: SequenceSpace, size: int
) -> None:
    blocks = list(space.blocks(size))
    assert [text for block in blocks for text in read(space, block)] == listed(space)
    assert {len(block.tokens) for block in blocks[:-1]} <= {size}
    assert space.count == len(listed(space))


def test_blocks_of_up_to_a_length_are_the_beginning_of_the_list() -> None:
    space = SequenceSpace(tuple("AB"), 3)
    for longest in range(4):
        texts = [text for block in space.blocks(5, longest) for text in read(space, block)]
        assert texts == [text for text in listed(space) if len(text) <= longest]


@given(space=spaces)
@settings(max_examples=30, deadline=None)
def test_places_number_every_token_at_every_position(space: SequenceSpace) -> None:
    tokens, positions = space.places
    first = int(space.has_cls)
    expected = {
        (t, p) for t in range(len(space.letters)) for p in range(first, first + space.max_len)
    }
    expected |= {(len(space.letters), 0)} if space.has_cls else set()
    assert set(zip(tokens.tolist(), positions.tolist(), strict=True)) == expected
    for block in space.blocks(1000):
        place = space.place_of(block)
        assert (tokens[place] == block.tokens)[block.real].all()
        assert (positions[place] == np.arange(block.tokens.shape[1]))[block.real].all()


def test_one_hot_vectors_have_cls_last_and_zeros_in_the_padding() -> None:
    space = SequenceSpace(tuple("AB"), 2, has_cls=True)
    block = space.block([space.encode("B"), space.encode("BA")])
    x = space.one_hot(block)
    np.testing.assert_array_equal(x[0], [[0, 0, 1], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(x[1], [[0, 0, 1], [0, 1, 0], [1, 0, 0]])


def test_samples_are_seeded_and_use_every_length_alike() -> None:
    space = SequenceSpace(tuple("ABC"), 4)
    drawn = space.sample(4000, seed=1)
    assert all((a == b).all() for a, b in zip(drawn, space.sample(4000, seed=1), strict=True))
    lengths = np.bincount([len(x) for x in drawn], minlength=5)[1:]
    assert abs(lengths - 1000).max() < 150
    assert abs(np.bincount(np.concatenate(drawn)) / sum(map(len, drawn)) - 1 / 3).max() < 0.02


def test_the_longest_length_that_can_be_listed() -> None:
    space = SequenceSpace(tuple("AB"), 10)
    assert [space.longest_listable(limit) for limit in (1, 2, 5, 6, 2045, 2046, 10**6)] == [
        0,
        1,
        1,
        2,
        9,
        10,
        10,
    ]


def test_text_and_numbers_translate_both_ways() -> None:
    space = SequenceSpace(tuple("xyz"), 5)
    assert space.decode(space.encode("zyxxz")) == "zyxxz"
    for text, message in (
        ("xyw", r"the letter 'w' at place 3"),
        ("", "0 letters"),
        ("xxxxxx", "6 letters"),
    ):
        with refused(message):
            space.encode(text)


@pytest.mark.parametrize(
    ("letters", "max_len"),
    [((), 3), (("A", "A"), 3), (("AB",), 3), ((" ",), 3), (("A",), 0), (("A",), 5000)],
)
def test_spaces_that_are_none_are_refused(letters: tuple[str, ...], max_len: int) -> None:
    with pytest.raises(InputError):
        SequenceSpace(letters, max_len)


def test_regular_sequences_are_of_every_length_and_fit() -> None:
    space = SequenceSpace(tuple("ABC"), 9)
    texts = {space.decode(x) for x in space.regular()}
    assert {len(text) for text in texts} == set(range(1, 10))
    assert {"AAAAAAAAA", "ABABA", "BAAA", "AAAB", "AAABAA", "ABCABCABC"} <= texts
    assert {len(x) for x in space.regular(3)} == {1, 5, 9}
