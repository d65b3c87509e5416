"""Sentiment data: reviews written for this project, users' files, data sets of the hub.

Data sets are split so that no text occurs in two parts; :func:`leaky_examples` shows the effect of
repeated texts. Files are untrusted tables in CSV, TSV or JSON lines: every error about a row names
the file and the line.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.data.examples import CLASSES, Example, SentimentData, leaked, split_by_text
from glassformer.errors import InputError, naming_extras
from glassformer.files import local_path
from glassformer.untrusted import read_bytes, read_text

_TEXT_NAMES = ("text", "sentence", "review")
_LABEL_NAMES = ("label", "sentiment", "class")
_SHORT_NAMES = {"neg": "negative", "pos": "positive"}
_HELD_OUT = 0.1
_MAX_FILE = 1 << 29
"""Largest file: 537 MB, some hundred million words."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_OTHER_DELIMITERS = (";", "\t", "|")
"""Delimiters of CSV files besides commas: spreadsheets write semicolons where 1,5 is a number."""
_LONGEST_HEADER = 1 << 16
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OBJECTS = frozenset({".jsonl", ".ndjson"})


def reviews() -> tuple[Example, ...]:
    """Return 400 different short reviews of films, books, food and gadgets.

    They were written for this project. Half are positive. Each half has 120 plain reviews, 28 with
    a negation, 28 with a contrast and 24 ironic ones (:data:`~glassformer.data.examples.KINDS`). A
    TF-IDF classifier trained on SST-2 gets nine in ten plain reviews right, and at most half of
    each other kind.
    """
    with as_file(files("glassformer.data") / "reviews.tsv") as path:
        return read_examples(path, "text", "label", kind_column="kind")


def leaky_examples() -> tuple[Example, ...]:
    """Return a toy set like the course's: ten sentences of praise and ten of blame, ten times.

    Split at random, every held-out sentence is also in the training part.
    """
    with as_file(files("glassformer.data") / "leaky.tsv") as path:
        sentences = read_examples(path, "text", "label")
    return sentences[:10] * 10 + sentences[10:] * 10


def read_examples(
    path: Path | str,
    text_column: str | None = None,
    label_column: str | None = None,
    *,
    kind_column: str | None = None,
    classes: Sequence[str] = CLASSES,
    all_classes: bool = True,
) -> tuple[Example, ...]:
    """Return labelled texts of a CSV, TSV or JSON-lines file (:func:`read_table`).

    A label is the name of a class in any case, or "neg" or "pos", or else the number of a class. By
    default the columns are found by the names "text", "sentence" or "review" and "label",
    "sentiment" or "class", in any case and order. In a file of two columns without such a header,
    such as SST-2's, the column with more labels is the label column.

    ``all_classes`` refuses a file without examples of a class: such a class cannot be learned.
    """
    if (text_column is None) != (label_column is None):
        raise InputError(
            got=f"text_column = {text_column!r} with label_column = {label_column!r}",
            expected="both or none",
            fix="Pass both columns.",
        )
    columns = [column for column in (text_column, label_column, kind_column) if column is not None]
    table = read_table(path, columns)
    if text_column is None or label_column is None:
        table, text_column, label_column = _find_columns(table, classes)
    columns = [text_column, label_column]
    if kind_column is not None:
        columns.append(kind_column)
    examples = []
    for line, cells in table.select(*columns):
        text = cells[0]
        label = _class_of(cells[1], classes)
        kind = str(cells.get(2, "plain"))
        if not isinstance(text, str):
            raise _unusable_text(table, line, f"a text of type {type(text).__name__}")
        if text.strip() == "":
            raise _unusable_text(table, line, "an empty text")
        if label is None:
            raise _unknown_label(table, line, cells, classes)
        examples.append(Example(text, label, kind))
    absent = set(range(len(classes))) - {example.label for example in examples}
    if absent and all_classes:
        raise InputError(
            got=(
                f"{table.path}: no example of "
                f"{', '.join(classes[label] for label in sorted(absent))}"
            ),
            expected=f"examples of all of {', '.join(classes)}",
            fix="Check the labels: a class without examples cannot be learned.",
        )
    return tuple(examples)


def from_files(
    train: Path | str,
    validation: Path | str | None = None,
    test: Path | str | None = None,
    **columns: Any,
) -> SentimentData:
    """Return a data set of up to three files; missing parts come from the training file.

    A part without a file is a tenth of the training file. Training texts that are also in a
    held-out part are dropped, and validation texts that are also in the test part. The test part is
    unchanged, so that results can be compared. (SST-2's validation and test parts share no text.)
    ``columns`` are ``text_column``, ``label_column`` and ``classes`` of :func:`read_examples`.
    """

    def held_out(path: Path | str | None) -> tuple[Example, ...] | None:
        if path is None:
            return None
        return read_examples(path, **columns, all_classes=False)

    validation_part = held_out(validation)
    test_part = held_out(test)
    classes = tuple(columns.get("classes", CLASSES))
    return _complete(read_examples(train, **columns), validation_part, test_part, classes=classes)


def from_hub(
    name: str,
    subset: str | None = None,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
) -> SentimentData:
    """Return a data set of the Hugging Face hub, such as ``stanfordnlp/sst2``.

    The package ``datasets`` loads it. Examples without a label (below 0, as in SST-2's test part)
    are dropped. Missing parts and repeated texts are handled as in :func:`from_files`. ``subset``
    is one of the data set's configurations, if there are several. Columns are found by name as in
    :func:`read_examples`.
    """
    with naming_extras():
        datasets = importlib.import_module("datasets")
    try:
        parts = datasets.load_dataset(name, subset)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(
            got=f"the data set {name}: {error}",
            expected="the name of a data set, and a connection to the hub or a copy in its cache",
            fix="Check both, or read a file.",
        ) from error
    if "train" not in parts:
        raise InputError(
            got=f"the data set {name} with the parts {sorted(parts)}",
            expected="'train' in it",
            fix="Choose another.",
        )
    features = parts["train"].features
    text = _column(name, features, text_column, _TEXT_NAMES)
    label = _column(name, features, label_column, _LABEL_NAMES)
    examples = {
        part: _labelled(name, parts[part], text, label)
        for part in ("train", "validation", "test")
        if part in parts
    }
    training = examples["train"]
    if training is None:
        raise InputError(
            got=f"the data set {name} without a label in 'train'",
            expected="labels from 0",
            fix="Choose another.",
        )
    all_examples = chain.from_iterable(part or () for part in examples.values())
    highest = max(example.label for example in all_examples)
    classes = getattr(features[label], "names", None)
    if not classes:
        classes = [str(number) for number in range(highest + 1)]
    return _complete(
        training, examples.get("validation"), examples.get("test"), classes=tuple(classes)
    )


def _complete(
    train: tuple[Example, ...],
    validation: tuple[Example, ...] | None,
    test: tuple[Example, ...] | None,
    *,
    classes: tuple[str, ...],
) -> SentimentData:
    """Drop from each part the texts of later parts, then split off the missing parts."""
    train = _without(train, (validation or ()) + (test or ()))
    if validation:
        unique = _without(validation, test or ())
        if not unique:
            raise InputError(
                got=(
                    f"{len(validation)} validation examples, all of whose texts are in the test "
                    "part"
                ),
                expected="other texts than in the test part",
                fix="Omit the validation file: a part is then split off from the training file.",
            )
        validation = unique
    missing = (not validation) + (not test)
    if missing:
        train, *cut = split_by_text(train, [1 - _HELD_OUT * missing, *[_HELD_OUT] * missing])
        validation = validation or cut.pop(0)
        test = test or cut.pop(0)
    labels = {example.label for example in train}
    if len(labels) == 1:
        raise InputError(
            got=(
                f"{len(train)} training examples, all of {classes[labels.pop()]}, once held-out "
                "texts are left out"
            ),
            expected="at least two classes",
            fix="Pass more texts, or other held-out files.",
        )
    return SentimentData(train, validation or (), test or (), classes)


def _without(examples: tuple[Example, ...], later: tuple[Example, ...]) -> tuple[Example, ...]:
    repeated = {example.text for example in leaked(later, examples)}
    return tuple(example for example in examples if example.text not in repeated)


def _find_columns(table: Table, classes: Sequence[str]) -> tuple[Table, str, str]:
    """Return the table and its text and label columns, found by name or by content."""
    texts = [name for name in table.columns if _plain_name(name) in _TEXT_NAMES]
    labels = [name for name in table.columns if _plain_name(name) in _LABEL_NAMES]
    if len(texts) == len(labels) == 1:
        return table, texts[0], labels[0]
    if len(table.columns) == 2 and not table.named and not texts and not labels:
        label_place = _label_place(table, classes)
        if label_place is not None:
            names = ("label", "text") if label_place == 0 else ("text", "label")
            header = Record(0, dict(enumerate(names)))
            return replace(table, records=(header, *table.records)), "text", "label"
    columns = ", ".join(map(repr, table.columns[:20]))
    raise InputError(
        got=f"{table.path}, line {table.records[0].line}: the columns {columns}"[:600],
        expected="a recognizable text and label column, for example a header 'text' and 'label'",
        fix="Pass text_column and label_column, or name the columns so.",
    )


def _label_place(table: Table, classes: Sequence[str]) -> int | None:
    """Return which of two columns, 0 or 1, has the labels; None if that is unclear."""
    first = sum(_class_of(cells[0], classes) is not None for _, cells in table.records)
    second = sum(_class_of(cells[1], classes) is not None for _, cells in table.records)
    # Most cells suffice: reading then reports the line with the wrong label.
    if first == second or max(first, second) <= len(table.records) / 2:
        return None
    return 0 if first > second else 1


def _unusable_text(table: Table, line: int, fault: str) -> InputError:
    return InputError(
        got=f"{table.path}, line {line}: {fault}",
        expected="a text",
        fix="Remove or complete the line.",
    )


def _unknown_label(
    table: Table, line: int, cells: Mapping[int | str, Any], classes: Sequence[str]
) -> InputError:
    """Return the refusal of a row; a first row may be a header without the usual names."""
    fault = f"{table.path}, line {line}: the label {str(cells[1])[:80]!r}"
    expected = ", ".join(f"{number} or {name}" for number, name in enumerate(classes))
    has_header = table.named or table.records[0].line > 0
    if not has_header and line == table.records[1].line:
        names = ", ".join(repr(str(name)[:80]) for name in table.records[1].cells.values())
        fault += f" in the first row, whose cells {names} are no known names of columns either"
        expected += "; or a header such as 'text' and 'label'"
    return InputError(fault, expected, "Correct the label, or pass the columns or all classes.")


def _class_of(label: Any, classes: Sequence[str]) -> int | None:
    """Return the number of the class of this label; None for an unknown label."""
    text = str(label).strip().lower()
    names = [name.lower() for name in classes]
    # A name comes first: it may be the number of another class.
    if text in names:
        return names.index(text)
    match = re.fullmatch(r"([0-9]{1,9})(\.0+)?", text)
    if match is None:
        long_name = _SHORT_NAMES.get(text)
        return names.index(long_name) if long_name in names else None
    number = int(match[1])
    if str(number) in names:
        return names.index(str(number))
    return number if number < len(classes) else None


def _column(name: str, features: Iterable[str], requested: str | None, usual: Sequence[str]) -> str:
    names = list(features)
    if requested is None:
        matching = [column for column in names if _plain_name(column) in usual]
        expected = f"one column of {', '.join(usual)}"
    else:
        matching = [column for column in names if column == requested]
        expected = f"one column {requested!r}"
    if len(matching) != 1:
        raise InputError(
            got=f"the data set {name} with the columns {', '.join(names)}",
            expected=expected,
            fix="Pass text_column and label_column.",
        )
    return matching[0]


def _labelled(
    name: str, rows: Iterable[dict[str, Any]], text: str, label: str
) -> tuple[Example, ...] | None:
    """Return the examples with a label; None if there are none."""
    examples = []
    for row in rows:
        if not (isinstance(row[text], str) and isinstance(row[label], int)):
            raise InputError(
                got=(
                    f"the data set {name} with {text} = {row[text]!r:.80} and {label} = "
                    f"{row[label]!r:.80}"
                ),
                expected="a text and a whole number",
                fix="Pass text_column and label_column.",
            )
        if row[label] >= 0:
            examples.append(Example(row[text], row[label]))
    return tuple(examples) or None


class Record(NamedTuple):
    """A row: the number of its (last) line, from 1, and its cells by position or by name."""

    line: int
    cells: Mapping[int | str, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """All rows of a file."""

    path: Path
    records: tuple[Record, ...]
    """Rows, at least one; in CSV and TSV the first may be a header."""
    named: bool
    """True if every row names its cells, as in JSON lines."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names in the first row: the keys of JSON lines, the cells otherwise."""
        first = self.records[0].cells
        return tuple(map(str, first if self.named else first.values()))

    def select(self, *columns: str) -> list[Record]:
        """Return every row with the columns of these names, by position in this order.

        If no column has exactly this name, the name may differ in case and outer spaces.
        """
        records = self.records
        keys = tuple[int | str, ...](map(self._known_name, columns))
        if not self.named:
            if len(records) <= 1:
                raise InputError(
                    got=f"{self.path} with a header and no rows",
                    expected="at least one row",
                    fix="Add some.",
                )
            records = records[1:]
            keys = tuple(self.columns.index(str(key)) for key in keys)
        for line, cells in records:
            missing = next((column for column in keys if column not in cells), None)
            if missing is not None:
                raise InputError(
                    got=f"{self.path}, line {line}: the columns {', '.join(map(str, cells))[:500]}",
                    expected=f"a column {missing!r}",
                    fix="Pass the columns to read.",
                )
        return [Record(line, dict(enumerate(map(cells.get, keys)))) for line, cells in records]

    def _known_name(self, name: str) -> str:
        columns = [column for column in self.columns if column == name]
        if not columns:
            plain_name = _plain_name(name)
            columns = [column for column in self.columns if _plain_name(column) == plain_name]
        if self.named and not columns:
            return name  # a later row may have it; the first row without it is refused
        if len(columns) != 1:
            raise InputError(
                got=(
                    f"{self.path}, line {self.records[0].line}: the columns "
                    f"{', '.join(map(repr, self.columns[:20]))}"
                ),
                expected=f"one column {name!r}",
                fix="Pass the names of the columns, which the first row has.",
            )
        return columns[0]


def _plain_name(name: str) -> str:
    return name.strip().casefold()


def read_table(path: Path | str, columns: Sequence[str] = ()) -> Table:
    """Return the rows of a CSV, TSV or JSON-lines file, by its suffix; blank lines are skipped.

    Files are in UTF-8, or in UTF-16 with a byte order mark. CSV follows RFC 4180, with commas or
    else semicolons, tabs or bars: the delimiter that gives the first row the names of columns, or
    all rows the same number of cells. TSV has no quoting, as in GLUE's files: a quotation mark is
    an ordinary character.

    Args:
        path: The file.
        columns: Names that the header may have besides "text", "label" and the like.
    """
    path = local_path(path)
    suffix = path.suffix.lower()
    known = ", ".join([*_DELIMITERS, *sorted(_OBJECTS)])
    named = suffix in _OBJECTS
    if suffix not in _DELIMITERS and not named:
        raise InputError(
            got=f"{path}, a file of unknown kind",
            expected=f"a name that ends in {known}",
            fix="Rename it.",
        )
    text = _decoded(path)
    if "\0" in text:
        raise InputError(
            got=f"{path}: a NUL byte",
            expected="text",
            fix=(
                "This looks like a binary file, or UTF-16 without a byte order mark: save it as "
                "UTF-8."
            ),
        )
    if named:
        records = tuple(_objects(path, text))
    elif suffix == ".csv":
        records = tuple(_cells(path, text, _delimiter(text, columns), quoted=True))
    else:
        records = tuple(_cells(path, text, _DELIMITERS[suffix], quoted=False))
    if not records:
        raise InputError(
            got=f"{path}, which is empty",
            expected="at least one row",
            fix="Check the path.",
        )
    return Table(path, records, named)


def _decoded(path: Path) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark."""
    if not _has_utf16_mark(path):
        return read_text(path, _MAX_FILE)
    try:
        return read_bytes(path, _MAX_FILE).decode("utf-16")
    except UnicodeDecodeError as error:
        raise InputError(
            got=f"{path} with a fault in its UTF-16 at byte {error.start:,}",
            expected="a text file in UTF-8 or UTF-16",
            fix="Save it as UTF-8 text.",
        ) from error


def _has_utf16_mark(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2) in _UTF16_MARKS


def _delimiter(text: str, columns: Sequence[str]) -> str:
    """Return the delimiter of CSV: a comma, unless another one fits and the comma does not."""
    comma = _DELIMITERS[".csv"]
    names = {_plain_name(name) for name in (*_TEXT_NAMES, *_LABEL_NAMES, *columns)}
    fitting = []
    for delimiter in (comma, *_OTHER_DELIMITERS):
        header = _first_row(text, delimiter)
        if sum(_plain_name(cell) in names for cell in header) >= 2:
            fitting.append(delimiter)
    if not fitting and not _is_table(text, comma):
        fitting = [delimiter for delimiter in _OTHER_DELIMITERS if _is_table(text, delimiter)]
    # Without a delimiter that fits, or with several, a fault is reported by the rules of commas.
    return fitting[0] if len(fitting) == 1 else comma


def _first_row(text: str, delimiter: str) -> list[str]:
    rows = csv.reader(io.StringIO(text[:_LONGEST_HEADER].lstrip(), newline=""), delimiter=delimiter)
    return next(rows, [])


def _is_table(text: str, delimiter: str) -> bool:
    """Return whether all rows have as many cells, at least two."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        widths = {len(cells) for cells in rows if any(cell.strip() for cell in cells)}
    except csv.Error:
        return False
    return len(widths) == 1 and min(widths) >= 2


def _cells(path: Path, text: str, delimiter: str, *, quoted: bool) -> Iterator[Record]:
    limit = csv.field_size_limit(_MAX_FILE)
    # A header ``text, label`` means that all rows have spaces after delimiters, also before quotes.
    spaced = quoted and any(cell.startswith(" ") for cell in _first_row(text, delimiter)[1:])
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        skipinitialspace=spaced,
        strict=True,
    )
    width = None
    first_line = 0
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if width is None:
                width = len(cells)
                first_line = reader.line_num
            if len(cells) != width:
                raise InputError(
                    got=f"{path}, line {reader.line_num}: {len(cells)} cells",
                    expected=f"{width}, as in line {first_line}",
                    fix=(
                        "In CSV, a text with the delimiter needs quotes; in TSV, a text must have "
                        "no tabs."
                    ),
                )
            yield Record(reader.line_num, dict(enumerate(cells)))
    except csv.Error as error:
        raise InputError(
            got=f"{path}, line {reader.line_num}: {error}",
            expected="CSV after RFC 4180",
            fix="Quote cells that have commas, and double the quotes inside them.",
        ) from error
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
            raise InputError(
                got=f"{path}, line {number}: no JSON object ({error})",
                expected='a line such as {"text": ..., "label": ...}',
                fix="Write one for each row.",
            ) from error
        yield Record(number, content)
