"""Checks: an answer is compared with the library's form on cases of growing size, or judged for
every input.

An answer runs in the process of the student who wrote it. A check leaves no trace: random states,
settings and the streams of output are what they were.
"""

import functools
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.course.comparing import (
    Difference,
    array,
    arrays,
    difference,
    kind,
    mapped,
    one_line,
    tensors,
)
from glassformer.course.isolation import start_run, unchanged
from glassformer.course.lessons import Fault, checked_names, lab_name, points, read_faults
from glassformer.course.lessons import answer as lesson_answer
from glassformer.errors import InputError
from glassformer.processor_time import ProcessorLimit, TooLong
from glassformer.text import known_name

SECONDS = 10.0
"""Processor time after which an answer is given up; in proportion more on a slow machine."""
MIME = "application/vnd.glassformer.check+json"
MOST_LINES = 8
"""Lines of a message."""
WIDTH = 118
"""Characters of a line."""

Case: TypeAlias = Any
"""Arguments of an answer: a tuple, or a dictionary of named ones."""


class ValuesAlone(tuple[Any, ...]):
    """A case whose gradients are not compared: they cancel but for rounding, or depend on a choice
    that is free.
    """


class Built(NamedTuple):
    """The output of a module and its weights, whose gradients are compared by name."""

    output: Any
    weights: dict[str, Tensor]
    changed_weight: str | None = None
    """A weight that the call has changed."""


def call(answer: Any, case: Case) -> Any:
    """How a function is run: with a case's arguments, by position or by name."""
    return answer(**case) if isinstance(case, dict) else answer(*case)


@dataclass(frozen=True)
class ModuleRun:
    """How a class is run: a module of the first part of a case, its sizes, is called with the rest
    of the case.

    Sizes are a tuple or a dictionary. A dropout of 0 or 1 among them is at work: the module is in
    training mode, and the result does not depend on how random numbers are drawn. Otherwise dropout
    is off.

    Args:
        make: ``make(answer, sizes)`` is the module.
        initial: Weights that are compared as they are before any training, too, after
            ``torch.manual_seed(0)``.
    """

    make: Callable[[Any, Any], nn.Module] = call
    initial: tuple[str, ...] = ()

    def __call__(self, answer: Any, case: Case) -> Built:
        """Make a module and call it."""
        sizes, *inputs = case
        module = self.make(answer, sizes)
        parameters = dict(module.named_parameters())
        initial = {
            name: parameters[name].detach().clone() for name in self.initial if name in parameters
        }
        built = run_module(module, *inputs, training=_drops(sizes))
        if not initial:
            return built
        return built._replace(output={"output": built.output, "weights at first": initial})

    def again(self, module: nn.Module, case: Case, training: bool) -> Any:
        """The output of a module that exists, in training mode where that may change nothing."""
        sizes, *inputs = case
        may_drop = "dropout" in _parameters(type(module))
        return run_module(
            module, *inputs, training=_drops(sizes) or (training and not may_drop)
        ).output


build = ModuleRun()
"""``answer(*sizes)`` or ``answer(**sizes)``, called with the rest of the case."""


def _is_dropping(case: Case) -> bool:
    return isinstance(case, tuple) and bool(case) and _drops(case[0])


def _drops(sizes: Any) -> bool:
    return isinstance(sizes, dict) and "dropout" in sizes


def run_module(module: nn.Module, *inputs: Any, training: bool = False) -> Built:
    """The output of a module with weights that its parameters' names and the inputs determine.

    Weights have the dtype of the first input of floating-point numbers. A module without weights
    stays as it is.
    """
    floating = [tensor.dtype for _, tensor in tensors(inputs) if tensor.is_floating_point()]
    dtype = floating[0] if floating else torch.float32
    module = module.train(training)
    if any(True for _ in module.parameters()):
        # Module.to() would drop the imaginary part of a table of complex numbers.
        module._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    weights: dict[str, Tensor] = dict(module.named_parameters())
    number = 0  # so that what is kept from a call with other inputs was computed with other weights
    for _, values in arrays(inputs):
        number = crc32(np.ascontiguousarray(array(values)).tobytes(), number)
    with torch.no_grad():
        for name, weight in weights.items():
            generator = torch.Generator().manual_seed(crc32(name.encode(), number))
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(drawn / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.5 + 0.3 * drawn)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    output = module(*inputs)
    changed = [
        name for name, weight in weights.items() if not torch.equal(weight.detach(), before[name])
    ]
    return Built(output, weights, changed[0] if changed else None)


@dataclass(frozen=True)
class Exercise:
    """An exercise whose answer is a function or a class.

    Args:
        name: The grade_id of its cell, unique in the lab.
        expected: The library's form of it.
        cases: Arguments for a generator of random numbers: a tuple, or a dictionary of named ones,
            smallest first. Batches of several examples show whether one depends on another.
        run: Runs an answer on a case: :func:`call`, a :class:`ModuleRun` such as ``build``, or what
            an exercise needs.
        tolerance: Largest difference, relative to the largest magnitude; 1e-9 for arrays of
            float64.
        gradients: Whether gradients are compared, of floating inputs and of a module's weights.
        same_dtype: Whether the result's dtype has to be the expected one, and a number must not be
            a tensor; otherwise its kind has to.
        names: The parts of a case for a message, where they are not the arguments of the answer.
    """

    name: str
    expected: Callable[..., Any]
    cases: Callable[[torch.Generator], Iterator[Case]]
    run: Callable[[Any, Case], Any] = call
    tolerance: float = 1e-5
    gradients: bool = True
    same_dtype: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What is said of an answer that is data: whether it is right for every input, and if not,
    where it fails.
    """

    passed: bool
    message: str
    counterexample: str | None = None


def plain(answer: Any) -> Any:
    """An answer as JSON values: tensors and arrays become lists of numbers, dataclasses
    dictionaries.
    """
    if is_dataclass(answer) and not isinstance(answer, type):
        return {each.name: plain(getattr(answer, each.name)) for each in fields(answer)}
    if isinstance(answer, Tensor | np.ndarray | np.generic):
        return array(answer).tolist()
    if isinstance(answer, dict):
        return {str(key): plain(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [plain(each) for each in answer]
    return answer


@dataclass(frozen=True)
class Verdict:
    """An exercise whose answer is data: weights, a program, a predicted number.

    A notebook records it as JSON values, and ``glassformer course grade`` judges it anew.

    Args:
        name: The grade_id of its cell, unique in the lab.
        judge: ``judge(data, seed)`` decides for every input; ``seed`` gives the variant. What it
            cannot decide does not pass, and the message says so. It must take any JSON value
            without running anything of it.
    """

    name: str
    judge: Callable[[Any, int], Judgement]


class WrongAnswer(AssertionError):
    """An answer that is not right. In a notebook its message stands alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


@dataclass
class Outcome:
    """What an answer does on a case."""

    value: Any = None
    weights: dict[str, list[int]] = field(default_factory=dict)
    """The shapes of a module's weights."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    error: BaseException | None = None
    modified: str | None = None
    """The input that it has changed."""
    changed_weight: str | None = None


def outcome(exercise: Exercise, answer: Any, case: Case) -> Outcome:
    """Run ``answer`` on copies of a case: for its value, and once more for its gradients."""
    given = mapped(lambda each: each.detach().clone(), case)
    try:
        start_run()
        output, weights, changed_weight = _parts(exercise.run(answer, given))
        value = mapped(lambda each: each.detach().clone(), output)
        if changed_weight is not None:
            return Outcome(value, changed_weight=changed_weight)
        for (name, before), (_, after) in zip(arrays(case), arrays(given), strict=True):
            one = array(before)
            other = array(after)
            if not np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"):
                return Outcome(value, modified=name)
        shapes = {name: list(weight.shape) for name, weight in weights.items()}
        with_gradients = exercise.gradients and not isinstance(case, ValuesAlone)
        return Outcome(value, shapes, _gradients(exercise, answer, case) if with_gradients else {})
    except (Exception, SystemExit) as error:
        if isinstance(error, NotImplementedError) and not error.args:  # the stub's
            raise
        return Outcome(error=error)


def drawn(exercise: Exercise, seed: int) -> Iterator[Case]:
    """The cases of a variant, new ones in each call: an answer may change what they hold."""
    return exercise.cases(torch.Generator().manual_seed(seed))


@functools.cache
def expected_outcomes(exercise: Exercise, seed: int) -> list[Outcome]:
    """What the library's form does on each case."""
    return [outcome(exercise, exercise.expected, case) for case in drawn(exercise, seed)]


def _parts(result: Any) -> Built:
    return result if isinstance(result, Built) else Built(result, {})


def _gradients(exercise: Exercise, answer: Any, case: Case) -> dict[str, Tensor]:
    given = mapped(
        lambda each: each.detach().clone().requires_grad_(each.is_floating_point()), case
    )
    start_run()
    output, weights, _ = _parts(exercise.run(answer, given))
    wanted = {name: each for name, each in tensors(given) if each.requires_grad} | weights
    results = [each for _, each in tensors(output) if each.is_floating_point()]
    generator = torch.Generator().manual_seed(1)
    directions = [
        torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each.dtype)
        for each in results
    ]
    pairs = [pair for pair in zip(results, directions, strict=True) if pair[0].requires_grad]
    if not wanted or not pairs:
        return {}
    outputs, pulls = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, [*wanted.values()], pulls, allow_unused=True)
    return {
        name: torch.zeros_like(each) if grad is None else grad
        for (name, each), grad in zip(wanted.items(), found, strict=True)
    }


def compared(exercise: Exercise, expected: Outcome, found: Outcome) -> Difference | None:
    """The first difference of two outcomes; of two errors, their types and messages."""
    faults = [(repr(one.error), one.modified, one.changed_weight) for one in (expected, found)]
    if expected.error or found.error or faults[0] != faults[1]:
        if faults[0] == faults[1]:
            return None
        return Difference("", None, None, "")
    wanted = {
        name: shape for name, shape in expected.weights.items() if found.weights.get(name) != shape
    }
    if wanted:
        others = {
            name: shape
            for name, shape in found.weights.items()
            if expected.weights.get(name) != shape
        }
        text = (
            f"expected the weights {_weights(wanted)}, found {_weights(others) or 'none of them'}"
        )
        return Difference("", None, None, text)
    first = difference(expected.value, found.value, exercise.tolerance, exercise.same_dtype)
    if first or not expected.gradients:
        return first
    if not found.gradients:
        return Difference("", None, None, "values are right, but no gradient reaches the inputs")
    for name, grad in expected.gradients.items():
        first = difference(grad, found.gradients[name], exercise.tolerance)
        if first is not None:
            return first._replace(
                part=f" gradient of {name}",
                text=f"values are right, gradients are not: {first.text}",
            )
    return None


def _weights(shapes: dict[str, list[int]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


@dataclass(frozen=True)
class Failure:
    """A case on which an answer is wrong."""

    number: int
    """Its place among the cases, from 1."""
    case: Case
    expected: Outcome
    found: Outcome
    earlier: Case | None = None
    """The case of the call before it, where the answer is right without that call."""
    in_training: bool = False
    """Whether it is wrong in training mode alone."""

    def order(self, exercise: Exercise) -> tuple[bool, int, int]:
        """Wrong values come before wrong gradients, which say less, and small cases before large
        ones.
        """
        first = compared(exercise, self.expected, self.found)
        return (
            first is not None and first.part.startswith(" gradient"),
            case_size(self.case),
            self.number,
        )


def case_size(case: Case) -> int:
    """The numbers and letters that a case holds; a whole number counts as much as its value."""
    if isinstance(case, Tensor | np.ndarray):
        return int(np.prod(case.shape))
    if isinstance(case, dict):
        return sum(case_size(part) for part in case.values())
    if isinstance(case, list | tuple):
        return sum(case_size(part) for part in case)
    if isinstance(case, str):
        return len(case)
    return abs(case) if isinstance(case, int) else 1


@functools.cache
def expected_again(exercise: Exercise, seed: int) -> list[Outcome]:
    """The values of the library's form on each case, from a new module in each."""
    if isinstance(exercise.run, ModuleRun):
        run = exercise.run
        return [
            _called(run, run.make(exercise.expected, case[0]), case, training=False)
            for case in drawn(exercise, seed)
        ]
    return expected_outcomes(replace(exercise, gradients=False), seed)


def wrong_when_called_again(exercise: Exercise, answer: Any, seed: int) -> Failure | None:
    """The first failure of a second round: cases of the same sizes with other numbers.

    A function is called on them as before. Of a class, one module is made for each size and dtype
    before any is called, and each is called on all of its cases, up and down, in training mode and
    out of it.
    """
    cases = list(drawn(exercise, seed))
    expected = expected_again(exercise, seed)
    if not isinstance(exercise.run, ModuleRun):
        for number, case in enumerate(cases):
            found = outcome(replace(exercise, gradients=False), answer, case)
            start_run()
            if compared(exercise, expected[number], found) is not None:
                return Failure(number + 1, case, expected[number], found)
        return None
    run = exercise.run
    modules: dict[str, nn.Module] = {}
    for case in cases:
        modules.setdefault(_module_key(case), run.make(answer, case[0]))
    for training in (True, False):
        for number in range(len(cases)) if training else reversed(range(len(cases))):
            found = _called(run, modules[_module_key(cases[number])], cases[number], training)
            if compared(exercise, expected[number], found) is not None:
                failure = Failure(number + 1, cases[number], expected[number], found)
                return _reduced(exercise, answer, failure, cases, expected, training)
    return None


def _module_key(case: Case) -> str:
    """Equal for cases that one module may be called with."""
    dtypes = [tensor.dtype for _, tensor in tensors(case[1:]) if tensor.is_floating_point()]
    return f"{case[0]} {dtypes[:1]}"


def _called(run: ModuleRun, module: nn.Module, case: Case, training: bool) -> Outcome:
    """The output of a module on copies of a case."""
    try:
        start_run()
        with torch.no_grad():
            output = run.again(
                module, mapped(lambda tensor: tensor.detach().clone(), case), training
            )
        return Outcome(mapped(lambda tensor: tensor.detach().clone(), output))
    except (Exception, SystemExit) as error:
        return Outcome(error=error)


def _reduced(
    exercise: Exercise,
    answer: Any,
    failure: Failure,
    cases: list[Case],
    expected: list[Outcome],
    training: bool,
) -> Failure:
    """The smallest failure of a new module that is called once, or else twice."""
    assert isinstance(exercise.run, ModuleRun)
    run = exercise.run
    by_size = sorted(range(len(cases)), key=lambda number: case_size(cases[number]))
    for number in by_size:
        found = _called(run, run.make(answer, cases[number][0]), cases[number], training)
        if compared(exercise, expected[number], found) is not None:
            evaluated = _called(
                run, run.make(answer, cases[number][0]), cases[number], training=False
            )
            right_in_evaluation = compared(exercise, expected[number], evaluated) is None
            return Failure(
                number + 1, cases[number], expected[number], found, in_training=right_in_evaluation
            )
    for number in by_size:
        for before in by_size:
            if _module_key(cases[before]) == _module_key(cases[number]):
                module = run.make(answer, cases[number][0])
                _called(run, module, cases[before], training)
                found = _called(run, module, cases[number], training)
                if compared(exercise, expected[number], found) is not None:
                    return Failure(
                        number + 1, cases[number], expected[number], found, cases[before]
                    )
    return failure


def exercises(lab: str) -> dict[str, Exercise | Verdict]:
    """The exercises of a lab, by name."""
    return {
        each.name: each for each in import_module(f"glassformer.course.exercises.{lab}").EXERCISES
    }


class Lesson:
    """The checks of a lab: ``check(name, answer)`` prints that the answer is right, or raises
    :class:`WrongAnswer`.

    ``case`` holds the arguments of the last case that failed.

    Args:
        lab: ``"hand_designed"``, ``"sentiment"``, ``"lookup"`` or ``"gpt_oss"``.
        seed: The variant of its tasks; 0 is the course's own.
    """

    def __init__(self, lab: str, seed: int = 0) -> None:
        self.lab = lab_name(lab)
        self.seed = seed
        self.case: Case | None = None

    def __call__(self, name: str, answer: Any) -> None:
        """Check the answer of the exercise ``name``."""
        known = exercises(self.lab)
        if name not in known:
            raise InputError(
                f"the exercise '{name}'",
                f"an exercise of {self.lab}",
                known_name(name, list(known)),
            )
        exercise = known[name]
        data = None
        self.case = None
        try:
            if isinstance(exercise, Verdict):
                data = answer_data(exercise, answer)
                with unchanged():
                    judgement = exercise.judge(data, self.seed)
                message = f"{name}: {judgement.message}"
                if not judgement.passed:
                    raise WrongAnswer(
                        "\n".join(filter(None, [message, self._suspicion(exercise, data)]))
                    )
            else:
                message = self._check(exercise, answer)
        except WrongAnswer as wrong:
            self._record(name, False, str(wrong), data)
            raise wrong from None
        self._record(name, True, message, data)

    def _check(self, exercise: Exercise, answer: Any) -> str:
        """The message of a right answer."""
        name = exercise.name
        number = 0
        graded = False
        case: Case = ()
        if not callable(answer):
            raise WrongAnswer(f"{name}: expected a function or a class, found {kind(answer)}")
        results: list[tuple[Case, Outcome]] = []
        failed: list[Failure] = []
        repeated: Failure | None = None
        try:
            with unchanged():
                limit = ProcessorLimit(
                    SECONDS
                )  # of the answer alone: the library's work comes before
                pairs = zip(
                    drawn(exercise, self.seed), expected_outcomes(exercise, self.seed), strict=True
                )
                for number, (case, expected) in enumerate(pairs, 1):
                    if expected.error:
                        raise expected.error
                    with limit:
                        found = outcome(exercise, answer, case)
                    start_run()  # what the answer has set does not reach the comparison
                    graded |= bool(expected.gradients)
                    results.append((case, found))
                    if compared(exercise, expected, found) is not None:
                        failed.append(Failure(number, case, expected, found))
                if not failed:
                    expected_again(exercise, self.seed + 1)  # the library's work, before the limit
                    with limit:
                        repeated = wrong_when_called_again(exercise, answer, self.seed + 1)
        except NotImplementedError as blank:
            raise WrongAnswer(f"{name}: not answered yet{_place(blank)}") from None
        except TooLong:
            if not failed:
                self.case = case
                text = _no_result(name)
                arguments = _folded(_arguments(exercise, answer, case), MOST_LINES - 1)
                raise WrongAnswer("\n".join([text, *arguments])) from None
        if not failed and repeated is None:
            return f"{name}: right ({number} cases, values{' and gradients' if graded else ''})"
        self._explain_earlier(exercise, answer)
        if repeated is not None:
            self.case = repeated.case
            raise WrongAnswer(
                _message(exercise, answer, repeated, _repeated_heading(name, repeated))
            )
        smallest = min(failed, key=lambda failure: failure.order(exercise))
        self.case = smallest.case
        heading = f"{name}: wrong in {len(failed)} of {number} cases. The smallest is case {smallest.number}:"
        suspicion = self._suspicion(exercise, results)
        if not suspicion and all(_is_dropping(failure.case) for failure in failed):
            suspicion = (
                "It is wrong only where dropout is at work: is one missing, or in another place?"
            )
        raise WrongAnswer(_message(exercise, answer, smallest, heading, suspicion))

    def _explain_earlier(self, exercise: Exercise, answer: Any) -> None:
        """Raise :class:`WrongAnswer` if the answer to an earlier exercise is wrong that this wrong
        answer calls.
        """
        used, namespace = names_used(answer)
        for earlier, variable in checked_names(self.lab).items():
            if earlier == exercise.name:
                return
            other = exercises(self.lab).get(earlier)
            if (
                isinstance(other, Exercise)
                and variable in used
                and namespace[variable] is not answer
            ):
                try:
                    self._check(other, namespace[variable])
                except WrongAnswer as wrong:
                    first = (
                        f"{exercise.name}: wrong. It uses {variable} of the exercise {earlier}, "
                        "which is wrong; "
                        "correct that first."
                    )
                    lines = str(wrong).splitlines()
                    raise WrongAnswer("\n".join([first, *lines[: MOST_LINES - 1]])) from None

    def _suspicion(self, exercise: Exercise | Verdict, results: Any) -> str:
        """The sentence of the fault that does on every case what the answer does; of two, both."""
        sentences: list[str] = []
        try:
            with unchanged(), ProcessorLimit(SECONDS):
                for fault in read_faults(self.lab).get(exercise.name, ()):
                    sentence = (fault.says or "").rstrip(".")
                    if (
                        sentence
                        and sentence not in sentences
                        and self._is(exercise, fault, results)
                    ):
                        sentences.append(sentence)
        except TooLong:
            pass
        if sentences:
            return f"It looks as if {'; or '.join(sentences[:2])}."
        return ""

    def _is(self, exercise: Exercise | Verdict, fault: Fault, results: Any) -> bool:
        answer = lesson_answer(self.lab, exercise.name, fault.change)
        if isinstance(exercise, Verdict):
            return bool(answer_data(exercise, answer) == results)
        pairs = ((found, outcome(exercise, answer, case)) for case, found in results)
        # Both ways, as an array is compared with a tensor in one of them alone, and gradients with
        # none.
        return all(
            compared(exercise, *pair) is None and compared(exercise, *pair[::-1]) is None
            for pair in pairs
        )

    def _record(self, name: str, passed: bool, message: str, data: Any) -> None:
        """Print, and in a notebook keep the verdict beside what is printed, for ``glassformer
        course grade``.
        """
        worth = points(self.lab).get(name, 0)
        record = {"lab": self.lab, "exercise": name, "seed": self.seed, "passed": passed}
        record |= {"points": worth if passed else 0, "of": worth, "message": message}
        record |= {} if data is None else {"answer": data}
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None:
            text = message if passed else f"{name}: 0 of {worth} points"
            shell.display_pub.publish({"text/plain": text, MIME: record})
        elif passed:
            print(message)


lesson = Lesson
"""The name by which notebooks call it."""


def answer_data(exercise: Verdict, answer: Any) -> Any:
    """The answer as JSON values; a function is called for it."""
    try:
        with unchanged(), ProcessorLimit(SECONDS):
            data = plain(
                answer() if callable(answer) and not isinstance(answer, nn.Module) else answer
            )
    except NotImplementedError as blank:
        raise WrongAnswer(f"{exercise.name}: not answered yet{_place(blank)}") from None
    except TooLong:
        raise WrongAnswer(_no_result(exercise.name)) from None
    except Exception as error:
        raise WrongAnswer(f"{exercise.name}: {_raised(error)}") from None

    def refuse(value: Any) -> None:
        raise WrongAnswer(
            f"{exercise.name}: found {kind(value)}; expected numbers, texts, lists or dictionaries"
        )

    try:
        return json.loads(json.dumps(data, allow_nan=False, default=refuse))
    except (ValueError, TypeError, RecursionError):
        text = f"{exercise.name}: a number is NaN or infinite, or the answer cannot be kept as data"
        raise WrongAnswer(text) from None


def _no_result(name: str) -> str:
    return f"{name}: no result within {SECONDS:g} seconds of processor time. Does a loop never end?"


def _parameters(answer: Any) -> list[str]:
    try:
        return [name for name in signature(answer).parameters if name != "self"]
    except (TypeError, ValueError):  # without a signature
        return []


def _names(exercise: Exercise, answer: Any, case: Case) -> list[str]:
    """The names of a case's parts, from the signature of the answer; of a class, ``sizes`` and its
    inputs'.
    """
    if isinstance(case, dict):
        return list(case)
    if hasattr(answer, "forward"):
        own = ["sizes", *_parameters(answer.forward)]
    else:
        own = _parameters(answer)
    names = list(exercise.names) or own
    return [*names, *(f"input {i}" for i in range(len(names) + 1, 99))][: len(case)]


def _message(
    exercise: Exercise, answer: Any, failure: Failure, heading: str, suspicion: str = ""
) -> str:
    """The heading, the arguments, what is wrong, and what it looks like, in few lines."""
    explained = _explained(
        exercise, failure.expected, failure.found, _names(exercise, answer, failure.case)
    )
    last = [suspicion] if suspicion else []
    if failure.earlier is not None:
        last = [
            "  Is something kept from the first call? Compute it in each call, from its own inputs."
        ]
    left = MOST_LINES - 1 - len(explained) - len(last)
    arguments = _folded(_arguments(exercise, answer, failure.case), left)
    if failure.earlier is not None:
        first, second = (
            _arguments(exercise, answer, case) for case in (failure.earlier, failure.case)
        )
        sizes = second[: 1 - len(failure.case)]
        inputs = second[1 - len(failure.case) :]
        calls = [
            f"first call: {', '.join(first[1 - len(failure.earlier) :])}",
            "second call: the same"
            if failure.earlier is failure.case
            else f"second call: {', '.join(inputs)}",
        ]
        arguments = [*_folded(sizes, max(left - 2, 1)), *_folded(calls, 2)]
    return "\n".join([heading, *arguments, *explained, *last])


def _repeated_heading(name: str, failure: Failure) -> str:
    if failure.earlier is not None:
        return f"{name}: right in the first call of an instance, wrong in a second one:"
    if failure.in_training:
        return (
            f"{name}: right in evaluation mode, wrong in training mode (there is no dropout here):"
        )
    return f"{name}: right at first, wrong in a second round with other numbers. Is something kept from earlier calls?"


def _arguments(exercise: Exercise, answer: Any, case: Case) -> list[str]:
    """The arguments of a case, each as ``name = value``."""
    values = case.values() if isinstance(case, dict) else case
    pairs = list(zip(_names(exercise, answer, case), values, strict=True))
    if pairs and pairs[0][0] == "sizes":
        sizes = pairs.pop(0)[1]
        if isinstance(sizes, dict):
            named = sizes
        else:
            named = dict(zip(_parameters(answer), sizes, strict=False))
        pairs = [*named.items(), *pairs]
    return [f"{name} = {one_line(value, WIDTH - len(name) - 5)}" for name, value in pairs]


def _folded(texts: Sequence[str], most: int) -> list[str]:
    """At most so many indented lines: a text in each, or several, and without those that do not
    fit.
    """
    if len(texts) <= most:
        return [f"  {text[:WIDTH]}" for text in texts]
    lines: list[str] = []
    for number, text in enumerate(texts):
        if lines and len(lines[-1]) + len(text) + 2 <= WIDTH:
            lines[-1] += f", {text}"
        elif len(lines) < most:
            lines.append(f"  {text[:WIDTH]}")
        else:
            lines[-1] = f"{lines[-1][: WIDTH - 30]}, and {len(texts) - number} more in check.case"
            break
    return lines


def _explained(
    exercise: Exercise, expected: Outcome, found: Outcome, names: list[str]
) -> list[str]:
    def named(part: str) -> str:
        return re.sub(r"(?<!\S)\[(\d+)\]", lambda place: names[int(place[1])], part, count=1)

    if found.error is not None:
        return [f"  {line}" for line in _raised(found.error).splitlines()[:3]]
    if found.changed_weight is not None:
        return [
            f"  The answer changes its weight {found.changed_weight}; a call has to leave all "
            "weights as they are."
        ]
    if found.modified is not None:
        return [
            f"  The answer changes its input {named(found.modified)}; it should work on a copy."
        ]
    first = compared(exercise, expected, found)
    assert first is not None
    lines = [f"  {first.text[0].upper()}{first.text[1:]}."]
    if first.expected is not None:
        if first.part.startswith(" "):
            part = named(first.part)
        else:
            part = first.part
        texts = [one_line(value, WIDTH - len(part) - 12) for value in (first.expected, first.found)]
        if texts[0] != texts[1]:  # otherwise both are too large to be shown
            lines = [
                *(
                    f"  {name}{part} {text}"
                    for name, text in zip(("expected", "found"), texts, strict=True)
                ),
                *lines,
            ]
    if found.value is None:
        lines.append("  Is a return missing?")
    elif _is_finite(expected.value) and not _is_finite(found.value):
        lines.append(
            "  A number is not finite: does an exponential overflow, or is something divided by 0?"
        )
    elif others := [name for name in found.weights if name not in expected.weights]:
        lines.append(f"  It has weights that are not expected: {', '.join(others)}.")
    return [line[: 2 * WIDTH] for line in lines]


def _is_finite(value: Any) -> bool:
    numbers = [array(part) for _, part in arrays(value)]
    if isinstance(value, float):
        numbers.append(np.asarray(value))
    return all(np.isfinite(part).all() for part in numbers if part.dtype.kind in "fc")


def names_used(answer: Any) -> tuple[set[str], dict[str, Any]]:
    """The global names that an answer uses, itself or in functions and classes beside it, and what
    they stand for.
    """
    names: set[str] = set()
    namespace: dict[str, Any] = {}
    left = [answer]
    while left:
        for function in _functions(left.pop()):
            namespace = namespace or function.__globals__
            if function.__globals__ is namespace:
                new = (_code_names(function.__code__) & namespace.keys()) - names
                names |= new
                left += [namespace[name] for name in new]
    return names, namespace


def _functions(part: Any) -> list[Any]:
    """A function itself, or those of a class and of what it inherits from."""
    if isinstance(part, type):
        members = [value for base in part.__mro__ for value in vars(base).values()]
    else:
        members = [part]
    plain_functions = [inspect.unwrap(member) for member in members if callable(member)]
    return [function for function in plain_functions if inspect.isfunction(function)]


def _code_names(code: CodeType) -> set[str]:
    inner = [_code_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Those of the answer."""
    ours = str(Path(__file__).parents[1])
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in each.filename
    ]
    return [each for each in frames if not each.filename.startswith(ours)]


def _place(blank: NotImplementedError) -> str:
    frames = _frames(blank)
    if frames:
        return f" (a blank is left in {frames[-1].name}, line {frames[-1].lineno} of its cell)"
    return ""


def _raised(error: BaseException) -> str:
    """An error and the line of the answer that raised it."""
    text = str(error) or "without a message"
    frames = _frames(error)
    if "a leaf Variable that requires grad is being used in an in-place operation" in text:
        text = "The answer changes its input; it should work on a copy."
    elif "'NoneType'" in text and not frames:
        text = "The answer returns None. Is a return missing?"
    places = [f"{each.name}, line {each.lineno}" for each in frames[:-3:-1]]
    if frames:
        where = f" in {', called in '.join(places)}: {frames[-1].line}"
    else:
        where = ""
    return f"{type(error).__name__}{where}\n{text}"
