"""Verifying the course's three heads on every sequence: with a certificate, and with NumPy.

    python benchmarks/verify.py [--rounds 15] [--out benchmarks/verification.json]

Each turn is five calls. Both are given the sequences, one-hot, with their targets; "with the
listing" also makes these anew each time for us.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from timing import in_turns

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import Task, copy_first, identity, unique
from glassformer.handcraft.verification import verify

HERE = Path(__file__).parent
MAKERS = (identity, copy_first, unique)


def one_by_one(head: HeadWeights, sequences: list[np.ndarray], targets: list[np.ndarray]) -> float:
    """The largest error, from the NumPy twin."""
    twin = NumpyHead(head)
    return max(
        float(np.abs(twin(x)[-len(y) :] - y).max()) for x, y in zip(sequences, targets, strict=True)
    )


def prepared(task: Task) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Every sequence as vectors, with the targets of its letters."""
    cases = task.all_cases
    sequences = [
        x[real] for x, real in zip(task.space.one_hot(cases.block), cases.block.real, strict=True)
    ]
    return sequences, [
        target[counted] for target, counted in zip(cases.target, cases.counted, strict=True)
    ]


def main() -> None:
    """Measure, print, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE / "verification.json")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    tasks = [make() for make in MAKERS]
    heads = [design(task).weights for task in tasks]
    inputs = [prepared(task) for task in tasks]
    seconds = in_turns(
        {
            "verify": lambda: [verify(head, task) for head, task in zip(heads, tasks, strict=True)],
            "verify, with the listing": lambda: [
                verify(head, make()) for head, make in zip(heads, MAKERS, strict=True)
            ],
            "NumPy twin": lambda: [
                one_by_one(head, *head_inputs)
                for head, head_inputs in zip(heads, inputs, strict=True)
            ],
        },
        arguments.rounds,
        repeats=5,
    )
    differences = [
        abs(verify(head, task).largest_error - one_by_one(head, *head_inputs))
        for head, task, head_inputs in zip(heads, tasks, inputs, strict=True)
    ]
    result = {
        "sequences": [task.count for task in tasks],
        "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
        "times_as_fast": {
            name: seconds["NumPy twin"] / value
            for name, value in seconds.items()
            if name != "NumPy twin"
        },
        "largest_difference_of_largest_errors": max(differences),
    }
    for name, value in result["milliseconds"].items():
        print(f"{name:<26}{value:8.2f} ms   {seconds['NumPy twin'] / seconds[name]:6.1f}x")
    print(f"largest errors differ by at most {max(differences):.1e}")
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
