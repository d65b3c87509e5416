"""Wrong answers of the course, and what refuses them.

    python tools/course_mutants.py [--labs lookup gpt_oss] [--count 1000] [--seed 0]
                                   [--documents DIRECTORY] [--out runs/course-mutants.json]

Wrong answers are the faults that people make (``src/glassformer/course/faults``), others that hold
on ordinary inputs (``tests/course/wrong``), and mutants: solutions changed in one place, by the
operators of tools/mutation.py or by leaving a named argument out; all of them, or a sample of
``--count``. Each is judged by

- check: the lesson's own check.
- document: the test cells of the documents that the lessons are made from, ``LAB.txt`` in
  ``--documents``. They run on the names of the lesson's solutions, the wrong one among them. An
  error refuses an answer; what a cell prints or draws does not. A cell judges those exercises
  without whose answer it fails. Others are not in this column.
- 10 inputs, 100 inputs: values compared with the library's on random inputs of the usual shape,
  without gradients. An input is one of the exercise's cases with other random numbers: of those
  that have random numbers of ordinary size and are not in float64, one of the largest. Where no
  case has random numbers (sizes, texts), any case. A design is run on random sequences of its task.
  Exercises without an input are not in these columns.

Not counted are answers that are "too slow", as they reach a time limit, and mutants that are
"right": designs and other data that the check finds right for every input, and those that change no
output, whose reasons stand in tools/course_mutants.json. Other mutants that the check passes are
printed: a case is missing.
"""

import argparse
import ast
import hashlib
import io
import itertools
import json
import math
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from mutation import in_child, mutants_of
from torch import Tensor

from glassformer.course import WrongAnswer, lesson
from glassformer.course.checking import (
    SECONDS,
    Exercise,
    Lesson,
    ValuesAlone,
    Verdict,
    answer_data,
    compared,
    exercises,
    outcome,
)
from glassformer.course.exercises.hand_designed import tasks
from glassformer.course.lessons import (
    LABS,
    answer,
    blanked,
    changed,
    read_faults,
    read_lesson,
    run_cells,
)
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.verification import verify
from glassformer.processor_time import ProcessorLimit, TooLong

MOST_CPU_SECONDS = 120.0
NUMBERS = 10, 100
JUDGES = "check", "document", "10 inputs", "100 inputs"
REASONS = Path(__file__).with_suffix(".json")
OTHERS = Path(__file__).parents[1] / "tests" / "course" / "wrong"


@dataclass(frozen=True)
class Wrong:
    """A wrong answer: the whole changed cell."""

    lab: str
    exercise: str
    kind: str
    change: str
    text: str

    def __str__(self) -> str:
        return f"{self.lab}.{self.exercise} {self.change}"


def faults(lab: str) -> list[Wrong]:
    """The faults that people make, and others."""
    cells = {cell.exercise: cell.source for cell in read_lesson(lab)}
    return [
        Wrong(lab, name, kind, f"{fault.change}", changed(cells[name], *fault.change))
        for kind, read in (("faults", read_faults(lab)), ("others", read_faults(lab, OTHERS)))
        for name, listed in read.items()
        for fault in listed
    ]


def without_keywords(source: str) -> Iterator[tuple[int, str, str]]:
    """The source with one named argument left out: its line, the argument, and the text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            every = node.keywords
            for left_out in every:
                node.keywords = [keyword for keyword in every if keyword is not left_out]
                text = ast.unparse(tree)
                key = hashlib.sha256(text.encode()).hexdigest()[:16]
                yield (
                    node.lineno,
                    f"without {ast.unparse(left_out)}: {ast.unparse(node)!r} [{key}]",
                    text,
                )
            node.keywords = every


def mutants(lab: str) -> list[Wrong]:
    """All mutants of a lesson's solutions."""
    wrong_answers = []
    for cell in read_lesson(lab):
        if cell.exercise:
            with tempfile.TemporaryDirectory() as place:
                file = Path(place, "src/glassformer/cell.py")
                file.parent.mkdir(parents=True)
                file.write_text(cell.source, encoding="utf-8")
                listed = [
                    # Without the line, which moves.
                    (
                        mutant.line,
                        str(mutant).partition(" ")[2],
                        mutant.applied(cell.source.encode()).decode(),
                    )
                    for mutant in mutants_of(Path(place), file)
                ]
            begins = [
                i
                for i, line in enumerate(cell.source.splitlines(), 1)
                if "### BEGIN SOLUTION" in line
            ]
            ends = [
                i
                for i, line in enumerate(cell.source.splitlines(), 1)
                if "### END SOLUTION" in line
            ]
            regions = list(zip(begins, ends, strict=True))
            wrong_answers += [
                Wrong(lab, cell.exercise, "mutants", change, text)
                for line, change, text in [*listed, *without_keywords(cell.source)]
                if any(begin < line < end for begin, end in regions)
            ]
    return wrong_answers


# ---- the documents' cells ------------------------------------------------------------------------


HEAD = "from typing import *\nNDArrayFloat = Any\nTO_SAVE = {}\n"
HEAD += "RELATIVE_TOLERANCE, TEST_ITERATIONS = 1e-3, 10\n"
HEAD += "TEST_MIN_SEQ_LEN, TEST_MAX_SEQ_LEN, TEST_INPUT_DIM = 1, 4, 5\n"
TOKENIZER = """
class SimpleTokenizer:
    def __init__(self, vocab_size):
        self.size = vocab_size
    def build_vocab(self, texts):
        self.vocab = build_vocabulary(texts, self.size)
    def tokenize(self, text, max_length):
        return encode(text, self.vocab, max_length)
    def decode(self, ids):
        words = {number: word for word, number in self.vocab.items()}
        return " ".join(words[number] for number in ids if number in words)
"""
POSITIONS = """
class PositionalEncoding:
    def __init__(self, d_model, max_length):
        self.pe = sinusoidal_positions(max_length, d_model)
"""


CONTENT = HEAD + "tokens = list(np.eye(3)); Km, Qm, Vm = content_design()\n"
POSITION = HEAD + "tokens = list(np.eye(3)); Km, Qm, Vm, pos = position_design()\n"
BOTH = HEAD + "*tokens, CLS = np.eye(4); A, B, C = tokens; Km, Qm, Vm, pos = both_design()\n"
TESTS = "rope", "calculate_attention", "calculate_sliding_attention", "transformer", "nucleus"
CELLS = {
    "hand_designed": (
        (HEAD, "def test(seed", "# Save test results", "\ntest()"),
        (CONTENT, "def generate_test_cases_identity", "# Save", ""),
        (POSITION, "def generate_test_cases_first", "# Save", ""),
        (BOTH, "def generate_test_cases_unique", "In [None]:", ""),
    ),
    "sentiment": (
        (TOKENIZER, "# Test the tokenizer", "## 2.2", ""),
        (
            "d_model = 64; token_embed = TokenEmbedding(100, 64)\n",
            "# Test with sample tokens",
            "## 2.3",
            "",
        ),
        (POSITIONS, "# Test positional encoding", "## 2.4", ""),
        ("", "# Test complete embeddings", "---", ""),
        ("", "# Test scaled dot-product attention", "## 3.3", ""),
        ("", "# Test multi-head attention", "---", ""),
        ("", "# Compare with PyTorch's LayerNorm", "## 4.2", ""),
        ("", "# Test feed-forward network", "## 4.3", ""),
        ("", "# Test complete transformer block", "# Visualize the transformer block", ""),
        ("device = 'cpu'\n", "# Test complete transformer\nconfig", "## 5.2", ""),
    ),
    "lookup": (),  # its document tests nothing
    "gpt_oss": [
        ("", f"def test_{name}()", f"\ntest_{name}()", f"\ntest_{name}()") for name in TESTS
    ],
}
"""What comes before a cell, its beginning and end in the document, and what comes after."""


@cache
def document_cells(directory: Path, lab: str) -> list[str]:
    """The test cells of a lesson's document."""
    text = (directory / f"{lab}.txt").read_text(encoding="utf-8")
    cells = []
    for before, begin, end, after in CELLS[lab]:
        start = text.index(begin)
        cells.append(before + text[start : text.index(end, start + len(begin))] + after)
    return cells


def failing(lab: str, exercise: str, text: str, cells: list[str]) -> list[int]:
    """The numbers of the cells that raise an error where ``text`` answers an exercise."""
    parts = [
        text if cell.exercise == exercise else cell.source
        for cell in read_lesson(lab)
        if cell.exercise or "setup" in cell.metadata.get("tags", ())
    ]
    library = vars(__import__(f"glassformer.labs.{lab}", fromlist=["course"]))
    failed = []
    for number, cell in enumerate(cells):
        try:
            names = {
                **library,
                **run_cells(parts),
                "np": np,
                "plt": plt,
                "random": random,
                "torch": torch,
            }
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002 - the documents' generator
            torch.manual_seed(0)
            exec("from __future__ import annotations\n" + cell, names)
        except Exception as error:
            print(f"cell {number}: {error!r}")
            failed.append(number)
    return failed


# ---- random inputs -------------------------------------------------------------------------------


def numbers(value: Any) -> Iterator[Tensor | np.ndarray]:
    """The tensors and arrays in a case."""
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers(part)


def usual(exercise: Exercise) -> list[int]:
    """The numbers of the cases that random inputs are drawn from."""
    sizes = []
    pairs = zip(
        *(exercise.cases(torch.Generator().manual_seed(seed)) for seed in (1, 2)), strict=True
    )
    for case, other_case in pairs:
        parts = list(numbers(case))
        drawn = any(
            not np.array_equal(first, second)
            for first, second in zip(parts, numbers(other_case), strict=True)
        )
        wide = any(isinstance(part, Tensor) and part.dtype == torch.float64 for part in parts)
        ordinary = not isinstance(case, ValuesAlone)
        sizes.append(math.prod(parts[0].shape) if drawn and ordinary and not wide else 0)
    return [number for number, size in enumerate(sizes) if size == max(sizes)]


def inputs(lab: str, exercise: Exercise | Verdict, seed: int) -> list[Any]:
    """Random inputs with the library's outcomes; for a design, sequences."""
    if isinstance(exercise, Verdict):
        if lab != "hand_designed":
            return []
        space = tasks()[exercise.name].space
        return [space.decode(letters) for letters in space.sample(max(NUMBERS), seed)]
    places = usual(exercise)
    rng = random.Random(seed)
    drawn = []
    for number in range(max(NUMBERS)):
        generator = torch.Generator().manual_seed(10_000 * (seed + 1) + number)
        place = rng.choice(places)
        case = next(itertools.islice(exercise.cases(generator), place, None))
        with redirect_stdout(io.StringIO()):
            expected = outcome(replace(exercise, gradients=False), exercise.expected, case)
        assert expected.error is None, expected.error
        drawn.append((case, expected))
    return drawn


def first_wrong(exercise: Exercise | Verdict, submitted: Any, drawn: list[Any]) -> int:
    """How many of the inputs are right before the first that is not."""
    for number, drawn_input in enumerate(drawn):
        if isinstance(exercise, Verdict):
            try:
                right = verify(
                    HeadWeights(*submitted),
                    replace(tasks()[exercise.name], examples=(drawn_input,)),
                ).holds
            except Exception:
                right = False
        else:
            values = replace(exercise, gradients=False)
            right = (
                compared(values, drawn_input[1], outcome(values, submitted, drawn_input[0])) is None
            )
        if not right:
            return number
    return len(drawn)


# ---- judging -------------------------------------------------------------------------------------


def judged(
    wrong: Wrong, exercise: Exercise | Verdict, drawn: list[Any], cells: list[str]
) -> dict[str, Any]:
    """What each judge says: True if the answer is refused, None if it cannot be judged."""
    refused: dict[str, Any] = dict.fromkeys(JUDGES)
    try:
        with ProcessorLimit(SECONDS):
            submitted = answer(wrong.lab, wrong.exercise, text=wrong.text)
    except Exception as error:
        print(repr(error))
        return {"check": True, "document": True if cells else None} | {
            f"{most} inputs": True if drawn else None for most in NUMBERS
        }
    try:
        lesson(wrong.lab)(wrong.exercise, submitted)
        refused["check"] = False
    except WrongAnswer as error:
        if "no result within" in str(error):
            raise TooLong from error
        refused["check"] = True
    with ProcessorLimit(6 * SECONDS):
        if drawn:
            try:
                data = (
                    answer_data(exercise, submitted) if isinstance(exercise, Verdict) else submitted
                )
                right = first_wrong(exercise, data, drawn)
            except WrongAnswer:
                right = 0
            refused |= {f"{most} inputs": right < most for most in NUMBERS}
        if cells:
            refused["document"] = bool(failing(wrong.lab, wrong.exercise, wrong.text, cells))
    return refused


def judge_all(
    answers: list[Wrong], directory: Path | None, seed: int, log: Path
) -> Iterator[tuple[Wrong, Any]]:
    """Each wrong answer with what the judges say; a text where it took too long."""
    for (lab, name), group in itertools.groupby(
        answers, key=lambda wrong: (wrong.lab, wrong.exercise)
    ):
        exercise = exercises(lab)[name]
        cells = document_cells(directory, lab) if directory else []
        cell = next(cell for cell in read_lesson(lab) if cell.exercise == name)

        def fails(
            text: str, lab: str = lab, name: str = name, cells: list[str] = cells
        ) -> list[int]:
            done = in_child(
                lambda: {"cells": failing(lab, name, text, cells)}, MOST_CPU_SECONDS, log
            )
            return done["cells"]

        assert not fails(cell.source), (lab, name)
        cells = [cells[number] for number in fails(blanked(cell))]
        drawn = inputs(lab, exercise, seed)
        right = Wrong(lab, name, "right", "", cell.source)
        for wrong in (right, *group):

            def work(wrong: Wrong = wrong) -> dict[str, Any]:
                return {"refused": judged(wrong, exercise, drawn, cells)}  # noqa: B023 - called in this turn

            done = in_child(work, MOST_CPU_SECONDS, log)
            refused = done.get("refused")
            if (
                refused is None
                and done["ended"] != "time limit"
                and "TooLong" not in log.read_text()
            ):
                raise RuntimeError(f"{wrong}: see {log}")
            if wrong is right:
                assert refused, (lab, name)
                assert not any(refused.values()), (lab, name, refused)
            else:
                yield wrong, refused


def is_right(wrong: Wrong, refused: dict[str, Any] | None, reasons: dict[str, str]) -> bool:
    """Whether a mutant that the check passes is right too."""
    passed = wrong.kind == "mutants" and refused is not None and not refused["check"]
    return passed and (
        str(wrong) in reasons or isinstance(exercises(wrong.lab)[wrong.exercise], Verdict)
    )


def table(results: list[tuple[Wrong, Any]], reasons: dict[str, str]) -> list[dict[str, Any]]:
    """A row for each kind and lesson: by judge, the refused and the judged answers."""
    rows = []
    for kind, lab in itertools.product(("faults", "others", "mutants"), (*LABS, "all")):
        chosen = [
            (wrong, refused)
            for wrong, refused in results
            if wrong.kind == kind and lab in (wrong.lab, "all")
        ]
        counted = [
            (wrong, refused)
            for wrong, refused in chosen
            if refused and not is_right(wrong, refused, reasons)
        ]
        row: dict[str, Any] = {"kind": kind, "lesson": lab, "answers": len(chosen)}
        row["right"] = sum(is_right(*entry, reasons) for entry in chosen)
        row["too slow"] = sum(refused is None for _, refused in chosen)
        for judge in JUDGES:
            judged_by = [
                (wrong, refused[judge]) for wrong, refused in counted if refused[judge] is not None
            ]
            row[judge] = [sum(is_refused for _, is_refused in judged_by), len(judged_by)]
            row[f"exercises: {judge}"] = len(
                {(wrong.lab, wrong.exercise) for wrong, _ in judged_by}
            )
        rows.append(row)
    return [row for row in rows if row["answers"]]


def main() -> None:
    """Judge the wrong answers, print the table and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labs", nargs="*", default=LABS)
    parser.add_argument("--count", type=int, help="mutants; all of them if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--documents", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/course-mutants.json"))
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # autograd's threads for GPUs do not survive a fork
    torch.set_num_threads(1)
    # Which fault an answer looks like takes longest, and refuses nothing.
    Lesson._suspicion = lambda *_: ""  # type: ignore[method-assign]
    plt.switch_backend("agg")
    plt.show = lambda *_, **__: plt.close("all")
    every = [mutant for lab in options.labs for mutant in mutants(lab)]
    order = sorted(
        every, key=lambda mutant: hashlib.sha256(f"{options.seed} {mutant}".encode()).digest()
    )
    answers = [fault for lab in options.labs for fault in faults(lab)] + order[: options.count]
    answers.sort(key=lambda wrong: (wrong.lab, wrong.exercise))
    reasons = json.loads(REASONS.read_text(encoding="utf-8"))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = []
    for wrong, refused in judge_all(
        answers, options.documents, options.seed, options.out.with_suffix(".log")
    ):
        results.append((wrong, refused))
        if refused is None or not (refused["check"] or is_right(wrong, refused, reasons)):
            print("too slow:" if refused is None else "passed:", wrong, flush=True)
    rows = table(results, reasons)
    print(f"{len(every)} mutants in all", *rows, sep="\n")
    listed = [
        {"answer": str(wrong), "kind": wrong.kind, "refused": refused} for wrong, refused in results
    ]
    options.out.write_text(
        json.dumps({"table": rows, "answers": listed}, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
