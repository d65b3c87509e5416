"""``glassformer explore``: it serves what it finds, or writes it, and says what is wrong in one
line.
"""

import gc
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import glassformer.explorer
from glassformer.cli.main import main
from glassformer.explorer import server
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.stored_models import installed_models
from glassformer.explorer.messages import MOST_CHARACTERS
from glassformer.handcraft.designs import design
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.weight_files import write_head
from refusals import Output, Refuses


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


class Served:
    """What the server was asked to serve."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.port = 0
        self.address = ""
        self.browser = False

    def serve(self, backend: Backend, listener: Any, address: str, *, browser: bool) -> None:
        self.backend = backend
        self.address = address
        self.browser = browser
        self.port = listener.getsockname()[1]
        listener.close()

    @property
    def names(self) -> list[str]:
        return [card.name for card in self.backend.catalogue().models]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    seen = Served()
    monkeypatch.setattr(server, "serve", seen.serve)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    return seen


def test_without_arguments_it_serves_what_comes_along(served: Served, output: Output) -> None:
    said = output(["explore", "--port", "0"]).out
    assert served.names == [offer.card.name for offer in [*bundled(), *installed_models()]]
    assert served.browser
    assert served.address == f"http://127.0.0.1:{served.port}/"
    assert said.splitlines()[0] == served.address


@pytest.mark.parametrize(("run", "named"), [([], "the models"), (["uni\x1bque"], "uni\\x1bque")])
def test_a_terminal_reads_what_is_loaded_before_anything_is_imported(
    run: list[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = []
    explore = SimpleNamespace(main=lambda flags: read.append(capsys.readouterr().err) or 0)
    monkeypatch.setitem(sys.modules, "glassformer.cli.commands.explore", explore)
    for is_terminal, line in ((True, f"loading {named} ...\n"), (False, "")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda value=is_terminal: value)
        assert main(["explore", *run]) == 0
        assert read.pop() == line


def test_what_is_named_is_shown_first(served: Served, tmp_path: Path) -> None:
    write_head(design(TASKS["unique"]()).weights, tmp_path / "mine.json")
    assert (
        main(
            [
                "explore",
                "mine.json",
                "--no-browser",
                "--text",
                "A B&C",
                "--view",
                "design",
                "--port",
                "0",
            ]
        )
        == 0
    )
    assert not served.browser
    assert "mine" in served.names[0]
    words = parse_qs(urlsplit(served.address).fragment)
    assert words == {"model": [served.names[0]], "view": ["design"], "text": ["A B&C"]}
    assert main(["explore", "unique", "--no-browser", "--port", "0"]) == 0
    assert served.names[0] == "unique"
    assert served.address.endswith("#model=unique")


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        (["--text", "CAB"], "identity"),
        (["--text", "a fine film"], "sentiment"),
        (["--view", "sampling"], "recurrence"),
        (["--view", "sampling", "--text", "1 2 3"], "recurrence"),
        (["--view", "scramble"], "lookup-course"),
        (["--view", "scramble", "--text", "emma"], "lookup-facts"),
    ],
)
def test_without_a_name_the_first_model_that_fits_is_shown(
    arguments: list[str], model: str, served: Served
) -> None:
    assert main(["explore", "--no-browser", "--port", "0", *arguments]) == 0
    assert parse_qs(urlsplit(served.address).fragment)["model"] == [model]


def test_names_of_files_do_not_steer_the_terminal(
    served: Served, output: Output, tmp_path: Path
) -> None:
    evil = tmp_path / "runs" / "ev\x1b[31mil\nx"
    evil.mkdir(parents=True)
    (evil / "config.json").write_text("{", encoding="utf-8")
    (evil / "head.json").write_text("{", encoding="utf-8")
    said = (
        output(["explore", "--no-browser", "--port", "0"]).err
        + output(["explore", evil / "head.json"], 2).err
    )
    assert "\x1b" not in said
    assert said.count("\n") >= 2
    assert all(line.startswith("glassformer: ") for line in said.splitlines())


def test_runs_that_lie_about_are_offered_and_broken_ones_told(
    served: Served, tmp_path: Path, output: Output
) -> None:
    write_head(design(TASKS["identity"]()).weights, tmp_path / "elsewhere" / "head.json")
    broken = tmp_path / "elsewhere" / "broken"
    broken.mkdir()
    (broken / "head.json").write_text("1,x", encoding="utf-8")
    said = output(["explore", "--runs", "elsewhere", "--no-browser", "--port", "0"]).err
    assert len(served.names) == len(bundled()) + len(installed_models()) + 1
    assert said.count("\n") == 1
    assert said.startswith("glassformer: warning: skipped elsewhere/broken")


def test_the_page_is_written_to_one_file(output: Output, refuses: Refuses, tmp_path: Path) -> None:
    assert (
        output(["explore", "identity", "--save", "page.html", "--text", "ABC"]).out
        == "page: page.html\n"
    )
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert re.findall(r"""\b(?:src|href)=["'](?!data:|#)""", page[: page.index("<script")]) == []
    refuses(["explore", "identity", "--save", "page.html"], "page.html, which is there already")
    assert main(["explore", "unique", "--save", "page.html", "--overwrite"]) == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8") != page


def test_all_bundled_models_are_written_to_one_directory(
    output: Output, refuses: Refuses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [entry for entry in bundled() if entry.card.name in ("identity", "unique")]
    monkeypatch.setattr("glassformer.cli.commands.explore.list_models", lambda: few)
    said = output(["explore", "--save", "site", "--all"]).out.splitlines()
    assert said == ["page of identity ...", "page of unique ...", "pages: site/index.html"]
    names = {"index.html", "identity.html", "unique.html"}
    assert {path.name for path in (tmp_path / "site").iterdir()} == names
    refuses(["explore", "--save", "site", "--all"], "site, which exists already")
    refuses(["explore", "--all"], "--all without --save")
    for more in ("unique", "--overwrite"):
        refuses(["explore", more, "--save", "other", "--all"], "--all with a model")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere, which does not exist"),
        (["smolm2"], "Did you mean 'smollm2'?"),
        (["--text", "x" * (MOST_CHARACTERS + 1)], "65,537 characters"),
        (["--text", "\udcff"], "text in UTF-8"),
        (["--port", "65536"], "0 to 65535"),
        (["--port", "-1"], "0 to 65535"),
        (["identity", "--view", "sampling"], "sampling"),
        (["--view", "scramble", "--text", "nobody"], "one of lookup-course, lookup-facts"),
        (["identity", "--text", "XYZ", "--save", "page.html"], "'X'"),
        (["identity", "--save", "."], "which is there already"),
    ],
)
def test_what_is_not_shown(
    arguments: list[str], words: str, served: Served, refuses: Refuses, tmp_path: Path
) -> None:
    refuses(["explore", *arguments], words)
    assert list(tmp_path.iterdir()) == []
    assert served.backend is None


def test_saving_needs_no_web_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "glassformer.explorer.server")
    monkeypatch.delattr(glassformer.explorer, "server")
    assert main(["explore", "identity", "--save", "page.html"]) == 0
    assert (tmp_path / "page.html").is_file()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signal")
def test_it_serves_until_ctrl_c_and_ends_quietly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "glassformer", "explore", "--no-browser", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    address = process.stdout.readline().strip()
    page = urllib.request.urlopen(address).read().decode()
    for name in ["", *re.findall(r'(?:src|href)="([^"]+)"', page)]:
        assert urllib.request.urlopen(address + name).status == 200
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "Ctrl-C ends it.\n"
    assert process.wait() == 0
