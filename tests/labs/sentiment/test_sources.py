"""Where texts come from: the reviews that ship, files by name, and what is neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.data.examples import KINDS, Example, SentimentData, leaked
from glassformer.data.sentiment import reviews
from glassformer.errors import InputError
from glassformer.labs.sentiment.sources import REVIEWS, find_data, kind_examples

ROWS = [f"{word} number {number}\t{label}" for number in range(20) for word, label in (("good", 1), ("bad", 0))]


def write(path: Path, rows: list[str]) -> None:
    path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")


def test_the_reviews_are_split_so_that_nothing_leaks() -> None:
    name, data = find_data(None)
    assert name == REVIEWS
    assert (len(data.train), len(data.validation), len(data.test)) == (240, 40, 120)
    assert leaked(data.train, (*data.validation, *data.test)) == ()
    assert {example.kind for example in data.test} == set(KINDS)
    assert kind_examples(data) == data.test


def test_a_directory_of_parts(tmp_path: Path) -> None:
    write(tmp_path / "films_train.tsv", ROWS[:30])
    write(tmp_path / "films_dev.tsv", ROWS[30:36])
    write(tmp_path / "films_test.tsv", ROWS[36:])
    (tmp_path / "readme_train.md").write_text("no table")
    name, data = find_data(str(tmp_path))
    assert name == "films"
    assert (len(data.train), len(data.validation), len(data.test)) == (30, 6, 4)
    assert data.test[0] == Example("good number 18", 1)


def test_one_file_is_split(tmp_path: Path) -> None:
    write(tmp_path / "mine.tsv", ROWS)
    name, data = find_data(str(tmp_path / "mine.tsv"))
    assert name == "mine"
    assert len(data.train) + len(data.validation) + len(data.test) == 40
    assert leaked(data.train, data.test) == ()


def test_other_data_is_looked_at_through_the_reviews() -> None:
    some = reviews()
    plain = tuple(Example(f"text {number}", number % 2) for number in range(9))
    data = SentimentData((*plain[:3], some[0]), plain[3:6], plain[6:])
    assert kind_examples(data) == some[1:]


def test_what_is_neither_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a training file"):
        find_data(str(tmp_path))
    write(tmp_path / "a_train.tsv", ROWS)
    write(tmp_path / "b_train.tsv", ROWS)
    with pytest.raises(InputError, match=r"2 train files: a_train\.tsv, b_train\.tsv"):
        find_data(str(tmp_path))
    for source in (str(tmp_path / "none"), "./none", "none.csv"):
        with pytest.raises(InputError, match="not there"):
            find_data(source)
