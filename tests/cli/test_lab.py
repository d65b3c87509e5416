"""``glassformer lab``: what it hands to a lab, where it writes, what wrong flags get."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from glassformer.cli.commands import lab
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
        (["--quick"], {"out": Path("runs/gpt-oss-quick"), "quick": True, "seed": 0, "resume": False}),
        (["--seed", "3", "--resume"], {"out": Path("runs/gpt-oss"), "quick": False, "seed": 3, "resume": True}),
        (["--quick", "--out", "here"], {"out": Path("here"), "quick": True, "seed": 0, "resume": False}),
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
def test_wrong_arguments(arguments: list[str], helpful: str, calls: list[dict[str, object]], refuses: Refuses) -> None:
    refuses(["lab", *arguments], helpful)
    assert calls == []


def test_every_lab_named_is_a_module() -> None:
    missing = [module for module in lab.LABS.values() if importlib.util.find_spec(module) is None]
    assert missing == []
