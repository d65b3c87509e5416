"""Integer sequences from a hidden linear recurrence with a noisy step, for decoders to predict.

A generator is a pair of hidden vectors of ``order`` numbers below ``vocab_size``: its initial state
and its coefficients. Each step emits one token and shifts it into the state (the last ``order``
tokens):

    token = last + 1               mod vocab_size    with probability next_prob    (the increment)
    token = state · coefficients   mod vocab_size    otherwise                     (the rule)

The initial values themselves are never emitted, so even the first token depends on hidden numbers.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.config import Fraction, Size, config
from glassformer.data.random_streams import generator
from glassformer.errors import InputError, require_positive


@config
class RecurrenceConfig:
    """The family of generators and the length of their sequences.

    Args:
        order: Length of the state and of the coefficients.
        vocab_size: Tokens are 0 ... vocab_size - 1 and all sums are taken modulo it.
        next_prob: Probability in [0, 1] that a step emits ``last + 1`` and ignores the rule.
        seq_len: Predictions per sequence; a sequence holds ``seq_len + 1`` tokens.
    """

    order: Size = 2
    vocab_size: Size = 7
    next_prob: Fraction = 0.1
    seq_len: Size = 64

    def __post_init__(self) -> None:
        if self.num_generators >= 2**63:
            raise InputError(
                got=f"vocab_size = {self.vocab_size} with order = {self.order}",
                expected=(
                    "vocab_size ** (2 * order) < 2 ** 63, so that every generator has a 64-bit "
                    "number"
                ),
                fix="Use a smaller vocab_size or order.",
            )

    @property
    def num_generators(self) -> int:
        """Return the number of different generators: ``vocab_size ** (2 * order)``."""
        return int(self.vocab_size ** (2 * self.order))


@dataclass(frozen=True, eq=False)
class Generators:
    """The hidden vectors of several generators, one per row."""

    initial: Int64[Tensor, "generator order"]
    coefficients: Int64[Tensor, "generator order"]

    def __len__(self) -> int:
        return self.initial.shape[0]

    def numbers(self, config: RecurrenceConfig) -> Int64[Tensor, "generator"]:
        """Return the number of each generator, in 0 ... num_generators - 1.

        Its digits in base vocab_size are the generator's values, initial first.

        Two generators are the same exactly when their numbers are equal.
        """
        orders = self.initial.shape[1], self.coefficients.shape[1]
        if orders != (config.order, config.order):
            raise InputError(
                got=f"generators of order {orders}",
                expected=f"{config.order}",
                fix="Use the config that the generators were drawn with.",
            )
        values = torch.cat([self.initial, self.coefficients], dim=1)
        require_token_range(values, config.vocab_size, "generators")
        return values @ _place_values(config)


@dataclass(frozen=True, eq=False)
class RecurrenceBatch:
    """Sequences with the generators they came from, row by row."""

    tokens: Int64[Tensor, "batch emitted"]
    generators: Generators

    @property
    def inputs(self) -> Int64[Tensor, "batch position"]:
        """Return all tokens but the last: a model's input."""
        return self.tokens[:, :-1]

    @property
    def targets(self) -> Int64[Tensor, "batch position"]:
        """Return all tokens but the first: the right prediction at each input."""
        return self.tokens[:, 1:]


class RecurrenceSplit(NamedTuple):
    """Training and held-out sequences that share no generator."""

    train: RecurrenceBatch
    test: RecurrenceBatch


class StepKinds(NamedTuple):
    """Masks of the steps that follow the rule, and the increment: one, both or neither."""

    rule: Bool[Tensor, "batch step"]
    increment: Bool[Tensor, "batch step"]


def sample_generators(
    config: RecurrenceConfig,
    count: int,
    rng: np.random.Generator,
    excluded: Generators | None = None,
) -> Generators:
    """Draw ``count`` generators uniformly and with repetition from those not in ``excluded``.

    A uniform number among the remaining generators is moved past the excluded ones below it. The
    distribution is that of rejection sampling.
    """
    require_positive(count=count)
    if excluded is None:
        taken = np.empty(0, np.int64)
    else:
        taken = np.unique(excluded.numbers(config).numpy())
    remaining = config.num_generators - len(taken)
    if remaining <= 0:
        raise InputError(
            got=f"all {config.num_generators} generators excluded",
            expected="at least one generator to draw from",
            fix="Hold out fewer sequences, or use a larger vocab_size or order.",
        )
    numbers = rng.integers(remaining, size=count)
    numbers += np.searchsorted(taken - np.arange(len(taken)), numbers, side="right")
    values = torch.from_numpy(numbers)[:, None] // _place_values(config) % config.vocab_size
    return Generators(initial=values[:, : config.order], coefficients=values[:, config.order :])


def sample_sequences(
    config: RecurrenceConfig, generators: Generators, rng: np.random.Generator
) -> Int64[Tensor, "batch emitted"]:
    """Run each generator for ``seq_len + 1`` tokens, and leave out its initial values."""
    generators.numbers(config)
    length = config.seq_len + 1
    increments = rng.random((length, len(generators))) < config.next_prob
    # One row per position: each step then reads and writes contiguous memory.
    values = np.empty((config.order + length, len(generators)), np.int64)
    values[: config.order] = generators.initial.numpy().T
    coefficients = np.ascontiguousarray(generators.coefficients.numpy().T)
    for step, increment in enumerate(increments):
        state = values[step : step + config.order]
        emitted = np.where(increment, state[-1] + 1, (state * coefficients).sum(axis=0))
        values[step + config.order] = emitted % config.vocab_size
    return torch.from_numpy(np.ascontiguousarray(values[config.order :].T))


def make_split(
    config: RecurrenceConfig, *, num_train: int = 10_000, num_test: int = 1_000, seed: int = 0
) -> RecurrenceSplit:
    """Return held-out sequences of uniformly drawn generators, and training ones of all others.

    1,000 draws from 7^4 = 2,401 generators hold out about 818 of them; training has 1,583.
    """
    rng = generator(seed)
    test = _sample_batch(config, num_test, rng, excluded=None)
    train = _sample_batch(config, num_train, rng, excluded=test.generators)
    return RecurrenceSplit(train=train, test=test)


def fresh_batch(
    config: RecurrenceConfig,
    count: int,
    *,
    seed: int,
    step: int,
    excluded: Generators | None = None,
) -> RecurrenceBatch:
    """Return new sequences for one training step, a function of ``(seed, step)`` alone.

    So a run can resume at any step. Random streams of different steps are independent, also of
    :func:`make_split`'s.
    """
    rng = generator(seed, step)
    return _sample_batch(config, count, rng, excluded)


def obeys_recurrence(
    tokens: Int64[Tensor, "batch length"],
    coefficients: Int64[Tensor, "batch order"],
    vocab_size: int,
) -> StepKinds:
    """Return which steps ``tokens[:, order:]`` follow their row's rule, and which the increment.

    The increment is the previous token + 1. The first step's state is the first ``order`` tokens.
    """
    require_tokens(tokens, vocab_size)
    count, order = coefficients.shape
    length = tokens.shape[1]
    if count != len(tokens) or not 1 <= order < length:
        raise InputError(
            got=(
                f"{count} coefficients of order {order} with {len(tokens)} sequences of length "
                f"{length}"
            ),
            expected="a row for each sequence, which is longer",
            fix="Put the last `order` tokens of the prompt before a continuation.",
        )
    states = tokens.unfold(1, order, 1)[:, :-1]
    actual = tokens[:, order:]
    by_rule = (states * coefficients[:, None]).sum(dim=-1) % vocab_size
    by_increment = (states[..., -1] + 1) % vocab_size
    return StepKinds(rule=actual == by_rule, increment=actual == by_increment)


def require_tokens(tokens: Tensor, vocab_size: int) -> None:
    """Refuse tokens that are not int64 [batch, length] and in range."""
    if tokens.ndim != 2 or tokens.numel() == 0 or tokens.dtype != torch.int64:
        raise InputError(
            got=f"tokens of shape {tuple(tokens.shape)} and dtype {tokens.dtype}",
            expected="an int64 tensor [batch, length] with at least one token",
            fix="Pass one row per sequence.",
        )
    require_token_range(tokens, vocab_size, "tokens")


def require_token_range(values: Tensor, vocab_size: int, name: str) -> None:
    """Refuse values out of range, naming their extremes."""
    if not values.numel():
        return
    lowest, highest = (int(extreme) for extreme in torch.aminmax(values))
    if lowest < 0 or highest >= vocab_size:
        raise InputError(
            got=f"{name} between {lowest} and {highest}",
            expected=f"0 to vocab_size - 1 = {vocab_size - 1}",
            fix="Use the vocab_size that the data was made with.",
        )


def _sample_batch(
    config: RecurrenceConfig, count: int, rng: np.random.Generator, excluded: Generators | None
) -> RecurrenceBatch:
    generators = sample_generators(config, count, rng, excluded)
    return RecurrenceBatch(tokens=sample_sequences(config, generators, rng), generators=generators)


def _place_values(config: RecurrenceConfig) -> Int64[Tensor, " digit"]:
    """Return the place value of each digit of a generator's number, most significant first."""
    return torch.tensor([config.vocab_size**place for place in reversed(range(2 * config.order))])
