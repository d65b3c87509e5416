"""Exercises of the page: hand-designed heads and programs, named as the page's models."""

from functools import partial
from typing import Any

from glassformer.course.checking import Judgement, Verdict
from glassformer.course.exercises.hand_designed import judge_head
from glassformer.errors import InputError
from glassformer.handcraft.designs import designable
from glassformer.handcraft.tasks import TASKS
from glassformer.programs.domains import Domains
from glassformer.programs.library import PROGRAMS
from glassformer.programs.written import compare, read_written


def _head(name: str, data: Any, seed: int) -> Judgement:
    return judge_head(TASKS[name](), data)


def _program(name: str, data: Any, seed: int) -> Judgement:
    example = PROGRAMS[name]
    if not isinstance(data, str):
        return Judgement(False, "expected a text")
    try:
        program = read_written(data, example.vocabulary)
        domains = Domains(example.vocabulary, example.max_len, example.causal)
        comparison = compare(program, example.program, domains)
    except InputError as error:
        return Judgement(False, f"found {error.got}; expected {error.expected}. {error.fix}")
    if comparison.counterexample is None:
        share = f"{comparison.num_run:,} of {comparison.num_possible:,} sequences were run"
        if comparison.verdict == "holds":
            return Judgement(True, f"right for every sequence ({share})")
        return Judgement(False, f"undecided; only {share}")
    sequence, position, expected, actual = comparison.counterexample
    shortest = " ".join(map(str, sequence))
    lines = [
        f"wrong; shortest sequence that fails: {shortest}",
        f"  output at position {position}: expected {expected!r}, found {actual!r}",
    ]
    return Judgement(False, "\n".join(lines), shortest)


EXERCISES = (
    *(Verdict(name, partial(_head, name)) for name in designable()),
    *(Verdict(f"program-{name}", partial(_program, name)) for name in PROGRAMS),
)
