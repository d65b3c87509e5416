import os
from pathlib import Path

import pytest
from torch import nn

from glassformer.classifier import Classifier, load_classifier, save_classifier
from glassformer.cli.runs import read_run
from glassformer.cli.training_data import text_data
from glassformer.data.released_tokenizer import read_tokenizer
from glassformer.data.sentiment import read_table
from glassformer.data.subword import load_subwords
from glassformer.data.tokenizer import WordTokenizer
from glassformer.programs.saved import is_program_file, load_program
from glassformer.text import short, shown
from glassformer.training import load_weights
from glassformer.training.metrics import read_records
from glassformer.training.run_directory import RunState
from glassformer.untrusted import json_value, parse_json, read_bytes, read_text
from refusals import refused
from small_models import encoder


def test_all_numbers_of_json_are_floats(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1, -0, 1e2], "b": "text"}')
    value = parse_json(tmp_path / "x.json")
    assert value == {"a": [1.0, -0.0, 100.0], "b": "text"}
    assert all(type(number) is float for number in value["a"])


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


SPECIAL = ["pipe", "device", "link"]


def special(kind: str, path: Path) -> None:
    """Something else at ``path`` than a file of its directory: reading it would wait, never end, or
    lead elsewhere.
    """
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        (path.parent.parent / "elsewhere").write_text("{}")
        path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["tokenizer.json", "classes.json"])
def test_files_of_a_classifier(kind: str, name: str, tmp_path: Path) -> None:
    words = WordTokenizer.from_texts(["a good film", "a bad film"])
    save_classifier(
        Classifier(encoder(vocab_size=words.vocab_size), words, ("bad", "good")), tmp_path / "run"
    )
    load_classifier(tmp_path / "run")
    special(kind, tmp_path / "run" / name)
    with refused(f"{name}, (which is a pipe|a link)"):
        load_classifier(tmp_path / "run")


def test_a_key_twice_deep_nesting_and_half_a_text() -> None:
    for text in ('{"a": 1, "a": 2}', "[" * 10**5, "1" * 5000, "[", '["\\ud800'):
        with refused():
            json_value(text)


@pytest.mark.parametrize("kind", SPECIAL)
def test_files_of_a_run(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name, read in {
        "state.json": RunState.read,
        "config.json": lambda path: read_run(path.parent),
        "metrics.jsonl": lambda path: read_records(path, 9),
        "model.safetensors": lambda path: load_weights(nn.Linear(1, 1), path.parent),
    }.items():
        special(kind, tmp_path / "run" / name)
        with refused():
            read(tmp_path / "run" / name)


@pytest.mark.parametrize("kind", SPECIAL[:2])
def test_texts_and_tokenizers(kind: str, tmp_path: Path) -> None:
    for name, read in {
        "text": lambda path: text_data(path, 8, 0),
        "tokenizer.json": load_subwords,
        "other.json": read_tokenizer,
        "table.csv": read_table,
        "program.json": load_program,
    }.items():
        special(kind, tmp_path / name)
        with refused():
            read(tmp_path / name)
    assert not is_program_file(tmp_path / "program.json")


def test_a_run_whose_configuration_is_nested_deeply(tmp_path: Path) -> None:
    for text in (
        "[" * 10**5,
        '{"description": {"model": ' + "[" * 900 + "]" * 900 + ', "data": {}}, "training": {}}',
    ):
        (tmp_path / "config.json").write_text(text)
        with refused("config.json"):
            read_run(tmp_path)
