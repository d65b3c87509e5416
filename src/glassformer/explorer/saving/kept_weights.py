"""Which attention weights a saved page holds, and how finely: all of them where they fit, else what is looked at.

At first every head is held at one level, at least in overview, as finely as there is room for. What room is left goes
to finer weights of the chosen heads, then of the others in the same layer, then of the rest.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from glassformer.explorer import messages as m
from glassformer.explorer.messages.calls import Answering
from glassformer.explorer.saving.view_state import ViewState

EXACT_TOKENS = 512
"""Up to so many queries and keys every head is held with every weight, where there is room."""

_SIDES = (1, 2, 4, 8, 16, 32, 64)
"""What the longest side of an overview is less than ``EXACT_TOKENS`` by."""
_PACKED = 1.15
"""Characters of a packed byte of weights, at most: mantissas hardly compress, and base64 makes 4 of 3."""
_NAMED = 250
"""Characters that tell what the weights are of."""
_FOR_ALL = 0.6
"""The share of the room that overviews of all heads may take, so that the chosen ones can be held finer."""


@dataclass(frozen=True)
class HeadOf:
    """One head of a run, and whether it is one of those that are chosen."""

    run: m.Run
    stack: m.Attention
    layer: int
    head: int
    shown: bool

    @property
    def tokens(self) -> int:
        """Its queries or keys, whichever are more."""
        return max(self.stack.queries, self.stack.keys)

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
    explorer: Answering, run: m.Run, stack: m.Attention, layer: int, head: int, level: int = 0
) -> Float[np.ndarray, "row column"]:
    """A head's whole matrix at a level, put together from the tiles that the page would ask for."""
    tall, wide = (-(-size // 2**level) for size in (stack.queries, stack.keys))
    whole = np.zeros((tall, wide), np.float32)
    for row in range(-(-tall // m.TILE)):
        for column in range(-(-wide // m.TILE)):
            ask = m.AskTile(run=run.run, part=stack.part, layer=layer, head=head, level=level, row=row, column=column)
            answer = explorer.answer("weights", ask)
            assert isinstance(answer, bytes)
            place = whole[row * m.TILE : (row + 1) * m.TILE, column * m.TILE : (column + 1) * m.TILE]
            place[:] = np.frombuffer(answer, "<f4").reshape(place.shape)
    return whole


def coarse_enough(tokens: int, side: int) -> int:
    """The finest level at which a matrix of so many tokens has at most ``side`` rows and columns."""
    return max(0, (tokens - 1) // side).bit_length()


def kept_weights(explorer: Answering, state: ViewState, runs: list[m.Run], room: int) -> dict[str, Any]:
    """The parts ``rows``, ``matrices`` and ``left_out`` of a saved page.

    Args:
        explorer: Who answers.
        state: What is shown.
        runs: Whose weights are wanted.
        room: How many characters there are for them.
    """
    heads = sorted(_heads(state, runs), key=lambda each: (not each.shown, each.layer != state.layer))
    base = _base_levels(heads, room)
    rows = []
    if any(base):
        # Where not every weight is held, one query can still be followed through all layers and heads.
        rows = [_row(explorer, run, stack, state.pin) for run in runs for stack in run.attentions]
        rows = rows if len(json.dumps(rows)) <= room else []
        room -= len(json.dumps(rows))
    kept: list[dict[str, Any] | None] = []
    for head, level in zip(heads, base, strict=True):
        entry = _entry(explorer, head, level)
        kept.append(entry if _length(entry) <= room else None)
        room -= _length(kept[-1])
    for place, head in enumerate(heads):
        if not head.shown and (head.tokens > EXACT_TOKENS or head.size(0) > room):
            continue
        for level in range(base[place] if head.shown else min(1, base[place])):
            if head.size(level) * 0.6 > room:
                continue  # even if it compresses better than weights do
            entry = _entry(explorer, head, level)
            more = _length(entry) - _length(kept[place])
            if more <= room:
                kept[place], room = entry, room - more
                break
    return {"rows": rows, "matrices": [entry for entry in kept if entry], "left_out": _left_out(kept)}


def _heads(state: ViewState, runs: list[m.Run]) -> Iterator[HeadOf]:
    for run in runs:
        for stack in run.attentions:
            chosen = run is runs[0] and stack is state.stack(run)
            for layer in range(stack.layers):
                for head in range(stack.heads):
                    here = (state.layer, state.head) == (layer, head)
                    beside = state.versus is not None and (state.versus.layer, state.versus.head) == (layer, head)
                    yield HeadOf(run, stack, layer, head, chosen and (here or beside))


def _base_levels(heads: list[HeadOf], room: int) -> list[int]:
    levels = [0 for _ in heads]
    for smaller in _SIDES:
        levels = [coarse_enough(each.tokens, EXACT_TOKENS // smaller) for each in heads]
        total = sum(each.size(level) for each, level in zip(heads, levels, strict=True))
        if total <= (room * _FOR_ALL if any(levels) else room):
            break
    return levels


def _entry(explorer: Answering, of: HeadOf, level: int) -> dict[str, Any]:
    cells = matrix(explorer, of.run, of.stack, of.layer, of.head, level)
    return {
        "run": of.run.run,
        "part": of.stack.part,
        "layer": of.layer,
        "head": of.head,
        "level": level,
        "rows": cells.shape[0],
        "columns": cells.shape[1],
        "numbers": pack(cells),
    }


def _length(entry: dict[str, Any] | None) -> int:
    return 0 if entry is None else len(json.dumps(entry)) + 2


def _row(explorer: Answering, run: m.Run, stack: m.Attention, pin: int | None) -> dict[str, Any]:
    query = pin if pin is not None and pin < stack.queries else stack.queries - 1
    asked = m.AskRows(run=run.run, part=stack.part, query=query)
    answer = explorer.answer("rows", asked)
    assert isinstance(answer, bytes)
    return {"asked": asked.model_dump(mode="json"), "numbers": pack(np.frombuffer(answer, "<f4"))}


def _left_out(kept: list[dict[str, Any] | None]) -> list[str]:
    told = []
    overview = sum(entry is not None and entry["level"] > 0 for entry in kept)
    missing = kept.count(None)
    if overview:
        told.append(f"Of {overview} of {len(kept)} heads there is an overview without single weights.")
    if missing:
        told.append(f"There was no room for {missing} of {len(kept)} heads.")
    return told
