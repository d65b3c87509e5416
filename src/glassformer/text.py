"""Text from untrusted sources, safe to print on one line, and bounds as text."""

import difflib
import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path

LONGEST_CELL = 60
"""Maximum characters of a quoted value."""


def close_name(name: str, known: Iterable[str]) -> str | None:
    """Return the name of ``known`` that is closest to ``name``, None if none is close."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    lower = name[:LONGEST_CELL].lower()
    close = difflib.get_close_matches(lower, by_lower_case, n=1, cutoff=0.5)
    return by_lower_case[close[0]] if close else None


def known_name(name: str, known: Sequence[str]) -> str:
    """Return a sentence with the name of ``known`` that is closest to ``name``, or with all."""
    close = close_name(name, known)
    if close is None:
        return f"Known are {', '.join(known)}."
    return f"Did you mean '{close}'?"


def shown(path: Path) -> str:
    """Return the path for a message: on one line, without control characters."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def one_line(text: str, longest: int | None = None) -> str:
    """Return ``text`` on one line, with single spaces and escaped control characters.

    Args:
        longest: Maximum characters of the result, at least 4; a longer one is cut and ends with
            "...". None: no limit.
    """
    words = " ".join(text.split())
    if longest is not None:
        words = words[: longest + 1]
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in words)
    if longest is None or len(line) <= longest:
        return line
    return line[: longest - 3] + "..."


def short(text: str) -> str:
    """Return a file's text for a message: quoted, on one line and not long."""
    if len(text) > LONGEST_CELL:
        text = text[: LONGEST_CELL - 3] + "..."
    return ascii(text)


def byte_size(number: int) -> str:
    """Return bytes with three digits, in powers of ten: "98.4 MB", "13.8 GB"."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= 0.9995 * size:
            scaled = number / size
            if scaled < 9.995:
                decimals = 2
            elif scaled < 99.95:
                decimals = 1
            else:
                decimals = 0
            return f"{scaled:,.{decimals}f} {unit}"
    return f"{number} B"


def rounded_up(bound: float, digits: int) -> str:
    """Return an upper bound with so many significant digits, never below it.

    4.981e-10 with three digits is "4.99e-10".
    """
    return _rounded(bound, digits, ROUND_CEILING)


def rounded_down(bound: float, digits: int) -> str:
    """Return a lower bound with so many significant digits, never above it."""
    return _rounded(bound, digits, ROUND_FLOOR)


def _rounded(bound: float, digits: int, rounding: str) -> str:
    if not math.isfinite(bound):
        return f"{bound:g}"
    context = Context(prec=digits, rounding=rounding, traps=[])  # not the caller's context
    return f"{float(context.plus(Decimal.from_float(bound))):.{digits}g}"
