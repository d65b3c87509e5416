"""Lessons: the labs' notebooks as cells, with solutions, with blanks, or with a fault.

The stored notebook is the instructor's version. A cell with an exercise carries nbgrader's
metadata, and its solution lies between ``### BEGIN SOLUTION`` and ``### END SOLUTION``. The next
cell holds the check.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.metadata import version
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

from glassformer.errors import InputError
from glassformer.text import known_name

VERSION = version("glassformer")
LABS = ("hand_designed", "sentiment", "lookup", "gpt_oss")
CODE_STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
TEXT_STUB = "YOUR ANSWER HERE"

# The folders of a wheel and of a checkout.
_FOLDERS = (Path(__file__).parent / "lessons", Path(__file__).parents[3] / "notebooks")
_CELL = re.compile(r"^# %%(?P<markdown> \[markdown\])?(?P<metadata>.*)$", re.MULTILINE)
_KEY = re.compile(r"\s*(\w+)=")
_MAGIC = re.compile(r"^# (?=[%!][a-zA-Z])", re.MULTILINE)
_SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n(.*?)^[ \t]*### END SOLUTION$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Cell:
    """A cell of the stored script, in which magic commands are comments."""

    kind: str
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def nbgrader(self) -> dict[str, Any]:
        """nbgrader's metadata; empty in cells that hold neither an exercise nor a check."""
        return self.metadata.get("nbgrader", {})

    @property
    def exercise(self) -> str | None:
        """Name of the code exercise that the cell holds."""
        if self.kind == "code" and self.nbgrader.get("solution"):
            return self.nbgrader["grade_id"]
        return None

    @property
    def checks(self) -> str | None:
        """Name of the exercise that the cell checks: its grade_id without "-check"."""
        if self.kind == "code" and self.nbgrader.get("grade"):
            return self.nbgrader["grade_id"].removesuffix("-check")
        return None


def lab_name(name: str) -> str:
    """Return the name of a lab, which may be written with ``-`` or ``_``."""
    lab = name.replace("-", "_")
    if lab not in LABS:
        raise InputError(
            got=f"the lab '{name}'",
            expected=f"one of {', '.join(LABS)}",
            fix=known_name(lab, LABS),
        )
    return lab


@cache
def read_lesson(lab: str) -> tuple[Cell, ...]:
    """Return the cells of a lab's notebook, with solutions."""
    path = next(folder / f"{lab}.py" for folder in _FOLDERS if (folder / f"{lab}.py").exists())
    text = path.read_text(encoding="utf-8")
    marks = list(_CELL.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    cells = []
    for mark, end in zip(marks, ends, strict=True):
        source = text[mark.end() : end].strip("\n")
        kind = "code"
        if mark["markdown"]:
            kind = "markdown"
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        cells.append(Cell(kind, source, _metadata(mark["metadata"])))
    return tuple(cells)


def _metadata(text: str) -> dict[str, Any]:
    """Parse ``key=JSON key=JSON ...``."""
    metadata = {}
    position = 0
    while key := _KEY.match(text, position):
        metadata[key[1]], position = json.JSONDecoder().raw_decode(text, key.end())
    return metadata


@dataclass(frozen=True)
class Fault:
    """A usual wrong answer."""

    change: tuple[str, str]
    """Text of the solution, and the text that replaces it."""
    says: str | None = None
    """Sentence that a student with this fault reads."""
    name: str | None = None


@cache
def read_faults(
    lab: str, directory: Path = Path(__file__).parent / "faults"
) -> dict[str, tuple[Fault, ...]]:
    """Return the faults of each exercise of a lab; the default directory has the usual ones."""
    text = (directory / f"{lab}.toml").read_text(encoding="utf-8")
    return {
        exercise: tuple(_fault(row) for row in rows)
        for exercise, rows in tomllib.loads(text).items()
    }


def _fault(row: dict[str, Any]) -> Fault:
    before, after = row["change"]
    return Fault((before, after), row.get("says"), row.get("name"))


def points(lab: str) -> dict[str, int]:
    """Return the points of each exercise, in the lesson's order."""
    return {cell.checks: cell.nbgrader["points"] for cell in read_lesson(lab) if cell.checks}


def blanked(cell: Cell) -> str:
    """Return the cell's source with nbgrader's stub instead of its solutions.

    The stub replaces the whole cell of an exercise in which no solution is marked.
    """
    if not cell.nbgrader.get("solution"):
        return cell.source
    stub = CODE_STUB if cell.kind == "code" else TEXT_STUB

    def indented(match: re.Match[str]) -> str:
        return "\n".join(match[1] + line for line in stub.splitlines())

    if _SOLUTION.search(cell.source):
        return _SOLUTION.sub(indented, cell.source)
    return stub


def changed(source: str, before: str, after: str) -> str:
    """Return the source with ``before`` replaced in its solutions, which hold it exactly once."""
    count = sum(match[2].count(before) for match in _SOLUTION.finditer(source))
    if count != 1:
        raise InputError(
            got=f"{before!r}, which occurs {count} times in the solution",
            expected="a text that occurs exactly once",
            fix="Use a longer part of the solution.",
        )
    return _SOLUTION.sub(lambda match: match[0].replace(before, after), source)


def answer(
    lab: str, exercise: str, change: tuple[str, str] | None = None, text: str | None = None
) -> Any:
    """Run the set-up cell and the exercises up to ``exercise``; return the answer that is checked.

    Args:
        change: A text of the solution and its replacement.
        text: Source of the exercise's cell, instead of the solution.
    """
    sources = []
    for cell in read_lesson(lab):
        source = cell.source
        if cell.exercise == exercise:
            if text:
                source = text
            elif change is not None:
                source = changed(source, *change)
        if cell.exercise or "setup" in cell.metadata.get("tags", ()):
            sources.append(source)
        elif cell.checks == exercise:
            sources.append(f"checked_answer = {ast.unparse(_checked(cell))}")
            return run_cells(sources)["checked_answer"]
    raise AssertionError(f"{lab} has no cell that checks {exercise}")


def _checked(cell: Cell) -> ast.expr:
    """Return the second argument of the check that a cell calls."""
    return next(
        node.args[1] for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)
    )


def checked_names(lab: str) -> dict[str, str]:
    """Return the name that answers each exercise, in the lesson's order.

    Exercises whose check is called with another expression are left out.
    """
    checked = {cell.checks: _checked(cell) for cell in read_lesson(lab) if cell.checks}
    return {exercise: node.id for exercise, node in checked.items() if isinstance(node, ast.Name)}


def run_cells(sources: Iterable[str]) -> dict[str, Any]:
    """Run cells of a lesson in a new module, and return the names that it defines."""
    module = ModuleType("lesson")
    _Cells("\n\n".join(sources)).exec_module(module)
    return vars(module)


class _Cells(InspectLoader):
    def __init__(self, source: str) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source


def edition(lab: str, published: bool) -> list[Cell]:
    """Return the cells of a lesson, with or without its published answers.

    Cells with the tag "published" show answers in words from the lab's published report. Without
    them, one cell for an answer replaces each run of such cells.
    """
    if published:
        return list(read_lesson(lab))
    cells: list[Cell] = []
    answer_cell = Cell("markdown", TEXT_STUB)
    for cell in read_lesson(lab):
        if "published" not in cell.metadata.get("tags", ()):
            cells.append(cell)
        elif cells[-1] is not answer_cell:
            cells.append(answer_cell)
    return cells


def notebook(
    lab: str, *, seed: int = 0, solutions: bool = False, published: bool | None = None
) -> dict[str, Any]:
    """Return a lab's notebook as JSON values of nbformat 4.5, without outputs.

    Args:
        seed: Variant of the tasks.
        solutions: If True, the notebook holds solutions, otherwise blanks.
        published: If True, the notebook shows the published answers in words. Default: the value
            of ``solutions``.
    """
    if published is None:
        published = solutions
    cells = []
    for number, cell in enumerate(edition(lab, published)):
        source = cell.source if solutions else blanked(cell)
        if solutions and seed and cell.exercise:
            source = _with_variant_solution(lab, cell.exercise, source)
        if cell.kind == "code":
            source = _MAGIC.sub("", source)
            if seed:
                source = source.replace(f'lesson("{lab}")', f'lesson("{lab}", seed={seed})')
        content: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": cell.nbgrader.get("grade_id", f"cell-{number}"),
            "source": source,
            "metadata": cell.metadata,
        }
        if cell.kind == "code":
            content |= {"execution_count": None, "outputs": []}
        cells.append(content)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {
        "kernelspec": kernel,
        "language_info": {"name": "python"},
        "glassformer": {"lab": lab, "seed": seed, "version": VERSION},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _with_variant_solution(lab: str, exercise: str, source: str) -> str:
    """Return the source with the solution that works in every variant, where there is one."""
    exercises = import_module(f"glassformer.course.exercises.{lab}")
    body = None
    if hasattr(exercises, "variant_solution"):
        body = exercises.variant_solution(exercise)
    if body is None:
        return source
    return _SOLUTION.sub(
        lambda match: indent(f"### BEGIN SOLUTION\n{body}\n### END SOLUTION", match[1]), source
    )


def otter_tests(lab: str, seed: int = 0) -> dict[str, str]:
    """Return Otter test files by name, one for each exercise of a lab."""
    tests = {}
    for cell in read_lesson(lab):
        if cell.checks:
            checked = _checked(cell)
            names = sorted({node.id for node in ast.walk(checked) if isinstance(node, ast.Name)})
            tests[f"{cell.checks}.py"] = f"""from glassformer.course import lesson
from otter.test_files import test_case

OK_FORMAT = False
name = "{cell.checks}"
points = {cell.nbgrader["points"]}


@test_case()
def test_answer({", ".join(names)}):
    lesson("{lab}", seed={seed})("{cell.checks}", {ast.unparse(checked)})
"""
    return tests
