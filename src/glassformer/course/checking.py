"""Checks: an answer is compared with the library's form on cases of growing size, or judged for every input.

An answer runs in the process of the student who wrote it. A check leaves no trace: random states, settings and the
streams of output are what they were.
"""

import functools
import io
import json
import random
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.course.comparing import Difference, array, arrays, difference, kind, mapped, show, tensors
from glassformer.course.lessons import Fault, lab_name, points, read_faults
from glassformer.course.lessons import answer as lesson_answer
from glassformer.errors import InputError
from glassformer.text import known_name

SECONDS = 10.0
"""After which an answer is given up."""
MIME = "application/vnd.glassformer.check+json"

Case: TypeAlias = Any
"""Arguments of an answer: a tuple, or a dictionary of named ones."""


class Built(NamedTuple):
    """The output of a module and its weights, whose gradients are compared by name."""

    output: Any
    weights: dict[str, Tensor]


def call(answer: Any, case: Case) -> Any:
    """How a function is run: with a case's arguments, by position or by name."""
    return answer(**case) if isinstance(case, dict) else answer(*case)


def build(answer: Any, case: Case) -> Built:
    """How a class is run: ``answer(*sizes)``, with weights drawn by their names, is called with the rest of the case.

    The first part of the case, ``sizes``, is a tuple or a dictionary; weights have the dtype of the first input of
    floating-point numbers, and dropout is off.
    """
    sizes, *inputs = case
    return run_module(call(answer, sizes), *inputs)


def run_module(module: nn.Module, *inputs: Any, **named: Any) -> Built:
    """The output of a module with weights that its parameters' names determine."""
    floating = [each.dtype for _, each in tensors([inputs, named]) if each.is_floating_point()]
    module = module.to(floating[0] if floating else torch.float32).eval()
    weights: dict[str, Tensor] = dict(module.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            generator = torch.Generator().manual_seed(crc32(name.encode()))
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(drawn / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.5 + 0.3 * drawn)
    return Built(module(*inputs, **named), weights)


@dataclass(frozen=True)
class Exercise:
    """An exercise whose answer is a function or a class.

    Args:
        name: The grade_id of its cell, unique in the lab.
        expected: The library's form of it.
        cases: Arguments for a generator of random numbers: a tuple, or a dictionary of named ones, smallest first.
            Batches of several examples show whether one depends on another.
        run: Runs an answer on a case: :func:`call` or :func:`build`, or what an exercise needs.
        tolerance: Largest difference, relative to the largest magnitude; 1e-9 where float64 is expected.
        gradients: Whether gradients are compared, of floating inputs and of a module's weights.
        same_dtype: Whether the result's dtype has to be the expected one; otherwise its kind has to.
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
    """What is said of an answer that is data: whether it is right for every input, and if not, where it fails."""

    passed: bool
    message: str
    counterexample: str | None = None


def plain(answer: Any) -> Any:
    """An answer as JSON values: tensors and arrays become lists of numbers, dataclasses dictionaries."""
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
        judge: ``judge(data, seed)`` decides for every input; ``seed`` gives the variant. What it cannot decide does
            not pass, and the message says so. It must take any JSON value without running anything of it.
    """

    name: str
    judge: Callable[[Any, int], Judgement]


class WrongAnswer(AssertionError):
    """An answer that is not right. In a notebook its message stands alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class TooLong(BaseException):
    """Not an Exception, which the answer might catch."""


@dataclass
class Outcome:
    """What an answer does on a case."""

    value: Any = None
    weights: dict[str, list[int]] = field(default_factory=dict)
    """The shapes of a module's weights."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    error: BaseException | None = None
    modified: str | None = None


def outcome(exercise: Exercise, answer: Any, case: Case) -> Outcome:
    """Run ``answer`` on copies of a case: for its value, and once more for its gradients."""
    given = mapped(lambda each: each.detach().clone(), case)
    try:
        _reset()
        output, weights = _parts(exercise.run(answer, given))
        value = mapped(lambda each: each.detach().clone(), output)
        for (name, before), (_, after) in zip(arrays(case), arrays(given), strict=True):
            one, other = array(before), array(after)
            if not np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"):
                return Outcome(value, modified=name)
        shapes = {name: list(weight.shape) for name, weight in weights.items()}
        return Outcome(value, shapes, _gradients(exercise, answer, case) if exercise.gradients else {})
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


def _parts(result: Any) -> tuple[Any, dict[str, Tensor]]:
    return (result.output, result.weights) if isinstance(result, Built) else (result, {})


def _gradients(exercise: Exercise, answer: Any, case: Case) -> dict[str, Tensor]:
    given = mapped(lambda each: each.detach().clone().requires_grad_(each.is_floating_point()), case)
    _reset()
    output, weights = _parts(exercise.run(answer, given))
    wanted = {name: each for name, each in tensors(given) if each.requires_grad} | weights
    results = [each for _, each in tensors(output) if each.is_floating_point()]
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each.dtype) for each in results]
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
    if expected.error or found.error or expected.modified != found.modified:
        same = repr(expected.error) == repr(found.error) and expected.modified == found.modified
        return None if same else Difference("", None, None, "")
    wanted = {name: shape for name, shape in expected.weights.items() if found.weights.get(name) != shape}
    if wanted:
        others = {name: shape for name, shape in found.weights.items() if expected.weights.get(name) != shape}
        text = f"expected the weights {_weights(wanted)}, found {_weights(others) or 'none of them'}"
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
                part=f" gradient of {name}", text=f"values are right, gradients are not: {first.text}"
            )
    return None


def _weights(shapes: dict[str, list[int]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


@contextmanager
def _unchanged() -> Iterator[None]:
    """Put random states and settings back, and keep what is printed to itself."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - an answer may use it
    grad, dtype, threads = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)  # cases are small: a second thread costs more than it gains
    try:
        with torch.random.fork_rng(devices=[]), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call imports PyTorch's compiler
            torch.use_deterministic_algorithms(deterministic)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _reset() -> None:
    """What each run starts with, whatever the one before has done."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.default_generator.manual_seed(0)  # torch.manual_seed does the same for every kind of device, and takes longer


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TooLong` in the block after ``seconds``, where signals can: not in threads, not on Windows."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TooLong

    before, start = signal.signal(signal.SIGALRM, stop), time.monotonic()
    # Again every second, in case that the answer catches it.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - start), 0.001), interval)


def exercises(lab: str) -> dict[str, Exercise | Verdict]:
    """The exercises of a lab, by name."""
    return {each.name: each for each in import_module(f"glassformer.course.exercises.{lab}").EXERCISES}


class Lesson:
    """The checks of a lab: ``check(name, answer)`` prints that the answer is right, or raises :class:`WrongAnswer`.

    ``case`` holds the arguments of the last case that failed.

    Args:
        lab: ``"hand_designed"``, ``"sentiment"``, ``"lookup"`` or ``"gpt_oss"``.
        seed: The variant of its tasks; 0 is the course's own.
    """

    def __init__(self, lab: str, seed: int = 0) -> None:
        self.lab, self.seed = lab_name(lab), seed
        self.case: Case | None = None

    def __call__(self, name: str, answer: Any) -> None:
        """Check the answer of the exercise ``name``."""
        known = exercises(self.lab)
        if name not in known:
            raise InputError(f"the exercise '{name}'", f"an exercise of {self.lab}", known_name(name, list(known)))
        exercise, data = known[name], None
        self.case = None
        try:
            if isinstance(exercise, Verdict):
                data = answer_data(exercise, answer)
                judgement = exercise.judge(data, self.seed)
                message = f"{name}: {judgement.message}"
                if not judgement.passed:
                    raise WrongAnswer(message + self._suspicion(exercise, data))
            else:
                message = self._check(exercise, answer)
        except WrongAnswer as wrong:
            self._record(name, False, str(wrong), data)
            raise wrong from None
        self._record(name, True, message, data)

    def _check(self, exercise: Exercise, answer: Any) -> str:
        """The message of a right answer."""
        name, number, graded = exercise.name, 0, False
        case: Case = ()
        if not callable(answer):
            raise WrongAnswer(f"{name}: expected a function or a class, found {kind(answer)}")
        results: list[tuple[Case, Outcome]] = []
        failed: list[tuple[int, Outcome, bool]] = []
        try:
            with _unchanged(), time_limit(SECONDS):
                pairs = zip(drawn(exercise, self.seed), expected_outcomes(exercise, self.seed), strict=True)
                for number, (case, expected) in enumerate(pairs, 1):
                    if expected.error:
                        raise expected.error
                    found = outcome(exercise, answer, case)
                    graded |= bool(expected.gradients)
                    results.append((case, found))
                    first = compared(exercise, expected, found)
                    if first is not None:
                        failed.append((number, expected, first.part.startswith(" gradient")))
        except NotImplementedError as blank:
            raise WrongAnswer(f"{name}: not answered yet{_place(blank)}") from None
        except TooLong:
            if not failed:
                self.case, text = case, f"{name}: no result within {SECONDS:g} seconds. Does a loop never end?"
                raise WrongAnswer("\n".join([text, *_arguments(exercise, answer, case)])) from None
        if not failed:
            return f"{name}: right ({number} cases, values{' and gradients' if graded else ''})"
        # Where it has wrong values, these say more than gradients.
        smallest, expected, _ = min(failed, key=lambda each: (each[2], each[0]))
        self.case, found = results[smallest - 1]
        names = _names(exercise, answer, self.case)
        lines = [f"{name}: wrong in {len(failed)} of {number} cases. The smallest is case {smallest}:"]
        lines += [*_arguments(exercise, answer, self.case), *_explained(exercise, expected, found, names)]
        raise WrongAnswer("\n".join(lines) + self._suspicion(exercise, results))

    def _suspicion(self, exercise: Exercise | Verdict, results: Any) -> str:
        """The sentence of the fault that does on every case what the answer does."""
        try:
            with _unchanged(), time_limit(SECONDS):
                for fault in read_faults(self.lab).get(exercise.name, ()):
                    if fault.says and self._is(exercise, fault, results):
                        return f"\nIt looks as if {fault.says}{'' if fault.says.endswith('.') else '.'}"
        except TooLong:
            pass
        return ""

    def _is(self, exercise: Exercise | Verdict, fault: Fault, results: Any) -> bool:
        answer = lesson_answer(self.lab, exercise.name, fault.change)
        if isinstance(exercise, Verdict):
            return bool(answer_data(exercise, answer) == results)
        pairs = ((found, outcome(exercise, answer, case)) for case, found in results)
        # Both ways, as an array is compared with a tensor in one of them alone, and gradients with none.
        return all(compared(exercise, *pair) is None and compared(exercise, *pair[::-1]) is None for pair in pairs)

    def _record(self, name: str, passed: bool, message: str, data: Any) -> None:
        """Print, and in a notebook keep the verdict beside what is printed, for ``glassformer course grade``."""
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
        with _unchanged(), time_limit(SECONDS):
            data = plain(answer() if callable(answer) and not isinstance(answer, nn.Module) else answer)
    except NotImplementedError as blank:
        raise WrongAnswer(f"{exercise.name}: not answered yet{_place(blank)}") from None
    except TooLong:
        text = f"{exercise.name}: no result within {SECONDS:g} seconds. Does a loop never end?"
        raise WrongAnswer(text) from None
    except Exception as error:
        raise WrongAnswer(f"{exercise.name}: {_raised(error)}") from None

    def refuse(value: Any) -> None:
        raise WrongAnswer(f"{exercise.name}: found {kind(value)}; expected numbers, texts, lists or dictionaries")

    try:
        return json.loads(json.dumps(data, allow_nan=False, default=refuse))
    except (ValueError, TypeError, RecursionError):
        text = f"{exercise.name}: a number is NaN or infinite, or the answer cannot be kept as data"
        raise WrongAnswer(text) from None


def _parameters(answer: Any) -> list[str]:
    try:
        return [name for name in signature(answer).parameters if name != "self"]
    except (TypeError, ValueError):  # without a signature
        return []


def _names(exercise: Exercise, answer: Any, case: Case) -> list[str]:
    """The names of a case's parts, from the signature of the answer; of a class, ``sizes`` and its inputs'."""
    if isinstance(case, dict):
        return list(case)
    own = ["sizes", *_parameters(answer.forward)] if hasattr(answer, "forward") else _parameters(answer)
    names = list(exercise.names) or own
    return [*names, *(f"input {i}" for i in range(len(names) + 1, 99))][: len(case)]


def _arguments(exercise: Exercise, answer: Any, case: Case) -> list[str]:
    values = case.values() if isinstance(case, dict) else case
    pairs = list(zip(_names(exercise, answer, case), values, strict=True))
    if pairs and pairs[0][0] == "sizes" and isinstance(answer, type):
        sizes = pairs.pop(0)[1]
        named = sizes if isinstance(sizes, dict) else dict(zip(_parameters(answer), sizes, strict=False))
        pairs = [*named.items(), *pairs]
    return [f"  {name} = {_indented(show(value))}" for name, value in pairs]


def _explained(exercise: Exercise, expected: Outcome, found: Outcome, names: list[str]) -> list[str]:
    def named(part: str) -> str:
        return re.sub(r"(?<!\S)\[(\d+)\]", lambda place: names[int(place[1])], part, count=1)

    if found.error is not None:
        return [f"  {_raised(found.error)}"]
    if found.modified is not None:
        return [f"  The answer changes its input {named(found.modified)}; it should work on a copy."]
    first = compared(exercise, expected, found)
    assert first is not None
    lines = [f"  {first.text[0].upper()}{first.text[1:]}."]
    if first.expected is not None:
        part = named(first.part) if first.part.startswith(" ") else first.part
        values = ("expected", first.expected), ("found", first.found)
        lines = [*(f"  {each}{part} {_indented(show(value))}" for each, value in values), *lines]
    if found.value is None:
        lines.append("  Is a return missing?")
    elif others := [name for name in found.weights if name not in expected.weights]:
        lines.append(f"  It has weights that are not expected: {', '.join(others)}.")
    return lines


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Those of the answer."""
    ours = str(Path(__file__).parents[1])
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "site-packages" not in each.filename]
    return [each for each in frames if not each.filename.startswith(ours)]


def _place(blank: NotImplementedError) -> str:
    frames = _frames(blank)
    return f" (a blank is left in {frames[-1].name}, line {frames[-1].lineno} of its cell)" if frames else ""


def _raised(error: BaseException) -> str:
    """An error and the line of the answer that raised it."""
    text, frames = str(error) or "without a message", _frames(error)
    if "a leaf Variable that requires grad is being used in an in-place operation" in text:
        text = "The answer changes its input; it should work on a copy."
    elif "'NoneType'" in text and not frames:
        text = "The answer returns None. Is a return missing?"
    places = [f"{each.name}, line {each.lineno}" for each in frames[:-3:-1]]
    where = f" in {', called in '.join(places)}: {frames[-1].line}" if frames else ""
    return f"{type(error).__name__}{where}\n  {text}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
