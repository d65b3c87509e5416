"""The highest accuracy of any model on in-context lookup that sees a context as a bag of tokens: derived, not fitted.

The bag of a context (:mod:`glassformer.data.in_context_lookup`) holds n keys, the "no key" tokens of d distractors, and
N = n + d values. A model without positions sees only how often each token occurs in it, and the query.

**Which value?** Keys, values and their pairing are drawn so that every assignment of the N values to the n keys and d
distractors has the same probability, also given the bag. So the query, if present, has each of the N values with
probability 1 / N, and a value that occurs m times in the bag is right with probability m / N. The best answer is a most
frequent value, right with probability M / N for its multiplicity M. Averaged over contexts::

    ceiling(n) = missing + (1 - missing) * E[M] / N,        N = n + distractors

- *Different values*: M = 1, so the ceiling is 1 / N: 1/2 with two facts, 1/8 with eight.
- *Independent values*: M is the largest cell of a multinomial draw, N throws into num_values cells.
- *A missing key*: the bag shows which keys are present, so "none" is then always right.
- *A distractor* costs as much as a fact, since its value may be the query's. Slots show that it has no key.

The bound holds where every pairing may occur (``split="all"``, or nothing held out). If some pairings are held out, a
bag gives slightly more information: assignments with an impossible pairing are ruled out.
"""

from __future__ import annotations

import numpy as np

from glassformer.data.in_context_lookup import LookupConfig
from glassformer.errors import require, require_positive


def bag_ceiling(config: LookupConfig, num_facts: int) -> float:
    """The highest expected accuracy from the bag, in [0, 1], with this many facts: the formula above.

    It is exact for contexts of ``sample(config, ..., split="all", num_facts=num_facts)`` and depends on ``num_values``,
    ``missing``, ``distractors`` and ``distinct_values``.

    Raises:
        InputError: ``num_facts`` below 1, or more distinct values than there are.
    """
    require_positive(num_facts=num_facts)
    values = num_facts + config.distractors
    require(
        not config.distinct_values or values <= config.num_values,
        f"{values} distinct values of num_values = {config.num_values}",
        "no more than there are",
        "Ask for fewer facts.",
    )
    largest = 1.0 if config.distinct_values else expected_largest(values, config.num_values)
    return config.missing + (1 - config.missing) * largest / values


def expected_largest(throws: int, cells: int) -> float:
    """The mean of the fullest cell's count when ``throws`` balls fall into ``cells`` cells, each uniformly.

    With independent Poisson counts X_i of any mean, their values given the sum are those of the balls. So::

        P(largest <= m) = P(all X_i <= m and sum X_i = throws) / P(sum X_i = throws)
        E[largest]      = sum over m >= 0 of  1 - P(largest <= m)

    The numerator is a coefficient of the ``cells``-th power of a polynomial, computed as a power of the matrix of
    multiplication by it. All terms are positive, so that nothing cancels; the result is exact to about 12 digits.

    Raises:
        InputError: A number below 1.

    Source: Levin 1981, "A representation for multinomial cumulative distribution functions", Annals of Statistics 9.
    """
    require_positive(throws=throws, cells=cells)
    mean = throws / cells
    counts = np.arange(throws + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    single = np.exp(counts * np.log(mean) - mean - log_factorial)
    total = np.exp(throws * np.log(throws) - throws - log_factorial[throws])
    expected, degrees = 0.0, counts[:, None] - counts
    for largest in range(throws):
        factor = np.where((degrees >= 0) & (degrees <= largest), single[degrees], 0.0)
        within = np.linalg.matrix_power(factor, cells)[throws, 0] / total
        expected += max(0.0, 1.0 - within)
        if within > 1 - 1e-14:
            break
    return float(expected)
