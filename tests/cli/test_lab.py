"""``glassformer lab``: what it hands to a lab, where it writes, what wrong flags get."""

import importlib.util
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from glassformer.cli.commands import lab
from glassformer.course.lessons import notebook
from glassformer.labs.hand_in import Author
from refusals import Output, Refuses


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The keyword arguments of each call of a stand-in for the GPT-OSS lab."""
    seen: list[dict[str, object]] = []

    def run(given: object, out: Path, quick: bool, seed: int, resume: bool) -> Path:
        assert given is module.LAB
        seen.append({"out": out, "quick": quick, "seed": seed, "resume": resume})
        return out / "report.md"

    module = ModuleType("stand_in_lab")
    module.LAB = object()
    monkeypatch.setattr("glassformer.labs.run.run", run)
    monkeypatch.setitem(sys.modules, "stand_in_lab", module)
    monkeypatch.setitem(lab.LABS, "gpt-oss", "stand_in_lab")
    return seen


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"out": Path("runs/gpt-oss"), "quick": False, "seed": 0, "resume": False}),
        (
            ["--quick"],
            {"out": Path("runs/gpt-oss-quick"), "quick": True, "seed": 0, "resume": False},
        ),
        (
            ["--seed", "3", "--resume"],
            {"out": Path("runs/gpt-oss"), "quick": False, "seed": 3, "resume": True},
        ),
        (
            ["--quick", "--out", "here"],
            {"out": Path("here"), "quick": True, "seed": 0, "resume": False},
        ),
    ],
)
def test_flags_reach_the_lab_and_the_report_is_named(
    flags: list[str], expected: dict[str, object], calls: list[dict[str, object]], output: Output
) -> None:
    assert output(["lab", "gpt-oss", *flags]).out == f"report: {expected['out']}/report.md\n"
    assert calls == [expected]


@pytest.mark.parametrize(
    ("arguments", "helpful"),
    [
        (["gpt-os"], "gpt-oss"),
        (["hand"], "hand-designed"),
        (["look"], "lookup"),
        ([], "gpt-oss"),
        (["gpt-oss", "--quik"], "--quick"),
        (["gpt-oss", "--sead", "1"], "--seed"),
        (["gpt-oss", "--seed", "x"], "--seed"),
        (["gpt-oss", "--seed", "-1"], "seed = -1"),
        (["gpt-oss", "--seed", "1" + 22 * "0"], "seed = 1"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], helpful: str, calls: list[dict[str, object]], refuses: Refuses
) -> None:
    refuses(["lab", *arguments], helpful)
    assert calls == []


@pytest.mark.parametrize(
    ("arguments", "helpful"),
    [
        (["--author", "Ann"], "--author without --hand-in"),
        (["--student-id", "7"], "--student-id without --hand-in"),
        (["--date", "2026-03-31"], "--date without --hand-in"),
        (["--hand-in", "new"], "--hand-in without --author"),
        (["--hand-in", "new", "--author", "Ann", "--date", "31.3.2026"], "--date 31.3.2026"),
        (["--hand-in", "new", "--author", "Ann", "--date", "2026-02-30"], "--date 2026-02-30"),
        (["--hand-in", "new", "--author", ""], "the author ''"),
        (["--hand-in", "new", "--author", "A\nB"], "the author 'A"),
        (["--hand-in", "new", "--author", "Ann", "--student-id", " "], "the student ID ' '"),
        (["--hand-in", ".", "--author", "Ann"], "which exists already"),
        (["--hand-in", "runs", "--author", "Ann"], "which holds the lab's run"),
    ],
)
def test_wrong_hand_ins_are_refused_before_the_lab_runs(
    arguments: list[str],
    helpful: str,
    calls: list[dict[str, object]],
    refuses: Refuses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    refuses(["lab", "gpt-oss", *arguments], helpful)
    assert calls == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_hand_in_gets_the_lesson_and_the_flags(
    calls: list[dict[str, object]], output: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[object, ...]] = []

    def hand_in(
        lesson: dict[str, Any], author: Author, folder: Path, out: Path, write_report: Callable
    ) -> Path:
        asked.append((lesson, author, folder, out, write_report()))
        return folder.with_name(f"{folder.name}.zip")

    monkeypatch.setattr("glassformer.labs.hand_in.hand_in", hand_in)
    flags = [
        "--hand-in",
        tmp_path / "new",
        "--author",
        "Ann",
        "--date",
        "2026-03-31",
        "--quick",
        "--resume",
    ]
    shown = output(["lab", "gpt-oss", *flags]).out
    out = Path("runs/gpt-oss-quick")
    expected = notebook("gpt_oss", solutions=True)
    assert asked == [
        (expected, Author("Ann", date(2026, 3, 31)), tmp_path / "new", out, out / "report.md")
    ]
    assert calls == [{"out": out, "quick": True, "seed": 0, "resume": True}]
    assert f"archive: {tmp_path / 'new.zip'}" in shown
    assert "student ID" in shown
    output(["lab", "gpt-oss", *flags, "--student-id", "7"])
    assert asked[1][1] == Author("Ann", date(2026, 3, 31), "7")


def test_every_lab_named_is_a_module() -> None:
    missing = [module for module in lab.LABS.values() if importlib.util.find_spec(module) is None]
    assert missing == []
