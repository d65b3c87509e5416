"""Mutation campaign: change the source in one place, and see whether a test fails.

    python tools/mutation.py [--packages layers models] [--count 300] [--seed 0]
                             [--out runs/mutation] [--resume]

A seeded sample of mutants is drawn over the modules of the packages. One run of the packages' tests
under coverage finds which tests execute each line and how long they take. Each mutant is then
judged by the tests that execute its line: those that import the mutated module first, the fast
before the slow, until the first one fails. Tests marked slow are left out.

One process imports everything and collects the tests; for each mutant it forks a child, which
replaces the code of the mutated function and runs the chosen tests, so that a mutant costs little
more than its tests. Mutants outside of functions are imported anew. (mutmut calls functions through
trampolines, which torch.compile, torch.func and jaxtyping's import hook do not see as the functions
they are; cosmic-ray imports torch for every mutant.)

Written to ``--out``: ``mutants.jsonl``, one line per mutant, which ``--resume`` continues;
``summary.json``, per package; ``survivors.json``, which asks a reason of each survivor
("equivalent: ...", "test added: ..."). Reasons are kept when the file is written again; a mutant
that is equivalent does not count.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import hashlib
import importlib
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "kernels",
    "layers",
    "models",
    "generation",
    "training",
    "handcraft",
    "data",
    "programs",
)
# Directories of tests that may catch a mutant of a package, beside its own.
MORE_TESTS = {"kernels": ("layers", "models", "quantized"), "layers": ("models",)}
# Processor seconds of a test under coverage, after which it is given up and counts as slow.
MOST_TEST_SECONDS = 2.0
# Without the run-time check of annotations, which takes as long as the tests.
OPTIONS = (
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "-m",
    "not slow",
    "-o",
    "addopts=--import-mode=importlib",
)
MEMORY_BYTES = 12 * 2**30


# ---- mutants -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One change of a module: ``source[start:end]`` (bytes) becomes ``after``."""

    module: str
    line: int
    operator: str
    before: str
    after: str
    start: int
    end: int
    lines: tuple[int, int]
    """First and last line of the statement that contains it."""
    function: bool
    """Whether it is inside of a function, which runs after the import."""
    key: str
    """The same in another version of the module, as long as the line itself stays."""

    def __str__(self) -> str:
        change = f"{self.before!r} -> {self.after.strip()!r}"
        return f"{self.module}:{self.line} {self.operator}: {change} [{self.key}]"

    def applied(self, source: bytes) -> bytes:
        """The mutated module."""
        return source[: self.start] + self.after.encode() + source[self.end :]


BINARY: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
# Calls whose arguments are texts for people.
MESSAGES = {"InputError", "CheckpointError", "warn", "print", "cast", "TypeVar"}


def changed(node: ast.AST, **fields: Any) -> ast.AST:
    """A copy of ``node`` with other fields."""
    copied = copy.copy(node)
    for name, value in fields.items():
        setattr(copied, name, value)
    return copied


def constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    """Other values in place of a number or a truth value."""
    value = node.value
    if isinstance(value, bool):
        yield "boolean", changed(node, value=not value)
    elif isinstance(value, int | float):
        for operator, new_value in (
            ("constant + 1", value + 1),
            ("constant - 1", value - 1),
            ("constant * 2", value * 2),
        ):
            if new_value != value:
                yield operator, changed(node, value=new_value)


def moved(bound: ast.expr | None, by: int, start: int) -> ast.expr:
    """``bound + by`` of a slice; of a missing one, ``start``."""
    if bound is None:
        return ast.parse(str(start), mode="eval").body
    return ast.BinOp(bound, ast.Add() if by > 0 else ast.Sub(), ast.Constant(1))


def expressions(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in place of an expression."""
    match node:
        case ast.BinOp() if type(node.op) in BINARY:
            yield "arithmetic", changed(node, op=BINARY[type(node.op)]())
        case ast.Compare(ops=[only]):
            for new_operator in COMPARISONS[type(only)]:
                yield "comparison", changed(node, ops=[new_operator()])
        case ast.BoolOp(op=op):
            yield "and / or", changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case (
            ast.UnaryOp(op=ast.Not(), operand=operand) | ast.UnaryOp(op=ast.USub(), operand=operand)
        ):
            yield "unary", operand
        case ast.Constant():
            yield from constants(node)
        case ast.Subscript(slice=ast.Slice() as part) if part.step is None:
            yield "slice", changed(node, slice=changed(part, lower=moved(part.lower, 1, 1)))
            yield "slice", changed(node, slice=changed(part, upper=moved(part.upper, -1, -1)))
        case ast.Call(args=[first, second, *rest]) if name_of(node.func) not in MESSAGES:
            if not any(isinstance(argument, ast.Starred) for argument in node.args):
                yield "swapped arguments", changed(node, args=[second, first, *rest])


def statements(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in place of a statement, or of its condition."""
    match node:
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return value", ast.Return(ast.Constant(None))
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))))
        ):
            pass  # without it a function has no cell for its class, and its code cannot be replaced
        case (
            ast.Expr(value=ast.Call())
            | ast.AugAssign()
            | ast.Continue()
            | ast.Break()
            | ast.Raise()
        ):
            yield "removed statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "removed statement", ast.Pass()
        case _:
            pass
    if isinstance(node, ast.AugAssign) and type(node.op) in BINARY:
        yield "arithmetic", changed(node, op=BINARY[type(node.op)]())


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


class Finder(ast.NodeVisitor):
    """Collects the mutations of a module.

    Each is (operator, node, replacement, lines of the statement, in a function).
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, ast.expr | ast.stmt, ast.AST, tuple[int, int], bool]] = []
        self.lines = (0, 0)
        self.depth = 0

    def add(self, node: ast.expr | ast.stmt, others: Iterable[tuple[str, ast.AST]]) -> None:
        self.found += [
            (operator, node, replacement, self.lines, self.depth > 0)
            for operator, replacement in others
        ]

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            # Of a compound statement, its head.
            last = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno
            self.lines = (node.lineno, max(node.lineno, last or node.lineno))
            self.add(node, statements(node))
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(
            node.test, ast.UnaryOp
        ):
            self.add(node.test, [("negated condition", ast.UnaryOp(ast.Not(), node.test))])
        if isinstance(node, ast.expr):
            self.add(node, expressions(node))
        super().visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Call(self, node: ast.Call) -> None:
        if name_of(node.func) not in MESSAGES:
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if name_of(node.test) == "TYPE_CHECKING":
            self.found.pop()  # its negated condition
        else:
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(
            name_of(target) in ("__all__", "_SCHEMA", "__slots__") for target in node.targets
        ):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self.depth += 1
        for statement in node.body:
            self.visit(statement)
        self.depth -= 1

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.depth += 1
        self.visit(node.body)
        self.depth -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)


def mutants_of(tree: Path, file: Path) -> list[Mutant]:
    """All mutants of a module, in order."""
    source = file.read_bytes()
    text = source.splitlines(keepends=True)
    starts = [0]
    for line in text:
        starts.append(starts[-1] + len(line))
    module = module_name(tree, file)
    finder = Finder()
    seen = Counter[tuple[str, ...]]()
    mutants = []
    changes: set[tuple[int, str]] = set()
    finder.visit(ast.parse(source))
    for operator, node, replacement, lines, function in finder.found:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode()
        after = ast.unparse(ast.fix_missing_locations(replacement))
        # As many lines as before: functions are found again by their first line.
        after += "\n" * (node.end_lineno - node.lineno)
        if isinstance(node, ast.expr):
            after = f"({after})"
        if (start, after) in changes or ast.dump(node) == ast.dump(replacement):
            continue
        changes.add((start, after))
        place = (module, text[node.lineno - 1].decode().strip(), operator, before, after)
        key = hashlib.sha256(repr((*place, seen[place])).encode()).hexdigest()[:16]
        seen[place] += 1
        mutants.append(
            Mutant(module, node.lineno, operator, before, after, start, end, lines, function, key)
        )
    return mutants


def sample(tree: Path, packages: list[str], count: int, seed: int) -> list[Mutant]:
    """Each mutant equally likely; a package's sample does not depend on the other packages."""
    mutants_by_package = {
        package: [
            mutant
            for file in sorted((tree / "src/glassformer" / package).rglob("*.py"))
            for mutant in mutants_of(tree, file)
        ]
        for package in packages
    }
    total = sum(map(len, mutants_by_package.values()))
    chosen = []
    for mutants in mutants_by_package.values():
        # By key, so that a change of one module leaves the choice in the others as it is.
        mutants.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())
        chosen += mutants[: round(count * len(mutants) / total)]
    return chosen


# ---- running tests -------------------------------------------------------------------------------


class Watch:
    """A pytest plugin for one child: processor seconds of each test, and the first that fails."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        self.pytest_runtest_logreport(report)


def in_child(work: Callable[[], dict[str, Any]], cpu_seconds: float, log: Path) -> dict[str, Any]:
    """What ``work`` returns in a fork of this process, with ``wall`` and ``ended``.

    ``wall`` is its seconds, and ``ended`` says how it ended if not by itself. A child that uses
    much more than ``cpu_seconds``, or too much memory, is ended.
    """
    result = log.with_suffix(".json")
    start = time.monotonic()
    ended = ""
    result.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            with log.open("wb") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds) + 1, int(cpu_seconds) + 10))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            result.write_text(json.dumps(work()))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(0)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        # A process that waits uses no processor time.
        if time.monotonic() - start > 60 + 20 * cpu_seconds:
            ended = "time limit"
        if done or ended:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # with the processes that its tests left
        if done:
            break
        time.sleep(0.01)
    if os.WIFSIGNALED(status) and not ended:
        number = os.WTERMSIG(status)
        ended = "time limit" if number in (signal.SIGXCPU, signal.SIGKILL) else f"signal {number}"
    recorded = json.loads(result.read_text()) if result.exists() else {"failed": []}
    return {
        "wall": time.monotonic() - start,
        "ended": ended or ("" if result.exists() else "error"),
        **recorded,
    }


def run_items(
    session: Any,
    items: list[Any],
    before: Callable[[Any], None] | None = None,
    budget: float = math.inf,
) -> dict[str, Any]:
    """Run tests of a session in this process.

    Without ``before``, until the first one fails or the budget is spent.
    """
    watch = Watch()
    session.config.pluginmanager.register(watch)
    begin = time.process_time()
    for item, following in zip(items, [*items[1:], None], strict=True):
        if time.process_time() - begin > budget:
            break
        if before is not None:
            before(item)
        start = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        watch.seconds[item.nodeid] = time.process_time() - start
        if watch.failed and before is None:
            break
    return {"failed": watch.failed, "seconds": watch.seconds}


def run_anew(names: list[str]) -> dict[str, Any]:
    """Import glassformer and the tests, and run the tests until the first one fails."""
    import pytest

    watch = Watch()
    exit_code = pytest.main([*names, "-x", *OPTIONS], [watch])
    return {"failed": watch.failed or ([] if exit_code == 0 else [f"exit {exit_code}"])}


# ---- which tests execute a line ------------------------------------------------------------------


@dataclass
class Covered:
    """What a run of the tests showed."""

    seconds: dict[str, float]
    tests: dict[str, dict[int, list[str]]]
    """By module and line."""


def cover(tree: Path, session: Any, items: list[Any], data_file: Path) -> dict[str, Any]:
    """Run the tests under coverage, with few drawn examples; give up those that take long."""
    import coverage
    import hypothesis

    cov = coverage.Coverage(
        data_file=str(data_file), source=[str(tree / "src/glassformer")], config_file=False
    )
    factors = {}

    def give_up(*_: Any) -> None:
        raise TimeoutError(f"over {MOST_TEST_SECONDS} s")

    signal.signal(signal.SIGPROF, give_up)

    def before(item: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, MOST_TEST_SECONDS)
        cov.switch_context(item.nodeid)
        test = getattr(item, "obj", None)
        if test is not None and hypothesis.is_hypothesis_test(test):
            settings = test._hypothesis_internal_use_settings
            few = min(3, settings.max_examples)
            factors[item.nodeid] = settings.max_examples / few
            test._hypothesis_internal_use_settings = hypothesis.settings(settings, max_examples=few)

    cov.start()
    done = run_items(session, items, before)
    signal.setitimer(signal.ITIMER_PROF, 0)
    cov.stop()
    data = cov.get_data()
    tests = {}
    for file in data.measured_files():
        by_line = {
            line: sorted({*contexts} - {"", *done["failed"]})
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        tests[module_name(tree, Path(file))] = by_line
    seconds = {name: spent * factors.get(name, 1.0) for name, spent in done["seconds"].items()}
    return {"seconds": seconds, "tests": tests, "failed": done["failed"]}


def covered_by(tree: Path, session: Any, directory: str, out: Path) -> Covered:
    """What the tests of a directory execute, or what an earlier run of the same sources showed."""
    packages = [package for package in PACKAGES if directory in test_directories(tree, package)]
    folders = [
        tree / "tests" / directory,
        *(tree / "src/glassformer" / package for package in packages),
    ]
    sources = sorted(file for folder in folders for file in folder.rglob("*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]
    result_file = out / f"covered-{directory}-{digest}.json"
    if not result_file.exists():
        items = [item for item in session.items if item.nodeid.startswith(f"tests/{directory}/")]
        with tempfile.TemporaryDirectory() as folder:
            data_file = Path(folder, "coverage")
            done = in_child(
                lambda: cover(tree, session, items, data_file),
                7200,
                out / f"covered-{directory}.log",
            )
        if done["ended"]:
            raise RuntimeError(
                f"the tests of {directory} {done['ended']}: see {out}/covered-{directory}.log"
            )
        print(
            f"{directory}: {len(items)} tests, {sum(done['seconds'].values()):.0f} s; failing: "
            f"{done['failed']}"
        )
        result_file.write_text(json.dumps(done))
    read = json.loads(result_file.read_text())
    by_line = {
        module: {int(line): names for line, names in lines.items()}
        for module, lines in read["tests"].items()
    }
    return Covered(read["seconds"], by_line)


def tests_for(
    mutant: Mutant, covered: list[Covered], imports: Callable[[str, str], bool], budget: float
) -> tuple[list[str], float]:
    """The tests that execute the mutant's statement, and their seconds.

    Those that are likeliest to fail come first, and fast ones before slow ones.
    """
    seconds: dict[str, float] = {}
    first, last = mutant.lines
    for directory_tests in covered:
        by_line = directory_tests.tests.get(mutant.module, {})
        # What runs at import counts for all tests.
        lines = range(first, last + 1) if mutant.function else by_line
        for name in {name for line in lines for name in by_line.get(line, ())}:
            seconds[name] = directory_tests.seconds[name]
    order = sorted(
        seconds,
        key=lambda name: (not imports(name.split("::")[0], mutant.module), seconds[name], name),
    )
    total = 0.0
    some = []
    for name in order:
        if some and total + seconds[name] > budget:
            continue
        total += seconds[name]
        some.append(name)
    return some, total


def tests_by_import(
    mutant: Mutant, items: list[Any], directories: list[str], imports: Callable[[str, str], bool]
) -> list[str]:
    """The tests of the files that import the mutant's module, otherwise of its package.

    One case of each test comes first.
    """
    near = [item for item in items if item.nodeid.split("/")[1] in directories]
    chosen = [item for item in near if imports(item.nodeid.split("::")[0], mutant.module)]
    chosen = chosen or [item for item in near if item.nodeid.split("/")[1] == directories[0]]
    cases: Counter[str] = Counter()
    order = []
    for item in chosen:
        name = item.nodeid.split("[")[0]
        order.append((cases[name], item.nodeid))
        cases[name] += 1
    return [nodeid for _, nodeid in sorted(order, key=lambda pair: pair[0])]


def importer(tree: Path) -> Callable[[str, str], bool]:
    """Whether a test file names a module."""
    texts: dict[str, str] = {}

    def imports(file: str, module: str) -> bool:
        text = texts.setdefault(file, (tree / file).read_text())
        package, _, name = module.rpartition(".")
        direct = rf"{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
        return re.search(direct, text) is not None

    return imports


# ---- the campaign --------------------------------------------------------------------------------


def module_name(tree: Path, file: Path) -> str:
    return ".".join(file.relative_to(tree / "src").with_suffix("").parts)


def replace_code(tree: Path, mutant: Mutant, functions: list[types.FunctionType]) -> None:
    """Give the live functions of the mutant's module their mutated code."""
    file = tree / "src" / Path(*mutant.module.split(".")).with_suffix(".py")
    source = mutant.applied(file.read_bytes())
    loader = sys.modules[mutant.module.removesuffix(".__init__")].__spec__.loader
    # As jaxtyping's import hook compiles it.
    pending = [loader.source_to_code(source, str(file))]
    codes = {}
    while pending:
        for constant in pending.pop().co_consts:
            if isinstance(constant, types.CodeType):
                codes[constant.co_qualname, constant.co_firstlineno] = constant
                pending.append(constant)
    replaced = 0
    for function in functions:
        old = function.__code__
        new = (
            codes.get((old.co_qualname, old.co_firstlineno))
            if old.co_filename == str(file)
            else None
        )
        if new is not None and new != old and new.co_freevars == old.co_freevars:
            function.__code__ = new
            replaced += 1
    if not replaced:
        raise RuntimeError(f"no live function has the code of {mutant}")


class Campaign:
    """A pytest plugin that, in place of running the collected tests, judges mutants by them."""

    def __init__(
        self, tree: Path, mutants: list[Mutant], out: Path, budget: float, quick: bool
    ) -> None:
        self.tree = tree
        self.mutants = mutants
        self.out = out
        self.budget = budget
        self.quick = quick

    def pytest_runtestloop(self, session: Any) -> bool:
        for mutant in self.mutants:
            importlib.import_module(mutant.module.removesuffix(".__init__"))
        gc.unfreeze()  # get_objects() leaves out what the tests' set-up has frozen
        functions = [thing for thing in gc.get_objects() if isinstance(thing, types.FunctionType)]
        gc.collect()
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        imports = importer(self.tree)
        covered: dict[str, Covered] = {}
        spent: dict[str, float] = {}
        for number, mutant in enumerate(self.mutants):
            package = mutant.module.split(".")[1]
            directories = test_directories(self.tree, package)
            if self.quick:
                names = tests_by_import(mutant, session.items, directories, imports)
                seconds = self.budget
                # The fast ones first, by what earlier mutants have shown.
                names.sort(key=lambda name: round(math.log2(spent.get(name, 0.25) + 0.1)))
            else:
                for directory in directories:
                    if directory not in covered:
                        covered[directory] = covered_by(self.tree, session, directory, self.out)
                names, seconds = tests_for(
                    mutant,
                    [covered[name] for name in directories],
                    imports,
                    self.budget,
                )

            def work(mutant: Mutant = mutant, names: list[str] = names) -> dict[str, Any]:
                if mutant.function:
                    replace_code(self.tree, mutant, functions)
                    return run_items(session, [items[name] for name in names], budget=self.budget)
                file = self.tree / "src" / Path(*mutant.module.split(".")).with_suffix(".py")
                for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
                    compiled.unlink()  # it may have the mutant's size and second
                file.write_bytes(mutant.applied(file.read_bytes()))
                sys.dont_write_bytecode = True
                for name, module in list(sys.modules.items()):
                    if str(getattr(module, "__file__", "")).startswith(str(self.tree)):
                        del sys.modules[name]
                return run_anew(names[:40] if self.quick else names)

            file = self.tree / "src" / Path(*mutant.module.split(".")).with_suffix(".py")
            original = file.read_bytes()
            done = (
                in_child(work, 20 + 4 * seconds, self.out / "last.log")
                if names
                else {"failed": [], "wall": 0}
            )
            spent |= done.get("seconds", {})
            if file.read_bytes() != original:
                file.write_bytes(original)
            by = done["failed"][0] if done["failed"] else done.get("ended", "")
            if by == "error":
                raise RuntimeError(f"{mutant}: see {self.out}/last.log")
            outcome = "caught" if by else "survived" if names else "not executed"
            record = {
                "outcome": outcome,
                "seconds": round(done["wall"], 2),
                "tests": len(names),
                "by": by or None,
            }
            with (self.out / "mutants.jsonl").open("a") as lines:
                lines.write(json.dumps({**asdict(mutant), **record}) + "\n")
            print(
                f"{number + 1}/{len(self.mutants)} {outcome} ({done['wall']:.1f} s) {mutant}",
                flush=True,
            )
        return True


def test_directories(tree: Path, package: str) -> list[str]:
    return [
        directory
        for directory in (package, *MORE_TESTS.get(package, ()))
        if (tree / "tests" / directory).is_dir()
    ]


def summarise(out: Path) -> None:
    """Write summary.json and survivors.json, and print the first."""
    records = {
        record["key"]: record
        for record in map(json.loads, (out / "mutants.jsonl").read_text().splitlines())
    }
    file = out / "survivors.json"
    old = (
        {record["key"]: record["reason"] for record in json.loads(file.read_text())}
        if file.exists()
        else {}
    )
    survivors = [
        record
        for record in records.values()
        if record["outcome"] != "caught" or record["key"] in old
    ]
    fields = ("module", "line", "operator", "before", "after", "outcome", "key")
    written = [
        {**{name: record[name] for name in fields}, "reason": old.get(record["key"], "")}
        for record in survivors
    ]
    file.write_text(json.dumps(written, indent=1) + "\n")
    table: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in records.values():
        equivalent = old.get(record["key"], "").startswith("equivalent")
        for name in (record["module"].split(".")[1], "all"):
            table[name]["mutants"] += 1
            table[name]["equivalent" if equivalent else record["outcome"]] += 1
    summary = {}
    for name, row in sorted(table.items()):
        share = row["caught"] / max(1, row["mutants"] - row["equivalent"])
        summary[name] = {**row, "caught, of those not equivalent": round(share, 4)}
        print(f"{name:12s} {summary[name]}")
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


def main() -> None:
    """Draw the sample, run it, write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--budget", type=float, default=20.0, help="processor seconds of tests for a mutant"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="choose tests by what their files import, without coverage",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs/mutation")
    parser.add_argument("--resume", action="store_true", help="continue mutants.jsonl")
    parser.add_argument("--keys", nargs="+", help="judge these mutants, again")
    parser.add_argument("--list", action="store_true", help="print the sample and stop")
    parser.add_argument(
        "--summary", action="store_true", help="write summary.json and survivors.json and stop"
    )
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.summary:
        return summarise(out)
    results = out / "mutants.jsonl"
    if not (arguments.resume or arguments.keys or arguments.list):
        results.unlink(missing_ok=True)
    done = (
        {json.loads(line)["key"] for line in results.read_text().splitlines()}
        if results.exists()
        else set()
    )
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="mutation_") as temporary:
        tree = Path(temporary).resolve() / "tree"
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        if arguments.keys:
            mutants = [
                mutant
                for mutant in sample(tree, list(PACKAGES), 10**9, 0)
                if mutant.key in arguments.keys
            ]
        else:
            mutants = sample(tree, arguments.packages, arguments.count, arguments.seed)
            mutants = [mutant for mutant in mutants if mutant.key not in done or arguments.list]
        if arguments.list:
            return print(*mutants, sep="\n")
        if mutants:
            import pytest

            os.environ["PYTHONPATH"] = str(tree / "src")
            sys.path.insert(0, str(tree / "src"))
            os.chdir(tree)
            packages = {mutant.module.split(".")[1] for mutant in mutants}
            directories = sorted(
                {directory for package in packages for directory in test_directories(tree, package)}
            )
            campaign = Campaign(tree, mutants, out, arguments.budget, arguments.quick)
            pytest.main(
                [*OPTIONS, *(f"tests/{directory}" for directory in directories)], [campaign]
            )
        os.chdir(ROOT)
    return summarise(out)


if __name__ == "__main__":
    main()
