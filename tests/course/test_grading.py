"""Notebooks for students, and the grades of what they hand in: honest, damaged, hostile, large."""

import csv
import importlib.util
import io
import json
import re

import pytest

from course.checked import EXERCISES
from glassformer.cli.commands import course
from glassformer.course import grading, lessons
from glassformer.course.checking import MIME, Exercise
from glassformer.course.exercises.hand_designed import tasks
from glassformer.course.grading import RECORDED, grade_file, grades_csv, runnable
from glassformer.course.lessons import (
    CODE_STUB,
    LABS,
    TEXT_STUB,
    edition,
    notebook,
    points,
    read_lesson,
    run_cells,
)
from glassformer.handcraft.designs import design, designable
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.weight_files import read_head
from glassformer.labs.sentiment.published import published

with_nbgrader = pytest.mark.skipif(
    importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed"
)


def handed_in(lab, change=lambda records: None, seed=0):
    """A notebook in which every check has passed, as far as its records say, after ``change`` of
    them.
    """
    content = notebook(lab, seed=seed, solutions=True)
    common = {"lab": lab, "seed": seed, "passed": True, "message": "ok"}
    records = {
        name: common | {"exercise": name, "points": of, "of": of}
        for name, of in points(lab).items()
    }
    change(records)
    for cell in content["cells"]:
        name = cell["id"].removesuffix("-check")
        if cell["id"] != name and name in records:
            data = {"text/plain": "ok", MIME: records[name]}
            cell["outputs"] = [{"output_type": "display_data", "data": data, "metadata": {}}]
    return content


@pytest.fixture
def file(tmp_path):
    """A notebook in which every check of the first lab has passed."""
    (tmp_path / "a.ipynb").write_text(json.dumps(handed_in(LABS[0])))
    return tmp_path / "a.ipynb"


def code_exercise(lab):
    """The first exercise of a lab whose answer is code."""
    return next(
        exercise.name
        for other, exercise in EXERCISES
        if other == lab and isinstance(exercise, Exercise)
    )


def graded(content, file):
    """The grades of a notebook by the names of the exercises."""
    file.write_text(json.dumps(content))
    return {grade.exercise: grade for grade in grade_file(file)}


@pytest.mark.parametrize("lab", LABS)
def test_the_cells_are_those_that_jupytext_reads(lab):
    jupytext = pytest.importorskip("jupytext")
    script = jupytext.read(
        next(folder / f"{lab}.py" for folder in lessons._FOLDERS if (folder / f"{lab}.py").exists())
    )
    made = notebook(lab, solutions=True)["cells"]
    assert [(cell["cell_type"], cell["source"]) for cell in made] == [
        (c.cell_type, c.source) for c in script.cells
    ]
    # which is jupytext's own
    stored = [{**cell.metadata, "lines_to_next_cell": None} for cell in script.cells]
    assert [{**cell["metadata"], "lines_to_next_cell": None} for cell in made] == stored


@pytest.mark.parametrize("lab", LABS)
def test_start_writes_a_notebook_with_blanks(lab, tmp_path, output, monkeypatch):
    def which(program, path=None):
        return "/bin/jupyter-lab" if lab == LABS[0] and path is None else None

    monkeypatch.setattr("shutil.which", which)
    nbformat = pytest.importorskip("nbformat")
    path = tmp_path / f"{lab}.ipynb"
    said = output(["course", "start", lab.replace("_", "-"), tmp_path, "--seed", "3"]).out
    assert f"jupyter lab {path}" in said
    assert ("pip install jupyterlab)" in said) == (lab != LABS[0])
    made = nbformat.read(path, 4)
    nbformat.validate(made)
    text = "\n".join(cell.source for cell in made.cells)
    assert "SOLUTION" not in text
    assert text.count(CODE_STUB.splitlines()[0]) >= len(points(lab))
    assert f'lesson("{lab}", seed=3)' in text
    assert all(cell.outputs == [] for cell in made.cells if cell.cell_type == "code")
    output(["course", "start", lab.replace("_", "-"), tmp_path], 2)


@pytest.mark.parametrize("on_path", [None, "/elsewhere/jupyter-lab"])
def test_start_names_the_program_of_its_own_environment(on_path, tmp_path, output, monkeypatch):
    scripts = tmp_path / "an environment" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "jupyter-lab").write_text("#!/bin/sh\n")
    (scripts / "jupyter-lab").chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(scripts))
    monkeypatch.setenv("PATH", str(tmp_path))
    if on_path is not None:
        other = tmp_path / "jupyter-lab"
        other.write_text("#!/bin/sh\n")
        other.chmod(0o755)
    said = output(["course", "start", "lookup", tmp_path / "week"]).out
    assert f"'{scripts / 'jupyter-lab'}' {tmp_path / 'week' / 'lookup.ipynb'}" in said
    assert "pip install" not in said


def test_start_names_the_extra_that_a_lesson_needs(tmp_path, output, monkeypatch):
    monkeypatch.setattr(course, "find_spec", {"accelerate": "there", "matplotlib": "there"}.get)
    assert "'glassformer[course]')" in output(["course", "start", "lookup", tmp_path]).out


@pytest.mark.parametrize("lab", LABS)
def test_blanks_and_solutions_differ_in_the_regions_alone(lab):
    blank = notebook(lab)["cells"]
    full = notebook(lab, solutions=True, published=False)["cells"]
    for one, other, cell in zip(blank, full, edition(lab, published=False), strict=True):
        if not cell.nbgrader.get("solution"):
            assert one == other
        else:
            assert one["source"] != other["source"]
            assert one | {"source": ""} == other | {"source": ""}


def shown_text(lab):
    """The text of a student's notebook."""
    return "\n".join(cell["source"] for cell in notebook(lab)["cells"])


@pytest.mark.parametrize("lab", LABS)
def test_a_students_notebook_has_no_solution_and_no_answer_in_words(lab):
    text = shown_text(lab)
    solutions = [cell.source for cell in read_lesson(lab) if cell.nbgrader.get("solution")]
    regions = [
        re.sub(r".*BEGIN SOLUTION|### END SOLUTION.*", "", source, flags=re.DOTALL)
        for source in solutions
    ]
    words = [
        cell.source for cell in read_lesson(lab) if "published" in cell.metadata.get("tags", ())
    ]
    for answer in (*regions, *words):
        # Single lines stand in hints.
        paragraphs = [
            paragraph.strip()
            for paragraph in answer.split("\n\n")
            if len(paragraph.splitlines()) > 1
        ]
        assert not [paragraph for paragraph in paragraphs if paragraph in text]
    assert "published(" not in text
    assert text.count(TEXT_STUB) >= (lab in ("sentiment", "gpt_oss"))


def test_a_students_notebook_of_sentiment_quotes_nothing_of_the_report():
    headings = (
        "The course's questions",
        "Takeaways",
        "From earlier models to transformers",
        "Looking forward",
    )
    text = shown_text("sentiment")
    for heading in (*headings, "Reflection"):
        assert published(heading) not in text
        for sentence in re.split(r"(?<=\.)\s+", published(heading)):
            assert len(sentence) < 40 or sentence not in text
    assert text.count(TEXT_STUB) == 4


@with_nbgrader
@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS)
def test_start_writes_what_nbgrader_assigns(lab, tmp_path):
    (tmp_path / "source" / lab).mkdir(parents=True)
    (tmp_path / "nbgrader_config.py").touch()
    (tmp_path / "source" / lab / f"{lab}.ipynb").write_text(
        json.dumps(notebook(lab, solutions=True, published=False))
    )
    grading._nbgrader(tmp_path, "generate_assignment", lab, "--create")
    assigned = json.loads((tmp_path / "release" / lab / f"{lab}.ipynb").read_text())
    ours = notebook(lab)["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in assigned["cells"]] == [
        (cell["cell_type"], cell["source"]) for cell in ours
    ]
    for one, other in zip(assigned["cells"], ours, strict=True):
        marks = one["metadata"].get("nbgrader", {})
        wanted = other["metadata"].get("nbgrader", {})
        assert {key: marks[key] for key in wanted} == wanted


@pytest.mark.parametrize("lab", LABS)
def test_recorded_results_count_and_say_so(lab, file):
    name = code_exercise(lab)
    wrong = {"passed": False, "message": "wrong, see [0, 1]"}
    grades = graded(handed_in(lab, lambda records: records[name].update(wrong)), file)
    assert grades.keys() == points(lab).keys()
    for exercise in (exercise for other, exercise in EXERCISES if other == lab):
        grade = grades[exercise.name]
        assert grade.of == points(lab)[exercise.name]
        if isinstance(exercise, Exercise):
            assert grade.points == (0 if exercise.name == name else grade.of)
            assert grade.status == RECORDED
        else:  # its record holds no answer that could be judged
            assert grade.points == 0
    assert grades[name].feedback == "wrong, see [0, 1]"
    passed = next(each for each in grades.values() if each.points)
    assert passed.feedback == "ok The cell of the answer has the marks of the instructor's version."


FORGED = {
    "of another exercise": lambda record: record.update(exercise="other"),
    "of another lab": lambda record: record.update(lab="other"),
    "of another variant": lambda record: record.update(seed=5),
    "without a variant": lambda record: record.update(seed="0"),
    "with points alone": lambda record: record.update(passed=1, points=10**6),
    "with nothing": lambda record: record.clear(),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("lab", LABS)
def test_a_strange_record_does_not_count_and_all_others_do(lab, change, file):
    name = code_exercise(lab)
    grades = graded(handed_in(lab, lambda records: change(records[name])), file)
    assert grades.pop(name).points == 0
    codes = {each.name for other, each in EXERCISES if other == lab and isinstance(each, Exercise)}
    assert all(grades[each].points == grades[each].of for each in codes - {name})


def test_a_check_whose_name_was_given_away_is_named(file):
    content = handed_in("lookup")
    cell = next(cell for cell in content["cells"] if cell["id"] == "heads-check")
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "heads: right"}]
    grade = graded(content, file)["heads"]
    assert (grade.points, grade.status) == (0, "not run")
    assert "was the name check given to something else?" in grade.feedback


@pytest.mark.parametrize("lab", LABS)
def test_a_check_that_was_changed_or_removed_does_not_count(lab, file):
    name = code_exercise(lab)
    content = handed_in(lab)
    cell = next(cell for cell in content["cells"] if cell["id"] == f"{name}-check")
    cell["source"] = f"check = print\n{cell['source']}"
    assert graded(content, file)[name].feedback == "The cell of the check was changed."
    content["cells"].remove(cell)
    # Where it was the only check, the notebook is of no lab.
    if len(points(lab)) > 1:
        assert graded(content, file)[name].status == "not run"


JUDGED = [(lab, exercise) for lab, exercise in EXERCISES if not isinstance(exercise, Exercise)]
HOSTILE = (
    *(None, True, 0, -1.5, "", "x" * 100_000, [], {}, [[]], [None], {"a": 1}, [[[[[]]]]]),
    {"Km": "x", "Qm": [], "Vm": {}},
    *(
        [0.0] * 300_000,
        [[0.0] * 1000] * 300,
        {"Km": [[1e308] * 4] * 4, "Qm": [[-1e308] * 4] * 4, "Vm": [[0] * 3] * 4},
    ),
    "__import__('os').system('touch /tmp/hostile')",
)


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(("lab", "exercise"), JUDGED, ids=[each.name for _, each in JUDGED])
def test_hostile_answers_are_judged_wrong(lab, exercise, answer, file):
    content = handed_in(lab, lambda records: records[exercise.name].update(answer=answer))
    grade = graded(content, file)[exercise.name]
    assert grade.points == 0
    assert grade.status in ("verified", "not accepted")
    assert grade.feedback


DAMAGED = {
    "empty": b"",
    "cut": b'{"cells": [',
    "no text": b"\xff\xfe\x00\x01",
    "no notebook": b"[1, 2]",
    "of version 3": b'{"worksheets": [], "nbformat": 3}',
    "of no lab": b'{"cells": [{"cell_type": "code", "source": "1", "metadata": {}, "outputs": []}]}',
    "deep": b"[" * 100_000,
    "of strange cells": b'{"cells": [1, null, {"cell_type": "code", "id": 3, "metadata": []}, {"cell_type": []}]}',
    "of many entries": b"[" + b"1," * (1 << 20) + b"1]",
    "too large": b'"' + b"x" * (1 << 24) + b'"',
    "a key twice": b'{"cells": [], "cells": []}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_notebook_is_a_row_that_says_so(content, tmp_path):
    (tmp_path / "a.ipynb").write_bytes(content)
    (grade,) = grade_file(tmp_path / "a.ipynb")
    assert (grade.status, grade.points) == ("unreadable", 0)
    assert str(tmp_path / "a.ipynb") in grade.feedback


@pytest.mark.parametrize(
    "outputs", [None, 3, [None], [{"data": []}], [{"data": {MIME: []}}], [{"ename": ["x"]}], "text"]
)
def test_strange_outputs_do_no_harm(outputs, file):
    name = code_exercise(LABS[0])
    content = handed_in(LABS[0])
    next(cell for cell in content["cells"] if cell["id"] == f"{name}-check")["outputs"] = outputs
    assert graded(content, file)[name].status == "not run"


def test_all_files_are_graded_beside_bad_ones(tmp_path, output):
    lab = LABS[0]
    name = code_exercise(lab)
    good = handed_in(lab)
    # As some editors save it: sources as lists, a cell's metadata dropped, a picture of 10 MB.
    for cell in good["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        cell["metadata"] = {}
    good["cells"][0]["attachments"] = {"large.png": {"image/png": "A" * 10_000_000}}
    (tmp_path / "good.ipynb").write_text(json.dumps(good))
    (tmp_path / "bad.ipynb").write_text("{")
    (tmp_path / "bytes.ipynb").write_bytes(b"\xff")
    out = tmp_path / "grades.csv"
    # A pattern that no shell expanded, and a file that is named twice.
    said = output(
        ["course", "grade", tmp_path / "*.ipynb", tmp_path / "good.ipynb", "--out", out]
    ).out
    assert "1 of 3 files could be read" in said
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["status"] for row in rows[:2]] == ["unreadable", "unreadable"]
    assert [row["exercise"] for row in rows[2:]] == list(points(lab))
    assert next(row for row in rows if row["exercise"] == name)["points"] == str(points(lab)[name])


def test_the_status_says_where_no_file_could_be_read(tmp_path, output):
    (tmp_path / "a.ipynb").write_text("{")
    (tmp_path / "b.ipynb").write_text("[]")
    out = tmp_path / "grades.csv"
    said = output(
        ["course", "grade", tmp_path / "a.ipynb", tmp_path / "b.ipynb", "--out", out], status=2
    ).out
    assert "0 of 2 files could be read" in said
    assert out.read_text().count("unreadable") == 2


def test_files_that_are_not_there_and_places_that_cannot_be_written_are_said_at_once(
    file, tmp_path, refuses
):
    refuses(
        ["course", "grade", tmp_path / "*.txt", "--out", tmp_path / "grades.csv"],
        "which is not there",
    )
    refuses(["course", "grade", file, "--out", file / "x.csv"], "a place that can be written to")
    for files, results in (([file], "x"), (["a.ipynb", "b.ipynb"], "y")):
        refuses(["course", "grade", *files, "--out", "x", "--gradescope", results])


def test_where_nothing_is_graded_no_table_is_written_or_lost(file, tmp_path, refuses, monkeypatch):
    monkeypatch.setattr(grading, "find_spec", lambda name: None)
    out = tmp_path / "grades.csv"
    command = ["course", "grade", file, "--out", out, "--run", "--overwrite"]
    refuses(command)
    assert not out.exists()
    out.write_text("of last week")
    refuses(command)
    assert out.read_text() == "of last week"


@pytest.mark.parametrize("lab", LABS)
def test_a_result_without_an_answer_does_not_count(lab, file):
    name = code_exercise(lab)
    content = handed_in(lab)
    cell = next(cell for cell in content["cells"] if cell["id"] == name)
    cell["source"] = next(
        blank["source"] for blank in notebook(lab)["cells"] if blank["id"] == name
    )
    assert "blank" in graded(content, file)[name].feedback
    content["cells"].remove(cell)
    grades = graded(content, file)
    assert grades[name].feedback == "The cell of the answer is missing."
    assert {grade.status for grade in grades.values() if grade.points == 0} >= {"not accepted"}


def test_a_changed_copy_of_a_check_does_no_harm(file):
    name = code_exercise(LABS[0])
    content = handed_in(LABS[0])
    cell = next(cell for cell in content["cells"] if cell["id"] == f"{name}-check")
    content["cells"].append(cell | {"source": "check(1, 2)", "outputs": []})
    assert graded(content, file)[name].points == points(LABS[0])[name]


@pytest.mark.parametrize("named", [True, False])
def test_results_of_two_variants_do_not_both_count(named, file):
    first, *_, last = points("lookup")
    content = handed_in("lookup", lambda records: records[last].update(seed=7), seed=3)
    if not named:
        del content["metadata"]["glassformer"]
    grades = graded(content, file)
    assert (grades[first].points, grades[first].seed) == (points("lookup")[first], 3)
    assert grades[last].feedback == "The result is of the variant 7, not of 3."


@pytest.mark.parametrize(
    ("message", "feedback"),
    [("a\x1b[31m\x00\nb", "a [31m \nb "), ('=HYPERLINK("http://x")', '\'=HYPERLINK("http://x")')],
)
def test_feedback_holds_no_control_characters_and_no_formula_of_a_spreadsheet(
    message, feedback, file
):
    name = code_exercise(LABS[0])
    grades = graded(handed_in(LABS[0], lambda records: records[name].update(message=message)), file)
    (row,) = csv.DictReader(io.StringIO(grades_csv([grades[name]])))
    assert row["feedback"].startswith(feedback)


def test_results_for_gradescope(tmp_path, output, refuses):
    lab = LABS[0]
    graded(handed_in(lab, lambda records: records.pop(code_exercise(lab))), tmp_path / "a.ipynb")
    results = tmp_path / "results.json"
    output(
        [
            "course",
            "grade",
            tmp_path / "a.ipynb",
            "--out",
            tmp_path / "grades.csv",
            "--gradescope",
            results,
        ]
    )
    content = json.loads(results.read_text())
    assert content["score"] == sum(test["score"] for test in content["tests"])
    assert {test["name"]: test["max_score"] for test in content["tests"]} == points(lab)
    failed = [test["name"] for test in content["tests"] if test["status"] == "failed"]
    assert code_exercise(lab) in failed
    graded(handed_in(lab), tmp_path / "b.ipynb")
    for named in (
        ["--out", tmp_path / "b.ipynb"],
        ["--out", "x", "--gradescope", tmp_path / "b.ipynb"],
    ):
        refuses(
            ["course", "grade", tmp_path / "b.ipynb", *named, "--overwrite"],
            "among the files to grade",
        )
    refuses(
        ["course", "grade", str(tmp_path / "*.ipynb"), "--out", "x", "--gradescope", "y"],
        "--gradescope",
    )


def without_training(lab, content):
    """The cells of a notebook that its exercises need."""
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    needed = [
        cell for cell in cells if cell["metadata"].keys() & {"nbgrader"} or "setup" in tags_of(cell)
    ]
    return content | {"cells": needed}


def tags_of(cell):
    return cell["metadata"].get("tags", ())


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS)
def test_the_solutions_of_a_variant_pass_its_checks(lab, capsys):
    made = without_training(lab, notebook(lab, seed=7, solutions=True))
    sources = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    run_cells(source.replace("%matplotlib inline\n", "") for source in sources)
    assert len(capsys.readouterr().out.splitlines()) >= len(points(lab))


@with_nbgrader
@pytest.mark.slow
def test_nbgrader_runs_what_students_hand_in(tmp_path, monkeypatch):
    lab = "lookup"
    blank, full = (
        without_training(lab, notebook(lab, solutions=solved)) for solved in (False, True)
    )
    forged = json.loads(json.dumps(blank))
    for cell in forged["cells"]:
        cell["source"] = "check = lambda *_: None" if cell["id"] == "attention" else cell["source"]
    contents = {
        "blank": json.dumps(blank),
        "full": json.dumps(full),
        "forged": json.dumps(forged),
        "broken": "{",
    }
    for title, text in contents.items():
        (tmp_path / f"{title}.ipynb").write_text(text)
    monkeypatch.setattr(grading, "notebook", lambda *args, **kwargs: full)
    graded = list(
        grading.grade_files([tmp_path / f"{title}.ipynb" for title in contents], run=True)
    )
    assert [sum(grade.points for grade in grades) for grades in graded] == [
        0,
        sum(points(lab).values()),
        0,
        0,
    ]
    assert {grade.status for grade in graded[1]} <= {grading.RUN, "verified"}
    assert graded[3][0].status == "unreadable"


def copied(cells, place, **change):
    cells.insert(place + 1, json.loads(json.dumps(cells[place])) | change)


def without_marks(content):
    """As an editor saves it that knows neither nbgrader's metadata nor cell ids."""
    content["nbformat_minor"] = 2
    for cell in content["cells"]:
        cell["metadata"] = {}
        del cell["id"]


def split(cells, place):
    """An answer cut after its definition; both parts have its marks."""
    copied(cells, place, source="print('still the answer')")


def before(cells, source):
    cells.insert(
        1,
        {
            "cell_type": "code",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        },
    )


CHANGED = {
    "an answer twice": lambda content: copied(content["cells"], 1),
    "a check twice": lambda content: copied(content["cells"], 2),
    "an answer and its check twice, with other ids": lambda content: (
        copied(content["cells"], 2, id="a"),
        copied(content["cells"], 1, id="b"),
    ),
    "a check removed": lambda content: content["cells"].pop(2),
    "no marks": without_marks,
    "an answer split": lambda content: split(content["cells"], 1),
    "an answer and its check in one cell": lambda content: content["cells"][1].update(
        source=content["cells"][1]["source"] + "\n\n" + content["cells"].pop(2)["source"]
    ),
    "a cell that raises an error": lambda content: before(content["cells"], "1 / 0"),
    "an older format": lambda content: content.update(nbformat_minor=4),
    "no kernel": lambda content: content.update(metadata={}),
    "outputs and cells of other kinds": lambda content: content["cells"].extend(
        [{"cell_type": "heading", "level": 1, "source": "x", "metadata": {}}, 3, None]
    ),
}


def first_exercises(content, count=2):
    """The set-up and the first exercises with their checks."""
    return content | {"cells": content["cells"][: 1 + 2 * count]}


@pytest.mark.parametrize("title", CHANGED)
def test_nbgrader_is_given_each_mark_once_and_every_check(title):
    nbformat = pytest.importorskip("nbformat")
    lab = LABS[0]
    content = first_exercises(without_training(lab, handed_in(lab)))
    CHANGED[title](content)
    made = runnable(lab, content)
    nbformat.validate(made)
    marks = [
        cell["metadata"]["nbgrader"]["grade_id"]
        for cell in made["cells"]
        if "nbgrader" in cell["metadata"]
    ]
    assert len(marks) == len(set(marks))
    assert {f"{name}-check" for name in points(lab)} <= set(marks)
    first, second = list(points(lab))[:2]
    assert marks[:4] == [first, f"{first}-check", second, f"{second}-check"]
    sources = [
        cell["source"]
        for cell in content["cells"]
        if isinstance(cell, dict) and cell["cell_type"] == "code"
    ]
    assert [cell["source"] for cell in made["cells"] if cell["source"] in sources] == sources, (
        "none is left out"
    )


@with_nbgrader
@pytest.mark.slow
def test_a_notebook_with_other_cells_than_were_given_out_is_run(tmp_path, monkeypatch):
    lab = "hand_designed"
    full = without_training(lab, notebook(lab, solutions=True))
    monkeypatch.setattr(grading, "notebook", lambda *args, **kwargs: full)
    files = []
    for title in (
        "an answer and its check twice, with other ids",
        "an answer and its check in one cell",
        "ended",
    ):
        content = json.loads(json.dumps(first_exercises(full)))
        if title == "ended":
            before(content["cells"], "import os; os._exit(1)")
        else:
            CHANGED[title](content)
        files.append(tmp_path / f"{title}.ipynb")
        files[-1].write_text(json.dumps(content))
    *graded, ended = grading.grade_files(files, run=True)
    expected = dict(list(points(lab).items())[:2])
    for grades in graded:
        assert [grade.exercise for grade in grades] == list(points(lab))
        assert {grade.exercise: grade.points for grade in grades if grade.points} == expected
        assert all(grade.feedback for grade in grades)
    assert (ended[0].points, ended[0].status) == (0, "unreadable")
    assert "ended the Python process" in ended[0].feedback


@pytest.mark.parametrize("title", CHANGED)
def test_a_notebook_with_other_cells_than_were_given_out_is_graded(title, file):
    lab = LABS[0]
    content = first_exercises(without_training(lab, handed_in(lab)))
    CHANGED[title](content)
    grades = graded(content, file)
    assert list(grades) == list(points(lab))
    first, second = list(points(lab))[:2]
    assert grades[second].points == points(lab)[second]
    # Where its check is not a cell of its own, it has no result.
    lost = title in ("a check removed", "an answer and its check in one cell")
    assert grades[first].points == (0 if lost else points(lab)[first])
    assert all(grade.feedback for grade in grades.values())


@pytest.mark.skipif(
    importlib.util.find_spec("otter") is None, reason="otter-grader is not installed"
)
@pytest.mark.slow
def test_otter_grades_a_notebook_with_the_tests_that_start_writes(tmp_path, output):
    from otter.execute import grade_notebook

    lab = "lookup"
    output(["course", "start", lab, tmp_path, "--solutions", "--otter"])
    for solved in (True, False):
        path = tmp_path / f"{solved}.ipynb"
        path.write_text(json.dumps(without_training(lab, notebook(lab, solutions=solved))))
        tests = [str(test) for test in sorted((tmp_path / "tests").glob("*.py"))]
        results = grade_notebook(str(path), tests_glob=tests, test_dir=str(tmp_path / "tests"))
        assert results.possible == sum(points(lab).values())
        assert results.total == (results.possible if solved else 0)


def answered(path, **content):
    """A file as the page writes it for an exercise, with ``content``."""
    path.write_text(json.dumps({"lab": "page", "exercise": "program-histogram"} | content))
    return path


def head_answer(task, change=lambda matrices: None, **content):
    matrices = {name: matrix.tolist() for name, matrix in design(task).weights.matrices.items()}
    change(matrices)
    return {"lab": "page", "exercise": task.name, **content, **matrices}


HISTOGRAM = "selector_width(select(tokens, tokens, operator.eq))"


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_a_program_in_a_file_is_judged_anew(seed, tmp_path):
    right, wrong, blank = (
        grade_file(answered(tmp_path / "a.json", answer=text), seed)[0]
        for text in (
            HISTOGRAM,
            HISTOGRAM.replace("eq", "le"),
            HISTOGRAM.replace("operator.eq", "___"),
        )
    )
    assert (right.lab, right.exercise, right.points, right.of) == (
        "page",
        "program-histogram",
        1,
        1,
    )
    assert {each.status for each in (right, wrong, blank)} == {"verified"}
    assert wrong.points == blank.points == 0
    assert "shortest sequence that fails: a b" in wrong.feedback
    assert "___" in blank.feedback


@pytest.mark.parametrize("name", designable())
def test_a_head_in_a_file_is_judged_anew(name, tmp_path):
    for change, points_wanted in (
        (lambda matrices: None, 1),
        (
            lambda matrices: matrices.update(
                Vm=[[0.0] * len(matrices["Vm"][0])] * len(matrices["Vm"])
            ),
            0,
        ),
    ):
        content = head_answer(TASKS[name](), change)
        (grade,) = grade_file(answered(tmp_path / "a.json", **content))
        assert (grade.exercise, grade.points, grade.of, grade.status) == (
            name,
            points_wanted,
            1,
            "verified",
        )
        assert ("shortest sequence" in grade.feedback) == (points_wanted == 0)
        read_head(tmp_path / "a.json")


def test_a_head_of_the_lesson_in_a_file_is_that_of_its_variant(tmp_path):
    lesson = {"lab": "hand_designed", "exercise": "content-design"}
    path = answered(
        tmp_path / "a.json", **head_answer(tasks(7)["content-design"]) | lesson | {"seed": 7}
    )
    assert [grade_file(path, seed)[0].points for seed in (None, 7, 0)] == [3, 3, 0]
    path = answered(tmp_path / "a.json", **head_answer(tasks(7)["content-design"]) | lesson)
    assert [grade_file(path, seed)[0].points for seed in (None, 7, 0)] == [0, 3, 0]


STRANGE = {
    **{
        f"answer {number}": {"answer": answer}
        for number, answer in enumerate((*HOSTILE, "import os", "(" * 500, "x" * 10**6))
    },
    **{
        f"matrices {number}": {"exercise": "identity", "answer": answer}
        for number, answer in enumerate(HOSTILE)
    },
    "no answer": {},
    "a head for a program": head_answer(TASKS["identity"](), exercise="program-histogram")
    | {"exercise": "program-histogram"},
    "a program for a head": {"exercise": "identity", "answer": HISTOGRAM},
    "another head": head_answer(TASKS["unique"]()) | {"exercise": "identity"},
    "not numbers": {
        "exercise": "identity",
        "Km": [[float("nan")] * 3] * 3,
        "Qm": [[float("inf")] * 3] * 3,
        "Vm": [[1e308] * 3] * 3,
    },
    "of another lab": {"lab": "lookup", "answer": HISTOGRAM},
    "of code": {"lab": "hand_designed", "exercise": "softmax", "answer": 1},
    "of no lab": {"lab": "os", "answer": HISTOGRAM},
    "of strange names": {"lab": ["page"], "exercise": {"a": []}, "answer": HISTOGRAM},
    "of a strange variant": {
        "lab": "hand_designed",
        "exercise": "content-design",
        "seed": -(10**30),
    },
    "that says so itself": {"answer": "tokens", "passed": True, "points": 10**6, "of": 1},
}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_strange_answers_in_files_get_feedback_and_no_points(content, tmp_path):
    (grade,) = grade_file(answered(tmp_path / "a.json", **content))
    assert grade.points == 0
    assert grade.status in ("verified", "not accepted", "unreadable")
    assert grade.feedback


@pytest.mark.parametrize("seed", ["7", True, 1.5, [7]])
def test_a_seed_that_is_no_whole_number_is_named(seed, tmp_path):
    content = {"lab": "gpt_oss", "exercise": "coefficients", "answer": [1, 2], "seed": seed}
    (grade,) = grade_file(answered(tmp_path / "a.json", **content))
    assert grade.feedback == f"Its seed is {seed!r}; expected a whole number."


def test_answers_are_graded_beside_notebooks_and_damaged_files(file, tmp_path, output):
    files = [file, answered(tmp_path / "right.json", answer=HISTOGRAM)]
    for name, content in DAMAGED.items():
        files.append(tmp_path / f"{name}.json")
        files[-1].write_bytes(content.replace(b'{"cells": [', b'{"exercise": [', 1))
    out = tmp_path / "grades.csv"
    assert (
        f"{files[1]}: 1 of 1 points, page" in output(["course", "grade", *files, "--out", out]).out
    )
    by_file = {row["file"]: row for row in csv.DictReader(io.StringIO(out.read_text()))}
    assert by_file.keys() == set(map(str, files))
    assert by_file[str(files[1])]["points"] == "1"
    assert all(by_file[str(file)]["status"] == "unreadable" for file in files[2:])
