"""Lessons: the notebooks of the labs as cells, with their solutions, with blanks, and with one
fault in a solution.

A notebook is its instructor's version: a cell that holds an exercise carries nbgrader's metadata,
and what a student writes stands between ``### BEGIN SOLUTION`` and ``### END SOLUTION``. The cell
after it holds the check.
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

# In a wheel, and in a checkout.
_PLACES = (Path(__file__).parent / "lessons", Path(__file__).parents[3] / "notebooks")
_CELL = re.compile(r"^# %%(?P<markdown> \[markdown\])?(?P<metadata>.*)$", re.MULTILINE)
_KEY = re.compile(r"\s*(\w+)=")
_MAGIC = re.compile(r"^# (?=[%!][a-zA-Z])", re.MULTILINE)
_SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n(.*?)^[ \t]*### END SOLUTION$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Cell:
    """A cell as it stands in the script: magic commands are comments there."""

    kind: str
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def nbgrader(self) -> dict[str, Any]:
        """nbgrader's metadata; empty in cells that are neither exercise nor check."""
        return self.metadata.get("nbgrader", {})

    @property
    def exercise(self) -> str | None:
        """The name of the exercise of code that the cell holds."""
        if self.kind == "code" and self.nbgrader.get("solution"):
            return self.nbgrader["grade_id"]
        return None

    @property
    def checks(self) -> str | None:
        """The name of the exercise that the cell checks: that of its grade_id without "-check"."""
        is_check = self.kind == "code" and self.nbgrader.get("grade")
        if is_check:
            return self.nbgrader["grade_id"].removesuffix("-check")
        return None


def lab_name(name: str) -> str:
    """The name of a lab, given with ``-`` or with ``_``."""
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
    """The cells of a lab's notebook, with solutions."""
    path = next(place / f"{lab}.py" for place in _PLACES if (place / f"{lab}.py").exists())
    text = path.read_text(encoding="utf-8")
    marks = list(_CELL.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    cells = []
    for mark, end in zip(marks, ends, strict=True):
        source = text[mark.end() : end].strip("\n")
        if mark["markdown"]:
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        cells.append(
            Cell("markdown" if mark["markdown"] else "code", source, _metadata(mark["metadata"]))
        )
    return tuple(cells)


def _metadata(text: str) -> dict[str, Any]:
    found = {}
    position = 0
    while key := _KEY.match(text, position):
        found[key[1]], position = json.JSONDecoder().raw_decode(text, key.end())
    return found


@dataclass(frozen=True)
class Fault:
    """A wrong answer: an edit of a solution's text, the sentence that a student reads who makes it,
    and a name.
    """

    change: tuple[str, str]
    says: str | None = None
    name: str | None = None


@cache
def read_faults(
    lab: str, directory: Path = Path(__file__).parent / "faults"
) -> dict[str, tuple[Fault, ...]]:
    """The faults of each exercise of a lab: the usual ones, or those of another directory."""
    text = (directory / f"{lab}.toml").read_text(encoding="utf-8")
    return {
        exercise: tuple(
            Fault((row["change"][0], row["change"][1]), row.get("says"), row.get("name"))
            for row in rows
        )
        for exercise, rows in tomllib.loads(text).items()
    }


def points(lab: str) -> dict[str, int]:
    """The points of each exercise, in the lesson's order."""
    return {cell.checks: cell.nbgrader["points"] for cell in read_lesson(lab) if cell.checks}


def blanked(cell: Cell) -> str:
    """The cell's source with nbgrader's stub in place of each solution, or of the whole where none
    is marked.
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
    """The source with ``before`` replaced in its solutions, where it stands exactly once."""
    count = sum(match[2].count(before) for match in _SOLUTION.finditer(source))
    if count != 1:
        raise InputError(
            got=f"{before!r}, which is {count} times in the solution",
            expected="a text that is there once",
            fix="Extend it.",
        )
    return _SOLUTION.sub(lambda match: match[0].replace(before, after), source)


def answer(
    lab: str, exercise: str, change: tuple[str, str] | None = None, text: str | None = None
) -> Any:
    """What the lesson's check of ``exercise`` is called with, after the set-up cell and the
    exercises up to this one.

    Args:
        change: A text in the solution and what stands in its place.
        text: The whole cell, in place of the solution's.
    """
    sources = []
    for cell in read_lesson(lab):
        if "setup" in cell.metadata.get("tags", ()):
            sources.append(cell.source)
        elif cell.exercise == exercise:
            sources.append(
                text or (cell.source if change is None else changed(cell.source, *change))
            )
        elif cell.exercise:
            sources.append(cell.source)
        elif cell.checks == exercise:
            return run_cells([*sources, f"checked_answer = {ast.unparse(_checked(cell))}"])[
                "checked_answer"
            ]
    raise AssertionError(f"{lab} has no cell that checks {exercise}")


def _checked(cell: Cell) -> ast.expr:
    """What the check of a cell is called with, after the exercise's name."""
    return next(
        node.args[1] for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)
    )


def checked_names(lab: str) -> dict[str, str]:
    """The name that answers each exercise in the lesson, in its order, where the check is called
    with a name.
    """
    checked = {cell.checks: _checked(cell) for cell in read_lesson(lab) if cell.checks}
    return {exercise: node.id for exercise, node in checked.items() if isinstance(node, ast.Name)}


def run_cells(sources: Iterable[str]) -> dict[str, Any]:
    """The names that cells of a lesson define, run in a module of their own."""
    module = ModuleType("lesson")
    _Cells("\n\n".join(sources)).exec_module(module)
    return vars(module)


class _Cells(InspectLoader):
    def __init__(self, source: str) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source


def edition(lab: str, published: bool) -> list[Cell]:
    """The cells of a lesson; without the ``published`` ones a place for an answer stands for each
    run of them.

    Cells with this tag show answers in words that the lab's report has published.
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
    """A lab's notebook as JSON values of nbformat 4.5, without outputs.

    Args:
        seed: The variant of its tasks that its checks ask for.
        solutions: Whether solutions stand in it, or blanks.
        published: Whether it shows the published answers in words. None: where solutions stand in
            it.
    """
    cells = []
    for number, cell in enumerate(edition(lab, solutions if published is None else published)):
        source = cell.source if solutions else blanked(cell)
        if solutions and seed and cell.exercise:
            source = _of_variant(lab, cell.exercise, source)
        if cell.kind == "code":
            source = _MAGIC.sub("", source)
            if seed:
                source = source.replace(f'lesson("{lab}")', f'lesson("{lab}", seed={seed})')
            else:
                source = source
        made = {
            "cell_type": cell.kind,
            "id": cell.nbgrader.get("grade_id", f"cell-{number}"),
            "source": source,
        }
        made |= {"metadata": cell.metadata} | (
            {"execution_count": None, "outputs": []} if cell.kind == "code" else {}
        )
        cells.append(made)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {
        "kernelspec": kernel,
        "language_info": {"name": "python"},
        "glassformer": {"lab": lab, "seed": seed, "version": VERSION},
    }
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def _of_variant(lab: str, exercise: str, source: str) -> str:
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
    """A test file of Otter for each exercise of a lab, by the file's name: it calls a check of its
    own.
    """
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
