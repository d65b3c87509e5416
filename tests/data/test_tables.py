from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.tables import read_table
from refusals import refused

CELL = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from('",\n;'), max_size=20)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def cells(path: Path, *columns: str | int) -> list[tuple[int, tuple[object, ...]]]:
    return [(line, tuple(found.values())) for line, found in read_table(path).select(*columns)]


def test_csv_has_quotes_commas_and_line_ends_in_cells(tmp_path: Path) -> None:
    path = write(tmp_path / "a.CSV", 'text,label\r\n"good, ""really""\ngood",1\r\n\r\nbad,0\r\n')
    assert cells(path, "label", "text") == [(3, ("1", 'good, "really"\ngood')), (5, ("0", "bad"))]


def test_tsv_takes_quotes_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", '"good" film\t1\n"bad\t0\n\n')
    assert cells(path, 0, 1) == [(1, ('"good" film', "1")), (2, ('"bad', "0"))]


def test_json_lines_keep_their_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "good\\t", "label": 1, "more": []}\n\n{"label": "0", "text": "bad"}')
    table = read_table(path)
    assert table.columns == ("text", "label", "more")
    assert cells(path, "text", "label") == [(1, ("good\t", 1)), (3, ("bad", "0"))]


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    for path in (
        write(tmp_path / "a.csv", "\ufefftext,label\na,1\n"),
        write(tmp_path / "a.tsv", "\ufefftext\tlabel\na\t1"),
    ):
        assert cells(path, "text") == [(2, ("a",))]


@given(rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_what_pythons_writers_write_is_read_back(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("one", "two"), *rows])
    directory = tmp_path_factory.mktemp("tables")
    path = write(directory / "a.csv", written.getvalue())
    kept = [row for row in rows if any(cell.strip() for cell in row)]
    if kept:
        assert [found for _, found in cells(path, "one", "two")] == kept
    path = write(directory / "a.jsonl", "".join(json.dumps({"one": one, "two": two}) + "\n" for one, two in rows))
    assert [found for _, found in cells(path, "one", "two")] == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"good\t1\nb\x00d\t0\n", r"a\.tsv: a NUL byte"),
        ("a.csv", b"text,label\nna\xefve,1\n", r"a\.csv with the byte 0xef at offset 13"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"with the byte 0xff"),
        ("a.tsv", "text\tlabel\n".encode("utf-16"), r"with the byte 0xff at offset 0"),
        ("a.tsv", "good\t1\nbad\n", r"line 2: 1 cells; ^2, as in line 1"),
        ("a.csv", "text,label\ngood, really,1\n", r"line 2: 3 cells; needs quotes"),
        ("a.csv", 'text,label\ngood,1\n"never closed,0\nbad,0\n', r"line 4: unexpected end of data"),
        ("a.csv", 'text,label\n"good" film,1\n', r"line 2: .*expected"),
        ("a.jsonl", '{"text": "good"}\n{"text": "cut', r"line 2: no JSON"),
        ("a.jsonl", "[1, 2]\n", r"line 1: no JSON object \(a list"),
        ("a.jsonl", "[" * 100_000 + "\n", r"line 1: no JSON"),
        ("a.ndjson", "{\n", r"line 1: no JSON"),
        ("a.tsv", "", r"which is empty"),
        ("a.csv", " \n\n , \n", r"which is empty"),
        ("a.txt", "good\t1\n", r"unknown kind; \.csv"),
        ("a", "good\t1\n", r"unknown kind"),
    ],
)
def test_faults_name_the_file_and_the_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    got, _, other = message.partition("; ")
    with refused(got, anywhere=other):
        read_table(write(tmp_path / name, content))


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "directory.csv").mkdir()
    for path in (tmp_path / "nowhere.csv", tmp_path / "directory.csv"):
        with refused(path.name):
            read_table(path)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_file_without_end_is_not_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a hole: a gigabyte that takes no room on the disk
    with refused("of 1,073,741,824 bytes"):
        read_table(path)


def test_a_long_text_is_read_and_pythons_limit_stays(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    text = "word " * 100_000
    path = write(tmp_path / "a.csv", f'text,label\n"{text}",1\n')
    assert cells(path, "text") == [(2, (text,))]
    assert csv.field_size_limit() == before


def test_columns_that_are_not_there_are_refused(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", "text,label\ngood,1\n"))
    with refused("line 1: the columns 'text', 'label'", expected="one column 'verdict'"):
        table.select("text", "verdict")
    with refused("line 1: the columns 0, 1", expected="a column 2"):
        table.select(0, 2)
    with refused(expected="names, or positions"):
        table.select("text", 1)
    with refused(expected="one column 'text'"):
        read_table(write(tmp_path / "b.csv", "text,text\ngood,1\n")).select("text")
    with refused("no rows"):
        read_table(write(tmp_path / "c.csv", "text,label\n")).select("text")
    table = read_table(write(tmp_path / "a.jsonl", '{"text": "good"}\n{"review": "bad"}\n'))
    with refused("line 2: the columns review", expected="a column 'text'"):
        table.select("text")
    with refused(expected="names"):
        table.select(0)
