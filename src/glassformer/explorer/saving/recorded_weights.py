"""Record the attention weights of the heads that a saved page shows."""

import base64
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from glassformer.explorer import messages as m
from glassformer.explorer.api import Answering
from glassformer.explorer.state import HeadPlace

MOST_WEIGHTS = 2**22
"""Largest number of weights of all heads in a file, which take 22 MB as text."""


def pack(numbers: Float[np.ndarray, "..."]) -> str:
    """Write float32 numbers as text: bytes in four planes, the lowest first, then zlib and base64.

    The planes with sign and exponent vary little for numbers between 0 and 1, so they compress
    well.
    """
    planes = np.ascontiguousarray(numbers, dtype="<f4").reshape(-1).view(np.uint8).reshape(-1, 4).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def matrix(
    backend: Answering, run: m.Run, stack: m.Attention, layer: int, head: int, level: int = 0
) -> Float[np.ndarray, "row column"]:
    """Return a head's whole matrix at a level, assembled from its tiles."""
    rows, columns = (-(-size // 2**level) for size in (stack.queries, stack.keys))
    cells = np.zeros((rows, columns), np.float32)
    for row in range(-(-rows // m.TILE)):
        for column in range(-(-columns // m.TILE)):
            ask = m.AskTile(
                run=run.run,
                part=stack.part,
                layer=layer,
                head=head,
                level=level,
                row=row,
                column=column,
            )
            answer = backend.answer("weights", ask)
            tile = cells[row * m.TILE : (row + 1) * m.TILE, column * m.TILE : (column + 1) * m.TILE]
            tile[:] = np.frombuffer(answer, "<f4").reshape(tile.shape)
    return cells


def coarse_enough(tokens: int, side: int) -> int:
    """Return the finest level at which a matrix of ``tokens`` has at most ``side`` rows."""
    return max(0, (tokens - 1) // side).bit_length()


def recorded_heads(
    backend: Answering, run: m.Run, stack: m.Attention, places: Sequence[HeadPlace]
) -> list[dict[str, Any]]:
    """Record the heads at ``places``, at the finest level that fits into :data:`MOST_WEIGHTS`."""
    level = coarse_enough(max(stack.queries, stack.keys), math.isqrt(MOST_WEIGHTS // len(places)))
    heads = []
    for place in places:
        cells = matrix(backend, run, stack, place.layer, place.head, level)
        heads.append(
            {
                "run": run.run,
                "part": stack.part,
                "layer": place.layer,
                "head": place.head,
                "level": level,
                "rows": cells.shape[0],
                "columns": cells.shape[1],
                "numbers": pack(cells),
            }
        )
    return heads


def recorded_row(backend: Answering, ask: m.AskRows) -> dict[str, Any]:
    """Record the weights of one query."""
    numbers = np.frombuffer(backend.answer("rows", ask), "<f4")
    return {"asked": ask.model_dump(mode="json"), "numbers": pack(numbers)}
