"""Infer the rule that a text of a recurrence decoder follows."""

from collections.abc import Sequence
from threading import Lock

import numpy as np
from cachetools import LRUCache, cached
from jaxtyping import Int

from glassformer.data.recurrence import RecurrenceConfig

SURE = 0.95
"""Least probability of a reported rule, with equally good rules of the same continuation."""

_SLIP = 1e-3
"""Probability of a number that no rule explains, such as a typing error or a wrong token."""
_MOST_RULES = 1 << 14
_MOST_COMPARED = 1 << 22
"""Largest number of rules times distinct steps. Each pair takes 30 bytes or so."""


# Cached because it is called for every candidate for the next number.
@cached(LRUCache(8), key=lambda tokens, config: (tuple(tokens), config), lock=Lock())
def likely_coefficients(tokens: Sequence[int], config: RecurrenceConfig) -> tuple[int, ...] | None:
    """Return the coefficients that most probably generated the numbers, oldest place first.

    They follow from the posterior over all coefficients under a uniform prior. Each step follows
    :mod:`glassformer.data.recurrence`, except for one error in a thousand. Several rules can
    generate the same numbers, such as 1 3 2 6 4 5 modulo 7. If all of the best rules give the same
    next number, the one with the fewest terms is returned. Return None if the next number is
    uncertain, or if there are too many rules and numbers to compare.
    """
    order = config.order
    size = config.vocab_size
    if len(tokens) <= order:
        return None
    numbers = np.asarray(tokens, dtype=np.int64)
    steps = np.lib.stride_tricks.sliding_window_view(numbers, order)[:-1]
    # States repeat, so each distinct step is computed once.
    distinct_steps, counts = np.unique(
        np.column_stack([steps, numbers[order:]]), axis=0, return_counts=True
    )
    if size**order > _MOST_RULES or size**order * len(distinct_steps) > _MOST_COMPARED:
        return None
    states = distinct_steps[:, :-1]
    next_numbers = distinct_steps[:, -1]
    rules: Int[np.ndarray, "rule place"] = np.indices((size,) * order).reshape(order, -1).T
    by_rule = (rules @ states.T) % size == next_numbers
    by_increment = (states[:, -1] + 1) % size == next_numbers
    probabilities = config.next_prob * by_increment + (1 - config.next_prob) * by_rule
    log_likelihoods = np.log((1 - _SLIP) * probabilities + _SLIP / size) @ counts
    posterior = np.exp(log_likelihoods - log_likelihoods.max())
    best = np.flatnonzero(posterior > 0.5)
    continuations = (rules[best] @ numbers[-order:]) % size
    if posterior[best].sum() / posterior.sum() <= SURE or len(np.unique(continuations)) > 1:
        return None
    best_rules = [tuple(rules[index].tolist()) for index in best]
    return min(best_rules, key=lambda rule: (np.count_nonzero(rule), rule))


def rule_in_words(tokens: Sequence[int], config: RecurrenceConfig) -> str | None:
    """Write the rule as "x[t] = 3 x[t-1] + 2 x[t-2] mod 7, or x[t-1] + 1"; None if uncertain."""
    coefficients = likely_coefficients(tokens, config)
    if coefficients is None:
        return None
    terms = [
        f"x[t-{back}]" if factor == 1 else f"{factor} x[t-{back}]"
        for back, factor in enumerate(reversed(coefficients), start=1)
        if factor
    ]
    increment = ", or x[t-1] + 1" if config.next_prob > 0 else ""
    return f"x[t] = {' + '.join(terms) or '0'} mod {config.vocab_size}{increment}"


def may_follow(tokens: Sequence[int], candidate: int, config: RecurrenceConfig) -> bool | None:
    """Check if a number may come next, by the rule or as the last number plus 1.

    Return None if the rule is uncertain.
    """
    coefficients = likely_coefficients(tokens, config)
    if coefficients is None:
        return None
    state = tokens[-config.order :]
    size = config.vocab_size
    products = [factor * number for factor, number in zip(coefficients, state, strict=True)]
    by_rule = sum(products) % size
    by_increment = (state[-1] + 1) % size
    return candidate == by_rule or (config.next_prob > 0 and candidate == by_increment)
