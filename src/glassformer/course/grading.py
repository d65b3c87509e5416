"""Grading: what students' notebooks record, with answers that are data judged anew, as CSV and for
Gradescope.

An answer that is data may also be a file of its own: a JSON object that names its ``lab``, its
``exercise`` and its ``seed`` if it has variants, with the ``answer``, or with a head's matrices, as
the page writes it.

Nothing of a submission is executed here: where that is asked for, nbgrader's own runner does it.
"""

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glassformer.course.checking import MIME, SECONDS, Exercise, Verdict, exercises
from glassformer.course.lessons import (
    LABS,
    VERSION,
    blanked,
    checked_names,
    notebook,
    points,
    read_lesson,
)
from glassformer.errors import InputError
from glassformer.files import write_text
from glassformer.processor_time import ProcessorLimit, TooLong
from glassformer.text import known_name, one_line, short, shown
from glassformer.untrusted import in_file, json_value, read_text

MAX_BYTES = 1 << 24
MAX_ENTRIES = 1 << 20
"""Most commas in one, which bound the parser's memory."""
LONGEST = 2_000
"""Characters of a recorded message that are kept."""
CELL = 600
"""Seconds that a cell of a notebook may take where nbgrader runs it."""


@dataclass(frozen=True)
class Grade:
    """The points of an exercise in a file, and what they rest on.

    ``status`` is "verified" (the answer was judged anew, and is right or wrong), "recorded, not
    re-run" (the notebook's own record of the check, passed or failed), "run by nbgrader" (the
    record of that run), "not run" (no record), "not accepted" (a record that does not count), or of
    a whole file "unreadable". ``seed`` is the variant that was graded.
    """

    file: str
    lab: str
    seed: int | None
    exercise: str
    points: float
    of: float
    status: str
    feedback: str


RECORDED = "recorded, not re-run"
RUN = "run by nbgrader"
_JUDGED = (*LABS, "page")


def grade_file(path: Path, seed: int | None = None, recorded: str = RECORDED) -> list[Grade]:
    """A row for each exercise of the lab that a notebook is of, one for an answer, or one for what
    cannot be read.

    Args:
        seed: The variant that was to be solved; None: the one that the notebook was made for.
        recorded: The status of exercises that are not judged anew.
    """
    try:
        content = _read(path)
        if isinstance(content, dict) and "exercise" in content:
            return [_graded_answer(path, content, seed)]
        submission = _submission(path, content)
    except InputError as error:
        return [_unreadable(path, str(error))]
    lab = submission.lab
    cells = submission.cells
    if seed is None:
        # Some editors drop metadata; then all results have to be of one variant.
        found = (
            each.get("seed")
            for name in points(lab)
            for each in _records(_outputs(cells[f"{name}-check"]))
        )
        seeds = [submission.seed, *found]
        seed = next((each for each in seeds if isinstance(each, int)), None)
    grades = []
    for cell in read_lesson(lab):
        if name := cell.checks:
            passed, status, feedback = _judged(submission, exercises(lab)[name], cell.source, seed)
            if passed and (reason := _unanswered(lab, name, cells[name])):
                passed = False
                status = "not accepted"
                feedback = reason
            if passed and any(
                "### BEGIN SOLUTION" in _text(each.get("source")) for each in cells[name]
            ):
                feedback += " The cell of the answer has the marks of the instructor's version."
            worth = points(lab)[name]
            status = recorded if status == RECORDED else status
            grades.append(
                Grade(
                    shown(path),
                    lab,
                    seed,
                    name,
                    worth if passed else 0,
                    worth,
                    status,
                    _printable(feedback),
                )
            )
    return grades


def _graded_answer(path: Path, content: dict[str, Any], seed: int | None) -> Grade:
    with in_file(path):
        lab = str(content.get("lab"))
        name = str(content["exercise"])
        if lab not in _JUDGED:
            raise InputError(
                got=f"the lab {short(lab)}",
                expected=f"one of {', '.join(_JUDGED)}",
                fix="Name it in the file.",
            )
        known = {each.name: each for each in exercises(lab).values() if isinstance(each, Verdict)}
        if name not in known:
            raise InputError(
                got=f"the exercise {short(name)}",
                expected=f"an exercise of {lab} whose answer is data",
                fix=known_name(name, list(known)),
            )
    matrices = [content.get(each) for each in ("Km", "Qm", "Vm", "pos")]
    if matrices[-1] is None:
        matrices.pop()
    record = {"seed": seed or 0, "answer": matrices} | content
    passed, status, feedback = _judged_record(record, lab, known[name], seed)
    variant = record["seed"]
    worth = points(lab)[name] if lab in LABS else 1
    variant = variant if isinstance(variant, int) else seed
    return Grade(
        shown(path), lab, variant, name, worth if passed else 0, worth, status, _printable(feedback)
    )


def _printable(feedback: str) -> str:
    return "".join(
        char if char.isprintable() or char == "\n" else " " for char in feedback[:LONGEST]
    )


def _unreadable(path: Path, reason: str) -> Grade:
    return Grade(shown(path), "", None, "", 0, 0, "unreadable", one_line(reason, LONGEST))


def _unanswered(lab: str, exercise: str, cells: list[dict[str, Any]]) -> str | None:
    """Why no answer of a student can have led to a record that says "passed"."""
    if not cells:
        return "The cell of the answer is missing."
    blank = next(blanked(cell) for cell in read_lesson(lab) if cell.exercise == exercise)
    if all(_text(cell.get("source")).strip() in ("", blank.strip()) for cell in cells):
        return "The answer is still blank: the result is not that of this notebook."
    return None


@dataclass(frozen=True)
class Submission:
    """What a notebook holds: its code cells by nbgrader's grade_id, and the lab, variant and
    version it was made of.
    """

    lab: str
    cells: defaultdict[str, list[dict[str, Any]]]
    seed: int | None
    version: str | None


def _read(path: Path) -> Any:
    text = read_text(path, MAX_BYTES)
    with in_file(path):
        if not text.count(",") < MAX_ENTRIES:
            raise InputError(
                got="too many entries",
                expected=f"at most {MAX_ENTRIES:,}",
                fix="Clear its outputs.",
            )
        return json_value(text)


def _submission(path: Path, content: Any) -> Submission:
    """The code cells of a notebook, and the lab that it is of; refuses what is no notebook, or of
    no lab.
    """
    with in_file(path):
        listed = None
        if isinstance(content, dict):
            listed = content.get("cells")
        if not isinstance(listed, list):
            raise InputError(
                got="no list of cells",
                expected="a notebook of nbformat 4, or an answer that names its exercise",
                fix="Save it with Jupyter, or on the page.",
            )
        assert isinstance(listed, list)
        cells = defaultdict(list)
        for cell in listed:
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                cells[_grade_id(cell)].append(cell)
        counts = {lab: sum(f"{name}-check" in cells for name in points(lab)) for lab in LABS}
        # Two labs may have an exercise of one name.
        named = _at(content, "metadata", "glassformer", "lab")
        lab = max(counts, key=lambda each: (counts[each] > 0 and each == named, counts[each]))
        if not counts[lab] > 0:
            raise InputError(
                got="no check of a lab",
                expected=f"a notebook of {', '.join(LABS)}",
                fix="Grade such a file.",
            )
    for cell in cells[""]:
        cells[_answered_exercise(lab, cell)].append(cell)
    seed, version = (_at(content, "metadata", "glassformer", key) for key in ("seed", "version"))
    seed = seed if isinstance(seed, int) else None
    return Submission(lab, cells, seed, version if isinstance(version, str) else None)


def _grade_id(cell: dict[str, Any]) -> str:
    """nbgrader's name of a cell; "" where neither metadata, nor the cell's id, nor the call of a
    check gives it.

    Some editors drop metadata that they do not know, and notebooks before nbformat 4.5 have no ids.
    """
    name = _at(cell, "metadata", "nbgrader", "grade_id")
    if isinstance(name, str) and name:
        return name
    check = _CHECK.match(_text(cell.get("source")).strip())
    if check is not None:
        return f"{check[1]}-check"
    name = cell.get("id")
    if isinstance(name, str) and name in _grade_ids():
        return name
    return ""


_CHECK = re.compile(r"""check\(["']([\w-]+)["'], [\w.]+\)\Z""")
_DEFINITION = re.compile(r"^(?:def|class) (\w+)", re.MULTILINE)


@cache
def _grade_ids() -> frozenset[str]:
    return frozenset(
        cell.nbgrader["grade_id"] for lab in LABS for cell in read_lesson(lab) if cell.nbgrader
    )


def _answered_exercise(lab: str, cell: dict[str, Any]) -> str:
    """The exercise that a cell without a name answers, by what it defines; "-" for none."""
    defined = _DEFINITION.findall(_text(cell.get("source")))
    names = [exercise for exercise, variable in checked_names(lab).items() if variable in defined]
    return names[0] if len(names) == 1 else "-"


def _at(value: Any, *keys: str) -> Any:
    """``value[key][key]...``, or None where that is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(str, value))
    return str(value or "")


def _outputs(cells: list[dict[str, Any]]) -> list[Any]:
    listed = [cell.get("outputs") for cell in cells]
    return [output for each in listed if isinstance(each, list) for output in each]


def _records(outputs: list[Any]) -> list[dict[str, Any]]:
    return [found for output in outputs if isinstance(found := _at(output, "data", MIME), dict)]


def _judged(
    submission: Submission, exercise: Exercise | Verdict, source: str, seed: int | None
) -> tuple[bool, str, str]:
    """Whether an exercise is solved, the status, and the feedback."""
    cells = submission.cells[f"{exercise.name}-check"]
    if not cells:
        return False, "not run", "The cell of the check is missing."
    whole = [cell for cell in cells if _text(cell.get("source")).strip() == source]
    if not whole:
        other = submission.version not in (None, VERSION)
        made = f" The notebook is of glassformer {one_line(submission.version or '', 20)}, this is {VERSION}."
        return False, "not accepted", f"The cell of the check was changed.{made if other else ''}"
    outputs = _outputs(whole)
    records = _records(outputs)
    if not records:
        errors = [
            f"{_text(_at(each, 'ename'))}: {_text(_at(each, 'evalue'))}"
            for each in outputs
            if _at(each, "ename")
        ]
        missing = "The check has no result: run all cells and save the notebook with its outputs."
        if outputs and not errors:
            missing = "The check's cell has an output that is no result: was the name check given to something else?"
        return False, "not run", " ".join([missing, *errors[:1]])
    return _judged_record(records[-1], submission.lab, exercise, seed)


def _judged_record(
    record: dict[str, Any], lab: str, exercise: Exercise | Verdict, seed: int | None
) -> tuple[bool, str, str]:
    if (record.get("lab"), record.get("exercise")) != (lab, exercise.name):
        return False, "not accepted", "The result is of another exercise."
    variant = record.get("seed")
    if type(variant) is not int:
        return (
            False,
            "not accepted",
            f"Its seed is {one_line(repr(variant), 20)}; expected a whole number.",
        )
    if seed not in (None, variant):
        return (
            False,
            "not accepted",
            f"The result is of the variant {one_line(str(variant), 20)}, not of {seed}.",
        )
    if isinstance(exercise, Exercise) or "answer" not in record:
        passed = record.get("passed") is True and isinstance(exercise, Exercise)
        return passed, RECORDED, _text(record.get("message"))
    try:
        with ProcessorLimit(SECONDS):
            judgement = exercise.judge(record["answer"], variant)
    except TooLong:
        return (
            False,
            "not accepted",
            f"It cannot be judged within {SECONDS:g} seconds of processor time.",
        )
    except Exception as error:
        # Whatever an answer that no check wrote makes a judge do, the other exercises are graded.
        return False, "not accepted", f"It cannot be judged: {one_line(str(error), LONGEST)}"
    return judgement.passed, "verified", judgement.message


def grades_csv(grades: Sequence[Grade]) -> str:
    """The grades as CSV, a row for each exercise of each file."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([each.name for each in fields(Grade)])
    for grade in grades:
        # A spreadsheet would compute a text that begins like a formula.
        values = [
            f"'{value}" if str(value)[:1] in "=+-@\t\r" and value else value
            for value in asdict(grade).values()
        ]
        table.writerow(values)
    return text.getvalue()


def gradescope(grades: Sequence[Grade]) -> dict[str, Any]:
    """The grades of one submission as the results.json that Gradescope and Otter read."""
    tests = [
        {
            "name": grade.exercise or grade.file,
            "score": grade.points,
            "max_score": grade.of,
            "status": "passed" if grade.points == grade.of > 0 else "failed",
            "output": f"{grade.feedback}\n({grade.status})",
        }
        for grade in grades
    ]
    return {"score": sum(grade.points for grade in grades), "tests": tests}


def grade_files(
    files: Sequence[Path], seed: int | None = None, run: bool = False
) -> Iterator[list[Grade]]:
    """The rows of each file in turn.

    Args:
        files: Notebooks of any of the labs, and answers.
        seed: As in :func:`grade_file`.
        run: Whether nbgrader's autograder runs each one first, from the start and with the checks'
            cells restored.
    """
    if not run:
        yield from (grade_file(file, seed) for file in files)
        return
    if find_spec("nbgrader") is None:
        raise InputError(
            got="no module nbgrader",
            expected="its autograder",
            fix="Run: pip install nbgrader.",
        )
    with TemporaryDirectory() as place:
        root = Path(place)
        (root / "nbgrader_config.py").touch()
        for number, file in enumerate(files):
            try:
                content = _read(file)
                lab = _submission(file, content).lab
            except InputError:
                yield grade_file(file, seed)
                continue
            student = f"student-{number:05}"
            where = Path(student, lab, f"{lab}.ipynb")
            write_text(root / "submitted" / where, json.dumps(runnable(lab, content)))
            if not (root / "source" / lab).exists():
                source = json.dumps(notebook(lab, seed=seed or 0, solutions=True))
                write_text(root / "source" / lab / f"{lab}.ipynb", source)
                _nbgrader(root, "generate_assignment", lab, "--create")
            said = _nbgrader(
                root,
                "autograde",
                lab,
                "--student",
                student,
                f"--ExecutePreprocessor.timeout={CELL}",
            )
            if (ran := root / "autograded" / where).exists():
                yield [replace(grade, file=shown(file)) for grade in grade_file(ran, seed, RUN)]
            else:
                yield [_unreadable(file, _why_not_finished(said))]


def _why_not_finished(log: str) -> str:
    """What nbgrader's log says of a notebook that it did not finish."""
    if "DeadKernelError" in log:
        return (
            "It was not graded: its code ended the Python process that ran it, or memory ran out."
        )
    errors = re.findall(r"^[\w.]*(?:Error|Exception|Invalid\w*)\b.*$", log, flags=re.MULTILINE)
    reason = errors[-1] if errors else log.strip()[-500:]
    if "imeout" in log:
        limit = f" A cell may take {CELL} seconds."
    else:
        limit = ""
    return f"It was not graded: nbgrader did not finish it.{limit} {reason}"


def runnable(lab: str, content: dict[str, Any]) -> dict[str, Any]:
    """A submitted notebook as nbgrader can run it: each of its marks stands once, and every check
    is there.

    Of several cells of one name the last has the mark; the others are run too. A check that is
    missing follows the last answer, or stands at the end.
    """
    names = {cell.nbgrader["grade_id"]: cell for cell in read_lesson(lab) if cell.nbgrader}
    cells: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    for cell in content["cells"]:
        kind = cell.get("cell_type") if isinstance(cell, dict) else None
        if kind not in ("code", "markdown", "raw"):
            continue
        name = _grade_id(cell)
        if not name and kind == "code":
            name = _answered_exercise(lab, cell)
        if name in names and names[name].kind == kind:
            places[name] = len(cells)
        cells.append(_plain_cell(kind, _text(cell.get("source"))))
    for name, place in places.items():
        cells[place]["metadata"] = names[name].metadata
    missing = [cell for name, cell in names.items() if cell.checks and name not in places]
    inserts = [
        (places.get(str(cell.checks), len(cells) - 1) + 1, number, cell)
        for number, cell in enumerate(missing)
    ]
    # From the end on, so that places before it stay what they are.
    for place, _, cell in sorted(inserts, key=itemgetter(0, 1), reverse=True):
        cells.insert(place, _plain_cell("code", cell.source) | {"metadata": cell.metadata})
    for number, made in enumerate(cells):
        made["id"] = f"cell-{number}"
    made_for = _at(content, "metadata", "glassformer")
    about = {} if made_for is None else {"glassformer": made_for}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": about | {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _plain_cell(kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "source": source, "metadata": {}}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _nbgrader(root: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "nbgrader", *arguments]
    # nbgrader calls alembic by name, which an environment that is not activated has beside its
    # interpreter alone.
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    }
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    # Status 1 of autograde: some notebook failed, which is then missing and graded as unreadable.
    if done.returncode and arguments[0] != "autograde":
        raise InputError(
            f"nbgrader {arguments[0]} that fails: {done.stderr[-500:]}", "a run", "See its message."
        )
    return done.stderr
