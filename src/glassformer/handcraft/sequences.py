"""Spaces of sequences: an alphabet, a maximal length, and whether CLS comes first."""

import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.errors import InputError, require_positive

Tokens = np.ndarray[Any, np.dtype[np.int64]]

CLS = "CLS"
LETTERS = string.ascii_uppercase

_MAX_PLACES = 2048


class Block(NamedTuple):
    """Sequences, CLS included, padded at the end: with 0 in ``tokens``, with False in ``real``."""

    tokens: Int[np.ndarray, "sequence position"]
    real: Bool[np.ndarray, "sequence position"]


@dataclass(frozen=True)
class SequenceSpace:
    """Every sequence of 1 to ``max_len`` letters.

    Tokens are numbered in the order of the letters, CLS last. A *place* is a token at a position.
    Keys and queries depend on nothing else, so what holds for every pair of places holds for every
    sequence.

    Args:
        letters: The alphabet, 1 to 26 different letters.
        max_len: The longest sequence, in letters; CLS is not counted.
        has_cls: Whether a CLS token precedes the letters.
    """

    letters: tuple[str, ...]
    max_len: int
    has_cls: bool = False

    def __post_init__(self) -> None:
        fits = all(
            isinstance(x, str) and len(x) == 1 and x.isprintable() and not x.isspace()
            for x in self.letters
        )
        fits = (
            fits
            and len(set(self.letters)) == len(self.letters)
            and 1 <= len(self.letters) <= len(LETTERS)
        )
        expected = f"1 to {len(LETTERS)} different single letters"
        if not fits:
            raise InputError(
                got=f"letters = {self.letters!r}",
                expected=expected,
                fix="Name each letter once, as in ABC.",
            )
        require_positive(max_len=self.max_len)
        got = f"{len(self.letters)} letters at {self.max_len} positions"
        expected = (
            f"at most {_MAX_PLACES:,} letters times positions, since all pairs of them are computed"
        )
        fits = len(self.letters) * self.max_len <= _MAX_PLACES
        if not fits:
            raise InputError(
                got=got,
                expected=expected,
                fix="Take fewer letters or shorter sequences.",
            )

    @property
    def num_tokens(self) -> int:
        """Letters and CLS: the length of a one-hot input vector."""
        return len(self.letters) + self.has_cls

    @property
    def num_positions(self) -> int:
        """Positions of the longest sequence, including that of CLS."""
        return self.max_len + self.has_cls

    @property
    def token_names(self) -> tuple[str, ...]:
        """Names of the tokens, in the order of their numbers."""
        return (*self.letters, CLS) if self.has_cls else self.letters

    @property
    def count(self) -> int:
        """Number of sequences: the sum of ``letters ** length`` over all lengths."""
        return sum(len(self.letters) ** length for length in range(1, self.max_len + 1))

    @cached_property
    def places(self) -> tuple[Tokens, Tokens]:
        """Token and position of every place: CLS first, then position by position."""
        first = int(self.has_cls)
        positions = np.repeat(np.arange(first, self.num_positions), len(self.letters))
        tokens = np.tile(np.arange(len(self.letters)), self.max_len)
        if self.has_cls:
            positions = np.append(0, positions)
            tokens = np.append(len(self.letters), tokens)
        return tokens, positions

    def place_of(self, block: Block) -> Int[np.ndarray, "sequence position"]:
        """The number of the place of every token of ``block``, as :attr:`places` orders them; 0 in
        the padding.
        """
        positions = np.arange(block.tokens.shape[1]) - self.has_cls
        place = positions * len(self.letters) + block.tokens + self.has_cls
        if self.has_cls:
            place[:, 0] = 0
        return np.where(block.real, place, 0)

    def one_hot(self, block: Block) -> Float[np.ndarray, "sequence position token"]:
        """The input vectors of ``block``: letter i is the i-th unit vector, CLS the last; padding
        is zeros.
        """
        return np.eye(self.num_tokens)[block.tokens] * block.real[..., None]

    def encode(self, text: str | Sequence[str]) -> Int[np.ndarray, " letter"]:
        """The letters of ``text`` as numbers, without CLS."""
        known = {letter: number for number, letter in enumerate(self.letters)}
        for place, letter in enumerate(text):
            if letter not in known:
                raise InputError(
                    f"the letter {letter!r} at place {place + 1} of "
                    f"{''.join(map(str, text))[:80]!r}",
                    f"letters among {' '.join(self.letters)}",
                    "Use these; capitals and small letters differ.",
                )
        if not 1 <= len(text) <= self.max_len:
            raise InputError(
                got=f"a sequence of {len(text)} letters",
                expected=f"1 to {self.max_len} letters",
                fix=(
                    "Shorten it, or choose a task with longer sequences."
                    if text
                    else "Give at least one letter."
                ),
            )
        return np.array([known[letter] for letter in text], dtype=np.int64)

    def decode(self, letters: Sequence[int] | Int[np.ndarray, " letter"]) -> str:
        """The letters with these numbers as text."""
        return "".join(self.letters[number] for number in letters)

    def block(self, letters: Sequence[Int[np.ndarray, "..."]]) -> Block:
        """A batch of sequences, or of matrices of equally long ones, with CLS in front of each."""
        matrices = [np.atleast_2d(each) for each in letters]
        first = int(self.has_cls)
        row = 0
        tokens = np.full(
            (sum(map(len, matrices)), first + max(each.shape[1] for each in matrices)), -1
        )
        tokens[:, :first] = len(self.letters)
        for each in matrices:
            tokens[row : row + len(each), first : first + each.shape[1]] = each
            row += len(each)
        return Block(np.maximum(tokens, 0), tokens >= 0)

    def blocks(self, size: int, longest: int | None = None) -> Iterator[Block]:
        """All sequences of up to ``longest`` letters, the shorter ones first, by alphabet, ``size``
        in a block.
        """
        require_positive(size=size)
        letters = len(self.letters)
        longest = self.max_len if longest is None else longest
        ends = [0, *accumulate(letters**length for length in range(1, longest + 1))]
        for start in range(0, ends[-1], size):
            matrices = []
            for length, (first, end) in enumerate(pairwise(ends), start=1):
                if first < start + size and start < end:
                    numbers = np.arange(max(start, first) - first, min(start + size, end) - first)[
                        :, None
                    ]
                    matrices.append(numbers // letters ** np.arange(length - 1, -1, -1) % letters)
            yield self.block(matrices)

    def sample(self, count: int, seed: int) -> list[Int[np.ndarray, " letter"]]:
        """``count`` random sequences: every length equally often, then every letter."""
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, self.max_len + 1, size=count)
        return [rng.integers(0, len(self.letters), size=length) for length in lengths]

    def regular(self, num_lengths: int = 64) -> list[Int[np.ndarray, " letter"]]:
        """Regular sequences, which random ones rarely are, of every length or of ``num_lengths``
        different ones.

        One letter repeated, also with another one first, last or in the middle; two letters
        alternating; all letters in order.
        """
        size = len(self.letters)
        lengths = np.unique(np.linspace(1, self.max_len, num_lengths).astype(int)).tolist()
        made = []
        for length in lengths:
            positions = np.arange(length)
            made.append(positions % size)
            for letter in range(size):
                same = np.full(length, letter)
                other = (letter + 1) % size
                made += [same, np.where(positions % 2 == 0, letter, other)]
                made += [
                    np.where(positions == odd, other, letter)
                    for odd in {0, length // 2, length - 1}
                ]
        return made

    def longer(
        self, sequences: Iterable[Int[np.ndarray, "..."]], than: int
    ) -> list[Int[np.ndarray, "..."]]:
        """Those of more than ``than`` letters, each once."""
        return list({each.tobytes(): each for each in sequences if len(each) > than}.values())

    def longest_listable(self, limit: int) -> int:
        """The largest length up to which there are at most ``limit`` sequences; 0 if there is none."""
        totals = accumulate(len(self.letters) ** length for length in range(1, self.max_len + 1))
        return sum(total <= limit for total in totals)


def format_count(count: int) -> str:
    """A number of sequences: whole below 10^12, otherwise to three digits, also above every float."""
    if count < 10**12:
        return f"{count:,}"
    if count < 10**300:
        return f"{count:.3g}"
    return f"{Decimal(count):.3g}"
