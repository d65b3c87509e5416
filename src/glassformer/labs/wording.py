"""Filters and functions with which the templates of reports write numbers and names."""

import math
from collections.abc import Iterable


def percent(share: float | int, digits: int = 1) -> str:
    """Format a share in [0, 1] as "81.2 %"; a share below 1 is not rounded up to 100 %."""
    largest = 100.0 if share >= 1 else 100 - 10.0**-digits
    return f"{min(100 * share, largest):.{digits}f} %"


def number(value: float | int, digits: int = 0) -> str:
    """Format a number with separated thousands: "1,024"."""
    return f"{value:,.{digits}f}"


def at_most(bound: float | int, digits: int = 2) -> str:
    """Format an upper bound, rounded up."""
    return f"{math.ceil(bound * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def at_least(bound: float | int, digits: int = 2) -> str:
    """Format a lower bound, rounded down."""
    return f"{math.floor(bound * 10**digits + 1e-9) / 10**digits:.{digits}f}"


def listed(names: Iterable[object]) -> str:
    """Join names: "a", "a and b", "a, b and c"."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def standard_error(share: float | int, count: int) -> float:
    """Return the standard error ``sqrt(p (1 - p) / count)`` of a share among independent cases."""
    return math.sqrt(share * (1 - share) / count)


def alike(first: float | int, second: float | int, count: int, least: float | int = 0.0) -> bool:
    """Return whether two shares of ``count`` cases differ by at most two standard errors.

    The limit is two standard errors of a difference, ``2 sqrt(2 p (1 - p) / count)`` with the mean
    p of the two shares, or ``least`` (the spread of seeds), whichever is larger.
    """
    error = math.sqrt(2) * standard_error((first + second) / 2, count)
    return abs(first - second) <= max(least, 2 * error)


def mean(values: Iterable[float | int]) -> float:
    """Return the arithmetic mean; NaN if there are no values."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


def below(bound: float | int, digits: int = 1) -> str:
    """Format an upper bound of any size, rounded up to ``digits`` decimals: "3.1e-10"."""
    if bound == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(abs(bound))) - digits)
    return f"{math.ceil(bound / unit - 1e-9) * unit:.{digits}e}"
