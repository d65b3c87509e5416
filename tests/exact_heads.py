"""Heads whose outputs are near what decides, and their outputs in exact arithmetic, in NumPy and in
PyTorch.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch

from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead, SingleHead
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import Certificate, verify
from glassformer.kernels import plain

DIGITS = 60


class Trial(NamedTuple):
    """A head with the task and the criterion that it is judged by."""

    head: HeadWeights
    task: Task
    tolerance: float | None
    dtype: torch.dtype


def exact_outputs(head: HeadWeights, space: SequenceSpace, letters: np.ndarray) -> list[list[Any]]:
    """The outputs for the letters of a sequence with 60 digits more than its scores have before the
    point.
    """
    block = space.block([letters])
    x = head.with_positions(space.one_hot(block)[0])
    exact = np.vectorize(Fraction, otypes=[object])
    rows = exact(x)
    keys, queries, values = (rows @ exact(matrix) for matrix in (head.Km, head.Qm, head.Vm))
    products = queries @ keys.T
    largest = max(abs(product) for product in products.flat)
    digits = len(str(int(largest)))
    with mpmath.workdps(DIGITS + digits):
        root = mpmath.sqrt(head.qk_dim)
        number = lambda value: mpmath.mpf(value.numerator) / value.denominator  # noqa: E731
        value_rows = [[number(value) for value in row] for row in values.tolist()]
        outputs = []
        for row in products.tolist():
            scores = [number(product) / root for product in row]
            weights = [mpmath.exp(score - max(scores)) for score in scores]
            total = mpmath.fsum(weights)
            columns = zip(*value_rows, strict=True)
            outputs.append([mpmath.fdot(weights, column) / total for column in columns])
        return outputs[int(space.has_cls) :]


def is_right(trial: Trial, output: list[Any], target: list[float]) -> bool:
    """Whether an output of any numbers is right, without NumPy."""
    if trial.tolerance is not None:
        return all(
            abs(one - other) <= trial.tolerance for one, other in zip(output, target, strict=True)
        )
    if trial.task.readout == "sign":
        return all(
            (one > 0) - (one < 0) == (other > 0) - (other < 0)
            for one, other in zip(output, target, strict=True)
        )
    least = max(target) - 1e-9 * max(map(abs, target))
    wanted = [one for one, other in zip(output, target, strict=True) if other >= least]
    others = [one for one, other in zip(output, target, strict=True) if other < least]
    return not others or max(wanted) > max(others)


def of_every_path(
    trial: Trial, rng: np.random.Generator
) -> Iterator[tuple[str, list[list[list[Any]]]]]:
    """The outputs for every sequence of the task, by each way of computing them."""
    head = trial.head
    space = trial.task.space
    first = int(space.has_cls)
    block = trial.task.all_cases.block
    lengths = block.real.sum(axis=1)
    inputs = space.one_hot(block)
    module = SingleHead.from_weights(head, trial.dtype)
    rounded = module.to_weights()
    letters = [tokens[first:length] for tokens, length in zip(block.tokens, lengths, strict=True)]
    yield "exact", [exact_outputs(rounded, space, each) for each in letters]
    if trial.dtype == torch.float64:
        twin = NumpyHead(head)
        yield "NumPy", [twin(x[:n])[first:].tolist() for x, n in zip(inputs, lengths, strict=True)]
    tensors = torch.from_numpy(inputs).to(trial.dtype)
    with torch.no_grad():
        alone = [
            module(x[:n])[first:].tolist() for x, n in zip(tensors, lengths.tolist(), strict=True)
        ]
        yield "module", alone
        for name, size in (("batch", len(tensors)), ("shuffled", 7), ("definition", len(tensors))):
            order = rng.permutation(len(tensors)) if name == "shuffled" else np.arange(len(tensors))
            outputs: list[Any] = [None] * len(tensors)
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                longest = int(lengths[rows].max())
                real = torch.from_numpy(block.real[rows, :longest])
                if name == "definition":
                    with plain():
                        found = module(tensors[rows, :longest], real)
                else:
                    found = module(tensors[rows, :longest], real)
                for row, output in zip(rows.tolist(), found, strict=True):
                    outputs[row] = output[first : lengths[row]].tolist()
            yield name, outputs


def contradictions(trial: Trial, certificate: Certificate, seed: int) -> list[str]:
    """What contradicts a certificate: a wrong output where it holds, a right one where it fails."""
    if certificate.verdict == "undecided":
        return []
    found = []
    cases = trial.task.all_cases
    first = int(trial.task.space.has_cls)
    targets = [
        target[counted].tolist()
        for target, counted in zip(cases.target, cases.counted, strict=True)
    ]
    failure = certificate.counterexample
    for name, outputs in of_every_path(trial, np.random.default_rng(seed)):
        for row, (output, target) in enumerate(zip(outputs, targets, strict=True)):
            right = [is_right(trial, one, other) for one, other in zip(output, target, strict=True)]
            text = trial.task.space.decode(cases.block.tokens[row, first : first + len(target)])
            if failure is None:
                found += [
                    f"{name}: {text} at {at} is wrong" for at, good in enumerate(right) if not good
                ]
            elif text == failure.sequence and right[failure.position]:
                found.append(f"{name}: {text} at {failure.position} is right")
    return found


def near_zero(seed: int) -> Trial:
    """A random head of which an output is near what decides."""
    rng = np.random.default_rng(seed)
    task = _random_task(rng)
    space = task.space
    pos_dim = int(rng.choice([0, 0, 1, 2]))
    rows = space.num_tokens + pos_dim
    qk_dim = int(rng.integers(1, 5))
    km, qm = rng.normal(size=(2, rows, qk_dim)) * 10.0 ** rng.choice(
        [-200, -20, -3, 0, 0, 0, 1, 1.5, 3, 8, 15]
    )
    kind = rng.integers(5)
    if kind == 0:
        km[:] = 0.0  # equal scores
    if kind == 1:
        km = np.round(km)
        qm = np.round(qm)
    vm = rng.normal(size=(rows, task.v_dim))
    if kind <= 1 or rng.random() < 0.3:
        vm = np.round(3 * vm) / rng.choice([1, 3, 7, 10])
    if rng.random() < 0.2:
        vm *= 10.0 ** rng.uniform(-18, 18, size=vm.shape)
    pos = rng.normal(size=(space.num_positions, pos_dim)) if pos_dim else None
    head = HeadWeights(km, qm, vm, pos)
    tolerance = None if rng.random() < 0.6 else float(10.0 ** rng.uniform(-9, 0))
    head = _moved(head, task, rng, tolerance)
    if tolerance is None and rng.random() < 0.3:
        scale = 10.0 ** rng.choice([-320, -308, -300, -100, -30, 30, 100, 280])
        head = HeadWeights(head.Km, head.Qm, head.Vm * scale, head.pos)
    elif tolerance is not None and rng.random() < 0.7:
        tolerance = _at_the_boundary(head, task, rng, tolerance)
    dtype = torch.float32 if rng.random() < 0.2 and np.abs(head.Vm).max() < 1e30 else torch.float64
    return Trial(head, task, tolerance, dtype)


def _random_task(rng: np.random.Generator) -> Task:
    name = str(rng.choice(list(TASKS)))
    letters, max_len = (
        ("AB", 3)
        if name == "parity"
        else [("A", 1), ("A", 3), ("AB", 2), ("AB", 3), ("ABC", 2)][rng.integers(5)]
    )
    task = TASKS[name](letters, max_len)
    if task.readout == "sign" and rng.random() < 0.5:
        # A target that the head may have: the signs of a random head's own outputs.
        sign = float(rng.choice([-1.0, 1.0]))
        target = lambda x: np.full((*x.shape, 1), sign)  # noqa: E731
        task = replace(
            task, target=target, description=None, decisive_error=float(rng.choice([0.0, 1.0]))
        )
    elif rng.random() < 0.3:
        own = int(rng.integers(task.v_dim))
        target = lambda x: np.broadcast_to(np.eye(task.v_dim)[own], (*x.shape, task.v_dim))  # noqa: E731
        task = replace(task, target=target, description=None, decisive_error=0.0)
    return task


def _moved(
    head: HeadWeights, task: Task, rng: np.random.Generator, tolerance: float | None
) -> HeadWeights:
    """The head with a value changed so that an output of a sequence is nearly where its reading
    changes.
    """
    cases = task.all_cases
    first = int(task.space.has_cls)
    row = int(rng.integers(len(cases.inputs)))
    x = cases.inputs[row][cases.block.real[row]]
    trace = NumpyHead(head).trace(x)
    position = int(rng.integers(first, len(x)))
    key = int(trace.weights[position].argmax())
    token = int(cases.block.tokens[row, key])
    column = int(rng.integers(task.v_dim))
    share = trace.weights[position][cases.block.tokens[row][: len(x)] == token].sum()
    output = trace.output[position]
    target = cases.target[row, position]
    wanted = 0.0
    if tolerance is not None:
        wanted = target[column] + float(rng.choice([-1, 1])) * tolerance
    elif task.readout == "argmax":
        wanted = float(np.delete(output, column).max(initial=0.0))
    wanted += (
        float(rng.choice([0, 0, 1, -1]))
        * 10.0 ** rng.uniform(-18, -10)
        * max(1.0, np.abs(head.Vm).max())
    )
    vm = head.Vm.copy()
    vm[token, column] += (wanted - output[column]) / share
    return HeadWeights(head.Km, head.Qm, vm, head.pos)


def _at_the_boundary(
    head: HeadWeights, task: Task, rng: np.random.Generator, tolerance: float
) -> float:
    """The largest error of the head, or a neighbour of it."""
    with np.errstate(all="ignore"):
        error = verify(head, task, tolerance=tolerance).largest_error
    if not 0 < error < 1e300:
        return tolerance
    steps = int(rng.integers(-3, 4))
    for _ in range(abs(steps)):
        error = float(np.nextafter(error, np.inf if steps > 0 else 0.0))
    return error * float(rng.choice([1.0, 1.0, 1 + 1e-14, 1 - 1e-14, 1 + 1e-12]))
