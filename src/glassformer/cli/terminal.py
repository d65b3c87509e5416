"""Printing: text that cannot steer a terminal, readable numbers, and the speed of generation."""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from glassformer.errors import InputError

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def write(text: str, out: Any = None) -> None:
    """Print ``text`` on ``out`` (None: standard output) at once, without a line end.

    Characters that the encoding lacks become question marks. On a terminal, control characters
    except tabs and line ends become U+FFFD, so that generated text cannot control it.
    """
    if out is None:
        out = sys.stdout
    if out.isatty():
        text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    if out.encoding is not None:
        text = text.encode(out.encoding, errors="replace").decode(out.encoding)
    print(text, end="", flush=True, file=out)


def say(text: str) -> None:
    """Print ``text`` and a line end on standard output, as :func:`write` does."""
    write(f"{text}\n")


def text_or_input(text: str) -> str:
    """Return ``text``; for "-" the text of standard input, without its last line end."""
    if text != "-":
        return text
    content = sys.stdin.buffer.read()
    try:
        input_text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            got=f"standard input with the byte {content[error.start]:#04x} at place {error.start}",
            expected="a text in UTF-8",
            fix="Convert it, for example with iconv.",
        ) from error
    input_text = input_text.removesuffix("\n").removesuffix("\r")
    if not input_text:
        raise InputError(
            got="an empty standard input",
            expected="a text in UTF-8",
            fix="Pass it through a pipe, or write the text instead of -.",
        )
    return input_text


class Stopwatch:
    """Measures the time to the first token and the tokens per second after it."""

    def __init__(self, read: int = 0) -> None:
        self.read = read
        self.generated = 0
        self.seconds_to_first = 0.0
        self.seconds = 0.0

    def timed(self, tokens: Iterable[int]) -> Iterator[int]:
        """Yield ``tokens`` and measure when they come."""
        began = time.perf_counter()
        for token in tokens:
            self.generated += 1
            self.seconds = time.perf_counter() - began
            if self.generated == 1:
                self.seconds_to_first = self.seconds
            yield token

    def __str__(self) -> str:
        """Return the speed in one line; empty if no token was generated."""
        if self.generated == 0:
            return ""
        line = (
            f"{self.read} tokens read in {self.seconds_to_first:.1f} s, {self.generated} generated"
        )
        later = self.seconds - self.seconds_to_first
        if self.generated > 1 and later > 0:
            # The first token is part of reading the prompt.
            line += f" in {self.seconds:.1f} s: {(self.generated - 1) / later:.1f} tokens/s"
        return line


def count(number: int) -> str:
    """Return a number of parameters, in millions or billions if large enough: ``20.91 B``."""
    for size, unit in ((10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,}"
