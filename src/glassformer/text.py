"""Text from untrusted sources, made safe to print on one line, and bounds as text that do not
promise too much.
"""

import difflib
import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path

LONGEST_CELL = 60
"""Characters of a quoted value; longer ones are cut."""


def close_name(name: str, known: Iterable[str]) -> str | None:
    """Which of ``known`` the unknown ``name`` may have meant, None if none is close."""
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name[:LONGEST_CELL].lower(), lower, n=1, cutoff=0.5)
    return lower[close[0]] if close else None


def known_name(name: str, known: Sequence[str]) -> str:
    """A sentence that says which of ``known`` the unknown ``name`` may have meant, or lists them."""
    close = close_name(name, known)
    if close is None:
        return f"Known are {', '.join(known)}."
    return f"Did you mean '{close}'?"


def shown(path: Path) -> str:
    """The path for a message: on one line, without what could steer a terminal."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def one_line(text: str, longest: int | None = None) -> str:
    """``text`` on one line: white space becomes single spaces, and control characters are escaped.

    Args:
        longest: Characters of the result, at least 4; more are cut and end with "...". None: no
            limit.
    """
    words = " ".join(text.split())
    if longest is not None:
        words = words[: longest + 1]
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in words)
    if longest is None or len(line) <= longest:
        return line
    return line[: longest - 3] + "..."


def short(text: str) -> str:
    """What a file says, for a message: quoted, on one line and not long."""
    return ascii(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 3] + "...")


def byte_size(number: int) -> str:
    """Bytes with three digits, in powers of ten: "98.4 MB", "13.8 GB"."""
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
    """An upper bound with so many significant digits, never below it: 4.981e-10 with three is
    "4.99e-10".
    """
    return _rounded(bound, digits, ROUND_CEILING)


def rounded_down(bound: float, digits: int) -> str:
    """A lower bound with so many significant digits, never above it."""
    return _rounded(bound, digits, ROUND_FLOOR)


def _rounded(bound: float, digits: int, rounding: str) -> str:
    if not math.isfinite(bound):
        return f"{bound:g}"
    context = Context(prec=digits, rounding=rounding, traps=[])  # whatever the caller has set
    return f"{float(context.plus(Decimal.from_float(bound))):.{digits}g}"
