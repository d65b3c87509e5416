"""Usual wrong answers of each exercise: each is refused, and where it has a sentence, the check
says it.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from course.checked import EXERCISES, NAMES, right_answers, said
from glassformer.course import checking
from glassformer.course.checking import MOST_LINES, Exercise, Verdict
from glassformer.course.lessons import LABS, points, read_faults, read_lesson
from glassformer.course.lessons import answer as lesson_answer

answer = cache(lesson_answer)

FAULTS = [
    pytest.param(lab, exercise.name, fault, id=f"{lab}-{exercise.name}-{number}")
    for lab, exercise in EXERCISES
    for number, fault in enumerate(read_faults(lab).get(exercise.name, ()))
]


@pytest.fixture(scope="module", autouse=True)
def _once() -> Iterator[None]:
    """Each fault is run once on each case: checks compare all of an exercise with every wrong
    answer.
    """
    kept: dict[Any, checking.Outcome] = {}
    drawn = checking.drawn
    outcome = checking.outcome

    def remembered(exercise: Exercise, given: Any, case: Any) -> checking.Outcome:
        key = exercise, given, id(case)  # of one that is kept
        if key not in kept:
            kept[key] = outcome(exercise, given, case)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "drawn", cache(lambda *given: [*drawn(*given)]))
        patch.setattr(checking, "outcome", remembered)
        patch.setattr(checking, "lesson_answer", answer)
        yield


@pytest.mark.parametrize(("lab", "name", "fault"), FAULTS)
def test_a_fault_is_refused_and_named(lab, name, fault):
    message = said(lab, name, answer(lab, name, fault.change))
    assert message is not None
    assert len(message.splitlines()) <= MOST_LINES
    if fault.says:
        assert "It looks as if" in message, message
        shown = message.rpartition("It looks as if ")[2]
        named = [
            other
            for other in read_faults(lab)[name]
            if other.says and other.says.rstrip(".") in shown
        ]
        # Another fault's sentence is right only where that fault does the same.
        without_sentence = message.rpartition("\n")[0]
        assert fault in named or without_sentence in str(
            said(lab, name, answer(lab, name, named[0].change))
        )


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


@pytest.mark.parametrize(
    ("lab", "name", "change"),
    [
        ("gpt_oss", "attention", ("scale * (q @", "q.shape[-1] ** -0.5 * (q @")),
        (
            "gpt_oss",
            "sliding-attention",
            ("rope, scale, device", "rope, q.shape[-1] ** -0.5, device"),
        ),
        ("hand_designed", "rescale", ("(high - low)", "(high - low + 1e-9)")),
    ],
)
def test_what_differs_at_unusual_sizes_alone_is_refused(lab, name, change):
    assert said(lab, name, answer(lab, name, change)) is not None
