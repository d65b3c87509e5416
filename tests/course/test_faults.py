"""Usual wrong answers of each exercise: each is refused, and where it has a sentence, the check says it."""

import pytest

from course.checked import EXERCISES, NAMES, right_answers, said
from glassformer.course.checking import Exercise, Verdict
from glassformer.course.lessons import LABS, answer, points, read_faults, read_lesson

FAULTS = [
    pytest.param(lab, exercise.name, fault, id=f"{lab}-{exercise.name}-{number}")
    for lab, exercise in EXERCISES
    for number, fault in enumerate(read_faults(lab).get(exercise.name, ()))
]


@pytest.mark.parametrize(("lab", "name", "fault"), FAULTS)
def test_a_fault_is_refused_and_named(lab, name, fault):
    message = said(lab, name, answer(lab, name, fault.change))
    assert message is not None
    if fault.says:
        assert "It looks as if" in message, message
        shown = message.rpartition("It looks as if ")[2].rstrip(".")
        same = [each for each in read_faults(lab)[name] if each.says and each.says.rstrip(".") == shown]
        # Another fault's sentence is right only where that fault does the same.
        assert fault in same or message.rpartition("\n")[0] in str(said(lab, name, answer(lab, name, same[0].change)))


@pytest.mark.parametrize(("lab", "exercise"), EXERCISES, ids=NAMES)
def test_the_solution_is_right_and_so_are_others(lab: str, exercise: Exercise | Verdict):
    assert said(lab, exercise.name, answer(lab, exercise.name)) is None
    others = right_answers(lab)[exercise.name]
    assert len(others) >= 2
    for text in others:
        assert said(lab, exercise.name, answer(lab, exercise.name, text=text)) is None, text


@pytest.mark.parametrize(("lab", "exercise"), EXERCISES, ids=NAMES)
def test_each_exercise_has_eight_faults_and_three_sentences(lab: str, exercise: Exercise | Verdict):
    listed = read_faults(lab)[exercise.name]
    assert len({fault.change for fault in listed}) >= 8
    assert sum(fault.says is not None for fault in listed) >= 3


@pytest.mark.parametrize("lab", LABS)
def test_cells_and_exercises_are_the_same(lab: str):
    cells = read_lesson(lab)
    names = [exercise.name for other, exercise in EXERCISES if other == lab]
    assert [cell.exercise for cell in cells if cell.exercise] == names
    assert list(points(lab)) == names
    assert sum("setup" in cell.metadata.get("tags", ()) for cell in cells) == 1
    assert read_faults(lab).keys() == right_answers(lab).keys() == set(names)
