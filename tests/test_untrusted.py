from __future__ import annotations

import os
from pathlib import Path

from glassformer.text import known_name, one_line, short, shown
from glassformer.untrusted import parse_json, read_bytes, read_text
from refusals import refused


def test_all_numbers_of_json_are_floats(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1, -0, 1e2], "b": "text"}')
    value = parse_json(tmp_path / "x.json")
    assert value == {"a": [1.0, -0.0, 100.0], "b": "text"}
    assert all(type(number) is float for number in value["a"])


def test_suggestions() -> None:
    assert known_name("QM", ["Km", "Qm"]) == "Did you mean 'Qm'?"
    assert known_name("q" * 10**6, ["Km", "Qm"]) == "Known are Km, Qm."


def test_only_regular_files_of_a_fair_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert read_bytes(tmp_path / "file", largest=3) == b"abc"
    with refused("of 3 bytes", expected="at most 2 bytes"):
        read_bytes(tmp_path / "file", largest=2)
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "a pipe"), ("missing", "No such file"), (".", "a directory")):
        with refused(words):
            read_bytes(tmp_path / name)
    (tmp_path / "empty").touch()
    with refused("which is empty"):
        read_bytes(tmp_path / "empty")


def test_a_repeated_key_among_very_many_is_found(tmp_path: Path) -> None:
    # Counting each key anew would take 10^11 comparisons.
    keys = ", ".join(f'"{number}": 0' for number in [*range(300_000), 299_999])
    (tmp_path / "x.json").write_text(f"{{{keys}}}")
    with refused("'299999' twice"):
        parse_json(tmp_path / "x.json")


def test_text_is_utf_8_with_or_without_its_mark(tmp_path: Path) -> None:
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfa")
    assert read_text(tmp_path / "marked") == "a"
    (tmp_path / "latin").write_bytes(b"a\xe9")
    with refused("0xe9 at offset 1"):
        read_text(tmp_path / "latin")


def test_messages_are_one_short_line() -> None:
    assert len(short("x" * 10**6)) < 70
    assert shown(Path("a\x1b[31mb")).isprintable()
    assert one_line("  a\x1b[31m\nb\u202e\xa0é ") == "a\\x1b[31m b\\u202e é"
