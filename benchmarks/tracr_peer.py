"""tracr's half of benchmarks/programs.py: requests on stdin, answers on stdout.

    python benchmarks/tracr_peer.py

Each line is a JSON object. ``{"do": "cases"}`` answers tracr's test cases; ``"compile"``, ``"run"``
and ``"time"`` take a ``"case"``, and ``"run"`` and ``"time"`` use what was compiled last.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from tracr.compiler import compiling, test_cases

jax.config.update("jax_default_matmul_precision", "float32")
BOS = "compiler_bos"


def cases() -> dict[str, dict[str, Any]]:
    """tracr's integration tests by name: 43, one for causal models alone, and unsupported ones."""
    cases = {case["testcase_name"]: {**case, "causal": False} for case in test_cases.TEST_CASES}
    for case in [*test_cases.CAUSAL_TEST_CASES, *test_cases.UNSUPPORTED_TEST_CASES]:
        cases.setdefault(case["testcase_name"], {**case, "causal": True})
    return cases


class Peer:
    """Answers requests."""

    def __init__(self) -> None:
        self.all = cases()
        self.case: dict[str, Any] = {}

    def versions(self) -> dict[str, str]:
        """Of what this half depends on."""
        return {name: version(name) for name in ("jax", "dm-haiku")}

    def cases(self) -> dict[str, Any]:
        """What a case is, but for its program."""
        fields = ("test_input", "expected_output", "max_seq_len", "causal")
        return {
            name: {"vocabulary": sorted(case["vocab"]), **{key: case.get(key) for key in fields}}
            for name, case in self.all.items()
        }

    def compile(self, case: str) -> dict[str, Any]:
        """Seconds, layers, width, parameters."""
        self.case = case_data = self.all[case]
        start = time.perf_counter()
        try:
            self.model = compiling.compile_rasp_to_model(
                case_data["program"],
                case_data["vocab"],
                case_data["max_seq_len"],
                causal=case_data["causal"],
                compiler_bos=BOS,
            )
        except NotImplementedError:
            return {"refused": True}
        self.encoder = self.model.input_encoder
        self.network = jax.jit(self.model.forward)
        sizes = [array.size for part in self.model.params.values() for array in part.values()]
        return {
            "seconds": time.perf_counter() - start,
            "layers": self.model.model_config.num_layers,
            "width": len(self.model.residual_labels),
            "parameters": int(sum(sizes)),
        }

    def run(self, sequences: list[list[Any]], exact: list[list[Any]]) -> dict[str, Any]:
        """Outputs of sequences of one length, and the largest error of values but None."""
        tokens = np.array([self.encoder.encode([BOS, *sequence]) for sequence in sequences])
        output = self.network(self.model.params, tokens)
        numbers = np.array(output.unembedded_output)[:, 1:]
        known = np.array([[value is not None for value in row] for row in exact])
        values = list(getattr(self.model.output_encoder, "encoding_map", {}))
        if values:
            label = self.case["program"].label
            columns = [self.model.residual_labels.index(f"{label}:{value}") for value in values]
            ideal = np.array(
                [[[entry == value for entry in values] for value in row] for row in exact],
                np.float32,
            )
            errors = np.abs(np.array(output.transformer_output.output)[:, 1:, columns] - ideal).max(
                -1
            )
            outputs = [[values[index] for index in row] for row in numbers.tolist()]
        else:
            ideal = np.array([[value or 0 for value in row] for row in exact], np.float32)
            errors = np.abs(numbers - ideal)
            outputs = numbers.tolist()
        return {"outputs": outputs, "error": float(errors[known].max(initial=0.0))}

    def time(self, repeats: int) -> dict[str, float]:
        """Return median seconds of an input, by tracr's ``apply`` and by ``jax.jit``."""
        sequence = [BOS, *self.case["test_input"]]
        tokens = np.array([self.encoder.encode(sequence)])
        calls = {
            "run": lambda: self.model.apply(sequence),
            "network": lambda: self.network(
                self.model.params, tokens
            ).unembedded_output.block_until_ready(),
        }
        return {name: median(call, repeats) for name, call in calls.items()}


def median(call: Any, repeats: int) -> float:
    """Median seconds of some calls after two that are not counted."""
    seconds = []
    for turn in range(repeats + 2):
        start = time.perf_counter()
        call()
        if turn >= 2:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    """Answer until stdin ends."""
    peer = Peer()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(peer, request.pop("do"))(**request)), flush=True)


if __name__ == "__main__":
    main()
