"""Tasks of one's own: what a file says is what is asked, and what cannot be used is told in one
line.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.handcraft import task_files
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.task_files import MAX_EXAMPLES, read_task
from glassformer.handcraft.tasks import TASKS, Task, previous_token
from glassformer.handcraft.verification import verify
from refusals import refused

SIGNS: dict[str, Any] = {
    "letters": "AB",
    "examples": [{"input": "A", "output": [1]}, {"input": "BAB", "output": [1, -1, 1]}],
}
PROGRAM = """letters, max_len = "AB", 3
def target(sequence):
    return [1 if letter == sequence[0] else -1 for letter in sequence]
"""


def table(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def complaint(path: Path, run_python: bool = False) -> str:
    """The one line that ``path`` is refused with."""
    with pytest.raises(InputError) as raised:
        read_task(path, run_python=True) if run_python else read_task(path)
    message = str(raised.value)
    assert message.isprintable()
    assert path.name in message
    assert len(message) < 700
    return message


def texts_and_targets(task: Task) -> dict[str, list[Any]]:
    """Every sequence of the task with the outputs of its letters."""
    cases = task.all_cases
    return {
        task.space.decode(tokens[counted]): target[counted].tolist()
        for tokens, counted, target in zip(
            cases.block.tokens, cases.counted, cases.target, strict=True
        )
    }


def as_examples(task: Task, form: str) -> list[dict[str, Any]]:
    """All sequences of a built-in task as a table, its outputs written in one of the three ways."""
    made = []
    for text, rows in texts_and_targets(task).items():
        output: Any = rows
        if form == "text":
            output = "".join(task.space.letters[int(np.argmax(row))] for row in rows)
        elif form == "numbers":
            output = [number for (number,) in rows]
        made.append({"input": text, "output": output})
    return made


# Tables


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("identity", "text"),
        ("previous_token", "lists"),
        ("unique", "numbers"),
        ("majority_letter", "lists"),
    ],
)
def test_a_built_in_task_written_as_a_table_is_the_same_task(
    name: str, form: str, tmp_path: Path
) -> None:
    task = TASKS[name](letters="AB", max_len=3)
    content = {
        "letters": "AB",
        "cls": task.space.has_cls,
        "tolerance": task.tolerance,
        "examples": as_examples(task, form),
    }
    read = read_task(table(tmp_path / "mine.json", content))
    assert (read.name, read.readout, read.tolerance, read.v_dim) == (
        "mine",
        task.readout,
        task.tolerance,
        task.v_dim,
    )
    assert read.space == task.space
    assert texts_and_targets(read) == texts_and_targets(task)
    head = design(task).weights
    ours = verify(head, read)
    theirs = verify(head, task)
    assert (ours.verdict, ours.num_checked, ours.largest_error) == (
        "holds",
        14,
        theirs.largest_error,
    )
    assert ours.rests_on == "the listed examples"


def test_only_what_is_listed_is_asked(tmp_path: Path) -> None:
    task = read_task(table(tmp_path / "mine.json", SIGNS))
    assert task.examples == ("A", "BAB")
    assert texts_and_targets(task) == {"A": [[1.0]], "BAB": [[1.0], [-1.0], [1.0]]}
    assert (task.readout, task.tolerance, task.space.has_cls, task.space.max_len) == (
        "sign",
        None,
        False,
        3,
    )
    with refused("the sequence 'BB'"):
        task.cases(task.space.block([task.space.encode("BB")]))


def test_two_letters_of_text_are_one_hot(tmp_path: Path) -> None:
    content = {"letters": "BA", "examples": [{"input": "AB", "output": "BA"}]}
    task = read_task(table(tmp_path / "mine.JSON", content))
    assert texts_and_targets(task) == {"AB": [[1.0, 0.0], [0.0, 1.0]]}
    assert task.readout == "argmax"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"letter": "AB"}, ["letter", "Did you mean letters?"]),
        ({"letters": 3}, ["letters", "3.0"]),
        ({"letters": "AAB"}, ["letters = ('A', 'A', 'B')"]),
        ({"letters": "A\ud800"}, ["letters"]),
        ({"letters": "A"}, ["'B'", "'BAB'", "letters among A"]),
        ({"cls": "yes"}, ["cls = 'yes'", "boolean"]),
        ({"readout": "softmax"}, ["softmax", "sign"]),
        ({"readout": "argmax"}, ["argmax", "sign for one number"]),
        ({"readout": ["sign"]}, ["readout = ['sign']"]),
        ({"tolerance": 0}, ["tolerance = 0.0"]),
        ({"tolerance": "0.1"}, ["tolerance = '0.1'"]),
        ({"tolerance": True}, ["tolerance = True"]),
        ({"examples": []}, ["examples = []"]),
        ({"examples": {"A": "B"}}, ["examples = {'A': 'B'}"]),
        ({"examples": ["AB"]}, ["examples.0 = 'AB'"]),
        ({"examples": [{"input": "A"}]}, ["no examples.0.output"]),
        ({"examples": [{"input": "A", "ouput": [1]}]}, ["no examples.0.output"]),
        ({"examples": [{"input": "A", "output": [1], "weight": 2}]}, ["examples.0.weight"]),
        ({"examples": [{"input": "", "output": []}]}, ["examples.0.input"]),
        ({"examples": [{"input": ["A"], "output": [1]}]}, ["examples.0.input"]),
        ({"examples": [{"input": "AC", "output": [1, 1]}]}, ["'C'", "'AC'", "letters among A B"]),
        ({"examples": [{"input": "ab", "output": [1, 1]}]}, ["'a'", "letters among A B"]),
        ({"examples": [{"input": "AB", "output": [1]}]}, ["as long as the input: 2"]),
        ({"examples": [{"input": "AB", "output": "A"}]}, ["as long as the input: 2"]),
        ({"examples": [{"input": "AB", "output": "AC"}]}, ["'C'", "'AC'", "letters among A B"]),
        ({"examples": [{"input": "AB", "output": 1}]}, ["the output '1.0'"]),
        ({"examples": [{"input": "AB", "output": [1, "x"]}]}, ["finite numbers"]),
        ({"examples": [{"input": "AB", "output": [1, None]}]}, ["finite numbers"]),
        ({"examples": [{"input": "AB", "output": [True, False]}]}, ["finite numbers"]),
        (
            {"examples": [{"input": "AB", "output": [[1], [1, 2]]}]},
            ["the output", "finite numbers"],
        ),
        ({"examples": [{"input": "AB", "output": [[], []]}]}, ["the output", "finite numbers"]),
        ({"examples": [{"input": "AB", "output": [[[1]], [[1]]]}]}, ["finite numbers"]),
        (
            {"examples": [{"input": "A", "output": [1]}, {"input": "B", "output": [[1, 2]]}]},
            ["for the input 'B'", "1 for each letter"],
        ),
        (
            {"examples": [{"input": "A", "output": [1]}, {"input": "A", "output": [-1]}]},
            ["'A' twice"],
        ),
        (
            {"examples": [{"input": "A" * 3000, "output": [1] * 3000}]},
            ["2 letters at 3000 positions"],
        ),
    ],
    ids=str,
)
def test_a_table_that_cannot_be_used(
    change: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    message = complaint(table(tmp_path / "mine.json", {**SIGNS, **change}))
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[]", "not an object"),
        ('"AB"', "not an object"),
        ("{}", "no letters"),
        ('{"letters": "AB"}', "no examples"),
        ('{"letters": "AB", "examples": [{"input": "A", "output": [NaN]}]}', "the number 'NaN'"),
    ],
    ids=lambda value: value[:60],
)
def test_json_that_is_no_table(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert word in complaint(path)


def test_tables_whose_work_would_not_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"input": "A" * 1000, "output": [[1, 2, 3, 4, 5, 6, 7, 8, 9]] * 1000}
    message = complaint(table(tmp_path / "mine.json", {"letters": "AB", "examples": [one]}))
    assert "1 examples of up to 1,000 letters with outputs of 9 numbers" in message
    assert "not 9,000,000" in message
    many = [{"input": "A", "output": [1]}] * (MAX_EXAMPLES + 1)
    assert "examples = [" in complaint(
        table(tmp_path / "mine.json", {"letters": "AB", "examples": many})
    )
    monkeypatch.setattr(task_files, "MAX_CELLS", 18)
    assert read_task(table(tmp_path / "mine.json", SIGNS)).count == 2
    monkeypatch.setattr(task_files, "MAX_CELLS", 17)
    assert "not 18" in complaint(table(tmp_path / "mine.json", SIGNS))


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text("AB[", max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["input", "output"]), inner)
        ),
        max_leaves=8,
    ),
    key=st.sampled_from(["letters", "cls", "readout", "tolerance", "examples"]),
)
@settings(max_examples=150, deadline=None)
def test_any_value_is_taken_or_refused(
    value: Any, key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = table(tmp_path_factory.getbasetemp() / "any.json", {**SIGNS, key: value})
    try:
        cases = read_task(path).all_cases
    except InputError:
        return
    assert np.isfinite(cases.target).all()


# Programs


def program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_program_is_run_only_when_asked_for(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = program(tmp_path / "mine.py", f"open({str(trace)!r}, 'w')\n{PROGRAM}")
    message = complaint(path)
    assert "can do anything on this computer" in message
    assert "--run-python" in message
    assert not trace.exists()
    assert read_task(path, run_python=True).name == "mine"
    assert trace.exists()


def test_a_program_is_asked_about_every_sequence(tmp_path: Path) -> None:
    task = read_task(program(tmp_path / "mine.py", PROGRAM), run_python=True)
    found = texts_and_targets(task)
    assert (len(found), task.count, task.examples) == (14, 14, None)
    assert found == {
        text: [[1.0] if letter == text[0] else [-1.0] for letter in text] for text in found
    }
    assert (task.readout, task.tolerance, task.decisive_error) == ("sign", None, 0.0)
    twice = task.cases(task.space.block([task.space.encode("AB")] * 2))
    assert twice.target.tolist() == [[[1.0], [-1.0]]] * 2


@pytest.mark.parametrize(
    "target",
    [
        "lambda s: s[0] + s[:-1]",
        "lambda s: [[float(x == y) for y in letters] for x in s[0] + s[:-1]]",
        "lambda s: tuple(tuple(int(x == y) for y in letters) for x in s[0] + s[:-1])",
        "lambda s: numpy.array([[x == y for y in letters] for x in s[0] + s[:-1]], "
        "dtype='float32')",
        "lambda s: [list(numpy.array([x == y for y in letters], dtype=int)) for x in s[0] + "
        "s[:-1]]",
    ],
)
def test_programs_may_write_outputs_in_many_ways(target: str, tmp_path: Path) -> None:
    text = f"import numpy\nletters = ['A', 'B', 'C']\nmax_len = 4\ntarget = {target}\ntolerance = 1e-3\n"
    task = read_task(program(tmp_path / "mine.py", text), run_python=True)
    built_in = previous_token()
    assert texts_and_targets(task) == texts_and_targets(built_in)
    certificate = verify(design(built_in).weights, task)
    assert (certificate.verdict, certificate.num_checked) == ("holds", 120)


def test_a_program_whose_outputs_are_text_only_at_first_is_read_output_by_output(
    tmp_path: Path,
) -> None:
    """An error below 1/2 means the right letter for one-hot targets, and for no others."""
    text = "letters, max_len = 'AB', 2\ndef target(s):\n    return s if len(s) == 1 else [[0.4, 0.6], [0.4, 0.6]]\n"
    task = read_task(program(tmp_path / "mine.py", text), run_python=True)
    head = HeadWeights([[0.0], [0.0]], [[0.0], [0.0]], [[0.6, 0.4], [0.4, 0.6]])
    certificate = verify(head, task)
    assert certificate.verdict == "fails"
    assert certificate.counterexample.sequence == "AA"
    assert certificate.num_right == 2 + 2  # A, B and both outputs of BB; AB and BA are ties


def test_a_program_may_ask_for_cls_and_a_readout(tmp_path: Path) -> None:
    path = program(tmp_path / "mine.py", PROGRAM + "cls, readout, tolerance = True, 'sign', 2\n")
    task = read_task(path, run_python=True)
    assert (task.space.has_cls, task.readout, task.tolerance) == (True, "sign", 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("letters = 'AB'\nmax_len = 3\n", ["no target", "Define target"]),
        ("def target(s): return s\n", ["no letters"]),
        (PROGRAM + "target = 'ABC'\n", ["target = ", "a function"]),
        (PROGRAM + "max_len = '3'\n", ["max_len = '3'", "whole number"]),
        (PROGRAM + "letters = 5\n", ["letters", "5"]),
        (PROGRAM + "cls = 1\n", ["cls = 1", "boolean"]),
        (PROGRAM + "tolerance = float('nan')\n", ["tolerance = nan"]),
        (PROGRAM + "tolerance = 10**400\n", ["tolerance = 1000"]),
        ("letters = 'AB'\nmax_len = = 3\n", ["line 2", "SyntaxError", "when it was run"]),
        ("letters = 'AB'\n\n\nmax_len = 1 / 0\n", ["line 4: ZeroDivisionError: division by zero"]),
        ("import not_a_module_at_all\n", ["line 1: ModuleNotFoundError"]),
        ("import sys\nsys.exit('bye')\n", ["line 2: SystemExit: bye"]),
        ("import json\njson.loads('{')\n", ["line 2: JSONDecodeError"]),
        ("raise ValueError('two\\nlines \\x1b[2J')\n", ["line 1: ", "two lines"]),
        ("def f(): f()\nf()\n", ["line 1: RecursionError"]),
        ("\x00", ["mine.py"]),
        ("", ["empty"]),
        (PROGRAM + "def target(s): return s[5]\n", ["line 4: IndexError", "for target('A')"]),
        (PROGRAM + "def target(s): raise SystemExit\n", ["SystemExit", "for target('A')"]),
        (PROGRAM + "def target(): pass\n", ["TypeError", "for target('A')"]),
        (PROGRAM + "def target(s): return None\n", ["the output 'None'", "'A'"]),
        (PROGRAM + "def target(s): return {1}\n", ["the output '{1}'", "'A'"]),
        (PROGRAM + "def target(s): return [1, 2]\n", ["as long as the input: 1"]),
        (PROGRAM + "def target(s): return [float('inf')]\n", ["finite numbers"]),
        (PROGRAM + "def target(s): return [10**400]\n", ["finite numbers"]),
        (PROGRAM + "def target(s): return [1j]\n", ["finite numbers"]),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) else "",
)
def test_a_program_that_cannot_be_used(text: str, words: list[str], tmp_path: Path) -> None:
    message = complaint(program(tmp_path / "mine.py", text), run_python=True)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "    return s if len(s) < 3 else 1 / 0",
            ["line 3: ZeroDivisionError", "for target('AAA')"],
        ),
        ("    return s if len(s) < 3 else [1, 1, 1]", ["the input 'AAA'", "2 for each letter"]),
        ("    return s if len(s) < 3 else s + s", ["as long as the input: 3"]),
    ],
)
def test_a_program_that_fails_on_a_later_sequence(
    body: str, words: list[str], tmp_path: Path
) -> None:
    path = program(tmp_path / "mine.py", f"letters, max_len = 'AB', 3\ndef target(s):\n{body}\n")
    task = read_task(path, run_python=True)
    with pytest.raises(InputError) as raised:
        _ = task.all_cases
    assert [word for word in ["mine.py", *words] if word not in str(raised.value)] == []


def test_an_interruption_is_no_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        read_task(program(tmp_path / "mine.py", "raise KeyboardInterrupt\n"), run_python=True)


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "a .json table of examples or a .py file" in complaint(
        program(tmp_path / "mine.txt", PROGRAM), True
    )
    assert "No such file" in complaint(tmp_path / "absent.json")
    assert "No such file" in complaint(tmp_path / "absent.py", True)
    # A directory or an archive with a __main__.py could be run as well, but nobody asked for that.
    (tmp_path / "dir.py").mkdir()
    program(tmp_path / "dir.py" / "__main__.py", PROGRAM)
    assert "a directory" in complaint(tmp_path / "dir.py", True)
    assert "at most 1,048,576" in complaint(
        program(tmp_path / "long.py", "#" * (1 << 20) + "\n"), True
    )
