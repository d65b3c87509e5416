"""Looking up facts that are fresh in every example: key -> value pairs in a context, and a key that asks.

A context holds facts with different keys. Keys, values and the pairing of both are drawn anew for every example, so the
answer can be had from the context alone, and only by knowing *which value stands with which key*. The same facts can be
written in three ways (:func:`encode`), of which a model that does not see order can bind two: none of a bag of single
tokens, all of slots that hold a key and its value together. What a bag still allows is :func:`bag_ceiling`.

Tokens: 0 is padding, then come the keys, the values, "none" (the answer when the asked key is absent), and "no key",
which stands in the place of a distractor's key.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.errors import require, require_positive

PAD = 0
Split = Literal["train", "unseen", "all"]
Encoding = Literal["bag", "positions", "slots"]
ENCODINGS: tuple[Encoding, ...] = ("bag", "positions", "slots")

_PAIRING_SEED = 7919
_PATIENCE = 64
_ATTEMPTS = 20


@dataclass(frozen=True)
class LookupConfig:
    """The family of contexts.

    Args:
        num_keys: Different keys.
        num_values: Different values.
        min_facts: Fewest facts of a context.
        max_facts: Most facts of a context, and how many places a batch has for them.
        missing: Probability in [0, 1] that the asked key stands in no fact; the answer is then "none".
        distractors: Values in each context that belong to no key, on top of the facts.
        distinct_values: Whether all values of a context differ; otherwise each is drawn by itself.
        held_out: Share in [0, 1) of the ``num_keys * num_values`` pairings that training never shows. It is rounded to
            a whole number of values per key. Each key lacks equally many, and which they are depends on nothing but
            ``num_values`` and this share.

    Raises:
        InputError: A size below 1, a share out of range, more facts than there are keys (one more with ``missing``), or
            more distinct values than there are; half as many if pairings are held out, so that one can draw again
            what is not allowed.
    """

    num_keys: int = 256
    num_values: int = 256
    min_facts: int = 1
    max_facts: int = 8
    missing: float = 0.0
    distractors: int = 0
    distinct_values: bool = True
    held_out: float = 0.1

    def __post_init__(self) -> None:
        require_positive(
            num_keys=self.num_keys, num_values=self.num_values, min_facts=self.min_facts, max_facts=self.max_facts
        )
        require(
            self.min_facts <= self.max_facts,
            f"min_facts = {self.min_facts} with max_facts = {self.max_facts}",
            "min_facts <= max_facts",
            "Raise max_facts.",
        )
        whole = isinstance(self.distractors, int) and not isinstance(self.distractors, bool)
        require(
            whole and self.distractors >= 0,
            f"distractors = {self.distractors!r}",
            "a whole number of at least 0",
            "Use 0 for none.",
        )
        for name, share, most in (("missing", self.missing, 1.0), ("held_out", self.held_out, 1 - 1e-9)):
            allowed = "[0, 1]" if most == 1 else "[0, 1)"
            require(
                isfinite(share) and 0 <= share <= most, f"{name} = {share!r}", f"a number in {allowed}", "Use 0.1, say."
            )
        require(
            0 <= self.num_held_out < self.num_values,
            f"held_out = {self.held_out} of {self.num_values} values",
            "at least one value per key left to train on",
            "Lower held_out.",
        )
        self._require_room(self.max_facts)

    @property
    def num_held_out(self) -> int:
        """Values per key whose pairing with it is never trained on."""
        return round(self.held_out * self.num_values)

    @property
    def first_value(self) -> int:
        """The token of value 0; that of key 0 is 1."""
        return 1 + self.num_keys

    @property
    def none(self) -> int:
        """The token that answers for an absent key."""
        return 1 + self.num_keys + self.num_values

    @property
    def no_key(self) -> int:
        """The token in the place of a distractor's key."""
        return self.none + 1

    @property
    def vocab_size(self) -> int:
        """All tokens, padding included."""
        return self.none + 2

    def held_out_offsets(self) -> np.ndarray:
        """The pairing of key k and value v is held out exactly when ``(v - k) mod num_values`` is among these."""
        order = np.random.default_rng(_PAIRING_SEED).permutation(self.num_values)
        return np.sort(order[: self.num_held_out])

    @property
    def most_facts(self) -> int:
        """The most facts that a context can have."""
        most = self.num_keys - (1 if self.missing > 0 else 0)
        return min(most, max(1, self._most_values - self.distractors)) if self.distinct_values else most

    @property
    def _most_values(self) -> int:
        return max(1, self.num_values // 2) if self.num_held_out else self.num_values

    def _require_room(self, num_facts: int) -> None:
        """Raise InputError unless contexts of this many facts can be drawn."""
        keys = num_facts + (1 if self.missing > 0 else 0)
        require(
            keys <= self.num_keys,
            f"{num_facts} facts with num_keys = {self.num_keys} and missing = {self.missing}",
            "a key for each fact, and one more where keys may be missing",
            "Raise num_keys or ask for fewer facts.",
        )
        values = num_facts + self.distractors
        require(
            not self.distinct_values or values <= self._most_values,
            f"{values} distinct values of num_values = {self.num_values} with held_out = {self.held_out}",
            "no more than there are, and than half of them where pairings are held out",
            "Raise num_values, ask for fewer facts, or use distinct_values=False.",
        )


@dataclass(frozen=True, eq=False)
class Facts:
    """Contexts with their questions, row by row. What is not ``real`` holds padding in ``keys`` and ``values``.

    Attributes:
        keys: The key's token of each fact; ``config.no_key`` for a distractor.
        values: The value's token of each fact.
        real: Where there is a fact or a distractor.
        query: The key that is asked for.
        answer: Its value, or ``config.none``.
        place: Which fact holds the answer; -1 if none does.
    """

    keys: Int64[Tensor, "batch fact"]
    values: Int64[Tensor, "batch fact"]
    real: Bool[Tensor, "batch fact"]
    query: Int64[Tensor, " batch"]
    answer: Int64[Tensor, " batch"]
    place: Int64[Tensor, " batch"]

    def __len__(self) -> int:
        return len(self.query)


class Source(NamedTuple):
    """What an encoder reads: tokens [batch, position], or [batch, slot, 2] for slots, and which places are real."""

    tokens: Int64[Tensor, "batch position *fields"]
    real: Bool[Tensor, "batch position"]


def sample(
    config: LookupConfig,
    count: int,
    seed: int,
    *,
    split: Split = "train",
    step: int = 0,
    num_facts: int | None = None,
) -> Facts:
    """Draw contexts and questions, a pure function of all arguments, so that a run can resume at any step.

    The number of facts is uniform in [min_facts, max_facts] or ``num_facts``; keys are uniform without repetition;
    the question is uniform among the facts, or (with probability ``missing``) among the keys that are absent;
    distractors stand at random places among the facts. Values are uniform among those that ``split`` allows with their
    key: not held out ("train"), held out ("unseen": *every* pairing of the context is one that training never showed)
    or any ("all"). With ``distinct_values`` a value that occurs a second time is drawn again; for "all" this gives
    every sequence of different values the same probability.

    Raises:
        InputError: ``count`` below 1, a negative seed or step, an unknown split, "unseen" with nothing held out, or
            more facts than the configuration has keys or values for, or no distinct values found among its pairings.
    """
    require_positive(count=count)
    require(split in ("train", "unseen", "all"), f"split = {split!r}", "'train', 'unseen' or 'all'", "Choose one.")
    require(
        split != "unseen" or config.num_held_out > 0,
        f"split = 'unseen' with held_out = {config.held_out} of {config.num_values} values",
        "at least one pairing per key held out",
        "Raise held_out, or measure on split='all'.",
    )
    if num_facts is not None:
        require_positive(num_facts=num_facts)
        config._require_room(num_facts)
    rng = _rng(seed, step)
    most = config.max_facts if num_facts is None else num_facts
    least = config.min_facts if num_facts is None else num_facts
    sizes = rng.integers(least, most + 1, size=count)
    keys, values = _pairings(config, count, most, split, rng)
    rows, place = np.arange(count), rng.integers(sizes)
    query, answer = keys[rows, place] + 1, values[rows, place] + config.first_value
    if config.missing:
        absent = rng.random(count) < config.missing
        query, answer = np.where(absent, keys[:, most] + 1, query), np.where(absent, config.none, answer)
        place = np.where(absent, -1, place)
    lone = (count, config.distractors)
    tokens = np.concatenate([keys[:, :most] + 1, np.full(lone, config.no_key)], axis=1)
    real = np.concatenate([np.arange(most) < sizes[:, None], np.ones(lone, bool)], axis=1)
    facts = Facts(
        torch.from_numpy(np.where(real, tokens, PAD)),
        torch.from_numpy(np.where(real, values + config.first_value, PAD)),
        torch.from_numpy(real),
        torch.from_numpy(query),
        torch.from_numpy(answer),
        torch.from_numpy(place),
    )
    # Facts are in random order as they were drawn; distractors have yet to be put among them.
    return _in_order(facts, _random_order(facts.real, rng)) if config.distractors else facts


def encode(facts: Facts, encoding: Encoding, *, seed: int = 0, step: int = 0) -> Source:
    """Write contexts down for an encoder.

    - "bag": keys and values as single tokens, all of them shuffled with one another (``seed`` and ``step`` decide how).
      Nothing tells which value stands with which key.
    - "positions": key, value, key, value, ... for an encoder that knows positions, without which it is a bag.
    - "slots": one place per fact with two fields, key and value.

    Returns:
        Tokens [batch, 2 * fact], or [batch, fact, 2] for slots; padding behind what is real.

    Raises:
        InputError: An unknown encoding, or a negative seed or step.
    """
    require(encoding in ENCODINGS, f"encoding = {encoding!r}", f"one of {', '.join(ENCODINGS)}", "Choose one of them.")
    pairs = torch.stack([facts.keys, facts.values], dim=-1)
    if encoding == "slots":
        return Source(pairs, facts.real)
    tokens, real = pairs.flatten(1), facts.real.repeat_interleave(2, dim=1)
    if encoding == "positions":
        return Source(tokens, real)
    order = _random_order(real, _rng(seed, step, 1))
    return Source(tokens.gather(1, order), real)


def reordered(facts: Facts, *, seed: int = 0) -> Facts:
    """The same facts in another random order; questions and answers stay.

    Raises:
        InputError: A negative seed.
    """
    return _in_order(facts, _random_order(facts.real, _rng(seed, 0, 2)))


def _in_order(facts: Facts, order: Tensor) -> Facts:
    place = torch.where(facts.place < 0, -1, (order == facts.place[:, None]).int().argmax(1))
    keys, values, real = (part.gather(1, order) for part in (facts.keys, facts.values, facts.real))
    return Facts(keys, values, real, facts.query, facts.answer, place)


def _random_order(real: Tensor, rng: np.random.Generator) -> Tensor:
    """For each row its real places in a random order, with what is not real behind them."""
    return torch.from_numpy(np.argsort(np.where(real.numpy(), rng.random(real.shape), 2.0), axis=1))


def _pairings(
    config: LookupConfig, count: int, num_facts: int, split: Split, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Keys, with one to spare where keys may be missing; and the facts' values, followed by the distractors'."""
    shape = (count, num_facts + config.distractors)
    keys = _different(config.num_keys, (count, num_facts + bool(config.missing)), rng)
    if split == "all" or not config.num_held_out:
        if config.distinct_values:
            return keys, _different(config.num_values, shape, rng)
        return keys, rng.integers(config.num_values, size=shape)
    held_out = config.held_out_offsets()
    offsets = held_out if split == "unseen" else np.setdiff1d(np.arange(config.num_values), held_out)
    values = np.zeros(shape, np.int64)
    again, rounds = np.ones(shape, bool), 0
    while again.any():
        rows, columns = np.nonzero(again)
        drawn = rng.integers(config.num_values, size=len(rows))
        of_facts = columns < num_facts
        offset = offsets[rng.integers(len(offsets), size=int(of_facts.sum()))]
        drawn[of_facts] = (keys[rows[of_facts], columns[of_facts]] + offset) % config.num_values
        values[rows, columns] = drawn
        again = _repeated(values) if config.distinct_values else np.zeros(shape, bool)
        rounds += 1
        if rounds % _PATIENCE == 0 and again.any():
            require(
                rounds < _ATTEMPTS * _PATIENCE,
                f"no contexts of {num_facts} facts with distinct values for split = {split!r}, drawn {_ATTEMPTS} times",
                f"pairings enough: each key may have {len(offsets)} of {config.num_values} values",
                "Change held_out, ask for fewer facts, or use distinct_values=False.",
            )
            # Two keys may have the same few values to choose from, all taken: begin such rows anew.
            stuck = again.any(axis=1)
            keys[stuck] = _different(config.num_keys, (int(stuck.sum()), keys.shape[1]), rng)
            again[stuck] = True
    return keys, values


def _different(below: int, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Whole numbers below a bound, different within each row; each such row is equally likely."""
    if 2 * shape[1] > below:
        return rng.permuted(np.tile(np.arange(below), (shape[0], 1)), axis=1)[:, : shape[1]]
    drawn = rng.integers(below, size=shape)
    # No number is treated unlike another, so by symmetry drawing again keeps all rows equally likely.
    while (again := _repeated(drawn)).any():
        drawn[again] = rng.integers(below, size=int(again.sum()))
    return drawn


def _repeated(values: np.ndarray) -> np.ndarray:
    """Where a number stands that the row has further left already."""
    order = np.argsort(values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    again = np.zeros(values.shape, bool)
    np.put_along_axis(again, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
    return again


def _rng(seed: int, *stream: int) -> np.random.Generator:
    for name, number in (("seed", seed), ("step", stream[0])):
        require(number >= 0, f"{name} = {number}", "a whole number of at least 0", f"Pass {name} >= 0.")
    # A spawn key, not more entropy words: NumPy pads those with zeros, so [seed, 0] would be the stream of seed.
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))
