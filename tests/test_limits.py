"""No limit by the clock: a search over the sources, and the lessons' solutions on a machine that is
busy or sleeps.
"""

import ast
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassformer.course.lessons import LABS
from processes import SOURCE

ROOT = Path(__file__).resolve().parent.parent
FEWEST_SECONDS = 60
"""A guard against hangs lasts at least this long by the clock."""
CLOCKS = {
    *("monotonic", "perf_counter", "time", "process_time", "thread_time"),
    *("monotonic_ns", "perf_counter_ns", "time_ns", "process_time_ns", "thread_time_ns"),
}
LIMITS = {"setitimer", "alarm", "RLIMIT_CPU"}
WAITS = {
    "wait",
    "join",
    "communicate",
    "result",
    "get",
    "set_default_timeout",
    "set_default_navigation_timeout",
}

# Each place that sets a limit by the clock or by absolute processor time, or compares times, and
# why it may.
ALLOWED = {
    (
        "src/glassformer/processor_time.py",
        "setitimer",
    ): "the limit of processor time itself, and a caller's timer",
    ("src/glassformer/processor_time.py", "used"): "the same",
    ("src/glassformer/course/isolation.py", "setitimer"): "ends a timer that an answer has left",
    (
        "src/glassformer/data/template_process.py",
        "RLIMIT_CPU",
    ): "the parent passes a limit relative to the machine",
    (
        "src/glassformer/data/template_process.py",
        "process_time",
    ): "the same limit where there are no signals",
    (
        "src/glassformer/explorer/answers/sweeping.py",
        "monotonic",
    ): "how much of a sweep a call answers, not what",
    (
        "src/glassformer/explorer/saving/recorded_answers.py",
        "monotonic",
    ): "how much of a sweep a file holds",
    (
        "src/glassformer/explorer/guards.py",
        "timeout",
    ): "how long the rest of a refused body is dropped",
    (
        "src/glassformer/explorer/server.py",
        "timeout_keep_alive",
    ): "how long an idle connection is held",
    (
        "src/glassformer/explorer/server.py",
        "timeout_graceful_shutdown",
    ): "how long open connections are held at the end",
    (
        "src/glassformer/training/metrics.py",
        "waited",
    ): "how often a run prints its progress, not what it computes",
    (
        "src/glassformer/kernels/native/__init__.py",
        "time",
    ): "the age of a file that an older version left",
    ("tests/explorer/test_server.py", "wait"): "polls, or shows that an event has not come yet",
    (
        "tests/test_processor_time.py",
        "setitimer",
    ): "a timer of the caller, which the test waits for",
    ("tests/test_processor_time.py", "thread_time"): "uses a given time",
    ("tests/course/test_isolation.py", "setitimer"): "a timer of ten minutes that is taken back",
    ("tests/browser/conftest.py", "monotonic"): "a guard of three minutes",
    ("tests/serving.py", "monotonic"): "a guard of five minutes",
    ("tests/cli/test_train.py", "monotonic"): "a guard of ten minutes",
    ("tests/training/test_stepper.py", "monotonic"): "a guard of ten minutes",
}


def limits(source: str, per_second: int = 1) -> Iterator[tuple[str, int]]:
    """The names and lines of limits in a module, whose waits are in parts of a second: 1,000 with
    playwright.
    """
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    times = {name for node in ast.walk(tree) for name in _names_of_times(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (
                (name, node.lineno) for name in _limits_of_call(node, constants, per_second)
            )
        elif isinstance(node, ast.Attribute) and node.attr in LIMITS:
            yield node.attr, node.lineno
        elif isinstance(node, ast.Compare):
            yield from (
                (name, node.lineno) for name in [*_clocks(node), *(times & _names(node))][:1]
            )


def _limits_of_call(
    call: ast.Call, constants: dict[str, ast.expr], per_second: int
) -> Iterator[str]:
    name = _name(call.func)
    fewest = FEWEST_SECONDS * per_second
    if name == "timeout" and call.args:
        yield name
    for keyword in call.keywords:
        argument = keyword.arg or ""
        length = _number(keyword.value, constants)
        if (argument.startswith("timeout") and length < fewest) or (
            argument == "deadline" and length < math.inf
        ):
            yield argument
    if name in WAITS and len(call.args) == 1 and _number(call.args[0], constants) < fewest:
        yield name


def _number(node: ast.expr, constants: dict[str, ast.expr]) -> float:
    """The number that an argument is; infinite where it is none."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    value = getattr(node, "value", None)
    return value if type(value) in (int, float) else math.inf


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _clocks(node: ast.AST) -> list[str]:
    """The clocks that an expression reads."""
    functions = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    own = [each for each in functions if isinstance(each, ast.Name) or _names(each) == {"time"}]
    return [_name(each) for each in own if _name(each) in CLOCKS]


def _names_of_times(node: ast.AST) -> set[str]:
    """The names that get a value of a clock in a statement."""
    if not isinstance(node, ast.Assign) or not _clocks(node.value):
        return set()
    return {
        part.id
        for target in node.targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        if isinstance(part, ast.Name)
    }


def test_every_limit_by_the_clock_has_a_reason() -> None:
    places = {}
    for folder in ("src", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            per_second = 1000 if path.parent.name == "browser" else 1
            for name, line in limits(path.read_text(encoding="utf-8"), per_second):
                places.setdefault((path.relative_to(ROOT).as_posix(), name), []).append(line)
    assert {place: lines for place, lines in places.items() if place not in ALLOWED} == {}
    assert ALLOWED.keys() - places.keys() == set(), "places that no longer have a limit"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("signal.setitimer(signal.ITIMER_PROF, 2)", ["setitimer"]),
        ("assert time.perf_counter() - start < 3", ["perf_counter"]),
        ("assert perf_counter() - start < 3", ["perf_counter"]),
        ("took, most = time.perf_counter() - start, peak()\nassert took < 3", ["took"]),
        ("while time.monotonic() < end: pass", ["monotonic"]),
        ("subprocess.run(command, timeout=30)", ["timeout"]),
        ("subprocess.run(command, timeout=600)", []),
        ("PATIENCE = 20.0\nthread.join(PATIENCE)", ["join"]),
        ("PATIENCE = 20_000\npage.set_default_timeout(PATIENCE)", ["set_default_timeout"]),
        ("expect(page).to_be_visible(timeout=5_000)", ["timeout"]),
        ("PATIENCE = 180_000\nexpect(page).to_be_visible(timeout=PATIENCE)", []),
        ("resource.setrlimit(resource.RLIMIT_CPU, (2, 2))", ["RLIMIT_CPU"]),
        ("@settings(deadline=200)\ndef test_it(): pass", ["deadline"]),
        ("@settings(deadline=None)\ndef test_it(): pass", []),
        ("process.wait(timeout=60); ', '.join(words); event.wait()", []),
    ],
)
def test_the_search_finds_them(source: str, names: list[str]) -> None:
    assert [name for name, _ in limits(source, 1000 if "page" in source else 1)] == names


# Every solution of a lesson against its own check, in a process that can be stopped or slowed as a
# whole.
CHECKS = """
import sys
from glassformer.course import lesson
from glassformer.course.checking import exercises
from glassformer.course.lessons import answer
check = lesson(sys.argv[1])
for name in exercises(sys.argv[1]):
    solution = answer(sys.argv[1], name)
    print("check", name, flush=True)
    check(name, solution)
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no signals that stop a process")
@pytest.mark.parametrize("lab", LABS)
@pytest.mark.parametrize("case", ["busy", "stopped"])
def test_every_solution_passes_on_a_machine_that_is_busy_or_sleeps(lab: str, case: str) -> None:
    """With ten busy processes beside it, or stopped for 11 s in the middle of a check."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(10 if case == "busy" else 0)
    ]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHECKS, lab]
    try:
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if case == "stopped" and len(lines) in (1, 9):
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(11)
                    process.send_signal(signal.SIGCONT)
        assert process.returncode == 0
        assert lines[-1] == "done\n"
    finally:
        for other in busy:
            other.kill()
            other.wait()
