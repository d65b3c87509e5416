"""The attention weights that a saved page holds: those of the heads that its view shows."""

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
"""Of all heads in a file together; in as many characters as 22 MB."""


def pack(numbers: Float[np.ndarray, "..."]) -> str:
    """Float32 numbers as text: their bytes in four planes, the lowest first, then zlib, then
    base64.

    Of numbers between 0 and 1 the planes with sign and exponent are much alike, which compresses
    well.
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
            tile = whole[row * m.TILE : (row + 1) * m.TILE, column * m.TILE : (column + 1) * m.TILE]
            tile[:] = np.frombuffer(answer, "<f4").reshape(tile.shape)
    return whole


def coarse_enough(tokens: int, side: int) -> int:
    """The finest level at which a matrix of so many tokens has at most ``side`` rows and columns."""
    return max(0, (tokens - 1) // side).bit_length()


def recorded_heads(
    backend: Answering, run: m.Run, stack: m.Attention, places: Sequence[HeadPlace]
) -> list[dict[str, Any]]:
    """The heads at ``places``, at the finest level at which :data:`MOST_WEIGHTS` are enough for
    them.
    """
    level = coarse_enough(max(stack.queries, stack.keys), math.isqrt(MOST_WEIGHTS // len(places)))
    found = []
    for place in places:
        cells = matrix(backend, run, stack, place.layer, place.head, level)
        of = {
            "run": run.run,
            "part": stack.part,
            "layer": place.layer,
            "head": place.head,
            "level": level,
        }
        found.append(
            {**of, "rows": cells.shape[0], "columns": cells.shape[1], "numbers": pack(cells)}
        )
    return found


def recorded_row(backend: Answering, ask: m.AskRows) -> dict[str, Any]:
    """The weights of one query."""
    numbers = np.frombuffer(backend.answer("rows", ask), "<f4")
    return {"asked": ask.model_dump(mode="json"), "numbers": pack(numbers)}
