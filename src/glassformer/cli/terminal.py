"""Attention and outputs drawn as text: readable without colour, no wider than the terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

MOST_ROWS = 24
"""Of a longer sequence, this many positions around the marked one are drawn."""

_SHADES, _PLAIN_SHADES = "·░▒▓█", ".-+*#"
_CELL = 6
_MARK = "> "
_OTHER_NAME = "^"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def draw_attention_map(
    weights: Float[np.ndarray, "query key"],
    query_names: Sequence[str],
    key_names: Sequence[str],
    marked: int | None = None,
    *,
    width: int = 80,
    plain: bool = False,
) -> str:
    """An attention map as text: a row for each query, a shade and per cent for each key.

    Where the per cents do not fit ``width``, each key is one shade: ``·`` below 0.5 %, then a step for each quarter.
    Where the shades do not fit either, or there are more than ``MOST_ROWS`` queries, only those around the marked query
    and its strongest key are drawn, and the last line says which. Names of keys that have more than one character
    become ``^`` where only one fits. ``width`` is in columns of the terminal; ``plain`` draws with ASCII alone.
    """
    queries = _window(len(query_names), MOST_ROWS, marked or 0)
    margin = max(_wide(query_names[query]) for query in queries) + len(_MARK)
    with_numbers = margin + _CELL * len(key_names) <= width
    most = len(key_names) if with_numbers else max(1, width - margin - 1)
    keys = _window(len(key_names), most, 0 if marked is None else int(weights[marked].argmax()))
    names = [key_names[key] for key in keys]
    if with_numbers:
        header = "".join(_right(name, _CELL) for name in names)
    else:
        header = " " + "".join(name if _wide(name) == 1 else _OTHER_NAME for name in names)
    lines = [" " * margin + header]
    for query in queries:
        cells = [_cell(float(weights[query, key]), with_numbers, plain) for key in keys]
        name = (_MARK if query == marked else " " * len(_MARK)) + _right(query_names[query], margin - len(_MARK))
        lines.append(name + ("" if with_numbers else " ") + "".join(cells))
    lines += textwrap.wrap(_legend(with_numbers, plain), width, initial_indent="  ", subsequent_indent="  ")
    if not with_numbers and any(_wide(name) != 1 for name in names):
        others = ", ".join(dict.fromkeys(name for name in names if _wide(name) != 1))
        lines.append(f"  {_OTHER_NAME} stands for {others}")
    for what, drawn, count in (("queries", queries, len(query_names)), ("keys", keys, len(key_names))):
        if len(drawn) < count:
            lines.append(f"  drawn: {what} {drawn[0] + 1} to {drawn[-1] + 1} of {count}")
    return "\n".join(_cut(line, width) for line in lines)


def draw_outputs(
    names: Sequence[str],
    wanted: Float[np.ndarray, "position v_dim"],
    got: Float[np.ndarray, "position v_dim"],
    right: Bool[np.ndarray, " position"],
    marked: int,
    *,
    width: int = 80,
) -> str:
    """Expected and actual outputs of a head, a row for each position; at most ``MOST_ROWS`` around ``marked``."""
    rows = _window(len(names), MOST_ROWS, marked)
    margin = max(_wide(names[row]) for row in rows) + len(_MARK)
    error = np.abs(got - wanted).max(axis=1)
    room = (width - margin - 22) // 2
    texts = {row: (_vector(wanted[row], room), _vector(got[row], room)) for row in rows}
    first, second = (max(6, *(len(pair[side]) for pair in texts.values())) for side in (0, 1))
    lines = [f"{' ' * margin}  {'wanted':<{first}}  {'got':<{second}}  largest error"]
    for row in rows:
        name = (_MARK if row == marked else " " * len(_MARK)) + _right(names[row], margin - len(_MARK))
        left, middle = texts[row]
        lines.append(f"{name}  {left:<{first}}  {middle:<{second}}  {error[row]:.2g}{'' if right[row] else '  wrong'}")
    if len(rows) < len(names):
        lines.append(f"  listed: {rows[0] + 1} to {rows[-1] + 1} of {len(names)}")
    return "\n".join(_cut(line, width) for line in lines)


def terminal_width() -> int:
    """Columns of the terminal; 80 without a terminal."""
    return max(20, shutil.get_terminal_size((80, 24)).columns)


def needs_plain(encoding: str | None = None) -> bool:
    """Whether standard output, or a stream of this ``encoding``, cannot show the shades."""
    try:
        _SHADES.encode(encoding or sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def write(text: str, out: Any = None) -> None:
    """Print ``text`` on ``out`` (None: standard output) at once, without a line end.

    Characters that the encoding lacks become question marks. On a terminal, control characters except tabs and line
    ends become U+FFFD, so that generated text cannot control it.
    """
    out = sys.stdout if out is None else out
    if out.isatty():
        text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    if out.encoding is not None:
        text = text.encode(out.encoding, errors="replace").decode(out.encoding)
    print(text, end="", flush=True, file=out)


def say(text: str) -> None:
    """Print ``text`` and a line end on standard output, as :func:`write` does."""
    write(f"{text}\n")


def _window(count: int, most: int, around: int) -> range:
    """At most ``most`` of ``count`` numbers, with ``around`` as near to the middle as the ends allow."""
    first = max(0, min(around - most // 2, count - most))
    return range(first, min(count, first + most))


def _cell(weight: float, with_number: bool, plain: bool) -> str:
    step = 0 if weight < 0.005 else min(4, 1 + int(4 * weight))
    shade = (_PLAIN_SHADES if plain else _SHADES)[step]
    if not with_number:
        return shade
    return f"{shade:>{_CELL}}" if step == 0 else f" {shade}{round(100 * weight):4d}"


def _legend(with_numbers: bool, plain: bool) -> str:
    rows = "rows: queries; columns: keys; "
    if with_numbers:
        return rows + "numbers: per cent of a query's attention"
    shades = _PLAIN_SHADES if plain else _SHADES
    return rows + f"{shades[0]} none, " + ", ".join(f"{shades[step]} to {25 * step}%" for step in range(1, 5))


def _vector(numbers: Float[np.ndarray, " v_dim"], room: int) -> str:
    text = " ".join(f"{number + 0.0:.4g}" if abs(number) >= 5e-5 else "0" for number in numbers.tolist())
    return _cut(text, max(8, room))


def _cut(text: str, width: int) -> str:
    if _wide(text) <= width:
        return text
    end = len(text)
    while _wide(text[:end]) > width - 3:
        end -= 1
    return text[:end] + "..."


def _right(text: str, width: int) -> str:
    return " " * (width - _wide(text)) + text


def _wide(text: str) -> int:
    """Columns that ``text`` takes: two for the wide characters of East Asia, none for accents on others."""
    return sum(0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


class Stopwatch:
    """Measures the time to the first token and the tokens per second after it."""

    def __init__(self, read: int) -> None:
        self.read, self.generated, self.seconds_to_first, self.seconds = read, 0, 0.0, 0.0

    def timed(self, tokens: Iterable[int]) -> Iterator[int]:
        """The same tokens."""
        began = time.perf_counter()
        for token in tokens:
            self.generated += 1
            self.seconds = time.perf_counter() - began
            if self.generated == 1:
                self.seconds_to_first = self.seconds
            yield token

    def __str__(self) -> str:
        """One line; empty if no token was generated."""
        if self.generated == 0:
            return ""
        line = f"{self.read} tokens read in {self.seconds_to_first:.1f} s, {self.generated} generated"
        later = self.seconds - self.seconds_to_first
        if self.generated > 1 and later > 0:
            # The first token is part of reading the prompt.
            line += f" in {self.seconds:.1f} s: {(self.generated - 1) / later:.1f} tokens/s"
        return line
