"""Command lines that ask for what no machine has, or would replace what is there: one line, and nothing done."""

import json
from pathlib import Path

import pytest

from glassformer.cli.main import main
from refusals import Refuses


def test_links_that_lead_in_a_circle(tmp_path: Path, refuses: Refuses) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for command in (["explore", loop, "--no-browser"], ["verify", loop, "--task", "identity"]):
        refuses(command, "loop")


def head(path: Path) -> Path:
    path.write_text(json.dumps({"Km": [[1, 0], [0, 1]], "Qm": [[1, 0], [0, 1]], "Vm": [[1, 0], [0, 1]]}))
    return path


def test_a_certificate_replaces_nothing_unless_told(tmp_path: Path, refuses: Refuses) -> None:
    given, there = head(tmp_path / "head.json"), tmp_path / "there.json"
    there.write_text("mine")
    link = tmp_path / "link.json"
    link.symlink_to(there)
    command = ["verify", given, "--task", "identity", "--letters", "AB"]
    for path in (there, link):
        refuses([*command, "--json", path], "which is there already")
    refuses([*command, "--json", "/dev/null", "--overwrite"], "which is there already")
    assert there.read_text() == "mine"
    assert main([*map(str, command), "--json", str(there), "--overwrite"]) in (0, 1)
    assert "verdict" in json.loads(there.read_text())


def test_a_lab_takes_no_directory_of_something_else(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "config.json").write_text("{}")
    refuses(["lab", "lookup", "--quick", "--out", tmp_path], "holds something else: config.json")
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    for error in (MemoryError("rows_int8"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")):

        def raises(_flags: object, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr("glassformer.cli.commands.info.main", raises)
        refuses(["info", "m"], "not enough memory", status=1)
