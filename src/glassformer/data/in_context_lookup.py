"""In-context lookup: key-value pairs in a context, drawn anew for every example, and a query key.

A context holds facts with different keys. The answer follows from the context alone, and only from
the *pairing* of keys and values. :func:`encode` writes the same facts in three ways. A model
without positions cannot answer from a bag of single tokens (:func:`bag_ceiling` is its best
accuracy). It can answer from slots that hold a key and its value together.

Tokens: 0 is padding; then come the keys, the values, "none" (the answer if the query is absent),
and an unused token.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.config import Fraction, Probability, Size, config
from glassformer.data.random_streams import generator
from glassformer.errors import InputError, require_positive

PAD = 0
Split = Literal["train", "unseen", "all"]
Encoding = Literal["bag", "positions", "slots"]

_PAIRING_SEED = 7919
_PATIENCE = 64
_ATTEMPTS = 20


@config
class LookupConfig:
    """The family of contexts, which have ``min_facts`` to ``max_facts`` facts.

    Args:
        missing: Probability in [0, 1] that the query is in no fact; the answer is then "none".
        distinct_values: Draw different values for a context; otherwise values are independent.
        held_out: Share in [0, 1) of the ``num_keys * num_values`` pairings that training never
            shows. It is rounded to a whole number of values per key. The held-out values depend
            only on ``num_values`` and this share.
    """

    num_keys: Size = 256
    num_values: Size = 256
    min_facts: Size = 1
    max_facts: Size = 8
    missing: Fraction = 0.0
    distinct_values: bool = True
    held_out: Probability = 0.1

    def __post_init__(self) -> None:
        if self.min_facts > self.max_facts:
            raise InputError(
                got=f"min_facts = {self.min_facts} with max_facts = {self.max_facts}",
                expected="min_facts <= max_facts",
                fix="Raise max_facts.",
            )
        if self.num_held_out >= self.num_values:
            raise InputError(
                got=f"held_out = {self.held_out} of {self.num_values} values",
                expected="at least one value per key left to train on",
                fix="Lower held_out.",
            )
        self._require_room(self.max_facts)

    @property
    def num_held_out(self) -> int:
        """Return the number of values per key whose pairing training never shows."""
        return round(self.held_out * self.num_values)

    @property
    def first_value(self) -> int:
        """Return the token of value 0; key 0 is token 1."""
        return 1 + self.num_keys

    @property
    def none(self) -> int:
        """Return the answer for an absent key."""
        return 1 + self.num_keys + self.num_values

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, with padding and the unused one."""
        return self.none + 2

    def held_out_offsets(self) -> np.ndarray:
        """Return the held-out offsets: (k, v) is held out if ``(v - k) mod num_values`` is one."""
        order = np.random.default_rng(_PAIRING_SEED).permutation(self.num_values)
        return np.sort(order[: self.num_held_out])

    @property
    def most_facts(self) -> int:
        """Return the largest possible number of facts in a context."""
        num_keys = self.num_keys - (self.missing > 0)
        if self.distinct_values:
            return min(num_keys, self._most_values)
        return num_keys

    @property
    def _most_values(self) -> int:
        if self.num_held_out:
            return self.num_values // 2
        return self.num_values

    def _require_room(self, num_facts: int) -> None:
        if num_facts + (self.missing > 0) > self.num_keys:
            raise InputError(
                got=(
                    f"{num_facts} facts with num_keys = {self.num_keys} and missing = "
                    f"{self.missing}"
                ),
                expected="a key for each fact, one more with missing",
                fix="Raise num_keys or ask for fewer facts.",
            )
        if self.distinct_values and num_facts > self._most_values:
            raise InputError(
                got=(
                    f"{num_facts} distinct values of num_values = {self.num_values} with held_out "
                    f"= {self.held_out}"
                ),
                expected=(
                    "no more than there are, and than half of them where pairings are held out"
                ),
                fix="Raise num_values, ask for fewer facts, or use distinct_values=False.",
            )


@dataclass(frozen=True, eq=False)
class Facts:
    """Contexts with their queries, row by row. If ``real`` is false, ``keys`` and ``values`` are 0.

    ``place`` is the index of the fact that has the query's key; if there is none, it is -1 and
    ``answer`` is ``config.none``.
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
    """Input of an encoder: tokens [batch, position], or [batch, slot, 2], and which are real."""

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
    """Draw contexts and queries, a pure function of all arguments.

    So a run can resume at any step. The number of facts is uniform in [min_facts, max_facts], or
    ``num_facts``. Keys are uniform without repetition. The query is uniform among the facts, or
    absent with probability ``missing``. Values are uniform among those that ``split`` allows with
    their key: not held out ("train"), held out ("unseen": training shows *no* pairing of the
    context) or any ("all"). With ``distinct_values`` a repeated value is drawn again; for "all"
    this gives every sequence of different values the same probability.
    """
    require_positive(count=count)
    if split not in ("train", "unseen", "all"):
        raise InputError(
            got=f"split = {split!r}",
            expected="'train', 'unseen' or 'all'",
            fix="Choose one.",
        )
    if split == "unseen" and config.num_held_out == 0:
        raise InputError(
            got=f"split = 'unseen' with held_out = {config.held_out} of {config.num_values} values",
            expected="at least one pairing per key held out",
            fix="Raise held_out, or measure on split='all'.",
        )
    if num_facts is None:
        least = config.min_facts
        most = config.max_facts
    else:
        require_positive(num_facts=num_facts)
        config._require_room(num_facts)
        least = num_facts
        most = num_facts
    rng = generator(seed, step)
    sizes = rng.integers(least, most + 1, size=count)
    keys, values = _pairings(config, count, most, split, rng)
    rows = np.arange(count)
    place = rng.integers(sizes)
    query = keys[rows, place] + 1
    answer = values[rows, place] + config.first_value
    if config.missing:
        absent = rng.random(count) < config.missing
        query = np.where(absent, keys[:, most] + 1, query)
        answer = np.where(absent, config.none, answer)
        place[absent] = -1
    real = np.arange(most) < sizes[:, None]
    tokens = np.where(real, keys[:, :most] + 1, PAD)
    values = np.where(real, values + config.first_value, PAD)
    return Facts(*map(torch.from_numpy, (tokens, values, real, query, answer, place)))


def encode(facts: Facts, encoding: Encoding, *, seed: int = 0, step: int = 0) -> Source:
    """Write contexts as tokens for an encoder.

    - "bag": keys and values as single tokens, shuffled together by ``seed`` and ``step``: pairings
      are lost.
    - "positions": key, value, key, value, ... for an encoder with positions, without which it is
      a bag.
    - "slots": one position per fact with two fields, key and value.

    Tokens are [batch, 2 * fact], or [batch, fact, 2] for slots; padding comes last.
    """
    known = get_args(Encoding)
    if encoding not in known:
        raise InputError(
            got=f"encoding = {encoding!r}",
            expected=f"one of {', '.join(known)}",
            fix="Choose one of them.",
        )
    pairs = torch.stack([facts.keys, facts.values], dim=-1)
    if encoding == "slots":
        return Source(pairs, facts.real)
    tokens = pairs.flatten(1)
    real = facts.real.repeat_interleave(2, dim=1)
    if encoding == "positions":
        return Source(tokens, real)
    order = _random_order(real, generator(seed, step, 1))
    return Source(tokens.gather(1, order), real)


def reordered(facts: Facts, *, seed: int = 0) -> Facts:
    """Return the facts in another random order; queries and answers do not change."""
    order = _random_order(facts.real, generator(seed, 0, 2))
    place = torch.where(facts.place < 0, -1, (order == facts.place[:, None]).int().argmax(1))
    keys, values, real = (part.gather(1, order) for part in (facts.keys, facts.values, facts.real))
    return Facts(keys, values, real, facts.query, facts.answer, place)


def bag_ceiling(config: LookupConfig, num_facts: int) -> float:
    """Return the highest accuracy, in [0, 1], of models that see a context as a bag of tokens.

    It is derived, not fitted. The bag of a context holds n keys and n values. A model without
    positions sees only the count of each token in it, and the query.

    **Choice of the value.** Keys, values and their pairing are drawn so that every assignment of
    the n values to the n keys has the same probability, also given the bag. So the query, if
    present, has each of the n values with probability 1 / n, and a value that occurs m times in the
    bag is right with probability m / n. The best answer is a most frequent value, right with
    probability M / n for its multiplicity M. Averaged over contexts::

        ceiling(n) = missing + (1 - missing) * E[M] / n

    - *Different values*: M = 1, so the ceiling is 1 / n: 1/2 with two facts, 1/8 with eight.
    - *Independent values*: M is the largest cell of a multinomial draw, n throws into
      ``num_values`` cells.
    - *A missing key*: the bag shows which keys are present, so "none" is then always right.

    The bound holds if every pairing may occur (``split="all"``, or nothing held out). If some
    pairings are held out, a bag gives slightly more information: it rules out assignments with an
    impossible pairing.
    """
    require_positive(num_facts=num_facts)
    config._require_room(num_facts)
    if config.distinct_values:
        largest = 1.0
    else:
        largest = expected_largest(num_facts, config.num_values)
    return config.missing + (1 - config.missing) * largest / num_facts


def expected_largest(throws: int, cells: int) -> float:
    """Return the mean of the fullest cell's count, for balls thrown uniformly into cells.

    ``throws`` balls fall into ``cells`` cells. Independent Poisson counts X_i of any mean, given
    their sum, are distributed like the balls. So::

        P(largest <= m) = P(all X_i <= m and sum X_i = throws) / P(sum X_i = throws)
        E[largest]      = sum over m >= 0 of  1 - P(largest <= m)

    The numerator is a coefficient of the ``cells``-th power of a polynomial, computed as a power of
    the matrix of multiplication by it. The mean is chosen such that, without the factors
    exp(-mean), the denominator is 1. All terms are positive, so that nothing cancels; the result is
    exact to about 12 digits.

    Source: Levin 1981, "A representation for multinomial cumulative distribution functions", Annals
    of Statistics 9.
    """
    require_positive(throws=throws, cells=cells)
    if throws > 1500:
        raise InputError(
            got=f"throws = {throws}",
            expected="at most 1,500, so that every term is a float64",
            fix="Throw fewer.",
        )
    counts = np.arange(throws + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    single = np.exp(counts * (log_factorial[throws] / throws - np.log(cells)) - log_factorial)
    expected = 0.0
    degrees = counts[:, None] - counts
    for largest in range(throws):
        factor = np.where((degrees >= 0) & (degrees <= largest), single[degrees], 0.0)
        within = np.linalg.matrix_power(factor, cells)[throws, 0]
        expected += max(0.0, 1.0 - within)
        if within > 1 - 1e-14:
            break
    return float(expected)


def _random_order(real: Tensor, rng: np.random.Generator) -> Tensor:
    """Return for each row its real positions in a random order, then its padding."""
    return torch.from_numpy(np.argsort(np.where(real.numpy(), rng.random(real.shape), 2.0), axis=1))


def _pairings(
    config: LookupConfig, count: int, num_facts: int, split: Split, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of facts, with one more if keys may be missing, and the values."""
    shape = (count, num_facts)
    keys = _different(config.num_keys, (count, num_facts + (config.missing > 0)), rng)
    if split == "all" or not config.num_held_out:
        if config.distinct_values:
            return keys, _different(config.num_values, shape, rng)
        return keys, rng.integers(config.num_values, size=shape)
    held_out = config.held_out_offsets()
    if split == "unseen":
        offsets = held_out
    else:
        offsets = np.setdiff1d(np.arange(config.num_values), held_out)
    values = np.zeros(shape, np.int64)
    again = np.ones(shape, bool)
    rounds = 0
    while again.any():
        rows, columns = np.nonzero(again)
        offset = offsets[rng.integers(len(offsets), size=len(rows))]
        values[rows, columns] = (keys[rows, columns] + offset) % config.num_values
        if config.distinct_values:
            again = _repeated(values)
        else:
            again = np.zeros(shape, bool)
        rounds += 1
        if rounds % _PATIENCE == 0 and again.any():
            if rounds >= _ATTEMPTS * _PATIENCE:
                raise InputError(
                    got=(
                        f"no contexts of {num_facts} facts with distinct values for split = "
                        f"{split!r}, drawn {_ATTEMPTS} times"
                    ),
                    expected=(
                        f"more allowed pairings than {len(offsets)} of {config.num_values} values "
                        "per key"
                    ),
                    fix="Change held_out, ask for fewer facts, or use distinct_values=False.",
                )
            # Two keys may have the same few allowed values, all of them taken: draw such rows again
            # from the start.
            stuck = again.any(axis=1)
            keys[stuck] = _different(config.num_keys, (int(stuck.sum()), keys.shape[1]), rng)
            again[stuck] = True
    return keys, values


def _different(below: int, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw integers below a bound, different within each row; such rows are equally likely."""
    if 2 * shape[1] > below:
        return rng.permuted(np.tile(np.arange(below), (shape[0], 1)), axis=1)[:, : shape[1]]
    drawn = rng.integers(below, size=shape)
    # By symmetry between the numbers, rejection keeps all rows equally likely.
    while (again := _repeated(drawn)).any():
        drawn[again] = rng.integers(below, size=int(again.sum()))
    return drawn


def _repeated(values: np.ndarray) -> np.ndarray:
    """Return where a number has occurred further left in its row."""
    order = np.argsort(values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    again = np.zeros(values.shape, bool)
    np.put_along_axis(again, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
    return again
