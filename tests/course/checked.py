"""What the tests of all labs share: the exercises there are, and what a check says of an answer."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

from glassformer.course import WrongAnswer, lesson
from glassformer.course.checking import Exercise, Verdict, exercises
from glassformer.course.lessons import LABS, read_lesson

EXERCISES: list[tuple[str, Exercise | Verdict]] = [
    (lab, each) for lab in LABS for each in exercises(lab).values()
]
NAMES = [f"{lab}-{each.name}" for lab, each in EXERCISES]


def said(lab: str, name: str, answer: Any, seed: int = 0) -> str | None:
    """The message of a refused answer; None if the check passes it."""
    try:
        lesson(lab, seed)(name, answer)
    except WrongAnswer as wrong:
        return str(wrong)
    return None


@cache
def right_answers(lab: str) -> dict[str, list[str]]:
    """The other right answers of a lab: texts of whole cells."""
    path = Path(__file__).parent / "right" / f"{lab}.py"
    spec = importlib.util.spec_from_file_location(f"right_{lab}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RIGHT


def filled(lab: str, name: str, *bodies: str) -> str:
    """The cell of an exercise with these bodies, one for each region, in the place of its solution."""
    source = next(cell.source for cell in read_lesson(lab) if cell.exercise == name)
    regions = re.compile(r" *### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)
    assert len(regions.findall(source)) == len(bodies)
    left = iter(bodies)
    return regions.sub(lambda _: next(left).strip("\n"), source)
