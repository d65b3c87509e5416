"""``glassformer design``: what it writes is proved, and what it cannot do is told."""

from pathlib import Path

import pytest

from glassformer.cli.commands import design as command
from glassformer.cli.main import main
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.verification import Certificate, verify
from glassformer.handcraft.weight_files import read_head
from refusals import Output, Refuses

POSSIBLE = [name for name in TASKS if name != "parity"]


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_is_written_solves_the_task(name: str, tmp_path: Path, output: Output) -> None:
    for out in ("head.json", "head.npz"):
        path = tmp_path / out
        shown = output(["design", name, path])
        assert shown.err == ""
        assert f"{name}: HOLDS (every error at most 1e-09; float64)" in shown.out
        assert (
            f"sharpness       {design(TASKS[name]()).sharpness:g}, for errors of at most 1e-09"
            in shown.out
        )
        assert shown.out.endswith(f"weights: {path}\n")
        assert verify(read_head(path), TASKS[name](), tolerance=1e-9).holds
        output(["verify", path, "--task", name])


def test_letters_length_and_error_are_ones_own(tmp_path: Path, output: Output) -> None:
    flags = ["--letters", "WXYZ", "--max-len", "3", "--largest-error", "0.01"]
    assert (
        "every sequence: 84 of 84 run"
        in output(["design", "unique", tmp_path / "a.json", *flags]).out
    )
    rough = read_head(tmp_path / "a.json")
    assert (rough.input_dim, rough.max_seq_len) == (5, 4)
    assert main(["design", "unique", str(tmp_path / "b.json"), *flags[:-1], "1e-12"]) == 0
    assert abs(read_head(tmp_path / "b.json").Qm).max() > abs(rough.Qm).max()


def test_a_task_beyond_any_single_head_and_another_ending(tmp_path: Path, refuses: Refuses) -> None:
    said = "the task 'parity', which no single head can do"
    refuses(["design", "parity", tmp_path / "head.json"], said, ", ".join(POSSIBLE))
    refuses(["design", "identity", tmp_path / "head.pt"], ".json or .npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--largest-error", "0"], "--largest-error 0.0"),
        (["--largest-error", "-1e-9"], "above 0 and below 0.5"),
        (["--largest-error", "0.5"], "so that no output is misread"),
        (["--largest-error", "1e-30"], "the rounding error in float64"),
        (["--largest-error", "nan"], "largest_error = nan"),
        (["--letters", "AA"], "('A', 'A')"),
        (["--max-len", "0"], "max_len = 0"),
        (["--max-len", "100000"], "letters times positions"),
    ],
)
def test_what_cannot_be_built(
    flags: list[str], words: str, tmp_path: Path, refuses: Refuses
) -> None:
    refuses(["design", "identity", tmp_path / "head.json", *flags], words)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept_unless_asked(tmp_path: Path, refuses: Refuses) -> None:
    mine = tmp_path / "package.json"
    mine.write_text("years of work")
    refuses(["design", "identity", mine], "--overwrite")
    assert mine.read_text() == "years of work"
    assert main(["design", "identity", str(mine), "--overwrite"]) == 0
    assert read_head(mine).input_dim == 3
    full = tmp_path / "thesis"
    full.mkdir()
    (full / "chapter.tex").write_text("years of work")
    refuses(["design", "identity", full, "--overwrite"], "thesis, a directory")
    assert (full / "chapter.tex").read_text() == "years of work"


def test_unproved_weights_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: Output
) -> None:
    def blunt(head: HeadWeights, *rest: object, **options: object) -> Certificate:
        return verify(HeadWeights(head.Km, head.Qm / 100, head.Vm, head.pos), *rest, **options)

    monkeypatch.setattr(command, "verify", blunt)
    assert "FAILS" in output(["design", "identity", tmp_path / "head.json"], 1).out
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to(output: Output) -> None:
    assert (
        "a place that can be written to"
        in output(["design", "unique", "/dev/null/head.json"], 2).err
    )
