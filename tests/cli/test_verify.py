"""``glassformer verify``: statuses, what a person sees, and what is written."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from glassformer.cli.main import main
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import copy_first, identity, unique
from glassformer.handcraft.verification import verify
from glassformer.handcraft.weight_files import write_head
from refusals import Output, Refuses

MINE = {"letters": "ABC", "tolerance": 0.001, "examples": [{"input": "CAB", "output": "CCC"}]}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """The designed head for ``unique``."""
    write_head(design(unique()).weights, tmp_path / "good.json")
    return tmp_path / "good.json"


@pytest.fixture
def blunt(tmp_path: Path) -> Path:
    """The same with a fiftieth of its sharpness, which is too little."""
    made = design(unique()).weights
    write_head(HeadWeights(made.Km, made.Qm / 50, made.Vm, made.pos), tmp_path / "blunt.npz")
    return tmp_path / "blunt.npz"


def test_a_head_that_holds_is_status_0(good: Path, output: Output) -> None:
    shown = output(["verify", good, "--task", "unique"])
    assert shown.err == ""
    assert shown.out == f"{verify(design(unique()).weights, unique())}\n"


def test_a_head_that_fails_is_status_1_with_its_first_failing_sequence(
    blunt: Path, output: Output
) -> None:
    lines = output(["verify", blunt, "--task", "unique"], 1).out.splitlines()
    assert lines[0].startswith("unique: FAILS")
    assert "AB, with the failing position marked:" in lines
    # By hand: "AB" is the first sequence in which a letter is outweighed by others that are not its
    # own.
    made = design(unique()).weights
    head = NumpyHead(HeadWeights(made.Km, made.Qm / 50, made.Vm, made.pos))
    trace = head.trace(np.eye(4)[[3, 0, 1]])
    (pointed,) = [line for line in lines if line.startswith("attention of 0 A: ")]
    shares = sorted(np.round(100 * trace.weights[1]), reverse=True)
    assert [int(share) for share in re.findall(r"(\d+)%", pointed)] == shares
    wrong = [line.split() for line in lines if line.endswith("wrong")]
    assert [float(words[-3]) for words in wrong] == pytest.approx(
        trace.output[1:, 0].tolist(), abs=1e-4
    )
    assert [words[-4] for words in wrong] == ["1", "1"]


def test_what_rounding_decides_is_status_1_and_named(tmp_path: Path, output: Output) -> None:
    write_head(
        HeadWeights([[1], [0]], [[0.8], [0]], [[-7], [7 * np.exp(0.8)]]), tmp_path / "near.json"
    )
    flags = [
        "--task",
        "unique",
        "--letters",
        "A",
        "--max-len",
        "1",
        "--json",
        tmp_path / "certificate.json",
    ]
    shown = output(["verify", tmp_path / "near.json", *flags], 1).out
    assert shown.startswith("unique: UNDECIDED")
    assert "rounding        decides 1 of 1 outputs, by up to" in shown
    assert "the first       A, position 0: got [" in shown
    assert "Rounding decides: another order of sums" in shown
    stored = json.loads((tmp_path / "certificate.json").read_text())
    assert (stored["verdict"], stored["undecided"]["sequence"], stored["num_undecided"]) == (
        "undecided",
        "A",
        1,
    )
    assert abs(stored["undecided"]["output"][0]) < stored["rounding"] < 1e-12
    assert stored["subject"]["inputs"] == ["A", "CLS"]


def test_letters_and_length_are_the_tasks_or_ones_own(
    tmp_path: Path, output: Output, refuses: Refuses
) -> None:
    write_head(design(identity("XY", 3)).weights, tmp_path / "head.npz")
    path = str(tmp_path / "head.npz")
    shown = output(["verify", path, "--task", "identity", "--letters", "XY", "--max-len", "3"]).out
    assert "every sequence: 14 of 14 run" in shown
    refuses(["verify", path, "--task", "identity"], "Km of shape [2, 2]")


def test_tolerance_and_number_format(blunt: Path, good: Path, output: Output) -> None:
    for flags, status, words in (
        (["--tolerance", "1e-9"], 0, "every error at most 1e-09; float64"),
        (["--tolerance", "1e-12"], 1, "every error at most 1e-12"),
        (["--tolerance", "readout"], 0, "every sign right"),
        (["--tolerance", "1e-6", "--float32"], 0, "every error at most 1e-06; float32"),
    ):
        assert words in output(["verify", good, "--task", "unique", *flags], status).out
    output(["verify", blunt, "--task", "unique", "--tolerance", "5"])


def test_more_sequences_than_are_run(tmp_path: Path, output: Output) -> None:
    # Without positions nothing reads "copy_first", and beyond the limit no bound helps, but a
    # failure is soon met.
    write_head(design(copy_first("AB", 4)).weights, tmp_path / "head.json")
    flags = ["--letters", "AB", "--max-len", "4", "--limit", "10"]
    shown = output(["verify", tmp_path / "head.json", "--task", "copy_first", *flags]).out
    assert "the bound, for all 30 sequences" in shown
    (tmp_path / "task.py").write_text(
        "letters, max_len = 'AB', 4\ndef target(s): return s[0] * len(s)\n"
    )
    flags = ["--task-file", str(tmp_path / "task.py"), "--run-python", "--limit", "10"]
    shown = output(["verify", tmp_path / "head.json", *flags], 1).out
    assert "task: UNDECIDED" in shown
    assert "pass --limit 30 or more" in shown
    assert main(["verify", str(tmp_path / "head.json"), *flags[:-1], "30"]) == 0


def test_a_bound_that_is_too_large_is_undecided(tmp_path: Path, output: Output) -> None:
    task = copy_first("AB", 30)
    made = design(task, largest_error=1e-2)
    write_head(made.weights, tmp_path / "head.json")
    met = verify(made.weights, task).largest_error
    flags = ["--task", "copy_first", "--letters", "AB", "--max-len", "30", "--tolerance"]
    shown = output(["verify", tmp_path / "head.json", *flags, f"{(met + made.bound) / 2}"], 1).out
    assert "copy_first: UNDECIDED" in shown
    assert "sharper scores" in shown
    assert main(["verify", str(tmp_path / "head.json"), *flags, f"{made.bound * 1.001}"]) == 0


def test_tasks_of_ones_own(tmp_path: Path, output: Output) -> None:
    write_head(design(copy_first()).weights, tmp_path / "head.npz")
    head = str(tmp_path / "head.npz")
    (tmp_path / "mine.json").write_text(json.dumps(MINE))
    assert (
        "the 1 listed examples, all run"
        in output(["verify", head, "--task-file", tmp_path / "mine.json"]).out
    )
    (tmp_path / "mine.py").write_text("letters, max_len = 'ABC', 4\ndef target(s): return s\n")
    refusal = output(["verify", head, "--task-file", tmp_path / "mine.py"], 2).err
    assert "can do anything on this computer" in refusal
    assert refusal.count("\n") == 1
    shown = output(["verify", head, "--task-file", tmp_path / "mine.py", "--run-python"], 1).out
    assert "AB, with the failing position marked:" in shown
    assert "> 1 B  0 1 0   1 0 0   1  wrong" in shown


def test_the_certificate_as_json(blunt: Path, good: Path, tmp_path: Path, output: Output) -> None:
    written = tmp_path / "out" / "certificate.json"
    flags = ["--task", "unique", "--json", str(written)]
    assert f"certificate: {written}\n" in output(["verify", blunt, *flags], 1).out
    stored = json.loads(written.read_text())
    assert (stored["verdict"], stored["counterexample"]["sequence"], stored["num_checked"]) == (
        "fails",
        "AB",
        120,
    )
    assert "with the failing position" not in output(["verify", good, *flags, "--overwrite"]).out
    assert json.loads(written.read_text())["verdict"] == "holds"


def test_a_certificate_replaces_nothing_unless_told(
    good: Path, tmp_path: Path, refuses: Refuses
) -> None:
    there = tmp_path / "there.json"
    link = tmp_path / "link.json"
    there.write_text("mine")
    link.symlink_to(there)
    for flags in ([there], [link], ["/dev/null", "--overwrite"]):
        refuses(["verify", good, "--task", "unique", "--json", *flags], "which is there already")
    assert there.read_text() == "mine"


def test_a_place_that_cannot_be_written_to_is_one_line_and_status_2(
    good: Path, tmp_path: Path, output: Output
) -> None:
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "new"  # in what is no directory
    shown = output(["verify", good, "--task", "unique", "--json", inside], 2)
    assert shown.out.startswith("unique: HOLDS")
    assert f"{inside} (" in shown.err
    assert "expected a place that can be written to" in shown.err
    assert shown.err.count("\n") == 1


def test_json_has_null_for_what_is_infinite(tmp_path: Path, output: Output) -> None:
    write_head(design(identity("AB", 4)).weights, tmp_path / "head.json")
    (tmp_path / "task.py").write_text("letters, max_len = 'AB', 4\ndef target(s): return s\n")
    flags = [
        "--task-file",
        tmp_path / "task.py",
        "--run-python",
        "--limit",
        "3",
        "--json",
        tmp_path / "c.json",
    ]
    output(["verify", tmp_path / "head.json", *flags], 1)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads((tmp_path / "c.json").read_text(), parse_constant=refuse)["bound"] is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"Km": [[1]], "Qm": [[1]], "Vm": [[NaN]]}', "NaN"),
        (
            '{"Km": [[1e200],[1],[1],[1]], "Qm": [[1e200],[1],[1],[1]], "Vm": [[1],[1],[1],[1]]}',
            "scores of up to",
        ),
    ],
)
def test_weights_that_cannot_be_used(
    content: str, words: str, tmp_path: Path, refuses: Refuses
) -> None:
    path = tmp_path / "head.json"
    path.write_text(content)
    refuses(["verify", path, "--task", "unique"], words, str(path))


def test_links_that_lead_in_a_circle(tmp_path: Path, refuses: Refuses) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for command in (["explore", loop, "--no-browser"], ["verify", loop, "--task", "identity"]):
        refuses(command, "loop")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "one of --task and --task-file"),
        (["--task", "unique", "--task-file", "x.json"], "both --task and --task-file"),
        (["--task-file", "x.json", "--letters", "AB"], "--letters or --max-len with --task-file"),
        (["--task", "unique", "--run-python"], "--run-python without --task-file"),
        (["--task", "uniqe"], "unique"),
        (["--task", "unique", "--limit", "0"], "limit = 0"),
        (["--task", "unique", "--tolerance", "tight"], "readout"),
        (["--task", "unique", "--tolerance", "-1"], "above 0"),
        (["--task", "unique", "--tolerance", "nan"], "finite number"),
        (["--task", "unique", "--json", "good.json"], "--json good.json, which is an input"),
        (["--task", "unique", "--json", "."], "which is there already"),
    ],
)
def test_wrong_flags_say_what_is_right_before_the_work(
    flags: list[str], words: str, good: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.chdir(good.parent)
    refuses(["verify", good.name, *flags], words)
