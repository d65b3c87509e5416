"""Compiled programs beside tracr's: the programs of tracr's tests, compiled, run and timed.

    python benchmarks/programs.py [--tracr-python PATH] [--repeats 20] [--only NAME]
                                  [--out benchmarks/programs.json]

tracr runs in a process of its own, ``benchmarks/tracr_peer.py``, with any interpreter that can
import it (and JAX, its dependency); without one the benchmark says so and measures nothing. Both
sides have weights in float32.

The *error* is how far the numbers before decoding are from what they should be, where the value is
not None: of tracr's one-hot vectors, in any coordinate, from 0 or 1; of numbers, from the exact
number rounded to float32.
"""

from __future__ import annotations

import argparse
import json
import operator
import random
import statistics
import subprocess
import sys
import time
from fractions import Fraction
from numbers import Rational
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import in_turns, keep

from glassformer.errors import InputError
from glassformer.programs import (
    Variable,
    aggregate,
    compile_program,
    elementwise,
    everything,
    indices,
    select,
    selector_width,
    tokens,
    verify_program,
)
from glassformer.programs import library as lib

HERE = Path(__file__).parent

PROGRAMS: dict[str, Variable] = {
    "frac_prevs_1": lib.share_so_far(tokens == "l"),
    "frac_prevs_2": lib.share_so_far(tokens == "("),
    "frac_prevs_3": lib.share_so_far(tokens == ")"),
    "shift_by_one": lib.shift(tokens, 1),
    "shift_by_two": lib.shift(tokens, 2),
    "detect_pattern_a": lib.detect(tokens, "a"),
    "detect_pattern_ab": lib.detect(tokens, "ab"),
    "detect_pattern_abc": lib.detect(tokens, "abc"),
    "reverse": lib.reverse(),
    "length": lib.length,
    "pair_balance": lib.pair_balance("(", ")"),
    "shuffle_dyck2": lib.shuffle_dyck(["()", "{}"]),
    "shuffle_dyck3": lib.shuffle_dyck(["()", "{}", "[]"]),
    "hist": lib.histogram(),
    "sort_unique_1": lib.sort_unique(tokens, tokens),
    "sort_unique_2": lib.sort_unique(tokens, 1 - indices),
    "sort_1": lib.sort(),
    "sort_2": lib.sort(tokens, 1 - indices),
    "sort_3": lib.sort(),
    "sort_freq": lib.sort_by_frequency(),
    "make_count_less_freq": lib.count_less_frequent(2),
    "make_count": lib.count(tokens, "a"),
    "make_nary_sequencemap_1": elementwise(lambda x, y, z: x + y - z, tokens, tokens, indices),
    "make_nary_sequencemap_2": elementwise(
        lambda x, y, z: Fraction(x * y, z), indices, indices, tokens
    ),
    "selector_width": lib.length,
    # what tracr lists as unsupported
    "numerical_categorical_aggregate": aggregate(everything, tokens),
    "categorical_numerical_aggregate": aggregate(everything, tokens),
    "numerical_numerical_aggregate": aggregate(everything, tokens, 0),
    "aggregate_with_not_None_default": aggregate(select(indices, indices, operator.eq), tokens, 1),
    "numerical_selector": selector_width(select(tokens, tokens, operator.lt)),
    "numerical_SequenceMap": indices + tokens,
    "categorical_LinearSequenceMap": indices + tokens,
    "numerical_tokens": tokens,
    "numerical_indices": indices,
}
"""The programs of tracr's tests, by the longest beginning of a test's name."""


class Tracr:
    """tracr in a process of its own."""

    def __init__(self, python: str) -> None:
        command = [python, str(HERE / "tracr_peer.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **options: Any) -> Any:
        """Its answer to a request.

        Raises:
            ChildProcessError: It has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **options}, default=float) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildProcessError("tracr's process has ended")
        return json.loads(answer)


def program_of(test: str) -> Variable:
    """Ours for one of tracr's tests."""
    return PROGRAMS[max((name for name in PROGRAMS if test.startswith(name)), key=len)]


class Ours:
    """Our programs, with the same requests as tracr's process."""

    def __init__(self, cases: dict[str, Any]) -> None:
        self._cases = cases

    def compile(self, case: str) -> dict[str, Any]:
        """Seconds, layers, width, parameters."""
        case_data = self._cases[case]
        start = time.perf_counter()
        model = compile_program(
            program_of(case),
            case_data["vocabulary"],
            case_data["max_seq_len"],
            causal=case_data["causal"],
            dtype=torch.float32,
        )
        seconds = time.perf_counter() - start
        self._model = model
        self._sequence = case_data["test_input"]
        width = model.embedding.embedding_dim
        layers = len(model.layers)
        return {
            "seconds": seconds,
            "layers": layers,
            "width": width,
            "parameters": model.num_parameters,
        }

    def verify(self) -> str:
        """Return the verdict on the compiled program: from all sequences, at most a million."""
        return verify_program(self._model).verdict

    def sequences(self, most: int) -> tuple[list[list[Any]], list[list[Any]]]:
        """Random different sequences of the greatest length with a value, and their values."""
        domains = self._model.domains
        draw = random.Random(0)
        possible = len(domains.vocabulary) ** domains.max_len
        answers: tuple[list[list[Any]], list[list[Any]]] = [], []
        for number in draw.sample(range(possible), min(possible, most)):
            digits = np.base_repr(number, len(domains.vocabulary)).rjust(domains.max_len, "0")
            sequence = [domains.vocabulary[int(digit)] for digit in digits]
            try:
                values = self.exact(sequence)
            except InputError:
                continue
            answers[0].append(sequence)
            answers[1].append(values)
        return answers

    def exact(self, sequence: list[Any]) -> list[Any]:
        """What the program's definition gives."""
        return self._model.program(sequence, causal=self._model.domains.causal)

    @torch.inference_mode()
    def run(self, sequences: list[list[Any]], exact: list[list[Any]]) -> dict[str, Any]:
        """The outputs of sequences of one length, and the largest error of values but None."""
        codes = {value: number for number, value in self._model.codes or ()}
        numbers = self._model(self._ids(sequences)).numpy()
        ideal = np.array([[codes.get(value, value) for value in row] for row in exact], np.float32)
        known = np.array([[value is not None for value in row] for row in exact])
        outputs = [self._model.decode(row) for row in numbers.tolist()]
        return {"outputs": outputs, "error": float(np.abs(numbers - ideal)[known].max(initial=0.0))}

    @torch.inference_mode()
    def time(self, repeats: int) -> dict[str, float]:
        """Median seconds of an input: by ``run``, and by the network alone."""
        ids = self._ids([self._sequence])
        calls = {
            "run": lambda: self._model.run(self._sequence),
            "network": lambda: self._model(ids),
        }
        return in_turns(calls, repeats)

    def _ids(self, sequences: list[list[Any]]) -> torch.Tensor:
        return torch.tensor(
            [
                [self._model.domains.vocabulary.index(token) for token in sequence]
                for sequence in sequences
            ]
        )


def same(outputs: list[list[Any]], expected: list[list[Any]]) -> int:
    """How many outputs are right, by the rule of tracr's tests.

    Where None is expected, any output is right; numbers are right to 0.5 %.
    """

    def close(value: Any, right: Any) -> bool:
        if right is None or value == right:
            return True
        numbers = all(isinstance(number, Rational | float) for number in (value, right))
        return numbers and abs(float(value) - float(right)) <= 1e-7 + 0.005 * abs(float(right))

    rows = zip(outputs, expected, strict=True)
    return sum(all(map(close, row, right)) for row, right in rows)


def compare(
    our_side: Ours, tracr: Tracr, name: str, case: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """The row of one test: sizes, errors and seconds of both."""
    row = {"test": name, "ours": our_side.compile(name), "tracr": tracr.ask("compile", case=name)}
    row["ours"]["verdict"] = our_side.verify()
    if case["test_input"] is None:
        return row
    # The first time, JAX compiles operations of new shapes.
    again = {"ours": our_side.compile(name), "tracr": tracr.ask("compile", case=name)}
    for side, compiled in again.items():
        row[side]["seconds_again"] = compiled["seconds"]
    inputs = [case["test_input"]]
    expected = [case["expected_output"]]
    sequences, exact = our_side.sequences(options.sequences)
    ask = {"ours": lambda do, **more: getattr(our_side, do)(**more), "tracr": tracr.ask}
    for side, request in ask.items():
        test = request("run", sequences=inputs, exact=[our_side.exact(inputs[0])])
        ran = request("run", sequences=sequences, exact=exact)
        row[side] |= {
            "as_expected": same(test["outputs"], expected) == 1,
            "error_in_test": test["error"],
        }
        row[side] |= {
            "sequences": len(exact),
            "right": same(ran["outputs"], exact),
            "error": ran["error"],
        }
    turns = [
        {side: request("time", repeats=options.repeats) for side, request in ask.items()}
        for _ in range(options.rounds)
    ]
    for side in ask:
        for what in ("run", "network"):
            row[side][what] = statistics.median(turn[side][what] for turn in turns)
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the tests that both run: our sizes and seconds divided by tracr's, and errors."""
    common_rows = [row for row in rows if "right" in row["tracr"]]

    def ratios(what: str) -> dict[str, float]:
        quotients = [row["ours"][what] / row["tracr"][what] for row in common_rows]
        return {
            "least": min(quotients),
            "median": statistics.median(quotients),
            "largest": max(quotients),
        }

    return {
        "tests": len(common_rows),
        "refused_by_tracr": len(rows) - len(common_rows),
        "holds": sum(row["ours"]["verdict"] == "holds" for row in rows),
        "smaller_error": sum(row["ours"]["error"] < row["tracr"]["error"] for row in common_rows),
        "equal_error": sum(row["ours"]["error"] == row["tracr"]["error"] for row in common_rows),
        **{
            side: {
                "as_expected": sum(row[side]["as_expected"] for row in common_rows),
                "all_right": sum(
                    row[side]["right"] == row[side]["sequences"] for row in common_rows
                ),
                "largest_error": max(row[side]["error"] for row in common_rows),
            }
            for side in ("ours", "tracr")
        },
        **{
            what: ratios(what)
            for what in (
                "layers",
                "width",
                "parameters",
                "seconds",
                "seconds_again",
                "run",
                "network",
            )
        },
    }


def main() -> None:
    """Measure, print, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tracr-python", default=sys.executable, help="an interpreter that can import tracr"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--sequences",
        type=int,
        default=500,
        help="of the greatest length, run beside the test's input",
    )
    parser.add_argument("--only", default="", help="the beginning of a test's name")
    parser.add_argument("--out", type=Path, default=HERE / "programs.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    answer = subprocess.run(
        [arguments.tracr_python, "-c", "import tracr.compiler.compiling"], capture_output=True
    )
    if answer.returncode != 0:
        print(f"skipped: {arguments.tracr_python} cannot import tracr; see --tracr-python")
        return
    tracr = Tracr(arguments.tracr_python)
    cases = tracr.ask("cases")
    our_side = Ours(cases)
    rows = []
    for name, case in cases.items():
        if name.startswith(arguments.only):
            rows.append(compare(our_side, tracr, name, case, arguments))
            print(json.dumps(rows[-1]), flush=True)
    shown = summary(rows)
    print(json.dumps(shown, indent=2))
    keep({"rows": rows, "summary": shown}, arguments.out, tracr=tracr.ask("versions"))


if __name__ == "__main__":
    main()
