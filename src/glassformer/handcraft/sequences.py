"""Spaces of sequences, given by an alphabet, a maximal length, and whether CLS comes first."""

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
    Keys and queries depend on places only, so a fact about every pair of places holds for every
    sequence.

    Args:
        letters: The alphabet, 1 to 26 different letters.
        max_len: The longest sequence, in letters; CLS is not counted.
        has_cls: True if a CLS token precedes the letters.
    """

    letters: tuple[str, ...]
    max_len: int
    has_cls: bool = False

    def __post_init__(self) -> None:
        if (
            not all(map(_is_letter, self.letters))
            or len(set(self.letters)) != len(self.letters)
            or not 1 <= len(self.letters) <= len(LETTERS)
        ):
            raise InputError(
                got=f"letters = {self.letters!r}",
                expected=f"1 to {len(LETTERS)} different single letters",
                fix="Name each letter once, as in ABC.",
            )
        require_positive(max_len=self.max_len)
        if len(self.letters) * self.max_len > _MAX_PLACES:
            raise InputError(
                got=f"{len(self.letters)} letters at {self.max_len} positions",
                expected=(
                    f"at most {_MAX_PLACES:,} letters times positions, since all pairs of them "
                    "are computed"
                ),
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
        """Return the number of every token's place, as :attr:`places` orders them.

        The number is 0 in the padding.
        """
        positions = np.arange(block.tokens.shape[1]) - self.has_cls
        place = positions * len(self.letters) + block.tokens + self.has_cls
        if self.has_cls:
            place[:, 0] = 0
        return np.where(block.real, place, 0)

    def one_hot(self, block: Block) -> Float[np.ndarray, "sequence position token"]:
        """Return the input vectors of ``block``: letter i is the i-th unit vector, CLS the last.

        The vectors of the padding are zeros.
        """
        return np.eye(self.num_tokens)[block.tokens] * block.real[..., None]

    def encode(self, text: str | Sequence[str]) -> Int[np.ndarray, " letter"]:
        """Return the letters of ``text`` as numbers, without CLS."""
        known = {letter: number for number, letter in enumerate(self.letters)}
        for place, letter in enumerate(text):
            if letter not in known:
                shown_text = "".join(map(str, text))[:80]
                raise InputError(
                    got=f"the letter {letter!r} at place {place + 1} of {shown_text!r}",
                    expected=f"letters among {' '.join(self.letters)}",
                    fix="Use these; capitals and small letters differ.",
                )
        if not 1 <= len(text) <= self.max_len:
            fix = "Give at least one letter."
            if text:
                fix = "Shorten it, or choose a task with longer sequences."
            raise InputError(
                got=f"a sequence of {len(text)} letters",
                expected=f"1 to {self.max_len} letters",
                fix=fix,
            )
        return np.array([known[letter] for letter in text], dtype=np.int64)

    def decode(self, letters: Sequence[int] | Int[np.ndarray, " letter"]) -> str:
        """Return the letters with these numbers as text."""
        return "".join(self.letters[number] for number in letters)

    def block(self, letters: Sequence[Int[np.ndarray, "..."]]) -> Block:
        """Batch sequences, or matrices of equally long ones, with CLS in front of each."""
        matrices = [np.atleast_2d(rows) for rows in letters]
        first = int(self.has_cls)
        num_rows = sum(map(len, matrices))
        longest = max(matrix.shape[1] for matrix in matrices)
        tokens = np.full((num_rows, first + longest), -1)
        tokens[:, :first] = len(self.letters)
        row = 0
        for matrix in matrices:
            tokens[row : row + len(matrix), first : first + matrix.shape[1]] = matrix
            row += len(matrix)
        return Block(np.maximum(tokens, 0), tokens >= 0)

    def blocks(self, size: int, longest: int | None = None) -> Iterator[Block]:
        """Yield all sequences of up to ``longest`` letters, ``size`` in a block.

        Shorter sequences come first, those of one length in alphabetical order.
        """
        require_positive(size=size)
        letters = len(self.letters)
        longest = self.max_len if longest is None else longest
        ends = [0, *accumulate(letters**length for length in range(1, longest + 1))]
        for start in range(0, ends[-1], size):
            matrices = []
            for length, (first, end) in enumerate(pairwise(ends), start=1):
                if first < start + size and start < end:
                    numbers = np.arange(max(start, first) - first, min(start + size, end) - first)
                    powers = letters ** np.arange(length - 1, -1, -1)
                    matrices.append(numbers[:, None] // powers % letters)
            yield self.block(matrices)

    def sample(self, count: int, seed: int) -> list[Int[np.ndarray, " letter"]]:
        """Return ``count`` random sequences: every length equally often, then every letter."""
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, self.max_len + 1, size=count)
        return [rng.integers(0, len(self.letters), size=length) for length in lengths]

    def regular(self, num_lengths: int = 64) -> list[Int[np.ndarray, " letter"]]:
        """Return regular sequences of every length, or of ``num_lengths`` lengths.

        Random sequences are rarely regular. These have one letter repeated, also with another one
        first, last or in the middle; two letters alternating; or all letters in order.
        """
        size = len(self.letters)
        lengths = np.unique(np.linspace(1, self.max_len, num_lengths).astype(int)).tolist()
        sequences = []
        for length in lengths:
            positions = np.arange(length)
            sequences.append(positions % size)
            for letter in range(size):
                other = (letter + 1) % size
                sequences.append(np.full(length, letter))
                sequences.append(np.where(positions % 2 == 0, letter, other))
                sequences += [
                    np.where(positions == odd, other, letter)
                    for odd in {0, length // 2, length - 1}
                ]
        return sequences

    def longer(
        self, sequences: Iterable[Int[np.ndarray, "..."]], than: int
    ) -> list[Int[np.ndarray, "..."]]:
        """Return the sequences of more than ``than`` letters, each once."""
        long_ones = [sequence for sequence in sequences if len(sequence) > than]
        return list({sequence.tobytes(): sequence for sequence in long_ones}.values())

    def longest_listable(self, limit: int) -> int:
        """Return the largest length up to which at most ``limit`` sequences exist, or 0."""
        totals = accumulate(len(self.letters) ** length for length in range(1, self.max_len + 1))
        return sum(total <= limit for total in totals)


def _is_letter(letter: object) -> bool:
    if not isinstance(letter, str) or len(letter) != 1:
        return False
    return letter.isprintable() and not letter.isspace()


def format_count(count: int) -> str:
    """Return a number of sequences in words: all digits below 10^12, otherwise three.

    The number may be larger than every float.
    """
    if count < 10**12:
        return f"{count:,}"
    if count < 10**300:
        return f"{count:.3g}"
    return f"{Decimal(count):.3g}"
