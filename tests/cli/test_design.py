"""``glassformer design``: what it writes is proved, and what it cannot do is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.cli.commands import design as command
from glassformer.cli.main import main
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.verification import Certificate, verify
from glassformer.handcraft.weight_files import read_head

POSSIBLE = [name for name in TASKS if name != "parity"]


@pytest.fixture(autouse=True)
def _no_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSFORMER_DEBUG", raising=False)


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_is_written_solves_the_task(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out in ("head.json", "head.npz"):
        path = tmp_path / out
        assert main(["design", name, str(path)]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        assert f"{name}: HOLDS (every error at most 1e-09; float64)" in shown.out
        assert f"sharpness       {design(TASKS[name]()).sharpness:g}, for errors of at most 1e-09" in shown.out
        assert shown.out.endswith(f"weights: {path}\n")
        assert verify(read_head(path), TASKS[name](), tolerance=1e-9).holds
        assert main(["verify", str(path), "--task", name]) == 0
        capsys.readouterr()


def test_letters_length_and_error_are_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--letters", "WXYZ", "--max-len", "3", "--largest-error", "0.01"]
    assert main(["design", "unique", str(tmp_path / "a.json"), *flags]) == 0
    assert "every sequence: 84 of 84 run" in capsys.readouterr().out
    rough = read_head(tmp_path / "a.json")
    assert (rough.input_dim, rough.max_seq_len) == (5, 4)
    assert main(["design", "unique", str(tmp_path / "b.json"), *flags[:-1], "1e-12"]) == 0
    assert abs(read_head(tmp_path / "b.json").Qm).max() > abs(rough.Qm).max()


def test_a_task_beyond_any_single_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "parity", str(tmp_path / "head.json")]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert "the task 'parity', which no single head can do" in shown.err
    assert ", ".join(POSSIBLE) in shown.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--largest-error", "0"], "--largest-error 0.0"),
        (["--largest-error", "-1e-9"], "above 0 and below 0.5"),
        (["--largest-error", "0.5"], "so that no output is misread"),
        (["--largest-error", "1e-30"], "the rounding error in float64"),
        (["--letters", "AA"], "('A', 'A')"),
        (["--max-len", "0"], "max_len = 0"),
        (["--max-len", "100000"], "letters times positions"),
    ],
)
def test_what_cannot_be_built_is_one_line(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["design", "identity", str(tmp_path / "head.json"), *flags]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert words in shown
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_is_no_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["design", "identity", str(tmp_path / "head.json"), "--largest-error", "nan"])
    assert stopped.value.code == 2
    assert "largest_error = nan" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "package.json"
    mine.write_text("years of work")
    assert main(["design", "identity", str(mine)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert mine.read_text() == "years of work"
    assert main(["design", "identity", str(mine), "--overwrite"]) == 0
    assert read_head(mine).input_dim == 3
    full = tmp_path / "thesis"
    full.mkdir()
    (full / "chapter.tex").write_text("years of work")
    assert main(["design", "identity", str(full), "--overwrite"]) == 2
    assert "thesis, a directory" in capsys.readouterr().err
    assert (full / "chapter.tex").read_text() == "years of work"


def test_another_ending_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "identity", str(tmp_path / "head.pt")]) == 2
    assert ".json or .npz" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_proved_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def blunt(head: HeadWeights, *rest: object, **options: object) -> Certificate:
        return verify(HeadWeights(head.Km, head.Qm / 100, head.Vm, head.pos), *rest, **options)

    monkeypatch.setattr(command, "verify", blunt)
    assert main(["design", "identity", str(tmp_path / "head.json")]) == 1
    assert "FAILS" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_help_tells_the_tasks_and_formats(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["design", "--help"])
    assert raised.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in (*TASKS, ".json", ".npz", "--largest-error", "--overwrite"):
        assert words in shown
