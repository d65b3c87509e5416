"""Grading of students' notebooks and answers, as CSV and for Gradescope.

A notebook records the results of its checks; answers that are data are judged again. Such an answer
may also be a JSON file with ``lab``, ``exercise``, ``seed`` (if there are variants) and
``answer``. The page writes a head's matrices instead of ``answer``.

This module executes nothing of a submission. On request, nbgrader's runner does.
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
from itertools import chain
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glassformer.course.checking import MIME, SECONDS, Exercise, Verdict, exercises
from glassformer.course.lessons import (
    LABS,
    VERSION,
    Cell,
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
"""Maximum number of commas in a file, which bounds the parser's memory."""
LONGEST = 2_000
"""Characters of a recorded message that are kept."""
CELL = 600
"""Time limit in seconds for a cell that nbgrader runs."""


@dataclass(frozen=True)
class Grade:
    """The points of an exercise in a file, and the evidence for them.

    ``seed`` is the variant that was graded. ``status`` is one of:

    - "verified": the answer was judged again, and is right or wrong;
    - "recorded, not re-run": the notebook's own record of the check, passed or failed;
    - "run by nbgrader": the record of nbgrader's run;
    - "not run": there is no record;
    - "not accepted": the record does not count;
    - "unreadable": the whole file cannot be read.
    """

    file: str
    lab: str
    seed: int | None
    exercise: str
    points: float
    of: float
    status: str
    feedback: str


@dataclass(frozen=True)
class Submission:
    """The content of a notebook, with the lab, variant and version that it names."""

    lab: str
    cells: defaultdict[str, list[dict[str, Any]]]
    """Code cells by nbgrader's grade_id."""
    seed: int | None
    version: str | None


RECORDED = "recorded, not re-run"
RUN = "run by nbgrader"
_JUDGED = (*LABS, "page")


def grade_file(path: Path, seed: int | None = None, recorded: str = RECORDED) -> list[Grade]:
    """Grade each exercise of a notebook, or one answer; an unreadable file gives one row.

    Args:
        seed: Variant that students had to solve. Default: the variant that the notebook names.
        recorded: Status of exercises that are not judged again.
    """
    try:
        content = _read(path)
        if isinstance(content, dict) and "exercise" in content:
            return [_graded_answer(path, content, seed)]
        submission = _submission(path, content)
    except InputError as error:
        return [_unreadable(path, str(error))]
    if seed is None:
        seed = _seed_of(submission)
    return [
        _graded_exercise(path, submission, cell, seed, recorded)
        for cell in read_lesson(submission.lab)
        if cell.checks
    ]


def _seed_of(submission: Submission) -> int | None:
    """Return the variant that a notebook or else its first record names."""
    # Some editors drop a notebook's metadata; then all records must be of one variant.
    seeds: list[Any] = [submission.seed]
    for name in points(submission.lab):
        records = _records(_outputs(submission.cells[f"{name}-check"]))
        seeds += [record.get("seed") for record in records]
    return next((seed for seed in seeds if isinstance(seed, int)), None)


def _graded_exercise(
    path: Path, submission: Submission, check: Cell, seed: int | None, recorded: str
) -> Grade:
    """Grade the exercise that the lesson's cell ``check`` checks."""
    lab = submission.lab
    name = str(check.checks)
    answer_cells = submission.cells[name]
    passed, status, feedback = _judged(submission, exercises(lab)[name], check.source, seed)
    if passed and (reason := _unanswered(lab, name, answer_cells)):
        passed = False
        status = "not accepted"
        feedback = reason
    sources = [_text(cell.get("source")) for cell in answer_cells]
    if passed and any("### BEGIN SOLUTION" in source for source in sources):
        feedback += " The cell of the answer has the marks of the instructor's version."
    if status == RECORDED:
        status = recorded
    worth = points(lab)[name]
    awarded = worth if passed else 0
    return Grade(shown(path), lab, seed, name, awarded, worth, status, _printable(feedback))


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
        known = {
            verdict.name: verdict
            for verdict in exercises(lab).values()
            if isinstance(verdict, Verdict)
        }
        if name not in known:
            raise InputError(
                got=f"the exercise {short(name)}",
                expected=f"an exercise of {lab} whose answer is data",
                fix=known_name(name, list(known)),
            )
    matrices = [content.get(key) for key in ("Km", "Qm", "Vm", "pos")]
    if matrices[-1] is None:
        matrices.pop()
    record = {"seed": seed or 0, "answer": matrices} | content
    passed, status, feedback = _judged_record(record, lab, known[name], seed)
    variant = record["seed"] if isinstance(record["seed"], int) else seed
    worth = points(lab)[name] if lab in LABS else 1
    awarded = worth if passed else 0
    return Grade(shown(path), lab, variant, name, awarded, worth, status, _printable(feedback))


def _printable(feedback: str) -> str:
    return "".join(
        char if char.isprintable() or char == "\n" else " " for char in feedback[:LONGEST]
    )


def _unreadable(path: Path, reason: str) -> Grade:
    return Grade(shown(path), "", None, "", 0, 0, "unreadable", one_line(reason, LONGEST))


def _unanswered(lab: str, exercise: str, cells: list[dict[str, Any]]) -> str | None:
    """Return why a record "passed" cannot come from a student's answer, or None if it can."""
    if not cells:
        return "The cell of the answer is missing."
    blank = next(blanked(cell) for cell in read_lesson(lab) if cell.exercise == exercise)
    if all(_text(cell.get("source")).strip() in ("", blank.strip()) for cell in cells):
        return "The answer is still blank: the result is not that of this notebook."
    return None


def _read(path: Path) -> Any:
    text = read_text(path, MAX_BYTES)
    with in_file(path):
        if text.count(",") >= MAX_ENTRIES:
            raise InputError(
                got="too many entries",
                expected=f"fewer than {MAX_ENTRIES:,}",
                fix="Clear the outputs of the notebook.",
            )
        return json_value(text)


def _submission(path: Path, content: Any) -> Submission:
    """Sort the code cells of a notebook by exercise; raise InputError if it is of no lab."""
    metadata = _nested(content, "metadata", "glassformer")
    with in_file(path):
        listed = content.get("cells") if isinstance(content, dict) else None
        if not isinstance(listed, list):
            raise InputError(
                got="no list of cells",
                expected="a notebook of nbformat 4, or an answer that names its exercise",
                fix="Save it with Jupyter, or on the page.",
            )
        cells = defaultdict(list)
        for cell in listed:
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                cells[_grade_id(cell)].append(cell)
        counts = {lab: sum(f"{name}-check" in cells for name in points(lab)) for lab in LABS}
        # Two labs may have exercises of the same name: prefer the lab that the metadata names.
        named = _nested(metadata, "lab")
        lab = max(counts, key=lambda lab: (counts[lab] > 0 and lab == named, counts[lab]))
        if counts[lab] == 0:
            raise InputError(
                got="no check of a lab",
                expected=f"a notebook of {', '.join(LABS)}",
                fix="Grade the notebook of a lab.",
            )
    for cell in cells[""]:
        cells[_answered_exercise(lab, cell)].append(cell)
    seed = _nested(metadata, "seed")
    version = _nested(metadata, "version")
    return Submission(
        lab,
        cells,
        seed if isinstance(seed, int) else None,
        version if isinstance(version, str) else None,
    )


def _grade_id(cell: dict[str, Any]) -> str:
    """Return nbgrader's name of a cell, from its metadata, its check or its id; otherwise "".

    Some editors drop unknown metadata, and notebooks before nbformat 4.5 have no ids.
    """
    name = _nested(cell, "metadata", "nbgrader", "grade_id")
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
    cells = chain.from_iterable(map(read_lesson, LABS))
    return frozenset(cell.nbgrader["grade_id"] for cell in cells if cell.nbgrader)


def _answered_exercise(lab: str, cell: dict[str, Any]) -> str:
    """Return the exercise that a nameless cell answers, by the names it defines; "-" for none."""
    defined = _DEFINITION.findall(_text(cell.get("source")))
    names = [exercise for exercise, variable in checked_names(lab).items() if variable in defined]
    return names[0] if len(names) == 1 else "-"


def _nested(value: Any, *keys: str) -> Any:
    """Return ``value[key][key]...``, or None where a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(str, value))
    return str(value or "")


def _outputs(cells: list[dict[str, Any]]) -> list[Any]:
    outputs: list[Any] = []
    for cell in cells:
        listed = cell.get("outputs")
        if isinstance(listed, list):
            outputs += listed
    return outputs


def _records(outputs: list[Any]) -> list[dict[str, Any]]:
    records = [_nested(output, "data", MIME) for output in outputs]
    return [record for record in records if isinstance(record, dict)]


def _judged(
    submission: Submission, exercise: Exercise | Verdict, source: str, seed: int | None
) -> tuple[bool, str, str]:
    """Return whether an exercise is solved, the status, and the feedback."""
    cells = submission.cells[f"{exercise.name}-check"]
    if not cells:
        return False, "not run", "The cell of the check is missing."
    unchanged_cells = [cell for cell in cells if _text(cell.get("source")).strip() == source]
    if not unchanged_cells:
        feedback = "The cell of the check was changed."
        if submission.version not in (None, VERSION):
            version = one_line(submission.version or "", 20)
            feedback += f" The notebook is of glassformer {version}, this is {VERSION}."
        return False, "not accepted", feedback
    outputs = _outputs(unchanged_cells)
    records = _records(outputs)
    if not records:
        return False, "not run", _no_record(outputs)
    return _judged_record(records[-1], submission.lab, exercise, seed)


def _no_record(outputs: list[Any]) -> str:
    """Describe the outputs of a check that has left no record."""
    for output in outputs:
        if _nested(output, "ename"):
            error = f"{_text(_nested(output, 'ename'))}: {_text(_nested(output, 'evalue'))}"
            return f"{_NO_RESULT} {error}"
    if outputs:
        return (
            "The check's cell has an output that is no result: "
            "was the name check given to something else?"
        )
    return _NO_RESULT


_NO_RESULT = "The check has no result: run all cells and save the notebook with its outputs."


def _judged_record(
    record: dict[str, Any], lab: str, exercise: Exercise | Verdict, seed: int | None
) -> tuple[bool, str, str]:
    """Judge a record's answer again, or return the recorded result of a check."""
    if (record.get("lab"), record.get("exercise")) != (lab, exercise.name):
        return False, "not accepted", "The result is of another exercise."
    variant = record.get("seed")
    if type(variant) is not int:
        feedback = f"Its seed is {one_line(repr(variant), 20)}; expected a whole number."
        return False, "not accepted", feedback
    if seed not in (None, variant):
        feedback = f"The result is of the variant {one_line(str(variant), 20)}, not of {seed}."
        return False, "not accepted", feedback
    if isinstance(exercise, Exercise) or "answer" not in record:
        passed = record.get("passed") is True and isinstance(exercise, Exercise)
        return passed, RECORDED, _text(record.get("message"))
    try:
        with ProcessorLimit(SECONDS):
            judgement = exercise.judge(record["answer"], variant)
    except TooLong:
        feedback = f"It cannot be judged within {SECONDS:g} seconds of processor time."
        return False, "not accepted", feedback
    except Exception as error:
        # A forged record can raise anything in a judge; the other exercises are still graded.
        return False, "not accepted", f"It cannot be judged: {one_line(str(error), LONGEST)}"
    return judgement.passed, "verified", judgement.message


def grades_csv(grades: Sequence[Grade]) -> str:
    """Return the grades as CSV, a row for each exercise of each file."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([field.name for field in fields(Grade)])
    for grade in grades:
        table.writerow([_no_formula(value) for value in asdict(grade).values()])
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    """Quote a text that a spreadsheet would compute as a formula."""
    return f"'{value}" if value and str(value)[0] in "=+-@\t\r" else value


def gradescope(grades: Sequence[Grade]) -> dict[str, Any]:
    """Return the grades of one submission in the form of results.json for Gradescope and Otter."""
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
    """Yield the rows of each file in turn.

    Args:
        files: Notebooks of any lab, and answers.
        seed: Variant, see :func:`grade_file`.
        run: If True, nbgrader's autograder first runs each notebook from the start, with the
            checks' cells restored.
    """
    if run:
        yield from _run_and_grade(files, seed)
    else:
        yield from (grade_file(file, seed) for file in files)


def _run_and_grade(files: Sequence[Path], seed: int | None) -> Iterator[list[Grade]]:
    """Run notebooks with nbgrader and grade the results; grade other files as they are."""
    if find_spec("nbgrader") is None:
        raise InputError(
            got="no module nbgrader",
            expected="nbgrader, whose autograder runs the notebooks",
            fix="Run: pip install nbgrader.",
        )
    with TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "nbgrader_config.py").touch()
        for number, file in enumerate(files):
            try:
                content = _read(file)
                lab = _submission(file, content).lab
            except InputError:
                yield grade_file(file, seed)
                continue
            if not (root / "source" / lab).exists():
                _make_assignment(root, lab, seed or 0)
            student = f"student-{number:05}"
            path = Path(student, lab, f"{lab}.ipynb")
            write_text(root / "submitted" / path, json.dumps(runnable(lab, content)))
            timeout = f"--ExecutePreprocessor.timeout={CELL}"
            log = _nbgrader(root, "autograde", lab, "--student", student, timeout)
            graded = root / "autograded" / path
            if graded.exists():
                yield [replace(grade, file=shown(file)) for grade in grade_file(graded, seed, RUN)]
            else:
                yield [_unreadable(file, _why_not_finished(log))]


def _make_assignment(root: Path, lab: str, seed: int) -> None:
    source = json.dumps(notebook(lab, seed=seed, solutions=True))
    write_text(root / "source" / lab / f"{lab}.ipynb", source)
    _nbgrader(root, "generate_assignment", lab, "--create")


def _why_not_finished(log: str) -> str:
    """Return the reason in nbgrader's log for a notebook that it did not finish."""
    if "DeadKernelError" in log:
        return (
            "It was not graded: its code ended the Python process that ran it, or memory ran out."
        )
    errors = re.findall(r"^[\w.]*(?:Error|Exception|Invalid\w*)\b.*$", log, flags=re.MULTILINE)
    reason = errors[-1] if errors else log.strip()[-500:]
    limit = f" A cell may take {CELL} seconds." if "imeout" in log else ""
    return f"It was not graded: nbgrader did not finish it.{limit} {reason}"


def runnable(lab: str, content: dict[str, Any]) -> dict[str, Any]:
    """Convert a submitted notebook to one that nbgrader can run.

    Each grade_id is given once, and every check is present. Of several cells of one name the last
    has the grade_id; the others are run too. A missing check follows the last answer, or is
    appended.
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
    # From the end, so that earlier places stay valid.
    for place, _, cell in sorted(inserts, key=itemgetter(0, 1), reverse=True):
        cells.insert(place, _plain_cell("code", cell.source) | {"metadata": cell.metadata})
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    metadata: dict[str, Any] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    variant = _nested(content, "metadata", "glassformer")
    if variant is not None:
        metadata["glassformer"] = variant
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _plain_cell(kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "source": source, "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def _nbgrader(root: Path, *arguments: str) -> str:
    """Run a command of nbgrader and return its log."""
    command = [sys.executable, "-m", "nbgrader", *arguments]
    # nbgrader calls alembic by name. An environment that is not activated has it only beside its
    # interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    process = subprocess.run(
        command,
        cwd=root,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    # autograde exits with 1 if a notebook failed: it is then missing, and graded as unreadable.
    if process.returncode and arguments[0] != "autograde":
        raise InputError(
            got=f"nbgrader {arguments[0]}, which fails: {process.stderr[-500:]}",
            expected="a run without errors",
            fix="See nbgrader's message.",
        )
    return process.stderr
