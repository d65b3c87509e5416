"""Where texts come from, and the lab from start to end in the smallest sizes: what it leaves, how
it goes on.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from glassformer.classifier import load_classifier
from glassformer.data.examples import KINDS, Example, SentimentData, leaked
from glassformer.data.sentiment import reviews
from glassformer.labs.run import Run, run
from glassformer.labs.sentiment import LAB, sources
from glassformer.labs.sentiment.sources import REVIEWS, find_data, kind_examples
from refusals import refused

ROWS = [
    f"{word} number {number}\t{label}"
    for number in range(20)
    for word, label in (("good", 1), ("bad", 0))
]


def write(path: Path, rows: list[str]) -> None:
    path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")


def test_the_reviews_are_split_so_that_nothing_leaks() -> None:
    name, data = find_data(None)
    assert name == REVIEWS
    assert (len(data.train), len(data.validation), len(data.test)) == (168, 24, 48)
    assert leaked(data.train, (*data.validation, *data.test)) == ()
    assert {example.kind for example in data.train} == {"plain"}
    assert {example.kind for example in kind_examples(data)} == set(KINDS)
    assert leaked(data.train, kind_examples(data)) == ()


def test_a_directory_of_parts(tmp_path: Path) -> None:
    write(tmp_path / "films_train.tsv", ROWS[:30])
    write(tmp_path / "films_dev.tsv", ROWS[30:36])
    write(tmp_path / "films_test.tsv", ROWS[36:])
    (tmp_path / "readme_train.md").write_text("no table")
    name, data = find_data(str(tmp_path))
    assert name == "films"
    assert (len(data.train), len(data.validation), len(data.test)) == (30, 6, 4)
    assert data.test[0] == Example("good number 18", 1)


def test_other_data_is_looked_at_through_the_reviews() -> None:
    some = reviews()
    plain = tuple(Example(f"text {number}", number % 2) for number in range(9))
    data = SentimentData((*plain[:3], some[0]), plain[3:6], plain[6:])
    assert kind_examples(data) == some[1:]
    shouted = dataclasses.replace(some[0], text=f"{some[0].text.upper()} !")
    assert kind_examples(dataclasses.replace(data, train=(shouted,))) == some[1:]
    assert kind_examples(dataclasses.replace(data, train=some)) == data.test


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        *(
            ((first, second), [0, 1, 1])
            for first, second in (("neg", "pos"), ("Negative", "Positive"), ("0", "1"))
        ),
        (("positive", "neg"), [1, 0, 0]),  # turned round
        *(
            (classes, None)
            for classes in (
                ("ham", "spam"),
                ("negative", "neutral", "positive"),
                ("1", "2"),
                ("pos", "positive"),
            )
        ),
    ],
)
def test_praise_and_blame_are_known_by_the_names_of_classes(
    classes: tuple[str, ...], labels: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tuple(Example(f"text of {label}", label) for label in (0, 1, len(classes) - 1))
    monkeypatch.setattr(
        sources, "from_hub", lambda name: SentimentData(part, part[:1], part[1:], classes)
    )
    if labels is None:
        with refused(f"the classes {', '.join(classes)}"):
            find_data("someone/films")
        return
    _, data = find_data("someone/films")
    assert data.classes == tuple(sorted(classes))
    assert [example.text for example in data.train] == [example.text for example in part]
    for examples, expected in (
        (data.train, labels),
        (data.validation, labels[:1]),
        (data.test, labels[1:]),
    ):
        assert [example.label for example in examples] == expected


def test_what_is_neither_is_named(tmp_path: Path) -> None:
    with refused("without a training file"):
        find_data(str(tmp_path))
    write(tmp_path / "a_train.tsv", ROWS)
    write(tmp_path / "b_train.tsv", ROWS)
    with refused(r"2 train files: a_train\.tsv, b_train\.tsv"):
        find_data(str(tmp_path))
    for source in (str(tmp_path / "none"), "./none", "none.csv"):
        with refused("not there"):
            find_data(source)


TINY = {"padding_epochs": 1, "leak_seeds": 2}


def stopped(name: str) -> Any:
    """The lab, interrupted in the step of this name."""

    def stop(current: Run) -> None:
        raise KeyboardInterrupt

    return dataclasses.replace(LAB, steps={**LAB.steps, name: stop})


@pytest.mark.slow
def test_it_leaves_a_report_and_a_classifier_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    texts = tmp_path / "mine.tsv"
    write(texts, ROWS)
    asked = {"quick": True, "seed": 1, "data": str(texts), **TINY}
    with pytest.raises(KeyboardInterrupt):
        run(stopped("leak"), out, **asked)
    printed = capsys.readouterr().out
    assert "encoder from scratch, seed 1" in printed
    assert f"classify --run {out / 'classifier'}" in printed
    report = run(LAB, out, resume=True, **asked)
    assert "from scratch" not in capsys.readouterr().out  # what was finished is kept
    text = report.read_text(encoding="utf-8")
    assert "This is the quick version" in text
    assert "trained on mine (32 training" in text
    assert "### 7. " in text
    assert {path.stem for path in (out / "figures").iterdir()} == set(LAB.figures)
    assert (
        len(json.loads((out / "results.json").read_text(encoding="utf-8"))["models"]["rows"]) == 3
    )
    assert load_classifier(out / "classifier").probabilities(["A fine film."]).shape == (1, 2)


def test_other_texts_under_the_same_name_are_refused(tmp_path: Path) -> None:
    texts = tmp_path / "mine.tsv"
    out = tmp_path / "run"
    write(texts, ROWS)
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            run(stopped("models"), out, data=str(texts), resume=resume)
    write(texts, ["very " + ROWS[0], *ROWS[1:]])
    with refused("another texts"):
        run(stopped("models"), out, data=str(texts), resume=True)
    with refused("not there"):
        run(stopped("models"), tmp_path / "other", data=str(tmp_path / "none.tsv"))
