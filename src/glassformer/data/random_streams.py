"""Random generators by seed and purpose, and the checks that all random splits share."""

from collections.abc import Sequence

import numpy as np

from glassformer.errors import InputError


def generator(seed: int, *stream: int) -> np.random.Generator:
    """Return the generator of ``seed`` for a stream, such as a step.

    It is independent of the generators of all other streams.
    """
    for name, number in (("seed", seed), *(("step", number) for number in stream)):
        if not isinstance(number, int) or number < 0:
            raise InputError(
                got=f"{name} = {number!r}",
                expected="a whole number of at least 0",
                fix=f"Pass {name} >= 0.",
            )
    # A spawn key, not more entropy words: NumPy pads those with zeros, so [seed, 0] would be the
    # stream of seed.
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))


def require_fractions(fractions: Sequence[float]) -> None:
    """Refuse ``fractions`` that are not above 0 or do not sum to 1."""
    if not (len(fractions) > 0 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-9):
        raise InputError(
            got=f"fractions = {tuple(fractions)}",
            expected="numbers above 0 that sum to 1",
            fix="For example (0.8, 0.1, 0.1).",
        )
