"""What is handed in: a folder and an archive, complete or absent, with the author's name and what
the cells wrote.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from shutil import copytree
from typing import Any
from zipfile import ZipFile

import pypandoc
import pytest
from nbclient import NotebookClient

from glassformer.course.lessons import LABS, notebook
from glassformer.labs import hand_in as module
from glassformer.labs.hand_in import Author, hand_in
from refusals import refused

DAY = date(2026, 3, 31)
ANN = Author("Ann *A* [x](y) <b> $1$", DAY, "s#7_8")
HEADING = "**Name:** Ann \\*A\\* \\[x\\](y) \\<b\\> \\$1\\$  \n**Student ID:** s\\#7\\_8  \n**Date:** 2026-03-31"
PRINTING = 'print("f:", f(), flush=True)\nprint("g")'
CELLS = [
    {
        "cell_type": "markdown",
        "id": "a",
        "metadata": {},
        "source": "# A lesson\n\nWhat it is about.",
    },
    {
        "cell_type": "markdown",
        "id": "b",
        "metadata": {"tags": ["for-students"]},
        "source": "Write here.",
    },
    {
        "cell_type": "code",
        "id": "c",
        "metadata": {},
        "source": "def f():\n    ### BEGIN SOLUTION\n    return 6 * 7\n    ### END SOLUTION\n\n\n"
        + PRINTING,
        "execution_count": None,
        "outputs": [],
    },
    {
        "cell_type": "code",
        "id": "d",
        "metadata": {},
        "source": 'import inspect, sys\nopen("log.txt", "w").write(inspect.getsource(f) + sys.executable);',
        "execution_count": None,
        "outputs": [],
    },
]


def lesson(cells: list[dict[str, Any]] = CELLS) -> dict[str, Any]:
    metadata = {"glassformer": {"lab": "tiny", "seed": 0}}
    return json.loads(
        json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
    )


def reporter(out: Path) -> Callable[[], Path]:
    """What writes a lab's report and a figure to ``out``."""

    def write() -> Path:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        (out / "figures" / "one.png").write_bytes(b"a picture")
        (out / "figures" / "one.svg").write_text("a drawing")
        (out / "report.md").write_text(
            "# The report\n\n![one](figures/one.png)\n", encoding="utf-8"
        )
        return out / "report.md"

    return write


def never() -> Path:
    raise AssertionError("the lab was run")


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a hand-in, whose run is beside it in run/."""
    place = tmp_path_factory.mktemp("hand-in")
    folder = place / "week.3"
    assert (
        hand_in(lesson(), ANN, folder, place / "run", reporter(place / "run"))
        == place / "week.3.zip"
    )
    return folder


def cells(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "tiny.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.mark.slow
def test_the_folder_holds_all_that_is_asked_for(handed: Path) -> None:
    names = {path.relative_to(handed).as_posix() for path in handed.rglob("*") if path.is_file()}
    assert names == {"tiny.ipynb", "tiny.pdf", "log.txt", "report.md", "figures/one.png"}
    assert (handed / "tiny.pdf").read_bytes().startswith(b"%PDF-")
    assert {path.name for path in handed.parent.iterdir()} == {"run", "week.3", "week.3.zip"}


@pytest.mark.slow
def test_the_archive_holds_the_folder(handed: Path) -> None:
    with ZipFile(handed.with_name("week.3.zip")) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    on_disk = {path for path in handed.rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(handed.parent).as_posix(): path.read_bytes() for path in on_disk
    }


@pytest.mark.slow
def test_the_notebook_is_signed_executed_and_without_scaffold(handed: Path) -> None:
    title, function, _ = cells(handed)
    assert title["source"] == f"# A lesson\n\n{HEADING}\n\nWhat it is about."
    assert function["source"] == "def f():\n    return 6 * 7\n\n\n" + PRINTING
    assert [output["text"] for output in function["outputs"]] == ["f: 42\ng\n"]
    assert [cell["execution_count"] for cell in cells(handed)[1:]] == [1, 2]
    stored = json.loads((handed / "tiny.ipynb").read_text(encoding="utf-8"))
    assert stored["metadata"]["authors"] == [{"name": ANN.name}]


@pytest.mark.slow
def test_the_cells_wrote_their_own_sources_in_this_python(handed: Path) -> None:
    assert (handed / "log.txt").read_text() == f"def f():\n    return 6 * 7\n{sys.executable}"


@pytest.mark.slow
def test_the_report_is_signed(handed: Path) -> None:
    report = (handed / "report.md").read_text(encoding="utf-8")
    assert report == f"# The report\n\n{HEADING}\n\n![one](figures/one.png)\n"
    assert HEADING not in (handed.parent / "run" / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_notebook_is_executed_once_and_again_when_its_lesson_changed(
    handed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = handed.parent / "run"

    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("a notebook was executed")

    monkeypatch.setattr(module, "NotebookClient", unexpected)
    other = Author("Bob", DAY)
    hand_in(lesson(), other, tmp_path / "second", run, reporter(run))
    assert "**Name:** Bob  \n**Date:** 2026-03-31" in cells(tmp_path / "second")[0]["source"]
    assert "Ann" not in (tmp_path / "second" / "tiny.ipynb").read_text(encoding="utf-8")
    changed = [*CELLS[:2], {**CELLS[2], "source": "print(1)"}]
    with pytest.raises(AssertionError, match="was executed"):
        hand_in(lesson(changed), other, tmp_path / "third", run, reporter(run))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import os; os._exit(1)", OSError),
        ("raise KeyError('x')", Exception),
        ("stop", KeyboardInterrupt),
    ],
)
def test_nothing_is_left_of_a_hand_in_that_failed(
    source: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = []
    execute = NotebookClient.execute_cell

    def execute_or_stop(client: NotebookClient, cell: Any, number: int) -> Any:
        kernels.append(client.km)
        if cell["source"] == "stop":
            raise KeyboardInterrupt
        return execute(client, cell, number)

    monkeypatch.setattr(NotebookClient, "execute_cell", execute_or_stop)
    out = tmp_path / "run"
    with pytest.raises(error):
        hand_in(
            lesson([CELLS[0], {**CELLS[2], "source": source}]),
            ANN,
            tmp_path / "new",
            out,
            reporter(out),
        )
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert {path.name for path in out.iterdir()} == {"report.md", "figures"}
    process = kernels[0].provisioner and kernels[0].provisioner.process
    assert process is None or process.poll() is not None


@pytest.mark.slow
def test_an_executed_notebook_that_was_changed_is_refused(handed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copytree(handed.parent / "run", run)
    (stored,) = run.glob("notebook-*/tiny.ipynb")
    stored.write_text(
        stored.read_text(encoding="utf-8").replace("6 * 7", "6 * 8"), encoding="utf-8"
    )
    with refused("which was changed", fix="Remove"):
        hand_in(lesson(), ANN, tmp_path / "new", run, reporter(run))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_places_that_hold_something_are_refused_before_the_lab_runs(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "new.zip").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file", "empty"):
        with refused(f"{name}, which exists already", fix="another directory"):
            hand_in(lesson(), ANN, tmp_path / name, tmp_path / "run", never)
    with refused(r"new\.zip, which exists"):
        hand_in(lesson(), ANN, tmp_path / "new", tmp_path / "run", never)
    for out in ("one", "one/run"):
        with refused("which holds the lab's run"):
            hand_in(lesson(), ANN, tmp_path / "one", tmp_path / out, never)
    with refused("which cannot be created"):
        hand_in(lesson(), ANN, tmp_path / "file" / "new", tmp_path / "run", never)
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"full", "file", "new.zip", "empty"}


@pytest.mark.parametrize(
    "text", ["", " ", "A\nB", "A\x1b[31m", "A\x00", "A\u2028B", "A\ud800", "A" * 201]
)
def test_a_name_that_is_no_line_is_refused(text: str) -> None:
    with refused("the author"):
        Author(text, DAY)
    with refused("the student ID"):
        Author("Ann", DAY, text)


@pytest.mark.parametrize(
    "name", ["Ann-Lena O'Neil, Jr.", "Søren Ångström", "Ан На", "عربي", "A" * 200]
)
def test_a_plain_name_is_written_as_it_is(name: str) -> None:
    assert Author(name, DAY).heading == f"**Name:** {name}  \n**Date:** 2026-03-31"


def test_a_name_that_no_font_can_draw_is_refused_before_the_lab_runs(tmp_path: Path) -> None:
    with refused("without a glyph"):
        hand_in(lesson(), Author("Ann \U000f1234", DAY), tmp_path / "new", tmp_path / "run", never)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_pandoc_is_named_before_the_lab_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> str:
        raise OSError("No pandoc was found")

    monkeypatch.setattr(pypandoc, "get_pandoc_version", absent)
    with refused("no pandoc", fix=r"glassformer\[hand-in\]"):
        hand_in(lesson(), ANN, tmp_path / "new", tmp_path / "run", never)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("lab", LABS)
def test_every_lesson_can_be_signed_and_has_no_scaffold(lab: str) -> None:
    clean = module._without_scaffold(notebook(lab, solutions=True))
    assert ANN.sign(clean["cells"][0]["source"]).splitlines()[2] == HEADING.splitlines()[0]
    sources = "\n".join(cell["source"] for cell in clean["cells"])
    for scaffold in (
        "BEGIN SOLUTION",
        "END SOLUTION",
        "YOUR ANSWER HERE",
        "Write yours here",
        "to be entered",
    ):
        assert scaffold not in sources
