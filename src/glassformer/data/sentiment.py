"""Sentiment data: reviews written for this project, users' files, data sets of the hub.

Data sets are split so that no text occurs in two parts; :func:`leaky_examples` shows what happens
otherwise. Files are tables in CSV, TSV or JSON lines, and untrusted: every error about a row names
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
"""Delimiters of CSV files instead of commas. Spreadsheets write semicolons where the comma is the
decimal point.
"""
_LONGEST_HEADER = 1 << 16
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OBJECTS = frozenset({".jsonl", ".ndjson"})


def reviews() -> tuple[Example, ...]:
    """400 different short reviews of films, books, food and gadgets, written for this project.

    Half are positive. Of each half 120 are plain, 28 have a negation, 28 a contrast and 24 are
    ironic (:data:`~glassformer.data.examples.KINDS`). A TF-IDF classifier trained on SST-2 gets
    nine in ten of the plain ones right, and half or less of each other kind.
    """
    with as_file(files("glassformer.data") / "reviews.tsv") as path:
        return read_examples(path, "text", "label", kind_column="kind")


def leaky_examples() -> tuple[Example, ...]:
    """A toy set like the course's: ten sentences of praise and ten of blame, each of them ten
    times.

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
    """Labelled texts from a CSV, TSV or JSON-lines file (:func:`read_table`).

    A label is the name of a class in any case, or "neg" or "pos", or else the number of a class. By
    default the columns are found by the names "text", "sentence" or "review" and "label",
    "sentiment" or "class", in any case and order; in a file of two columns without such a header,
    as SST-2's are, the labels are in the column with more of them.

    ``all_classes`` refuses a file without examples of a class, from which it cannot be learned.
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
    columns = [text_column, label_column] + ([] if kind_column is None else [kind_column])
    examples = []
    for line, cells in table.select(*columns):
        text = cells[0]
        label = _class_of(cells[1], classes)
        kind = str(cells.get(2, "plain"))
        place = f"{table.path}, line {line}"
        if not isinstance(text, str) or text.strip() == "":
            raise InputError(
                got=(
                    f"{place}: "
                    + (
                        "an empty text"
                        if isinstance(text, str)
                        else f"a text of type {type(text).__name__}"
                    )
                ),
                expected="a text",
                fix="Remove or complete the line.",
            )
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
    """A data set from up to three files; a tenth of the training file becomes a part without a
    file.

    Training texts that are also in a held-out part are dropped, and validation texts that are also
    in the test part. The test part is unchanged, so that results can be compared. (SST-2's
    validation and test parts share no text.) ``columns`` are ``text_column``, ``label_column`` and
    ``classes`` of :func:`read_examples`.
    """
    held_out = [
        None if path is None else read_examples(path, **columns, all_classes=False)
        for path in (validation, test)
    ]
    classes = tuple(columns.get("classes", CLASSES))
    return _complete(read_examples(train, **columns), *held_out, classes=classes)


def from_hub(
    name: str,
    subset: str | None = None,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
) -> SentimentData:
    """A data set of the Hugging Face hub, for example ``stanfordnlp/sst2``, through the package
    ``datasets``.

    Examples without a label (below 0, as in SST-2's test part) are dropped. Missing parts and
    repeated texts are handled as in :func:`from_files`. ``subset`` is one of the data set's
    configurations, if there are several. Columns are found by name as in :func:`read_examples`.
    """
    with naming_extras():
        datasets = importlib.import_module("datasets")
    try:
        parts = datasets.load_dataset(name, subset)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        expected = "the name of a data set, and a connection to the hub or a copy in its cache"
        raise InputError(
            f"the data set {name}: {error}", expected, "Check both, or read a file."
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
    read = {
        part: _labelled(name, parts[part], text, label)
        for part in ("train", "validation", "test")
        if part in parts
    }
    training = read["train"]
    if training is None:
        raise InputError(
            got=f"the data set {name} without a label in 'train'",
            expected="labels from 0",
            fix="Choose another.",
        )
    highest = max(example.label for part in read.values() for example in part or ())
    classes = getattr(features[label], "names", None) or [
        str(number) for number in range(highest + 1)
    ]
    return _complete(
        training or (), read.get("validation"), read.get("test"), classes=tuple(classes)
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
        kept = _without(validation, test or ())
        if len(kept) <= 0:
            raise InputError(
                got=(
                    f"{len(validation)} validation examples, all of whose texts are in the test "
                    "part"
                ),
                expected="other texts than in the test part",
                fix="Omit the validation file: a part is then split off from the training file.",
            )
        validation = kept
    missing = (not validation) + (not test)
    if missing:
        train, *cut = split_by_text(train, [1 - _HELD_OUT * missing, *[_HELD_OUT] * missing])
        validation = validation or cut.pop(0)
        test = test or cut.pop(0)
    labels = {example.label for example in train}
    if len(labels) == 1:
        raise InputError(
            got=(
                f"{len(train)} training examples, all of "
                f"{', '.join(classes[label] for label in labels)}, once held-out texts "
                "are left out"
            ),
            expected="at least two classes",
            fix="Pass more texts, or other held-out files.",
        )
    return SentimentData(train, validation or (), test or (), classes)


def _without(examples: tuple[Example, ...], later: tuple[Example, ...]) -> tuple[Example, ...]:
    repeated = {example.text for example in leaked(later, examples)}
    return tuple(example for example in examples if example.text not in repeated)


def _find_columns(table: Table, classes: Sequence[str]) -> tuple[Table, str, str]:
    """The text and label columns: by the usual names, or by the content of two columns, which then
    get a header.
    """
    texts, labels = (
        [name for name in table.columns if _plain_name(name) in names]
        for names in (_TEXT_NAMES, _LABEL_NAMES)
    )
    if len(texts) == len(labels) == 1:
        return table, texts[0], labels[0]
    if len(table.columns) == 2 and not table.named and not texts and not labels:
        first, second = (
            sum(_class_of(cells[place], classes) is not None for _, cells in table.records)
            for place in (0, 1)
        )
        # Most, not all, so that reading reports the line with the wrong label.
        if max(first, second) > len(table.records) / 2 and first != second:
            header = Record(
                0, dict(enumerate(("label", "text") if first > second else ("text", "label")))
            )
            return replace(table, records=(header, *table.records)), "text", "label"
    raise InputError(
        f"{table.path}, line {table.records[0].line}: the columns {', '.join(map(repr, table.columns[:20]))}"[
            :600
        ],
        "a recognizable text and label column, for example a header 'text' and 'label'",
        "Pass text_column and label_column, or name the columns so.",
    )


def _unknown_label(
    table: Table, line: int, cells: Mapping[int | str, Any], classes: Sequence[str]
) -> InputError:
    """The refusal of a row; a first row without the usual names may be a header of others."""
    got = f"{table.path}, line {line}: the label {str(cells[1])[:80]!r}"
    numbered = ", ".join(f"{number} or {name}" for number, name in enumerate(classes))
    has_header = table.named or table.records[0].line > 0
    if not has_header and line == table.records[1].line:
        names = ", ".join(repr(str(name)[:80]) for name in table.records[1].cells.values())
        got += f" in the first row, whose cells {names} are no known names of columns either"
        numbered += "; or a header such as 'text' and 'label'"
    return InputError(got, numbered, "Correct the label, or pass the columns or all classes.")


def _class_of(label: Any, classes: Sequence[str]) -> int | None:
    """The number of the class of this label; None for an unknown label."""
    written = str(label).strip().lower()
    names = [name.lower() for name in classes]
    whole = re.fullmatch(r"([0-9]{1,9})(\.0+)?", written)
    number = None if whole is None else int(whole[1])
    # A name comes first: it may be the number of another class.
    for name in (written, _SHORT_NAMES.get(written) if number is None else str(number)):
        if name in names:
            return names.index(name)
    if number is not None and number < len(classes):
        return number
    return None


def _column(name: str, features: Iterable[str], given: str | None, usual: Sequence[str]) -> str:
    names = list(features)
    found = [
        column
        for column in names
        if column == given or (given is None and _plain_name(column) in usual)
    ]
    if len(found) != 1:
        raise InputError(
            got=f"the data set {name} with the columns {', '.join(names)}",
            expected=f"one column {given!r}"
            if given is not None
            else f"one column of {', '.join(usual)}",
            fix="Pass text_column and label_column.",
        )
    return found[0]


def _labelled(
    name: str, rows: Iterable[dict[str, Any]], text: str, label: str
) -> tuple[Example, ...] | None:
    """The examples with a label; None if there are none."""
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

    def select(self, *columns: str) -> list[Record]:
        """The columns of these names of every row, by position in the order of ``columns``.

        A name that no column has exactly stands for the one that differs from it only in case and
        outer spaces.
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
        return [
            Record(line, {at: cells[key] for at, key in enumerate(keys)}) for line, cells in records
        ]

    def _known_name(self, name: str) -> str:
        exact = [column for column in self.columns if column == name]
        columns = exact or [
            column for column in self.columns if _plain_name(column) == _plain_name(name)
        ]
        if self.named and not columns:
            return name  # a row further down may have it; the first without it is refused
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
    """The rows of a CSV, TSV or JSON-lines file, by its suffix. Blank lines are skipped.

    Files are in UTF-8, or in UTF-16 with a byte order mark. CSV follows RFC 4180, with commas or
    else semicolons, tabs
    or bars: the delimiter by which the first row has the names of columns, or by which all rows
    have as many cells. TSV has no quoting, as in GLUE's files: a quotation mark is an ordinary
    character.

    Args:
        path: The file.
        columns: Names that its header may have besides "text", "label" and the like.
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
    else:
        if suffix == ".csv":
            delimiter = _delimiter(text, columns)
        else:
            delimiter = _DELIMITERS[suffix]
        records = tuple(_cells(path, text, delimiter, quoted=suffix == ".csv"))
    if not bool(records):
        raise InputError(
            got=f"{path}, which is empty",
            expected="at least one row",
            fix="Check the path.",
        )
    return Table(path, records, named)


def _decoded(path: Path) -> str:
    """The text of a file in UTF-8, or in UTF-16 where it begins with a byte order mark of that."""
    with path.open("rb") if path.is_file() else io.BytesIO() as file:
        utf16 = file.read(2) in _UTF16_MARKS
    if not utf16:
        return read_text(path, _MAX_FILE)
    try:
        return read_bytes(path, _MAX_FILE).decode("utf-16")
    except UnicodeDecodeError as error:
        got = f"{path} with a fault in its UTF-16 at byte {error.start:,}"
        raise InputError(got, "a text file in UTF-8 or UTF-16", "Save it as UTF-8 text.") from error


def _delimiter(text: str, columns: Sequence[str]) -> str:
    """The delimiter of CSV: a comma, unless another one fits and the comma does not."""
    delimiters = (_DELIMITERS[".csv"], *_OTHER_DELIMITERS)
    names = {_plain_name(name) for name in (*_TEXT_NAMES, *_LABEL_NAMES, *columns)}
    with_header = [
        delimiter
        for delimiter in delimiters
        if sum(_plain_name(cell) in names for cell in _first_row(text, delimiter)) >= 2
    ]
    fitting = with_header or [
        delimiter for delimiter in delimiters[:1] if _is_table(text, delimiter)
    ]
    fitting = fitting or [delimiter for delimiter in delimiters[1:] if _is_table(text, delimiter)]
    # Without a delimiter that fits, or with several, a fault is reported by the rules of commas.
    return fitting[0] if len(fitting) == 1 else delimiters[0]


def _first_row(text: str, delimiter: str) -> list[str]:
    rows = csv.reader(io.StringIO(text[:_LONGEST_HEADER].lstrip(), newline=""), delimiter=delimiter)
    return next(rows, [])


def _is_table(text: str, delimiter: str) -> bool:
    """Whether all rows have as many cells, at least two."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        widths = {len(cells) for cells in rows if any(cell.strip() for cell in cells)}
    except csv.Error:
        return False
    return len(widths) == 1 and min(widths) >= 2


def _cells(path: Path, text: str, delimiter: str, *, quoted: bool) -> Iterator[Record]:
    limit = csv.field_size_limit(_MAX_FILE)
    # After ``text, label`` the rows have spaces after their delimiters too, also before quotes.
    spaced = quoted and any(cell.startswith(" ") for cell in _first_row(text, delimiter)[1:])
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        skipinitialspace=spaced,
        strict=True,
    )
    first: tuple[int, int] | None = None
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                width, line = first = first or (len(cells), reader.line_num)
                got = f"{path}, line {reader.line_num}: {len(cells)} cells"
                expected = f"{width}, as in line {line}"
                fix = "In CSV, a text with the delimiter needs quotes; in TSV, a text must have no tabs."
                if len(cells) != width:
                    raise InputError(
                        got=got,
                        expected=expected,
                        fix=fix,
                    )
                yield Record(reader.line_num, dict(enumerate(cells)))
    except csv.Error as error:
        fix = "Quote cells that have commas, and double the quotes inside them."
        raise InputError(
            f"{path}, line {reader.line_num}: {error}", "CSV after RFC 4180", fix
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
            got = f"{path}, line {number}: no JSON object ({error})"
            raise InputError(
                got, 'a line such as {"text": ..., "label": ...}', "Write one for each row."
            ) from error
        yield Record(number, content)
