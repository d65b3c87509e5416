"""``glassformer program``: what it prints, its statuses, and what it refuses."""

import json
from pathlib import Path

import pytest

from glassformer.cli.main import main
from glassformer.programs import compile_program, verify_program
from glassformer.programs.library import histogram
from glassformer.programs.saved import load_program
from refusals import Output, Refuses

MINE = """
import operator
from glassformer.programs import select, selector_width, tokens

program = selector_width(select(tokens, tokens, operator.eq), "mine")
vocabulary, max_len, causal = ["red", "green"], 4, True
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A histogram's weights, one of which was changed."""
    path = tmp_path / "broken.json"
    assert main(["program", "histogram", "--out", str(path)]) == 0
    content = json.loads(path.read_text())
    content["weights"]["output.bias"][0] += 0.75
    path.write_text(json.dumps(content))
    return path


def test_ones_own_program_is_compiled_and_proved(
    mine: Path, tmp_path: Path, output: Output, refuses: Refuses
) -> None:
    out = tmp_path / "model.json"
    shown = output(["program", mine, "--run-python", "--verify", "--out", out])
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
    refuses(["program", mine, "--run-python", "--out", out], "--overwrite")
    assert (
        main(
            [
                "program",
                str(mine),
                "--run-python",
                "--out",
                str(out),
                "--overwrite",
                "--dtype",
                "float32",
            ]
        )
        == 0
    )
    assert load_program(out).output.weight.dtype.itemsize == 4


def test_a_python_file_is_run_on_request_alone(mine: Path, refuses: Refuses) -> None:
    for command in (["program", mine], ["program", mine, "red"]):
        refuses(command, "can do anything on this computer")


def test_weights_of_a_file_are_verified(broken: Path, output: Output, refuses: Refuses) -> None:
    shown = output(["program", "histogram", "--verify", "--weights", broken], 1).out
    assert "FAILS (float64; based on every sequence)" in shown
    assert "counterexample  ['a'], position 0: 1.75, wanted 1" in shown
    refuses(["program", "parity", "--verify", "--weights", broken], "weights for 5 tokens")


def test_beyond_the_limit_it_may_be_undecided(broken: Path, output: Output) -> None:
    content = json.loads(broken.read_text())
    content["weights"]["output.bias"][0] -= 0.75
    for row in content["weights"]["layers.0.ffn.down.weight"]:
        row[-1] = 0.0  # a count of 5 becomes 5.5
    broken.write_text(json.dumps(content))
    shown = output(
        ["program", "histogram", "--verify", "--weights", broken, "--limit", "100"], 1
    ).out
    assert "pass --limit 1364 or more" in shown
    shown = output(["program", "histogram", "--verify", "--seconds", "0.000001"], 1).out
    assert shown.count("the time was over") == 1
    assert "pass more than --seconds 1e-06, or" in shown


def test_names_in_a_file_are_marked(broken: Path, output: Output) -> None:
    shown = output(["program", "histogram", "--weights", broken]).out
    assert shown.count("as the file says; nothing checks these names") == 2
    assert "as the file says" not in output(["program", "histogram"]).out


def test_outputs_stand_beside_the_definitions(output: Output) -> None:
    wanted = "token  transformer  definition\na      2            2\nb      1            1\na      2            2\n"
    assert output(["program", "histogram", "abac"]).out == wanted + "c      1            1\n"
    lines = output(["program", "sort", "2", "4", "1"]).out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["1", "2", "4"]


def test_a_file_is_run_without_its_definition(broken: Path, output: Output) -> None:
    assert (
        output(["program", broken, "ab", "a"]).out
        == "token  transformer\na      3\nb      2\na      3\n"
    )


def test_differences_are_status_1(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.cli.commands import program

    def broken(*args: object, **options: object) -> object:
        model = compile_program(*args, **options)  # type: ignore[arg-type]
        model.output.bias.data += 1
        return model

    monkeypatch.setattr(program, "compile_program", broken)
    assert (
        output(["program", "length", "ab"], 1).out.splitlines()[1]
        == "a      3            2  differs"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["program", "histogran"], "'histogram'"),
        (["program", "absent.py", "--run-python"], "absent.py"),
        (["program", "histogram", "--out", "model.npz"], "model.npz"),
        (["program", "histogram", "--weights", "absent.json"], "absent.json"),
        (["program", "histogram", "--limit", "5"], "--limit or --seconds without --verify"),
        (["program", "histogram", "--seconds", "5"], "--limit or --seconds without --verify"),
        (["program", "histogram", "abx"], "'x'"),
        (["program", "histogram", "abcdab"], "6 tokens"),
        (["program", "histogram", ""], "no tokens"),
        (["program", "absent.json", "a"], "absent.json"),
        (["program", "absent.json", "--verify"], "holds no definition"),
    ],
)
def test_what_cannot_be_compiled_or_run(arguments: list[str], words: str, refuses: Refuses) -> None:
    refuses(arguments, words)


def test_a_place_that_cannot_be_written_to(output: Output) -> None:
    assert (
        "/dev/null/model.json"
        in output(["program", "histogram", "--out", "/dev/null/model.json"], 2).err
    )
