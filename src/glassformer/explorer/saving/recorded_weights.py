"""Which attention weights a saved page holds, and at which level: all of them where they fit.

The heads that are shown are held as finely as there is room beside overviews of the others; these share what is left.
"""

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from glassformer.explorer import messages as m
from glassformer.explorer.api import Answering
from glassformer.explorer.saving.recorded_answers import PageState
from glassformer.explorer.state import HeadPlace

EXACT_TOKENS = 512
"""With at most so many queries and keys, every weight of every head is held where there is room."""

_SMALLEST = 8
"""The longest side of the coarsest overview."""
_PACKED, _LEAST = 1.15, 0.6
"""Upper bound on the characters of a packed byte: mantissas hardly compress, and base64 makes 4 of 3. And the share of
that to which it compresses at best."""
_NAMED = 250
"""Characters of an entry besides its numbers."""


@dataclass(frozen=True)
class _Head:
    run: m.Run
    stack: m.Attention
    layer: int
    head: int
    shown: bool

    @property
    def tokens(self) -> int:
        """Its queries or keys, whichever are more."""
        return max(self.stack.queries, self.stack.keys)

    @property
    def coarsest(self) -> int:
        """The level of the smallest overview."""
        return coarse_enough(self.tokens, _SMALLEST)

    def size(self, level: int) -> float:
        """About how many characters its weights take at a level."""
        window = self.stack.windows[self.layer]
        seen = 0.5 if self.stack.causal else 1.0
        if window is not None:
            seen = min(seen, window / self.stack.keys)
        return seen * self.stack.queries * self.stack.keys / 4**level * 4 * _PACKED + _NAMED


def pack(numbers: Float[np.ndarray, "..."]) -> str:
    """Float32 numbers as text: their bytes in four planes, the lowest first, then zlib, then base64.

    Of numbers between 0 and 1 the planes with sign and exponent are much alike, which compresses well.
    """
    planes = np.ascontiguousarray(numbers, dtype="<f4").reshape(-1).view(np.uint8).reshape(-1, 4).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def matrix(
    backend: Answering, run: m.Run, stack: m.Attention, layer: int, head: int, level: int = 0
) -> Float[np.ndarray, "row column"]:
    """A head's whole matrix at a level, assembled from its tiles."""
    rows, columns = (-(-size // 2**level) for size in (stack.queries, stack.keys))
    whole = np.zeros((rows, columns), np.float32)
    for row in range(-(-rows // m.TILE)):
        for column in range(-(-columns // m.TILE)):
            ask = m.AskTile(run=run.run, part=stack.part, layer=layer, head=head, level=level, row=row, column=column)
            answer = backend.answer("weights", ask)
            tile = whole[row * m.TILE : (row + 1) * m.TILE, column * m.TILE : (column + 1) * m.TILE]
            tile[:] = np.frombuffer(answer, "<f4").reshape(tile.shape)
    return whole


def coarse_enough(tokens: int, side: int) -> int:
    """The finest level at which a matrix of so many tokens has at most ``side`` rows and columns."""
    return max(0, (tokens - 1) // side).bit_length()


def recorded_weights(backend: Answering, shown: PageState, runs: list[m.Run], room: int) -> dict[str, Any]:
    """The parts ``rows``, ``matrices`` and ``left_out`` of a saved page, in at most ``room`` characters."""
    heads = sorted(_heads(shown, runs), key=lambda each: (not each.shown, each.layer != shown.state.layer))
    rows = []
    if any(each.tokens > EXACT_TOKENS for each in heads) or sum(each.size(0) for each in heads) > room:
        # One query can be followed through all layers and heads even where single weights are not held.
        rows = [_row(backend, run, stack, shown.state.pin) for run in runs for stack in run.attentions]
        rows = rows if len(json.dumps(rows)) <= room else []
        room -= len(json.dumps(rows))
    held: list[dict[str, Any] | None] = []
    for place, head in enumerate(heads, 1):
        share = room / (len(heads) - place + 1)
        if head.shown:
            share = room - sum(each.size(each.coarsest) for each in heads[place:])
        held.append(_fitting(backend, head, share, room))
        room -= 0 if held[-1] is None else _length(held[-1])
    reports = []
    if overview := sum(entry is not None and entry["level"] > 0 for entry in held):
        reports.append(f"{overview} of {len(held)} heads are held as an overview, without single weights.")
    if missing := held.count(None):
        reports.append(f"There was no room for {missing} of {len(held)} heads.")
    return {"rows": rows, "matrices": [entry for entry in held if entry], "left_out": reports}


def _heads(shown: PageState, runs: list[m.Run]) -> Iterator[_Head]:
    state = shown.state
    places = (HeadPlace(layer=state.layer, head=state.head), state.versus, *state.pinned)
    for run in runs:
        for stack in run.attentions:
            chosen = run is runs[0] and stack is shown.stack(run)
            for layer in range(stack.layers):
                for head in range(stack.heads):
                    yield _Head(run, stack, layer, head, chosen and HeadPlace(layer=layer, head=head) in places)


def _fitting(backend: Answering, head: _Head, share: float, room: int) -> dict[str, Any] | None:
    """The weights of a head in ``share`` characters, or else in an overview in ``room``; None if there is no room."""
    for level in range(0 if head.shown else coarse_enough(head.tokens, EXACT_TOKENS), head.coarsest + 1):
        most = room if level == head.coarsest else share
        if head.size(level) * _LEAST <= most and _length(entry := _entry(backend, head, level)) <= most:
            return entry
    return None


def _entry(backend: Answering, of: _Head, level: int) -> dict[str, Any]:
    cells = matrix(backend, of.run, of.stack, of.layer, of.head, level)
    place = {"run": of.run.run, "part": of.stack.part, "layer": of.layer, "head": of.head, "level": level}
    return {**place, "rows": cells.shape[0], "columns": cells.shape[1], "numbers": pack(cells)}


def _length(entry: dict[str, Any]) -> int:
    return len(json.dumps(entry)) + 2


def _row(backend: Answering, run: m.Run, stack: m.Attention, pin: int | None) -> dict[str, Any]:
    query = pin if pin is not None and pin < stack.queries else stack.queries - 1
    ask = m.AskRows(run=run.run, part=stack.part, query=query)
    answer = backend.answer("rows", ask)
    return {"asked": ask.model_dump(mode="json"), "numbers": pack(np.frombuffer(answer, "<f4"))}
