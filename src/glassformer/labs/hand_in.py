"""What a course asks to be handed in: the executed notebook with its PDF and its files, and the
lab's report.

One folder holds all of it under the author's name, and a zip archive beside the folder holds the
same.
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
"""Tag of cells that tell students what to write; a hand-in leaves them out."""

_LONGEST_NAME = 200
_NOT_IN_A_LINE = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode's categories of control characters, lone surrogates, and separators of lines and
paragraphs.
"""
_MARKS = re.compile(r"([\\`*_\[\]<>$&#|~])")
"""Characters that Markdown, HTML or a formula could take for marks."""
_SOLUTION_MARKS = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION\n?", re.MULTILINE)


@dataclass(frozen=True)
class Author:
    """Who hands in, and when."""

    name: str
    day: date
    student_id: str | None = None

    def __post_init__(self) -> None:
        _require_line("the author", self.name)
        if self.student_id is not None:
            _require_line("the student ID", self.student_id)

    @property
    def heading(self) -> str:
        """Name, student ID and date, a line of Markdown each."""
        lines = [f"**Name:** {_escaped(self.name)}", f"**Date:** {self.day}"]
        if self.student_id is not None:
            lines.insert(1, f"**Student ID:** {_escaped(self.student_id)}")
        return "  \n".join(lines)

    def sign(self, document: str) -> str:
        """A Markdown document with the heading below its title, which is the first line."""
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
    """Write the folder ``directory`` and the archive ``directory.zip``, and return the path of the
    archive.

    The folder is complete or absent. What takes long is kept in ``out``, the directory of the lab's
    run: an interrupted hand-in continues there, and its notebook is executed only once.

    Args:
        notebook: A lesson with its solutions, in nbformat 4; ``metadata["glassformer"]["lab"]``
            names its lab.
        author: Whose name stands in notebook, PDF and report.
        directory: A directory that is not there yet.
        out: Outside ``directory``.
        write_report: Runs the lab in ``out`` and returns the path of its report, beside which
            figures/ stands.

    Raises:
        InputError: If ``directory`` or the archive exists, pandoc is missing, or the fonts of this
            machine lack a character of the author's name. Nothing has been computed then.
    """
    directory = directory.resolve()
    archive = directory.with_name(f"{directory.name}.zip")
    _require_places(directory, archive, out.resolve())
    require_pandoc()
    notebook_pdf(
        {"cells": [{"cell_type": "markdown", "source": author.heading}]}, author.name, author.day
    )
    name = notebook["metadata"]["glassformer"]["lab"]
    with ExitStack() as stack:
        try:
            draft = stack.enter_context(new_directory(directory))
        except OSError as error:
            got = f"{shown(directory)}, which cannot be made ({error.strerror})"
            raise InputError(
                got, "a place that can be written to", "Choose another directory."
            ) from error
        report = write_report()
        executed = _executed(_without_scaffold(notebook), out, f"{name}.ipynb")
        for path in executed.iterdir():
            copyfile(path, draft / path.name)
        signed = json.loads((executed / f"{name}.ipynb").read_text(encoding="utf-8"))
        signed["cells"][0]["source"] = author.sign(signed["cells"][0]["source"])
        signed["metadata"]["authors"] = [{"name": author.name}]
        write_text(draft / f"{name}.ipynb", _to_json(signed))
        (draft / f"{name}.pdf").write_bytes(notebook_pdf(signed, author.name, author.day))
        write_text(draft / report.name, author.sign(report.read_text(encoding="utf-8")))
        (draft / "figures").mkdir()
        for figure in sorted((report.parent / "figures").glob("*.png")):
            copyfile(figure, draft / "figures" / figure.name)
        with new_file(archive) as unfinished, ZipFile(unfinished, "w", ZIP_DEFLATED) as packed:
            for path in sorted(draft.rglob("*")):
                packed.write(path, Path(directory.name, path.relative_to(draft)))
    return archive


def _require_places(directory: Path, archive: Path, out: Path) -> None:
    for path in (directory, archive):
        if os.path.lexists(path):
            raise InputError(
                got=f"{shown(path)}, which exists already",
                expected="a directory and an archive that are not there yet",
                fix="Choose another directory.",
            )
    if out.is_relative_to(directory):
        raise InputError(
            got=f"{shown(directory)}, which holds the lab's run",
            expected="a directory for what is handed in alone",
            fix="Choose another directory, or another one for the run (--out).",
        )


def _without_scaffold(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook as its author would write it: without instructions to students and marks of
    solutions.
    """
    notebook = deepcopy(notebook)
    notebook["cells"] = [
        cell for cell in notebook["cells"] if FOR_STUDENTS not in cell["metadata"].get("tags", ())
    ]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = _SOLUTION_MARKS.sub("", cell["source"])
    return notebook


def _executed(notebook: dict[str, Any], out: Path, name: str) -> Path:
    """The directory in ``out`` with the executed notebook and the files that its cells wrote.

    It is named after the sources of the cells, so that they are executed once, and again when the
    lesson changes.
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
    # The Python that runs this, whatever other kernels of that name are installed.
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
            # What cells print arrives as their output; the kernel's own stderr holds complaints of
            # its end. Bars of its cells would be kept in the notebook.
            without_bars = {**os.environ, "TQDM_DISABLE": "1"}
            with client.setup_kernel(cleanup_kc=True, stderr=DEVNULL, env=without_bars):
                for number, cell in enumerate(
                    progress_bar(None, iterable=cells.cells, desc="cells")
                ):
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
