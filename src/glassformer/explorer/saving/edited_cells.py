"""A head's matrices with somebody's edits laid over them, as the page's ``views/design/weights.ts`` lays them.

An edit is the address of a cell and the number as it was typed: ``{"Km.2.3": "1.5"}``. ``size.qk``, ``size.pos`` and
``size.len`` stand for another number of columns of keys and queries, of columns of ``pos`` (0: no positions) and of its
rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from glassformer.explorer.messages import HeadWeightsMessage

_LONGEST = 40
_LARGEST = 1e300
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_SIZE = re.compile(r"[0-9]{1,3}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")

Rows = list[list[float]]


def edited(design: HeadWeightsMessage, cells: Mapping[str, str]) -> HeadWeightsMessage:
    """The weights with the edits in them; edits that are no number, or of no cell, are passed over.

    Args:
        design: The matrices to begin with.
        cells: The edits.
    """
    tokens = len(design.Km) - (len(design.pos[0]) if design.pos else 0)
    columns = _size(cells, "size.qk", 1, len(design.Km[0]))
    coordinates = _size(cells, "size.pos", 0, len(design.pos[0]) if design.pos else 0)
    length = max(1, _size(cells, "size.len", 1, len(design.pos) if design.pos else 0))
    rows = tokens + coordinates
    matrices: dict[str, Rows | None] = {
        "Km": _fitted(design.Km, rows, columns),
        "Qm": _fitted(design.Qm, rows, columns),
        "Vm": _fitted(design.Vm, rows, len(design.Vm[0])),
        "pos": _fitted(design.pos or [], length, coordinates) if coordinates else None,
    }
    for address, text in cells.items():
        name, _, place = address.partition(".")
        row, _, column = place.partition(".")
        matrix = matrices.get(name)
        number = parse(text)
        if matrix is None or number is None or not _INDEX.fullmatch(row) or not _INDEX.fullmatch(column):
            continue
        if int(row) < len(matrix) and int(column) < len(matrix[0]):
            matrix[int(row)][int(column)] = number
    return HeadWeightsMessage(**matrices)  # type: ignore[arg-type]


def parse(text: str) -> float | None:
    """The number that was typed, perhaps with a true minus sign; None where it is none that is taken."""
    plain = re.sub("^\u2212", "-", text.strip())
    plain = re.sub("e\u2212", "e-", plain, count=1, flags=re.IGNORECASE)
    if len(plain) > _LONGEST or not _NUMBER.fullmatch(plain):
        return None
    number = float(plain)
    return number if abs(number) <= _LARGEST else None


def _size(cells: Mapping[str, str], key: str, least: int, own: int) -> int:
    text = cells.get(key, "")
    return int(text) if _SIZE.fullmatch(text) and int(text) >= least else own


def _fitted(matrix: Rows, rows: int, columns: int) -> Rows:
    def cell(row: int, column: int) -> float:
        return matrix[row][column] if row < len(matrix) and column < len(matrix[row]) else 0.0

    return [[cell(row, column) for column in range(columns)] for row in range(rows)]
