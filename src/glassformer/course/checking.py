"""Checks that compare an answer with the library's form on cases, or judge it for every input.

An answer runs in the process of the student who wrote it. A check restores random states, settings
and output streams.
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
from itertools import chain
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
"""Limit on an answer's processor time; a slow machine gets proportionally more."""
MIME = "application/vnd.glassformer.check+json"
"""MIME type of the record that a check adds to a notebook's output."""
MOST_LINES = 8
"""Maximum number of lines in a message."""
WIDTH = 118
"""Maximum number of characters in a line of a message."""

Case: TypeAlias = Any
"""Arguments of an answer: a tuple, or a dictionary of named ones."""


class ValuesAlone(tuple[Any, ...]):
    """A case whose gradients are not compared.

    They cancel up to rounding, or depend on a free choice.
    """


class Built(NamedTuple):
    """A module's output and its weights, whose gradients are compared by name."""

    output: Any
    weights: dict[str, Tensor]
    changed_weight: str | None = None
    """Name of a weight that the call has changed."""


def call(answer: Any, case: Case) -> Any:
    """Call a function with a case's arguments, by position or by name."""
    return answer(**case) if isinstance(case, dict) else answer(*case)


@dataclass(frozen=True)
class ModuleRun:
    """Runs a class: builds a module from a case's sizes and calls it with the rest of the case.

    The first part of a case holds the sizes, as a tuple or a dictionary. If the dictionary has a
    dropout (0 or 1), the module runs in training mode: no random number can change the result.
    Otherwise the module runs in evaluation mode.

    Args:
        make: ``make(answer, sizes)`` returns the module.
        initial: Names of weights whose initial values, after ``torch.manual_seed(0)``, are also
            compared.
    """

    make: Callable[[Any, Any], nn.Module] = call
    initial: tuple[str, ...] = ()

    def __call__(self, answer: Any, case: Case) -> Built:
        """Build a module and call it."""
        sizes, *inputs = case
        module = self.make(answer, sizes)
        parameters = dict(module.named_parameters())
        initial = {
            name: parameters[name].detach().clone() for name in self.initial if name in parameters
        }
        built = run_module(module, *inputs, training=_has_dropout(sizes))
        if not initial:
            return built
        return built._replace(output={"output": built.output, "weights at first": initial})

    def again(self, module: nn.Module, case: Case, training: bool) -> Any:
        """Call an existing module and return its output.

        ``training`` puts it in training mode, unless its class has a dropout.
        """
        sizes, *inputs = case
        may_drop = "dropout" in _parameters(type(module))
        in_training = _has_dropout(sizes) or (training and not may_drop)
        return run_module(module, *inputs, training=in_training).output


build = ModuleRun()
"""Builds ``answer(*sizes)`` or ``answer(**sizes)`` and calls it with the rest of the case."""


def _is_dropping(case: Case) -> bool:
    return isinstance(case, tuple) and bool(case) and _has_dropout(case[0])


def _has_dropout(sizes: Any) -> bool:
    return isinstance(sizes, dict) and "dropout" in sizes


def run_module(module: nn.Module, *inputs: Any, training: bool = False) -> Built:
    """Draw a module's weights from their names and the inputs, and call the module.

    Weights take the dtype of the first floating-point input. A module without weights is left
    unchanged.
    """
    floating = [tensor.dtype for _, tensor in tensors(inputs) if tensor.is_floating_point()]
    dtype = floating[0] if floating else torch.float32
    module = module.train(training)
    if any(True for _ in module.parameters()):
        # Module.to() would drop the imaginary part of a table of complex numbers.
        module._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    weights: dict[str, Tensor] = dict(module.named_parameters())
    _draw_weights(weights, inputs)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    output = module(*inputs)
    changed = [
        name for name, weight in weights.items() if not torch.equal(weight.detach(), before[name])
    ]
    return Built(output, weights, changed[0] if changed else None)


def _draw_weights(weights: dict[str, Tensor], inputs: Any) -> None:
    """Overwrite weights with normal numbers, seeded by their names and the inputs."""
    # Other inputs give other weights, so that a result cached from another call is wrong.
    checksum = 0
    for _, values in arrays(inputs):
        checksum = crc32(np.ascontiguousarray(array(values)).tobytes(), checksum)
    with torch.no_grad():
        for name, weight in weights.items():
            generator = torch.Generator().manual_seed(crc32(name.encode(), checksum))
            normal = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if weight.ndim > 1:
                weight.copy_(normal / weight.shape[-1] ** 0.5)
            else:
                weight.copy_(0.5 + 0.3 * normal)


@dataclass(frozen=True)
class Exercise:
    """An exercise whose answer is a function or a class.

    Args:
        name: grade_id of the exercise's cell, unique in the lab.
        expected: The library's form of the answer.
        cases: ``cases(generator)`` yields arguments, smallest first: tuples, or dictionaries of
            named arguments. Batches of several examples reveal an answer that mixes them.
        run: Runs an answer on a case: :func:`call`, a :class:`ModuleRun` such as ``build``, or a
            function of the exercise's own.
        tolerance: Largest difference, relative to the largest magnitude; 1e-9 for arrays of
            float64.
        gradients: If True, gradients of floating inputs and of a module's weights are compared.
        same_dtype: If True, the result must have the expected dtype, and a tensor is not accepted
            for a number. Otherwise only the kind of numbers must agree.
        names: Names of a case's parts in messages, where they are not the answer's arguments.
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
    """The result for an answer that is data: right for every input, or where it fails."""

    passed: bool
    message: str
    counterexample: str | None = None


def plain(answer: Any) -> Any:
    """Convert an answer to JSON values.

    Tensors and arrays become lists of numbers, dataclasses become dictionaries.
    """
    if is_dataclass(answer) and not isinstance(answer, type):
        return {field.name: plain(getattr(answer, field.name)) for field in fields(answer)}
    if isinstance(answer, Tensor | np.ndarray | np.generic):
        return array(answer).tolist()
    if isinstance(answer, dict):
        return {str(key): plain(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [plain(part) for part in answer]
    return answer


@dataclass(frozen=True)
class Verdict:
    """An exercise whose answer is data: weights, a program, a predicted number.

    A notebook records the answer as JSON values, and ``glassformer course grade`` judges it again.

    Args:
        name: grade_id of the exercise's cell, unique in the lab.
        judge: ``judge(data, seed)`` decides for every input; ``seed`` selects the variant. An
            undecided answer does not pass, and the message says so. The function must accept any
            JSON value and execute none of it.
    """

    name: str
    judge: Callable[[Any, int], Judgement]


class WrongAnswer(AssertionError):
    """A wrong answer. A notebook shows its message without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


@dataclass
class Outcome:
    """The result of running an answer on a case."""

    value: Any = None
    weights: dict[str, list[int]] = field(default_factory=dict)
    """Shapes of a module's weights."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    error: BaseException | None = None
    modified: str | None = None
    """Name of the input that the answer has changed."""
    changed_weight: str | None = None
    """Name of the weight that the answer has changed."""


def outcome(exercise: Exercise, answer: Any, case: Case) -> Outcome:
    """Run ``answer`` on copies of a case: for its value, and once more for its gradients."""
    arguments = _copied(case)
    try:
        start_run()
        output, weights, changed_weight = _as_built(exercise.run(answer, arguments))
        value = _copied(output)
        if changed_weight is not None:
            return Outcome(value, changed_weight=changed_weight)
        for (name, before), (_, after) in zip(arrays(case), arrays(arguments), strict=True):
            numbers = array(before)
            if not np.array_equal(numbers, array(after), equal_nan=numbers.dtype.kind in "fc"):
                return Outcome(value, modified=name)
        shapes = {name: list(weight.shape) for name, weight in weights.items()}
        if not exercise.gradients or isinstance(case, ValuesAlone):
            return Outcome(value, shapes)
        return Outcome(value, shapes, _gradients(exercise, answer, case))
    except (Exception, SystemExit) as error:
        if isinstance(error, NotImplementedError) and not error.args:  # the stub's
            raise
        return Outcome(error=error)


def drawn(exercise: Exercise, seed: int) -> Iterator[Case]:
    """Return new cases of a variant; an answer may change what they hold."""
    return exercise.cases(torch.Generator().manual_seed(seed))


@functools.cache
def expected_outcomes(exercise: Exercise, seed: int) -> list[Outcome]:
    """Return the outcome of the library's form on each case."""
    return [outcome(exercise, exercise.expected, case) for case in drawn(exercise, seed)]


def _copied(value: Any) -> Any:
    return mapped(lambda tensor: tensor.detach().clone(), value)


def _as_built(result: Any) -> Built:
    return result if isinstance(result, Built) else Built(result, {})


def _gradients(exercise: Exercise, answer: Any, case: Case) -> dict[str, Tensor]:
    """Return gradients of inputs and weights, for random gradients of the outputs."""
    arguments = mapped(
        lambda tensor: tensor.detach().clone().requires_grad_(tensor.is_floating_point()), case
    )
    start_run()
    output, weights, _ = _as_built(exercise.run(answer, arguments))
    leaves = {name: tensor for name, tensor in tensors(arguments) if tensor.requires_grad}
    leaves |= weights
    results = [tensor for _, tensor in tensors(output) if tensor.is_floating_point()]
    generator = torch.Generator().manual_seed(1)
    output_grads = [
        torch.randn(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
        for result in results
    ]
    pairs = [pair for pair in zip(results, output_grads, strict=True) if pair[0].requires_grad]
    if not leaves or not pairs:
        return {}
    outputs, grad_outputs = zip(*pairs, strict=True)
    grads = torch.autograd.grad(outputs, [*leaves.values()], grad_outputs, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), grads, strict=True)
    }


def compared(exercise: Exercise, expected: Outcome, actual: Outcome) -> Difference | None:
    """Return the first difference of two outcomes; errors differ in their types and messages."""
    faults = [
        (repr(result.error), result.modified, result.changed_weight)
        for result in (expected, actual)
    ]
    if expected.error or actual.error or faults[0] != faults[1]:
        if faults[0] == faults[1]:
            return None
        return Difference("", None, None, "")
    missing = _other_shapes(expected.weights, actual.weights)
    if missing:
        others = _weights(_other_shapes(actual.weights, expected.weights)) or "none of them"
        return Difference(
            "", None, None, f"expected the weights {_weights(missing)}, found {others}"
        )
    first = difference(expected.value, actual.value, exercise.tolerance, exercise.same_dtype)
    if first or not expected.gradients:
        return first
    if not actual.gradients:
        return Difference("", None, None, "values are right, but no gradient reaches the inputs")
    for name, grad in expected.gradients.items():
        first = difference(grad, actual.gradients[name], exercise.tolerance)
        if first is not None:
            return first._replace(
                part=f" gradient of {name}",
                text=f"values are right, gradients are not: {first.text}",
            )
    return None


def _other_shapes(
    shapes: dict[str, list[int]], reference: dict[str, list[int]]
) -> dict[str, list[int]]:
    """Return the shapes that the reference lacks or has otherwise."""
    return {name: shape for name, shape in shapes.items() if reference.get(name) != shape}


def _weights(shapes: dict[str, list[int]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


@dataclass(frozen=True)
class Failure:
    """A case on which an answer is wrong."""

    number: int
    """Number of the case, from 1."""
    case: Case
    expected: Outcome
    actual: Outcome
    earlier: Case | None = None
    """Case of the preceding call, if the answer is right without that call."""
    in_training: bool = False
    """True if the answer is wrong in training mode only."""

    def order(self, exercise: Exercise) -> tuple[bool, int, int]:
        """Return a sort key: wrong values before wrong gradients, small cases before large ones."""
        first = compared(exercise, self.expected, self.actual)
        only_gradients = first is not None and first.part.startswith(" gradient")
        return only_gradients, case_size(self.case), self.number


def case_size(case: Case) -> int:
    """Count the numbers and letters of a case; an integer counts as its magnitude."""
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
    """Return values of the library's form on each case, from a new module in each."""
    if isinstance(exercise.run, ModuleRun):
        run = exercise.run
        return [
            _called(run, run.make(exercise.expected, case[0]), case, training=False)
            for case in drawn(exercise, seed)
        ]
    return expected_outcomes(replace(exercise, gradients=False), seed)


def wrong_when_called_again(exercise: Exercise, answer: Any, seed: int) -> Failure | None:
    """Return the first failure of a second round, on cases of the same sizes with other numbers.

    A function is called on them as before. A class makes one module for each size and dtype, all
    before the first call. Each module is called on all of its cases: in training mode in order,
    then in evaluation mode in reverse order.
    """
    cases = list(drawn(exercise, seed))
    expected = expected_again(exercise, seed)
    if not isinstance(exercise.run, ModuleRun):
        for number, case in enumerate(cases):
            actual = outcome(replace(exercise, gradients=False), answer, case)
            start_run()
            if compared(exercise, expected[number], actual) is not None:
                return Failure(number + 1, case, expected[number], actual)
        return None
    run = exercise.run
    modules: dict[str, nn.Module] = {}
    for case in cases:
        modules.setdefault(_module_key(case), run.make(answer, case[0]))
    in_order = range(len(cases))
    for training, numbers in ((True, in_order), (False, in_order[::-1])):
        for number in numbers:
            actual = _called(run, modules[_module_key(cases[number])], cases[number], training)
            if compared(exercise, expected[number], actual) is not None:
                failure = Failure(number + 1, cases[number], expected[number], actual)
                return _reduced(exercise, answer, failure, cases, expected, training)
    return None


def _module_key(case: Case) -> str:
    """Return a key that is equal for cases that one module can be called with."""
    dtypes = [tensor.dtype for _, tensor in tensors(case[1:]) if tensor.is_floating_point()]
    return f"{case[0]} {dtypes[:1]}"


def _called(run: ModuleRun, module: nn.Module, case: Case, training: bool) -> Outcome:
    """Call a module on a copy of a case."""
    try:
        start_run()
        with torch.no_grad():
            output = run.again(module, _copied(case), training)
        return Outcome(_copied(output))
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
    """Return the smallest failure of a new module that is called once, or else twice."""
    assert isinstance(exercise.run, ModuleRun)
    run = exercise.run
    by_size = sorted(range(len(cases)), key=lambda number: case_size(cases[number]))
    for number in by_size:
        case = cases[number]
        actual = _called(run, run.make(answer, case[0]), case, training)
        if compared(exercise, expected[number], actual) is not None:
            evaluated = _called(run, run.make(answer, case[0]), case, training=False)
            right_in_evaluation = compared(exercise, expected[number], evaluated) is None
            return Failure(
                number + 1, case, expected[number], actual, in_training=right_in_evaluation
            )
    for number in by_size:
        case = cases[number]
        for before in by_size:
            if _module_key(cases[before]) != _module_key(case):
                continue
            module = run.make(answer, case[0])
            _called(run, module, cases[before], training)
            actual = _called(run, module, case, training)
            if compared(exercise, expected[number], actual) is not None:
                return Failure(number + 1, case, expected[number], actual, cases[before])
    return failure


def exercises(lab: str) -> dict[str, Exercise | Verdict]:
    """Return the exercises of a lab, by name."""
    module = import_module(f"glassformer.course.exercises.{lab}")
    return {exercise.name: exercise for exercise in module.EXERCISES}


@dataclass
class _Progress:
    """The results of a check so far; complete unless the answer runs out of time."""

    case: Case = ()
    """The last case that was started."""
    number: int = 0
    """Number of that case, from 1."""
    has_gradients: bool = False
    results: list[tuple[Case, Outcome]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    repeated: Failure | None = None
    """Failure in the second round, which runs after a first round without failures."""


class Lesson:
    """The checks of a lab.

    ``check(name, answer)`` prints that an answer is right, or raises :class:`WrongAnswer`. The
    attribute ``case`` then holds the arguments of the case that failed.

    Args:
        lab: ``"hand_designed"``, ``"sentiment"``, ``"lookup"`` or ``"gpt_oss"``.
        seed: Variant of the tasks; 0 is the course's own.
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
                got=f"the exercise '{name}'",
                expected=f"an exercise of {self.lab}",
                fix=known_name(name, list(known)),
            )
        exercise = known[name]
        data = None
        self.case = None
        try:
            if isinstance(exercise, Verdict):
                data = answer_data(exercise, answer)
                message = self._judge(exercise, data)
            else:
                message = self._check(exercise, answer)
        except WrongAnswer as wrong:
            self._record(name, False, str(wrong), data)
            raise wrong from None
        self._record(name, True, message, data)

    def _judge(self, exercise: Verdict, data: Any) -> str:
        """Judge an answer that is data; return the message of a right answer."""
        with unchanged():
            judgement = exercise.judge(data, self.seed)
        message = f"{exercise.name}: {judgement.message}"
        if judgement.passed:
            return message
        suspicion = self._suspicion(exercise, data)
        raise WrongAnswer(f"{message}\n{suspicion}" if suspicion else message)

    def _check(self, exercise: Exercise, answer: Any) -> str:
        """Check a function or a class; return the message of a right answer."""
        name = exercise.name
        if not callable(answer):
            raise WrongAnswer(f"{name}: expected a function or a class, found {kind(answer)}")
        progress = _Progress()
        try:
            with unchanged():
                self._run_cases(exercise, answer, progress)
        except NotImplementedError as blank:
            raise WrongAnswer(f"{name}: not answered yet{_place(blank)}") from None
        except TooLong:
            if not progress.failures:
                self.case = progress.case
                arguments = _arguments(exercise, answer, progress.case)
                lines = [_no_result(name), *_folded(arguments, MOST_LINES - 1)]
                raise WrongAnswer("\n".join(lines)) from None
        if not progress.failures and progress.repeated is None:
            compared_parts = "values and gradients" if progress.has_gradients else "values"
            return f"{name}: right ({progress.number} cases, {compared_parts})"
        self._explain_earlier(exercise, answer)
        raise WrongAnswer(self._failure_message(exercise, answer, progress))

    def _run_cases(self, exercise: Exercise, answer: Any, progress: _Progress) -> None:
        """Run an answer on all cases, and if it is right, a second time with other numbers."""
        limit = ProcessorLimit(SECONDS)  # for the answer only: the library's runs are outside
        pairs = zip(drawn(exercise, self.seed), expected_outcomes(exercise, self.seed), strict=True)
        for number, (case, expected) in enumerate(pairs, 1):
            progress.number = number
            progress.case = case
            if expected.error:
                raise expected.error
            with limit:
                actual = outcome(exercise, answer, case)
            start_run()  # the answer's settings must not affect the comparison
            progress.has_gradients |= bool(expected.gradients)
            progress.results.append((case, actual))
            if compared(exercise, expected, actual) is not None:
                progress.failures.append(Failure(number, case, expected, actual))
        if not progress.failures:
            expected_again(exercise, self.seed + 1)  # cached outside the answer's time limit
            with limit:
                progress.repeated = wrong_when_called_again(exercise, answer, self.seed + 1)

    def _failure_message(self, exercise: Exercise, answer: Any, progress: _Progress) -> str:
        """Describe the smallest failure, and keep its case for the student."""
        failures = progress.failures
        if progress.repeated is not None:
            self.case = progress.repeated.case
            heading = _repeated_heading(exercise.name, progress.repeated)
            return _message(exercise, answer, progress.repeated, heading)
        smallest = min(failures, key=lambda failure: failure.order(exercise))
        self.case = smallest.case
        heading = (
            f"{exercise.name}: wrong in {len(failures)} of {progress.number} cases. "
            f"The smallest is case {smallest.number}:"
        )
        suspicion = self._suspicion(exercise, progress.results)
        if not suspicion and all(_is_dropping(failure.case) for failure in failures):
            suspicion = (
                "It is wrong only where dropout is at work: is one missing, or in another place?"
            )
        return _message(exercise, answer, smallest, heading, suspicion)

    def _explain_earlier(self, exercise: Exercise, answer: Any) -> None:
        """Raise :class:`WrongAnswer` if this answer calls a wrong answer to an earlier exercise."""
        used, namespace = names_used(answer)
        for earlier_name, variable in checked_names(self.lab).items():
            if earlier_name == exercise.name:
                return
            earlier = exercises(self.lab).get(earlier_name)
            if not isinstance(earlier, Exercise) or variable not in used:
                continue
            if namespace[variable] is answer:
                continue
            try:
                self._check(earlier, namespace[variable])
            except WrongAnswer as wrong:
                heading = (
                    f"{exercise.name}: wrong. It uses {variable} of the exercise {earlier_name}, "
                    "which is wrong; correct that first."
                )
                lines = str(wrong).splitlines()
                raise WrongAnswer("\n".join([heading, *lines[: MOST_LINES - 1]])) from None

    def _suspicion(self, exercise: Exercise | Verdict, results: Any) -> str:
        """Name at most two known faults that give the answer's results on every case."""
        sentences: list[str] = []
        try:
            with unchanged(), ProcessorLimit(SECONDS):
                for fault in read_faults(self.lab).get(exercise.name, ()):
                    sentence = (fault.says or "").rstrip(".")
                    if not sentence or sentence in sentences:
                        continue
                    if self._explains(fault, exercise, results):
                        sentences.append(sentence)
        except TooLong:
            pass
        if sentences:
            return f"It looks as if {'; or '.join(sentences[:2])}."
        return ""

    def _explains(self, fault: Fault, exercise: Exercise | Verdict, results: Any) -> bool:
        """Return whether a solution with this fault gives the same results."""
        answer = lesson_answer(self.lab, exercise.name, fault.change)
        if isinstance(exercise, Verdict):
            return bool(answer_data(exercise, answer) == results)
        pairs = ((actual, outcome(exercise, answer, case)) for case, actual in results)
        # In both directions: compared() accepts an array for a tensor, and extra gradients, in
        # one direction only.
        return all(
            compared(exercise, *pair) is None and compared(exercise, *pair[::-1]) is None
            for pair in pairs
        )

    def _record(self, name: str, passed: bool, message: str, data: Any) -> None:
        """Print the message; in a notebook, store a record for ``glassformer course grade``."""
        worth = points(self.lab).get(name, 0)
        record = {"lab": self.lab, "exercise": name, "seed": self.seed, "passed": passed}
        record |= {"points": worth if passed else 0, "of": worth, "message": message}
        if data is not None:
            record["answer"] = data
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None:
            text = message if passed else f"{name}: 0 of {worth} points"
            shell.display_pub.publish({"text/plain": text, MIME: record})
        elif passed:
            print(message)


lesson = Lesson
"""The name that notebooks import."""


def answer_data(exercise: Verdict, answer: Any) -> Any:
    """Return the answer as JSON values; an answer that is a function is called first."""
    try:
        with unchanged(), ProcessorLimit(SECONDS):
            if callable(answer) and not isinstance(answer, nn.Module):
                data = plain(answer())
            else:
                data = plain(answer)
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
        raise WrongAnswer(
            f"{exercise.name}: a number is NaN or infinite, or the answer cannot be stored as JSON"
        ) from None


def _no_result(name: str) -> str:
    return f"{name}: no result within {SECONDS:g} seconds of processor time. Does a loop never end?"


def _parameters(answer: Any) -> list[str]:
    try:
        return [name for name in signature(answer).parameters if name != "self"]
    except (TypeError, ValueError):  # without a signature
        return []


def _names(exercise: Exercise, answer: Any, case: Case) -> list[str]:
    """Return names for a case's parts, from the signature of the answer or of its ``forward``."""
    if isinstance(case, dict):
        return list(case)
    if exercise.names:
        names = list(exercise.names)
    elif hasattr(answer, "forward"):
        names = ["sizes", *_parameters(answer.forward)]
    else:
        names = _parameters(answer)
    return [*names, *(f"input {i}" for i in range(len(names) + 1, 99))][: len(case)]


def _message(
    exercise: Exercise, answer: Any, failure: Failure, heading: str, suspicion: str = ""
) -> str:
    """Join heading, arguments, explanation and suspicion, in at most MOST_LINES lines."""
    names = _names(exercise, answer, failure.case)
    explanation = _explained(exercise, failure.expected, failure.actual, names)
    last = [suspicion] if suspicion else []
    if failure.earlier is not None:
        last = [
            "  Is something kept from the first call? Compute it in each call, from its own inputs."
        ]
    lines_left = MOST_LINES - 1 - len(explanation) - len(last)
    if failure.earlier is None:
        arguments = _folded(_arguments(exercise, answer, failure.case), lines_left)
    else:
        arguments = _two_calls(exercise, answer, failure.earlier, failure.case, lines_left)
    return "\n".join([heading, *arguments, *explanation, *last])


def _two_calls(
    exercise: Exercise, answer: Any, earlier: Case, case: Case, lines_left: int
) -> list[str]:
    """Return lines with the sizes of a module and the inputs of its two calls."""
    first = _arguments(exercise, answer, earlier)
    second = _arguments(exercise, answer, case)
    sizes = second[: 1 - len(case)]
    calls = [f"first call: {', '.join(first[1 - len(earlier) :])}"]
    if earlier is case:
        calls.append("second call: the same")
    else:
        calls.append(f"second call: {', '.join(second[1 - len(case) :])}")
    return [*_folded(sizes, max(lines_left - 2, 1)), *_folded(calls, 2)]


def _repeated_heading(name: str, failure: Failure) -> str:
    if failure.earlier is not None:
        return f"{name}: right in the first call of an instance, wrong in a second one:"
    if failure.in_training:
        return (
            f"{name}: right in evaluation mode, wrong in training mode (there is no dropout here):"
        )
    return (
        f"{name}: right at first, wrong in a second round with other numbers. "
        "Is something kept from earlier calls?"
    )


def _arguments(exercise: Exercise, answer: Any, case: Case) -> list[str]:
    """Return the arguments of a case, each as ``name = value``."""
    values = case.values() if isinstance(case, dict) else case
    pairs = list(zip(_names(exercise, answer, case), values, strict=True))
    if pairs and pairs[0][0] == "sizes":
        sizes = pairs.pop(0)[1]
        if not isinstance(sizes, dict):
            sizes = dict(zip(_parameters(answer), sizes, strict=False))
        pairs = [*sizes.items(), *pairs]
    return [f"{name} = {one_line(value, WIDTH - len(name) - 5)}" for name, value in pairs]


def _folded(texts: Sequence[str], max_lines: int) -> list[str]:
    """Return at most ``max_lines`` indented lines; the last one counts the texts left out."""
    if len(texts) <= max_lines:
        return [f"  {text[:WIDTH]}" for text in texts]
    lines: list[str] = []
    for number, text in enumerate(texts):
        if lines and len(lines[-1]) + len(text) + 2 <= WIDTH:
            lines[-1] += f", {text}"
        elif len(lines) < max_lines:
            lines.append(f"  {text[:WIDTH]}")
        else:
            lines[-1] = f"{lines[-1][: WIDTH - 30]}, and {len(texts) - number} more in check.case"
            break
    return lines


def _explained(
    exercise: Exercise, expected: Outcome, actual: Outcome, names: list[str]
) -> list[str]:
    """Return lines that say how two outcomes differ."""

    def named(part: str) -> str:
        return re.sub(r"(?<!\S)\[(\d+)\]", lambda place: names[int(place[1])], part, count=1)

    if actual.error is not None:
        return [f"  {line}" for line in _raised(actual.error).splitlines()[:3]]
    if actual.changed_weight is not None:
        return [
            f"  The answer changes its weight {actual.changed_weight}; a call has to leave all "
            "weights as they are."
        ]
    if actual.modified is not None:
        return [
            f"  The answer changes its input {named(actual.modified)}; it should work on a copy."
        ]
    first = compared(exercise, expected, actual)
    assert first is not None
    lines = []
    if first.expected is not None:
        part = named(first.part) if first.part.startswith(" ") else first.part
        width = WIDTH - len(part) - 12
        expected_text = one_line(first.expected, width)
        actual_text = one_line(first.actual, width)
        if expected_text != actual_text:  # otherwise both are too large to be shown
            lines = [f"  expected{part} {expected_text}", f"  found{part} {actual_text}"]
    lines.append(f"  {first.text[0].upper()}{first.text[1:]}.")
    if actual.value is None:
        lines.append("  Is a return missing?")
    elif _is_finite(expected.value) and not _is_finite(actual.value):
        lines.append(
            "  A number is not finite: does an exponential overflow, or is something divided by 0?"
        )
    elif others := [name for name in actual.weights if name not in expected.weights]:
        lines.append(f"  It has weights that are not expected: {', '.join(others)}.")
    return [line[: 2 * WIDTH] for line in lines]


def _is_finite(value: Any) -> bool:
    numbers = [array(part) for _, part in arrays(value)]
    if isinstance(value, float):
        numbers.append(np.asarray(value))
    return all(np.isfinite(part).all() for part in numbers if part.dtype.kind in "fc")


def names_used(answer: Any) -> tuple[set[str], dict[str, Any]]:
    """Return the global names that an answer uses, directly or indirectly, and their namespace."""
    names: set[str] = set()
    namespace: dict[str, Any] = {}
    queue = [answer]
    while queue:
        for function in _functions(queue.pop()):
            namespace = namespace or function.__globals__
            if function.__globals__ is namespace:
                new = (_code_names(function.__code__) & namespace.keys()) - names
                names |= new
                queue += [namespace[name] for name in new]
    return names, namespace


def _functions(part: Any) -> list[Any]:
    """Return a function itself, or the functions of a class and its bases."""
    members = [part]
    if isinstance(part, type):
        members = list(chain.from_iterable(vars(base).values() for base in part.__mro__))
    plain_functions = [inspect.unwrap(member) for member in members if callable(member)]
    return [function for function in plain_functions if inspect.isfunction(function)]


def _code_names(code: CodeType) -> set[str]:
    inner = [_code_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of the answer, without those of packages and of this library."""
    library = str(Path(__file__).parents[1])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
    ]
    return [frame for frame in frames if not frame.filename.startswith(library)]


def _place(blank: NotImplementedError) -> str:
    frames = _frames(blank)
    if frames:
        return f" (a blank is left in {frames[-1].name}, line {frames[-1].lineno} of its cell)"
    return ""


def _raised(error: BaseException) -> str:
    """Describe an error and the line of the answer that raised it."""
    text = str(error) or "without a message"
    frames = _frames(error)
    if "a leaf Variable that requires grad is being used in an in-place operation" in text:
        text = "The answer changes its input; it should work on a copy."
    elif "'NoneType'" in text and not frames:
        text = "The answer returns None. Is a return missing?"
    if not frames:
        return f"{type(error).__name__}\n{text}"
    places = [f"{frame.name}, line {frame.lineno}" for frame in frames[:-3:-1]]
    where = f"{', called in '.join(places)}: {frames[-1].line}"
    return f"{type(error).__name__} in {where}\n{text}"
