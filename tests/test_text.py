"""Text from untrusted sources on one line."""

import math
import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text import byte_size, one_line, rounded_down, rounded_up


@given(
    st.text(alphabet=st.characters(exclude_categories=()), max_size=60),
    st.integers(4, 30) | st.none(),
)
def test_any_text_becomes_one_line_that_can_be_printed(text: str, longest: int | None) -> None:
    line = one_line(text, longest)
    assert longest is None or len(line) <= longest
    assert line.isprintable()
    line.encode()
    words = " ".join(text.split())
    if text.isprintable() and (longest is None or len(words) <= longest):
        assert line == words


def test_control_characters_are_escaped_and_long_texts_cut() -> None:
    assert one_line("a\n\x1b[31m\tfilm \ud83d") == "a \\x1b[31m film \\ud83d"
    assert one_line("abcdefgh", 7) == "abcd..."
    assert one_line("abcdefg", 7) == "abcdefg"
    assert one_line(" \n ") == ""
    assert one_line("great " * 100_000, 100) == ("great " * 17)[:97] + "..."
    assert one_line("\x00" * 100, 10) == "\\x00\\x0..."


@pytest.mark.parametrize("digits", [1, 2, 3, 9])
def test_bounds_as_text_do_not_promise_too_much(digits: int) -> None:
    rng = random.Random(digits)
    for _ in range(2_000):
        bound = rng.choice([-1, 1]) * rng.random() * 10.0 ** rng.randint(-300, 300)
        up, down = (Decimal(write(bound, digits)) for write in (rounded_up, rounded_down))
        assert down <= Decimal(bound) <= up
        assert up - down <= Decimal(10) ** (Decimal(bound).adjusted() - digits + 1)
    assert rounded_up(4.981e-10, 3) == "4.99e-10"
    assert rounded_down(0.99999999999, 9) == "0.999999999"
    assert (rounded_up(0.25, 3), rounded_down(0.25, 3), rounded_up(0.0, 3)) == ("0.25", "0.25", "0")
    assert (rounded_up(math.inf, 3), rounded_down(-math.inf, 3)) == ("inf", "-inf")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.02 kB"),
        (9_996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_600, "1.00 MB"),
        (98_362_432, "98.4 MB"),
        (13_761_264_768, "13.8 GB"),
        (1_234_567_890_123, "1,235 GB"),
    ],
)
def test_bytes_have_three_digits_and_powers_of_ten(number: int, words: str) -> None:
    assert byte_size(number) == words
