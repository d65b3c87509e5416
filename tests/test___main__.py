"""``python -m glassformer`` is the command line."""

import runpy
import sys

import pytest

from glassformer import __version__


@pytest.mark.parametrize(("argument", "status"), [("--version", 0), ("--nonsense", 2)])
def test_the_module_runs_the_command_line(
    argument: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["glassformer", argument])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("glassformer", run_name="__main__")
    assert stopped.value.code == status
    assert (capsys.readouterr().out == f"glassformer {__version__}\n") is (status == 0)
