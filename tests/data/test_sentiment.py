import csv
import io
import json
import re
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.examples import Example, leaked, normalized
from glassformer.data.sentiment import (
    from_files,
    from_hub,
    leaky_examples,
    read_examples,
    read_table,
    reviews,
)
from refusals import refused

CELL = st.text(
    st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from('",\n;'), max_size=20
)
GOOD = Example("good, really", 1)
BAD = Example("bad", 0)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_reviews_are_different_balanced_and_short() -> None:
    examples = reviews()
    assert len(examples) == 400
    bare = {re.sub(r"[^\w\s]", "", example.text.lower()) for example in examples}
    assert len(bare) == len({normalized(example.text) for example in examples}) == 400
    counts = Counter((example.kind, example.label) for example in examples)
    assert counts == {
        (kind, label): count
        for kind, count in (("plain", 120), ("negation", 28), ("contrast", 28), ("irony", 24))
        for label in (0, 1)
    }
    assert all(5 <= len(re.findall(r"[\w'’]+", example.text)) <= 25 for example in examples)


def test_reviews_marked_as_negation_negate() -> None:
    negations = re.compile(
        r"\b(?:no|not|never|none|nothing|nobody|hardly|without|lacks|far from|yet to)\b|n't",
        re.IGNORECASE,
    )
    assert all(
        negations.search(example.text) for example in reviews() if example.kind == "negation"
    )


def test_what_a_review_is_about_does_not_tell_the_verdict() -> None:
    examples = reviews()
    for words in (
        "film|movie|comedy",
        "novel|book|biography",
        "soup|curry|bread|tacos",
        "phone|camera|battery|tablet",
    ):
        labels = Counter(
            example.label for example in examples if re.search(rf"\b({words})\b", example.text)
        )
        assert min(labels[0], labels[1]) >= 0.35 * labels.total()


def test_leaky_examples_are_ten_copies_of_twenty_sentences() -> None:
    counts = Counter(leaky_examples())
    assert set(counts.values()) == {10}
    assert Counter(example.label for example in counts) == {0: 10, 1: 10}
    assert not leaked(reviews(), counts)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "good, really\t1\nbad\t0\n"),
        ("a.tsv", "1\tgood, really\n0\tbad\n"),
        ("a.tsv", "label\tid\tsentence\npos\t7\tgood, really\nNEG\t8\tbad\n"),
        ("a.csv", 'text,label\n"good, really",positive\nbad, Negative \n'),
        ("a.csv", 'review,sentiment\n"good, really",1.0\nbad,0.0\n'),
        ("a.jsonl", '{"text": "good, really", "label": 1}\n{"text": "bad", "label": "neg"}\n'),
    ],
)
def test_the_usual_files_need_no_columns(tmp_path: Path, name: str, content: str) -> None:
    assert read_examples(write(tmp_path / name, content)) == (GOOD, BAD)


@pytest.mark.parametrize(
    "content",
    [
        'Text,Label\n"good, really",1\nbad,0\n',
        "Text;Label\ngood, really;1\nbad;0\n",
        'TEXT;LABEL\n"good, really";1\n"bad";0\n',
        "LABEL|SENTENCE\n1|good, really\n0|bad\n",
        "Review\tSentiment\ngood, really\tPositive\nbad\tNegative\n",
        'text, label\n"good, really", 1\nbad, 0\n',
        'label , text\n1 , "good, really"\n0 , bad\n',
        'id,Class, Text \n7,POS,"good, really"\n8,NEG,bad\n',
        "good, really;1\nbad;0\n",
        "1\tgood, really\n0\tbad\n",
        '\n\nText,Label\r\n"good, really",1\r\nbad,0\r\n',
        "Text;Label\rgood, really;1\rbad;0\r",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_headers_in_any_case_and_order_and_other_delimiters_are_read(
    tmp_path: Path, content: str, encoding: str
) -> None:
    assert read_examples(write(tmp_path / "a.csv", content.encode(encoding))) == (GOOD, BAD)


def test_names_of_columns_are_found_in_any_case(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "Opinion; STARS\ngood, really; 1\nbad; 0\n")
    assert read_examples(path, "opinion", "Stars") == (GOOD, BAD)
    path = write(tmp_path / "a.tsv", "Text\tLabel\ngood, really\t1\nbad\t0\n")
    assert read_examples(path) == (GOOD, BAD)
    path = write(
        tmp_path / "a.jsonl", '{"Text": "good, really", "LABEL": 1}\n{"Text": "bad", "LABEL": 0}\n'
    )
    assert read_examples(path) == read_examples(path, "text", "label") == (GOOD, BAD)
    path = write(tmp_path / "b.csv", "text,Text,label\nno,yes,1\nyes,no,0\n")
    assert [example.text for example in read_examples(path, "Text", "label")] == ["yes", "no"]
    with refused("'text', 'Text', 'label'", expected="recognizable"):
        read_examples(path)


def test_a_semicolon_in_a_text_leaves_the_commas(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nslow; dull; long,0\nquick; bright; short,1\n")
    assert [example.text for example in read_examples(path)] == [
        "slow; dull; long",
        "quick; bright; short",
    ]
    # The fault of a table with commas is reported, not avoided by another delimiter.
    with refused("line 2: 3 cells"):
        read_examples(
            write(tmp_path / "b.csv", "text,label\nslow; dull, long,0\nquick; bright,1\n")
        )


def test_a_first_row_that_may_be_a_header_is_named(tmp_path: Path) -> None:
    with refused(
        "line 1: the label 'verdict' in the first row, whose cells 'verdict', 'opinion'",
        expected="header",
    ):
        read_examples(write(tmp_path / "a.csv", "verdict,opinion\n1,good\n0,bad\n"))
    with refused("line 2: the label 'soso'$"):
        read_examples(write(tmp_path / "b.csv", "1,good\nsoso,fine\n0,bad\n"))


def test_columns_go_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'opinion,stars,kind\n"good, really",1,irony\nbad,0,plain\n')
    assert read_examples(path, "opinion", "stars") == (GOOD, BAD)
    assert read_examples(path, "opinion", "stars", kind_column="kind")[0] == Example(
        "good, really", 1, "irony"
    )


def test_other_classes_have_names_and_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,Sports\nb,1\nc,music\n")
    classes = ("sports", "politics", "music")
    assert [example.label for example in read_examples(path, classes=classes)] == [0, 1, 2]
    path = write(tmp_path / "b.csv", "text,label\na,neg\nb,pos\n")
    assert [example.label for example in read_examples(path, classes=("pos", "neg"))] == [1, 0]
    path = write(tmp_path / "c.csv", "text,label\na,1\nb,0\nc,1.0\n")
    assert [example.label for example in read_examples(path, classes=("1", "0"))] == [0, 1, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "text,label\ngood,1\nbad,2\n",
            r"a\.csv, line 3: the label '2'; 0 or negative, 1 or positive",
        ),
        ("text,label\ngood,1\nbad,-1\n", r"line 3: the label '-1'"),
        ("text,label\ngood,1\nbad,0.5\n", r"line 3: the label '0\.5'"),
        ("text,label\ngood,1\nbad,\n", r"line 3: the label ''"),
        ("text,label\ngood,1\nbad,99999999999999999999\n", r"line 3: the label '9999"),
        ("text,label\ngood,1\n  ,0\n", r"line 3: an empty text"),
        ("text,label\ngood,1\nfine,1\n", r"no example of negative"),
        ("verdict,opinion\n1,good\n0,bad\n", r"line 1: the label 'verdict'; columns"),
        ("good,1\nbad,0\nawful,3\n", r"line 3: the label '3'"),
        ("good,fine\nbad,awful\n", r"line 1: the columns 'good', 'fine'; recognizable"),
        ("1,1\n0,0\n", r"; recognizable"),
        ("a,b,c\ngood,1,x\n", r"the columns 'a', 'b', 'c'"),
        ("text,review,label\na,b,1\n", r"; recognizable"),
        ('{"text": 3, "label": 1}', "line 1: a text of type int"),
        ('{"text": "good", "label": true}', "line 1: the label 'True'"),
        ('{"text": "good", "label": [1]}', "line 1: the label"),
        ('{"body": "good", "label": 1}', "; recognizable"),
    ],
)
def test_faulty_files_are_refused_with_the_line(tmp_path: Path, content: str, message: str) -> None:
    got, _, other = message.partition("; ")
    with refused(got, anywhere=other):
        read_examples(
            write(tmp_path / ("a.jsonl" if content.startswith("{") else "a.csv"), content)
        )


def test_one_column_alone_is_not_named(tmp_path: Path) -> None:
    with refused(expected="both or none"):
        read_examples(write(tmp_path / "a.csv", "text,label\ngood,1\nbad,0\n"), "text")


def test_one_class_alone_may_be_read_to_judge(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\ngood,1\n")
    assert read_examples(path, all_classes=False) == (Example("good", 1),)


def test_files_become_a_data_set_without_a_leak(tmp_path: Path) -> None:
    rows = [f"text number {number}\t{number % 2}\n" for number in range(100)]
    train = write(tmp_path / "train.tsv", "".join(rows))
    test = write(tmp_path / "test.tsv", "Text number 3!\t1\nsomething else\t1\n")
    data = from_files(train, test=test)
    assert [example.text for example in data.test] == ["Text number 3!", "something else"]
    assert (len(data.train), len(data.validation)) == (89, 10)
    assert not leaked(data.train, data.validation + data.test)
    data = from_files(train)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [80, 10, 10]
    assert sum(example.label for example in data.test) == 5
    data = from_files(train, validation=test)
    assert (len(data.train), len(data.validation), len(data.test)) == (89, 2, 10)


def test_validation_texts_of_the_test_part_are_dropped(tmp_path: Path) -> None:
    train = write(
        tmp_path / "train.tsv",
        "".join(f"text number {number}\t{number % 2}\n" for number in range(20)),
    )
    dev = write(tmp_path / "dev.tsv", "Text number 3!\t1\nonly here\t0\nText number 4!\t0\n")
    test = write(tmp_path / "test.tsv", "text number 3\t1\nsomething else\t1\n")
    data = from_files(train, dev, test)
    assert [example.text for example in data.validation] == ["only here", "Text number 4!"]
    assert [example.text for example in data.test] == ["text number 3", "something else"]
    assert len(data.train) == 18
    with refused("2 validation examples, all of whose texts are in the test part"):
        from_files(train, test, test)


def test_training_files_that_lose_a_class_to_the_held_out_parts_are_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "train.tsv", "good\t1\nfine\t1\nbad\t0\n")
    bad, good = (
        write(tmp_path / f"{text}.tsv", f"{text}\t{label}\n")
        for text, label in (("Bad!", 0), ("ok", 1))
    )
    with refused("2 training examples, all of positive, once held-out texts are left out"):
        from_files(train, bad, good)
    with refused("no train examples"):
        from_files(train, train, bad)
    fine = write(tmp_path / "fine.tsv", "not so bad\t1\n")
    assert len(from_files(train, good, fine).train) == 3


@pytest.mark.parametrize(
    "text",
    [
        "word " * 100_000 + ".",
        "zzzqqq",
        "😀👍🏽👨‍👩‍👧",
        "\x07\x1b[31m\x7f\u200b",
        "مرحبا 电影",
        "!",
    ],
)
def test_odd_texts_are_read_as_they_are_and_pythons_limit_stays(tmp_path: Path, text: str) -> None:
    limit = csv.field_size_limit()
    for name, content in (
        ("a.tsv", f"{text}\t1\nbad\t0\n"),
        ("a.csv", f'text,label\n"{text}",1\nbad,0\n'),
        ("a.jsonl", json.dumps({"text": text, "label": 1}) + '\n{"text": "bad", "label": 0}\n'),
    ):
        assert read_examples(write(tmp_path / name, content)) == (Example(text, 1), BAD)
    assert csv.field_size_limit() == limit


def test_json_can_hold_half_a_surrogate_pair(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"text": "\\ud83d", "label": 1}\n{"text": "bad", "label": 0}\n'
    )
    assert read_examples(path) == (Example("\ud83d", 1), BAD)
    assert normalized("\ud83d") == "\ud83d"


def test_sst2_is_read_as_it_is(shared_data: Path) -> None:
    examples = read_examples(shared_data / "sst2_dev.tsv")
    assert Counter(example.label for example in examples) == {1: 444, 0: 428}
    lines = (shared_data / "sst2_dev.tsv").read_text(encoding="utf-8").splitlines()
    assert [f"{example.text}\t{example.label}" for example in examples] == lines


@pytest.mark.slow
def test_sst2_loses_the_training_sentences_that_are_held_out(shared_data: Path) -> None:
    train, dev, test = (shared_data / f"sst2_{part}.tsv" for part in ("train", "dev", "test"))
    data = from_files(train, dev, test)
    assert (len(data.validation), len(data.test)) == (872, 1821)
    assert not leaked(data.train, data.validation + data.test)
    everything = read_examples(train)
    dropped = leaked(data.validation + data.test, everything)
    assert 0 < len(dropped) < 20
    assert len(data.train) == 6920 - len(dropped)


class Rows(list[dict[str, Any]]):
    """What a part of a data set on the hub looks like from here."""

    def __init__(self, rows: list[dict[str, Any]], names: list[str] | None = None) -> None:
        super().__init__(rows)
        label = types.SimpleNamespace(names=names) if names else types.SimpleNamespace()
        self.features = {"idx": None, "sentence": None, "label": label}


def hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[Any, ...]]:
    """Put a stand-in for the package ``datasets`` in its place; what it was asked is in the list
    that comes back.
    """
    asked: list[tuple[Any, ...]] = []

    def load_dataset(*arguments: Any) -> Any:
        asked.append(arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    module: Any = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    module.exceptions = types.SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def sentences(
    count: int, label: int | None = None, prefix: str = "sentence"
) -> list[dict[str, Any]]:
    return [
        {
            "idx": number,
            "sentence": f"{prefix} {number}",
            "label": number % 2 if label is None else label,
        }
        for number in range(count)
    ]


def test_a_data_set_of_the_hub_with_hidden_test_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["negative", "positive"]
    asked = hub(
        monkeypatch,
        {
            "train": Rows(sentences(100), names),
            "validation": Rows(sentences(7, prefix="Sentence"), names),
            "test": Rows(sentences(9, label=-1, prefix="hidden"), names),
        },
    )
    data = from_hub("stanfordnlp/sst2")
    assert asked == [("stanfordnlp/sst2", None)]
    assert data.validation == tuple(
        Example(f"Sentence {number}", number % 2) for number in range(7)
    )
    assert (len(data.train), len(data.test)) == (84, 9)
    assert not leaked(data.train, data.validation + data.test)
    assert data.classes == ("negative", "positive")


def test_a_data_set_of_the_hub_with_one_part_and_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [dict(row, label=row["idx"] % 3) for row in sentences(60)]
    asked = hub(monkeypatch, {"train": Rows(rows)})
    data = from_hub("someone/else", "small", text_column="sentence", label_column="label")
    assert asked == [("someone/else", "small")]
    assert data.classes == ("0", "1", "2")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [48, 6, 6]


def test_columns_of_the_hub_are_found_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows([{"Text": f"text {number}", "Label": number % 2} for number in range(40)])
    rows.features = {"Text": None, "Label": types.SimpleNamespace()}
    hub(monkeypatch, {"train": rows})
    assert len(from_hub("someone/else").train) == 32


def test_a_hub_that_cannot_give_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (
        ConnectionError("offline"),
        FileNotFoundError("no such data set"),
        ValueError("no such subset"),
    ):
        hub(monkeypatch, error)
        with refused(f"stanfordnlp/sst2: {error}"):
            from_hub("stanfordnlp/sst2")
    for parts, message in (
        ({"test": Rows(sentences(3))}, r"parts \['test'\]"),
        ({"train": Rows(sentences(3, label=-1))}, "without a label"),
        ({"train": Rows([{"idx": 0, "sentence": None, "label": 1}])}, "sentence = None"),
        ({"train": Rows([{"idx": 0, "sentence": "good", "label": "positive"}])}, "whole number"),
    ):
        hub(monkeypatch, parts)
        with refused(anywhere=message):
            from_hub("stanfordnlp/sst2")
    with refused("the columns idx, sentence, label", expected="one column 'text'"):
        from_hub("stanfordnlp/sst2", text_column="text")


# Tables.


def cells(path: Path, *columns: str) -> list[tuple[int, tuple[object, ...]]]:
    return [(line, tuple(found.values())) for line, found in read_table(path).select(*columns)]


def test_csv_has_quotes_commas_and_line_ends_in_cells(tmp_path: Path) -> None:
    path = write(tmp_path / "a.CSV", 'text,label\r\n"good, ""really""\ngood",1\r\n\r\nbad,0\r\n')
    assert cells(path, "label", "text") == [(3, ("1", 'good, "really"\ngood')), (5, ("0", "bad"))]


def test_tsv_takes_quotes_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"good" film\t1\n"bad\t0\n\n')
    assert cells(path, "text", "label") == [(2, ('"good" film', "1")), (3, ('"bad', "0"))]


def test_json_lines_keep_their_values(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        '{"text": "good\\t", "label": 1, "more": []}\n\n{"label": "0", "text": "bad"}',
    )
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
def test_what_python_writes_is_read_back(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("one", "two"), *rows])
    directory = tmp_path_factory.mktemp("tables")
    path = write(directory / "a.csv", written.getvalue())
    kept = [row for row in rows if any(cell.strip() for cell in row)]
    if kept:
        assert [found for _, found in cells(path, "one", "two")] == kept
    path = write(
        directory / "a.jsonl",
        "".join(json.dumps({"one": one, "two": two}) + "\n" for one, two in rows),
    )
    assert [found for _, found in cells(path, "one", "two")] == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"good\t1\nb\x00d\t0\n", r"a\.tsv: a NUL byte"),
        ("a.csv", b"text,label\nna\xefve,1\n", r"a\.csv with the byte 0xef at offset 13"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"with the byte 0xff"),
        ("a.tsv", "text\tlabel\n".encode("utf-16")[:-1], r"a fault in its UTF-16 at byte 22"),
        (
            "a.tsv",
            "text\tlabel\n".encode("utf-16-le"),
            r"a NUL byte; UTF-16 without a byte order mark",
        ),
        ("a.tsv", "text\tlabel\n".encode("utf-32"), r"a NUL byte"),
        ("a.tsv", "good\t1\nbad\n", r"line 2: 1 cells; ^2, as in line 1"),
        ("a.csv", "text,label\ngood, really,1\n", r"line 2: 3 cells; needs quotes"),
        (
            "a.csv",
            'text,label\ngood,1\n"never closed,0\nbad,0\n',
            r"line 4: unexpected end of data",
        ),
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
def test_faults_name_the_file_and_the_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    got, _, other = message.partition("; ")
    with refused(got, anywhere=other):
        read_table(write(tmp_path / name, content))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_file_without_end_is_not_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a hole: a gigabyte that takes no room on the disk
    with refused("of 1,073,741,824 bytes"):
        read_table(path)


def test_columns_that_are_not_there_are_refused(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", "text,label\ngood,1\n"))
    with refused("line 1: the columns 'text', 'label'", expected="one column 'verdict'"):
        table.select("text", "verdict")
    with refused(expected="one column 'text'"):
        read_table(write(tmp_path / "b.csv", "text,text\ngood,1\n")).select("text")
    with refused("no rows"):
        read_table(write(tmp_path / "c.csv", "text,label\n")).select("text")
    table = read_table(write(tmp_path / "a.jsonl", '{"text": "good"}\n{"review": "bad"}\n'))
    with refused("line 2: the columns review", expected="a column 'text'"):
        table.select("text")
