"""How reports write numbers and names: filters and functions of their templates."""

import math
from collections.abc import Iterable


def percent(share: float | int, digits: int = 1) -> str:
    """A share in [0, 1], rounded to the nearest: "81.2 %"; not to 100 unless it is all."""
    most = 100.0 if share >= 1 else 100 - 10.0**-digits
    return f"{min(100 * share, most):.{digits}f} %"


def number(value: float | int, digits: int = 0) -> str:
    """With thousands separated: "1,024"."""
    return f"{value:,.{digits}f}"


def at_most(bound: float | int, digits: int = 2) -> str:
    """An upper bound, rounded up."""
    return f"{math.ceil(bound * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def at_least(bound: float | int, digits: int = 2) -> str:
    """A lower bound, rounded down."""
    return f"{math.floor(bound * 10**digits + 1e-9) / 10**digits:.{digits}f}"


def listed(names: Iterable[object]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def standard_error(share: float | int, count: int) -> float:
    """Of a share found among ``count`` independent cases: ``sqrt(p (1 - p) / count)``."""
    return math.sqrt(share * (1 - share) / count)


def alike(first: float | int, second: float | int, count: int, least: float | int = 0.0) -> bool:
    """Whether two shares, each found among ``count`` cases, differ by at most two standard errors
    of a difference.

    ``2 sqrt(2 p (1 - p) / count)``, with p half way between the two; or by at most ``least``, the
    spread of seeds.
    """
    return abs(first - second) <= max(
        least, 2 * math.sqrt(2) * standard_error((first + second) / 2, count)
    )


def mean(values: Iterable[float | int]) -> float:
    """The arithmetic mean; NaN of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else math.nan


def below(bound: float | int, digits: int = 1) -> str:
    """An upper bound of any size, rounded up to ``digits`` decimals of its mantissa: "3.1e-10"."""
    if bound == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(abs(bound))) - digits)
    return f"{math.ceil(bound / unit - 1e-9) * unit:.{digits}e}"
