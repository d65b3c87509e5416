"""Untrusted tables of text: CSV, TSV and JSON lines.

Every error about a row names the file and the line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from glassformer.errors import InputError, require
from glassformer.untrusted import read_text

MAX_FILE = 1 << 29
"""Largest file: half a GiB, some hundred million words."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_OBJECTS = frozenset({".jsonl", ".ndjson"})


class Record(NamedTuple):
    """One row: the number of its (last) line, from 1, and its cells by position or by name."""

    line: int
    cells: Mapping[int | str, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """All rows of a file."""

    path: Path
    records: tuple[Record, ...]
    """At least one. In CSV and TSV the first may be a header."""
    named: bool
    """Whether every row names its cells, as in JSON lines."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names in the first row: of its cells in JSON lines, its cells otherwise."""
        first = self.records[0].cells
        return tuple(str(name) for name in (first if self.named else first.values()))

    def select(self, *columns: str | int) -> list[Record]:
        """The given columns of every row, by position in the order of ``columns``.

        Columns are names, so that the first row of a CSV or TSV is the header, or positions from 0, so that it is not.
        """
        names = [column for column in columns if isinstance(column, str)]
        require(
            len(names) in (0, len(columns)) and not (self.named and len(names) < len(columns)),
            f"the columns {columns} of {self.path}",
            "names" if self.named else "names, or positions from 0, but not both",
            "Positions are for files without a header.",
        )
        if self.named or not names:
            return [Record(line, self._pick(line, cells, columns)) for line, cells in self.records]
        for name in names:
            require(
                self.columns.count(name) == 1,
                f"{self.path}, line {self.records[0].line}: the columns {', '.join(map(repr, self.columns[:20]))}",
                f"one column {name!r}",
                "Pass the names of the columns, or their positions from 0 without a header.",
            )
        require(len(self.records) > 1, f"{self.path} with a header and no rows", "at least one row", "Add some.")
        places = [self.columns.index(name) for name in names]
        return [Record(line, self._pick(line, cells, places)) for line, cells in self.records[1:]]

    def _pick(self, line: int, cells: Mapping[int | str, Any], columns: Any) -> dict[int | str, Any]:
        for column in columns:
            if column not in cells:
                got = f"{self.path}, line {line}: the columns {', '.join(map(str, cells))[:500]}"
                raise InputError(got, f"a column {column!r}", "Pass the columns to read.")
        return {place: cells[column] for place, column in enumerate(columns)}


def read_table(path: Path | str) -> Table:
    """The rows of a CSV, TSV or JSON-lines file, by its suffix. Blank lines are skipped.

    CSV follows RFC 4180. TSV has no quoting, as in GLUE's files: a quotation mark is an ordinary character.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    known = ", ".join([*_DELIMITERS, *sorted(_OBJECTS)])
    named = suffix in _OBJECTS
    require(
        suffix in _DELIMITERS or named, f"{path}, a file of unknown kind", f"a name that ends in {known}", "Rename it."
    )
    text = read_text(path, MAX_FILE)
    require("\0" not in text, f"{path}: a NUL byte", "text", "This looks like a binary file.")
    records = tuple(_objects(path, text) if named else _cells(path, text, _DELIMITERS[suffix]))
    require(bool(records), f"{path}, which is empty", "at least one row", "Check the path.")
    if not named:
        _require_equal_widths(path, records)
    return Table(path, records, named)


def _cells(path: Path, text: str, delimiter: str) -> Iterator[Record]:
    limit = csv.field_size_limit(MAX_FILE)
    quoting: Literal[0, 3] = 3 if delimiter == "\t" else 0  # none in TSV
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield Record(reader.line_num, dict(enumerate(cells)))
    except csv.Error as error:
        fix = "Quote cells that have commas, and double the quotes inside them."
        raise InputError(f"{path}, line {reader.line_num}: {error}", "CSV after RFC 4180", fix) from error
    finally:
        csv.field_size_limit(limit)


def _objects(path: Path, text: str) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError(f"a {type(content).__name__}")
        except (ValueError, RecursionError) as error:
            got = f"{path}, line {number}: no JSON object ({error})"
            raise InputError(got, 'a line such as {"text": ..., "label": ...}', "Write one for each row.") from error
        yield Record(number, content)


def _require_equal_widths(path: Path, records: tuple[Record, ...]) -> None:
    width = len(records[0].cells)
    for record in records:
        require(
            len(record.cells) == width,
            f"{path}, line {record.line}: {len(record.cells)} cells",
            f"{width}, as in line {records[0].line}",
            "In CSV, a text with commas needs quotes; in TSV, a text must have no tabs.",
        )
