"""Wrong answers that hold on ordinary inputs, and right ones in other styles than the solutions'.

The wrong ones keep something from an earlier call, take exponentials of large scores, choose
wrongly among equals or at a limit, leave out what the text asks for, or change their weights.
"""

from pathlib import Path

import pytest

from course.checked import EXERCISES, said
from glassformer.course.checking import MOST_LINES, Lesson
from glassformer.course.lessons import LABS, Fault, answer, read_faults


def edits(directory: str) -> list[tuple[str, str, Fault]]:
    """The edits of solutions in a directory, with their labs and exercises."""
    place = Path(__file__).parent / directory
    by_lab = [(lab, read_faults(lab, place)) for lab in LABS]
    return [
        (lab, exercise, edit)
        for lab, rows in by_lab
        for exercise, edits in rows.items()
        for edit in edits
    ]


WRONG = edits("wrong")
STYLES = edits("right")
PASSING: set[str] = set()
"""Names of wrong answers that pass."""


def test_there_are_wrong_and_right_answers_to_each_exercise():
    names = {(lab, exercise.name) for lab, exercise in EXERCISES}
    assert {(lab, exercise) for lab, exercise, _ in WRONG} == names
    assert (
        len({(lab, exercise, fault.change) for lab, exercise, fault in WRONG}) == len(WRONG) >= 170
    )
    assert all(fault.name for _, _, fault in WRONG)
    assert len(PASSING) <= 0.03 * len(WRONG)
    assert (
        len({(lab, exercise, edit.change) for lab, exercise, edit in STYLES}) == len(STYLES) >= 60
    )


@pytest.mark.parametrize(
    ("lab", "exercise", "fault"),
    WRONG,
    ids=[f"{lab}-{exercise}: {fault.name}" for lab, exercise, fault in WRONG],
)
def test_a_wrong_answer_is_refused_in_few_lines(lab, exercise, fault, monkeypatch):
    # Which usual fault it looks like takes longest, and refuses nothing.
    monkeypatch.setattr(Lesson, "_suspicion", lambda *_: "")
    message = said(lab, exercise, answer(lab, exercise, fault.change))
    if message is None:
        assert fault.name in PASSING
    else:
        assert fault.name not in PASSING
        assert len(message.splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    ("lab", "exercise", "style"),
    STYLES,
    ids=[f"{lab}-{exercise}: {style.name}" for lab, exercise, style in STYLES],
)
def test_a_right_answer_in_another_style_is_accepted(lab, exercise, style):
    assert said(lab, exercise, answer(lab, exercise, style.change)) is None
