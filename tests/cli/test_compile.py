"""``glassformer compile`` and ``run-program``: what they print, their statuses, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.cli.main import main
from glassformer.programs import compile_program, verify_program
from glassformer.programs.library import histogram
from glassformer.programs.saved import load_program

MINE = """
import operator
from glassformer.programs import indices, select, selector_width, tokens

program = selector_width(select(tokens, tokens, operator.eq), "mine")
vocabulary, max_len, causal = ["red", "green"], 4, True
"""


@pytest.fixture(autouse=True)
def _no_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSFORMER_DEBUG", raising=False)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A histogram's weights, one of which was changed."""
    path = tmp_path / "broken.json"
    assert main(["compile", "histogram", "--out", str(path)]) == 0
    content = json.loads(path.read_text())
    content["weights"]["output.bias"][0] += 0.75
    path.write_text(json.dumps(content))
    return path


def test_a_program_of_ones_own_is_compiled_proved_and_written(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.json"
    assert main(["compile", str(mine), "--run-python", "--verify", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    model = compile_program(histogram(), ("red", "green"), 4, causal=True)
    for words in (
        "mine\n",
        "1 to 4 tokens of red, green; queries see only keys up to the query",
        f"parameters  {model.num_parameters} (float64)",
        "2  width of 1      mine                      1 to 4",
        "0.0  select(tokens == tokens) -> share of mine",
        "embedding to layer 0 attention",
        str(verify_program(model)),
        f"transformer: {out}\n",
    ):
        assert words in shown.out
    assert load_program(out).run(["red", "green", "red"]) == [1, 1, 2]
    assert main(["compile", str(mine), "--run-python", "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["compile", str(mine), "--run-python", "--out", str(out), "--overwrite", "--dtype", "float32"]) == 0
    assert load_program(out).output.weight.dtype.itemsize == 4


def test_a_python_file_is_run_on_request_alone(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["compile", str(mine)], ["run-program", str(mine), "red"]):
        assert main(command) == 2
        shown = capsys.readouterr()
        assert "can do anything on this computer" in shown.err
        assert shown.err.count("\n") == 1
        assert shown.out == ""


def test_weights_of_a_file_are_verified(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compile", "histogram", "--verify", "--weights", str(broken)]) == 1
    shown = capsys.readouterr().out
    assert "FAILS (float64; based on every sequence)" in shown
    assert "counterexample  ['a'], position 0: 1.75, wanted 1" in shown
    assert main(["compile", "parity", "--verify", "--weights", str(broken)]) == 2
    assert "weights for 5 tokens" in capsys.readouterr().err


def test_beyond_the_limit_it_may_be_undecided(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(broken.read_text())
    content["weights"]["output.bias"][0] -= 0.75
    for row in content["weights"]["layers.0.ffn.down.weight"]:
        row[-1] = 0.0  # a count of 5 becomes 5.5
    broken.write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["compile", "histogram", "--verify", "--weights", str(broken), "--limit", "100"]) == 1
    assert "pass --limit 1364 or more" in capsys.readouterr().out
    assert main(["compile", "histogram", "--verify", "--seconds", "0.000001"]) == 1
    shown = capsys.readouterr().out
    assert "UNDECIDED" in shown
    assert "the time was over" in shown


def test_names_in_a_file_are_marked(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main(["compile", "histogram", "--weights", str(broken)])
    assert capsys.readouterr().out.count("as the file says; nothing checks these names") == 2
    main(["compile", "histogram"])
    assert "as the file says" not in capsys.readouterr().out


def test_outputs_stand_beside_the_definitions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run-program", "histogram", "abac"]) == 0
    wanted = "token  transformer  definition\na      2            2\nb      1            1\na      2            2\n"
    assert capsys.readouterr().out == wanted + "c      1            1\n"
    assert main(["run-program", "sort", "2", "4", "1"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]] == ["1", "2", "4"]


def test_a_file_is_run_without_its_definition(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["run-program", str(broken), "ab", "a"]) == 0
    assert capsys.readouterr().out == "token  transformer\na      3\nb      2\na      3\n"


def test_differences_are_status_1(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassformer.cli.commands import run_program

    def broken(*args: object, **options: object) -> object:
        model = compile_program(*args, **options)  # type: ignore[arg-type]
        model.output.bias.data += 1
        return model

    monkeypatch.setattr(run_program, "compile_program", broken)
    assert main(["run-program", "length", "ab"]) == 1
    assert capsys.readouterr().out.splitlines()[1] == "a      3            2  differs"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compile", "histogran"], "'histogram'"),
        (["compile", "absent.py", "--run-python"], "absent.py"),
        (["compile", "histogram", "--out", "model.npz"], "model.npz"),
        (["compile", "histogram", "--out", "/dev/null/model.json"], "/dev/null/model.json"),
        (["compile", "histogram", "--weights", "absent.json"], "absent.json"),
        (["run-program", "histogram", "abx"], "'x'"),
        (["run-program", "histogram", "abcdab"], "6 tokens"),
        (["run-program", "histogram", ""], "no tokens"),
        (["run-program", "absent.json", "a"], "absent.json"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("command", ["compile", "run-program"])
def test_help_says_what_a_program_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    assert raised.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "PROGRAM is a name of the library, such as histogram" in shown
    assert "--run-python" in shown
