"""Untrusted tables of text: CSV, TSV and JSON lines.

Every error names the file and the line. At most :data:`MAX_LINE` bytes of a line are read.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from glassformer.errors import InputError, require

MAX_LINE = 1 << 24
"""Most bytes of a line, or of a quoted cell over several lines: 16 MiB, some three million words."""

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
    require(
        suffix in _DELIMITERS or suffix in _OBJECTS,
        f"{path}, a file of unknown kind",
        f"a name that ends in {', '.join([*_DELIMITERS, *sorted(_OBJECTS)])}",
        "Rename or convert it.",
    )
    rows = _objects if suffix in _OBJECTS else _quoted if suffix == ".csv" else _plain
    try:
        with path.open("rb") as file:
            records = tuple(rows(path, file))
    except OSError as error:
        raise InputError(f"{path}, which cannot be read: {error}", "a readable file", "Check the path.") from error
    require(bool(records), f"{path}, which is empty", "at least one row", "Check the path.")
    if suffix in _DELIMITERS:
        _require_equal_widths(path, records)
    return Table(path, records, named=suffix in _OBJECTS)


def read_lines(path: Path, readline: Callable[[int], bytes]) -> Iterator[tuple[int, str]]:
    """The lines that ``readline`` of a binary file gives, without ends, numbered from 1, each checked as it is read."""
    number = 0
    while line := readline(MAX_LINE + 1):
        number += 1
        place = f"{path}, line {number}"
        require(
            len(line) <= MAX_LINE,
            f"{place}: more than {MAX_LINE:,} bytes without a line end",
            "one example per line",
            "Check that it is a text file with line ends.",
        )
        require(
            not line.startswith((b"\xff\xfe", b"\xfe\xff")) or number > 1,
            f"{place}: UTF-16",
            "UTF-8",
            "Convert it: iconv -f UTF-16 -t UTF-8.",
        )
        require(b"\0" not in line, f"{place}: a NUL byte", "text", "This looks like a binary file.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            got = f"{place}: byte {line[error.start]:#04x} at place {error.start + 1}, which is not UTF-8"
            raise InputError(got, "UTF-8 text", "Convert it, for example: iconv -f LATIN1 -t UTF-8.") from error
        yield number, text.rstrip("\r\n")


def _plain(path: Path, file: BinaryIO) -> Iterator[Record]:
    for number, line in read_lines(path, file.readline):
        if line.strip():
            yield Record(number, dict(enumerate(line.split("\t"))))


def _quoted(path: Path, file: BinaryIO) -> Iterator[Record]:
    lines = (f"{line}\n" for _, line in read_lines(path, file.readline))
    limit = csv.field_size_limit(MAX_LINE)
    reader = csv.reader(lines, strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield Record(reader.line_num, dict(enumerate(cells)))
    except csv.Error as error:
        fix = "Quote cells that have commas, and double the quotes inside them."
        raise InputError(f"{path}, line {reader.line_num}: {error}", "CSV after RFC 4180", fix) from error
    finally:
        csv.field_size_limit(limit)


def _objects(path: Path, file: BinaryIO) -> Iterator[Record]:
    for number, line in read_lines(path, file.readline):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            got = f"{path}, line {number}: no JSON ({error})"
            raise InputError(
                got, "one JSON object per line", "A JSON file over many lines must be flattened."
            ) from error
        require(
            isinstance(content, dict),
            f"{path}, line {number}: a {type(content).__name__}",
            "one JSON object per line",
            'Write {"text": ..., "label": ...}.',
        )
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
