"""``glassformer classify``: print the class of texts, its probability and the tokens' effects."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from glassformer.classifier import Classifier, TokenEffect, load_classifier, token_effects
from glassformer.cli.flags import ClassifyFlags
from glassformer.cli.terminal import say
from glassformer.errors import InputError
from glassformer.explorer import BUNDLED
from glassformer.text import one_line

MOST_BYTES = 1 << 24
"""Maximum size of a line."""
_AT_ONCE = 64
_BUNDLED = BUNDLED / "sentiment"


@dataclass(frozen=True)
class Verdict:
    """Result for one text: the most likely class, all probabilities, and the tokens' effects.

    Effects are on the probability of the most likely class; None if not asked for.
    """

    text: str
    label: str
    probabilities: dict[str, float]
    effects: list[TokenEffect] | None

    def to_json(self) -> str:
        """Return the verdict as one line of JSON."""
        fields: dict[str, Any] = {
            "text": self.text,
            "label": self.label,
            "probabilities": self.probabilities,
        }
        if self.effects is not None:
            fields["tokens"] = [effect._asdict() for effect in self.effects]
        return json.dumps(fields)

    def lines(self, tokens: int) -> list[str]:
        """Return the verdict as text, with the effects of up to ``tokens`` tokens."""
        percent = 100 * self.probabilities[self.label]
        first = f"{_printed(self.label)}  {percent:.1f} %  {_printed(self.text)}"
        ranked = sorted(self.effects or (), key=lambda change: -abs(change.effect))[:tokens]
        effects = [
            f"{_printed(token)} {100 * effect:+.1f}"
            for token, effect in ranked
            if abs(effect) >= 5e-4
        ]
        if effects:
            return [first, "    " + ", ".join(effects)]
        return [first]


def judge(
    classifier: Classifier, texts: Iterable[str], at_once: int, effects: bool
) -> Iterator[Verdict]:
    """Yield a verdict on each text, in order; ``at_once`` texts are classified together."""
    texts = iter(texts)
    count = 0
    while chosen := list(islice(texts, at_once)):
        count += len(chosen)
        for text, row in zip(chosen, classifier.probabilities(chosen).tolist(), strict=True):
            if not all(map(math.isfinite, row)):
                raise InputError(
                    got=f"{row} for the probabilities of {_printed(text)}",
                    expected="numbers",
                    fix="The weights are damaged or training diverged: train again.",
                )
            best = max(range(len(row)), key=row.__getitem__)
            token_changes = None
            if effects:
                token_changes = token_effects(classifier, text, best)
            yield Verdict(
                text,
                classifier.classes[best],
                dict(zip(classifier.classes, row, strict=True)),
                token_changes,
            )
    if count == 0:
        raise InputError(
            got="no texts",
            expected="at least one",
            fix="Pass them in quotes, as lines of --file, or on standard input.",
        )


def run(flags: ClassifyFlags) -> Iterator[Verdict]:
    """Yield a verdict on each text that ``flags`` name."""
    bundled = str(flags.run) == _BUNDLED.name and not flags.run.exists()
    classifier = load_classifier(_BUNDLED if bundled else flags.run)
    effects = flags.json or flags.tokens > 0
    if flags.texts:
        yield from judge(classifier, flags.texts, _AT_ONCE, effects)
    elif flags.file is not None:
        yield from judge(classifier, _file_lines(flags.file), _AT_ONCE, effects)
    else:
        if sys.stdin.isatty():
            print("Type texts, one a line; Ctrl-D ends.", file=sys.stderr)
        # One at a time, so that each is answered before the next is typed.
        yield from judge(
            classifier, _lines("standard input", sys.stdin.buffer.readline), 1, effects
        )


def main(flags: ClassifyFlags) -> int:
    """Print a verdict on each text."""
    for verdict in run(flags):
        if flags.json:
            say(verdict.to_json())
        else:
            say("\n".join(verdict.lines(flags.tokens)))
    return 0


def _printed(text: str) -> str:
    return one_line(text, 100) or "(empty)"


def _file_lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            yield from _lines(str(path), file.readline)
    except OSError as error:
        raise InputError(
            f"{path}, which cannot be read: {error}", "a readable file", "Check the path."
        ) from error


def _lines(source: str, readline: Callable[[int], bytes]) -> Iterator[str]:
    """Yield the lines of a binary file without their ends; check each as it is read."""
    number = 0
    while line := readline(MOST_BYTES + 1):
        number += 1
        place = f"{source}, line {number}"
        if len(line) > MOST_BYTES:
            raise InputError(
                got=f"{place}: more than {MOST_BYTES:,} bytes",
                expected="one text per line",
                fix="Split it.",
            )
        if b"\0" in line:
            raise InputError(
                got=f"{place}: a NUL byte",
                expected="text in UTF-8",
                fix="This looks like a binary file.",
            )
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                got=(
                    f"{place}: byte {line[error.start]:#04x} at place {error.start + 1}, which is "
                    "not UTF-8"
                ),
                expected="text in UTF-8",
                fix="Convert it, for example: iconv -f LATIN1 -t UTF-8.",
            ) from error
