"""Hand-ins: the executed notebook, its PDF and files, and the lab's report.

A folder holds all of it under the author's name. A zip archive beside the folder has the same
content.
"""

import json
import os
import re
import unicodedata
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from shutil import copyfile
from subprocess import DEVNULL
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from glassformer.errors import InputError, naming_extras
from glassformer.files import new_directory, new_file, write_text
from glassformer.labs.notebook_pdf import notebook_pdf, require_pandoc
from glassformer.progress import progress_bar
from glassformer.text import shown

with naming_extras("hand-in"):
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

FOR_STUDENTS = "for-students"
"""Tag of cells with instructions to students; a hand-in leaves them out."""

_LONGEST_NAME = 200
_NOT_IN_A_LINE = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode categories of control characters, lone surrogates, and line and paragraph separators."""
_MARKS = re.compile(r"([\\`*_\[\]<>$&#|~])")
"""Characters with a meaning in Markdown, HTML or formulas."""
_SOLUTION_MARKS = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION\n?", re.MULTILINE)


@dataclass(frozen=True)
class Author:
    """The author of a hand-in, and its date."""

    name: str
    day: date
    student_id: str | None = None

    def __post_init__(self) -> None:
        _require_line("the author", self.name)
        if self.student_id is not None:
            _require_line("the student ID", self.student_id)

    @property
    def heading(self) -> str:
        """Name, student ID and date as lines of Markdown."""
        lines = [f"**Name:** {_escaped(self.name)}", f"**Date:** {self.day}"]
        if self.student_id is not None:
            lines.insert(1, f"**Student ID:** {_escaped(self.student_id)}")
        return "  \n".join(lines)

    def sign(self, document: str) -> str:
        """Insert the heading below the title of a Markdown document, which is its first line."""
        title, _, rest = document.partition("\n")
        assert title.startswith("# "), title
        return f"{title}\n\n{self.heading}\n\n{rest.lstrip()}"


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", text)


def _require_line(what: str, text: str) -> None:
    has_controls = any(unicodedata.category(character) in _NOT_IN_A_LINE for character in text)
    if has_controls or not text.strip() or len(text) > _LONGEST_NAME:
        raise InputError(
            got=f"{what} {text[:_LONGEST_NAME]!a}, of {len(text)} characters",
            expected=f"1 to {_LONGEST_NAME} characters on one line, not only spaces",
            fix="Write it on one line, without control characters.",
        )


def hand_in(
    notebook: dict[str, Any],
    author: Author,
    directory: Path,
    out: Path,
    write_report: Callable[[], Path],
) -> Path:
    """Write the folder ``directory`` and the archive ``directory.zip``; return the archive's path.

    The folder is complete or absent. Slow results are stored in ``out``, the directory of the lab's
    run: an interrupted hand-in continues there, and its notebook is executed only once.

    Args:
        notebook: A lesson with its solutions, in nbformat 4; ``metadata["glassformer"]["lab"]``
            names its lab.
        author: The author that notebook, PDF and report name.
        directory: Path of the new directory.
        out: Directory of the lab's run, outside ``directory``.
        write_report: Runs the lab in ``out`` and returns the path of its report, which has figures/
            beside it.

    Raises:
        InputError: If ``directory`` or the archive exists, pandoc is missing, or the fonts of this
            machine lack a character of the author's name. Nothing has been computed then.
    """
    directory = directory.resolve()
    archive = directory.with_name(f"{directory.name}.zip")
    _require_new(directory, archive, out.resolve())
    require_pandoc()
    # A test of the fonts.
    notebook_pdf(
        {"cells": [{"cell_type": "markdown", "source": author.heading}]}, author.name, author.day
    )
    name = notebook["metadata"]["glassformer"]["lab"]
    with ExitStack() as stack:
        try:
            draft = stack.enter_context(new_directory(directory))
        except OSError as error:
            raise InputError(
                got=f"{shown(directory)}, which cannot be created ({error.strerror})",
                expected="a place that can be written to",
                fix="Choose another directory.",
            ) from error
        report = write_report()
        executed = _executed(_without_scaffold(notebook), out, f"{name}.ipynb")
        for path in executed.iterdir():
            copyfile(path, draft / path.name)
        _sign_notebook(draft / f"{name}.ipynb", author)
        write_text(draft / report.name, author.sign(report.read_text(encoding="utf-8")))
        (draft / "figures").mkdir()
        for figure in sorted((report.parent / "figures").glob("*.png")):
            copyfile(figure, draft / "figures" / figure.name)
        with new_file(archive) as unfinished, ZipFile(unfinished, "w", ZIP_DEFLATED) as packed:
            for path in sorted(draft.rglob("*")):
                packed.write(path, Path(directory.name, path.relative_to(draft)))
    return archive


def _sign_notebook(path: Path, author: Author) -> None:
    """Write the author into a notebook, and the notebook's PDF beside it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"][0]["source"] = author.sign(notebook["cells"][0]["source"])
    notebook["metadata"]["authors"] = [{"name": author.name}]
    write_text(path, _to_json(notebook))
    path.with_suffix(".pdf").write_bytes(notebook_pdf(notebook, author.name, author.day))


def _require_new(directory: Path, archive: Path, out: Path) -> None:
    for path in (directory, archive):
        if os.path.lexists(path):
            raise InputError(
                got=f"{shown(path)}, which exists already",
                expected="paths of a new directory and a new archive",
                fix="Choose another directory.",
            )
    if out.is_relative_to(directory):
        raise InputError(
            got=f"{shown(directory)}, which holds the lab's run",
            expected="a directory for the hand-in only",
            fix="Choose another directory for the hand-in, or for the run (--out).",
        )


def _without_scaffold(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook without instructions to students and marks of solutions."""
    notebook = deepcopy(notebook)
    notebook["cells"] = [
        cell for cell in notebook["cells"] if FOR_STUDENTS not in cell["metadata"].get("tags", ())
    ]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = _SOLUTION_MARKS.sub("", cell["source"])
    return notebook


def _executed(notebook: dict[str, Any], out: Path, name: str) -> Path:
    """Execute a notebook in a directory of ``out``, which also holds the files that it writes.

    A hash of the cells' sources names the directory: a notebook is executed once, and again when
    the lesson changes.
    """
    sources = _sources(notebook)
    folder = out / f"notebook-{sha256(json.dumps(sources).encode()).hexdigest()[:8]}"
    if folder.exists():
        path = folder / name
        if not path.is_file() or _sources(json.loads(path.read_text(encoding="utf-8"))) != sources:
            raise InputError(
                got=f"{shown(path)}, which was changed or removed since the notebook was executed",
                expected="the executed notebook",
                fix=f"Remove {shown(folder)}: the notebook is then executed again.",
            )
        return folder
    cells = nbformat.from_dict(notebook)
    # Without directories to search: an installed kernel would replace the Python that runs this.
    kernel = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    with new_directory(folder) as draft:
        client = NotebookClient(
            cells,
            km=kernel,
            resources={"metadata": {"path": str(draft)}},
            timeout=None,
            record_timing=False,
            coalesce_streams=True,
        )
        print(f"notebook: {len(cells.cells)} cells to execute", flush=True)
        try:
            # The kernel's own stderr holds only complaints about its end. Progress bars would be
            # stored in the notebook.
            environment = {**os.environ, "TQDM_DISABLE": "1"}
            with client.setup_kernel(cleanup_kc=True, stderr=DEVNULL, env=environment):
                bar = progress_bar(None, iterable=cells.cells, desc="cells")
                for number, cell in enumerate(bar):
                    client.execute_cell(cell, number)
        except DeadKernelError as error:
            raise OSError(
                "the process that executes the notebook ended; was there enough memory?"
            ) from error
        write_text(draft / name, _to_json(cells))
    return folder


def _sources(notebook: dict[str, Any]) -> list[str]:
    return [cell["source"] for cell in notebook["cells"]]


def _to_json(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
