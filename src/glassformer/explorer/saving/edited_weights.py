"""A head's matrices with the edits of a page's state, as ``web/src/views/design/weights.ts`` computes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from glassformer.explorer.messages import LARGEST, MOST_CELLS, HeadWeightsMessage
from glassformer.explorer.state import CELL, MOST_DIGITS, NUMBER, SIZE

Rows = list[list[float]]


def edited(design: HeadWeightsMessage, cells: Mapping[str, str]) -> HeadWeightsMessage:
    """The weights after the edits.

    Args:
        design: The weights before.
        cells: Edits as in :attr:`State.cells <glassformer.explorer.state.State.cells>`. Edits of unknown cells
            and edits that are not numbers are ignored; so are sizes that would make a matrix too large.
    """
    tokens = len(design.Km) - (len(design.pos[0]) if design.pos else 0)
    columns, coordinates, length = _sizes(design, cells, tokens)
    rows = tokens + coordinates
    matrices: dict[str, Rows | None] = {
        "Km": _fitted(design.Km, rows, columns),
        "Qm": _fitted(design.Qm, rows, columns),
        "Vm": _fitted(design.Vm, rows, len(design.Vm[0])),
        "pos": _fitted(design.pos or [], length, coordinates) if coordinates else None,
    }
    for address, text in cells.items():
        cell, value = re.fullmatch(CELL, address), number(text)
        matrix = matrices[cell[1]] if cell else None
        if cell and matrix and value is not None and int(cell[2]) < len(matrix) and int(cell[3]) < len(matrix[0]):
            matrix[int(cell[2])][int(cell[3])] = value
    return HeadWeightsMessage(**matrices)  # type: ignore[arg-type]


def number(text: str) -> float | None:
    """The number that was typed, or None."""
    if len(text) > MOST_DIGITS or not re.fullmatch(NUMBER, text):
        return None
    value = float(text.replace("\u2212", "-"))
    return value if abs(value) <= LARGEST else None


def _sizes(design: HeadWeightsMessage, cells: Mapping[str, str], tokens: int) -> tuple[int, int, int]:
    """Columns of keys and queries, columns of pos, and rows of pos."""
    own = (len(design.Km[0]), len(design.pos[0]) if design.pos else 0, len(design.pos or ()))

    def size(name: str, least: int, before: int) -> int:
        text = cells.get(f"size.{name}", "")
        return int(text) if re.fullmatch(SIZE, text) and int(text) >= least else before

    columns, coordinates, length = size("qk", 1, own[0]), size("pos", 0, own[1]), max(1, size("len", 1, own[2]))
    largest = max((tokens + coordinates) * columns, coordinates * length)
    return (columns, coordinates, length) if largest <= MOST_CELLS else own


def _fitted(matrix: Rows, rows: int, columns: int) -> Rows:
    """The matrix cut off or filled up with zeros."""
    return [([*row[:columns], *[0.0] * columns])[:columns] for row in [*matrix, *[[]] * rows][:rows]]
