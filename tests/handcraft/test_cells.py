"""Each cell changed alone: shares against loops over sequences."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glassformer.handcraft.cells import Way, change_cells
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS


def share_misread(head: HeadWeights, letters: int, max_len: int) -> float:
    """Of the outputs of copy_first, over a loop of all sequences; a tie is misread."""
    wrong = total = 0
    for length in range(1, max_len + 1):
        for sequence in product(range(letters), repeat=length):
            for output in NumpyHead(head)(np.eye(letters)[list(sequence)]):
                others = np.delete(output, sequence[0])
                wrong, total = wrong + int(output[sequence[0]] <= others.max()), total + 1
    return wrong / total


@pytest.mark.parametrize("seed", [None, 0])
def test_shares_are_those_of_a_loop_over_all_sequences(seed: int | None) -> None:
    task = TASKS["copy_first"](letters="AB", max_len=3)
    head = design(task).weights
    if seed is not None:
        rng = np.random.default_rng(seed)
        head = HeadWeights(**{name: matrix + rng.normal(size=matrix.shape) for name, matrix in head.matrices.items()})
    found, whole = change_cells(head, task, None), share_misread(head, 2, 3)
    assert whole == 0 or seed is not None
    for name, matrix in head.matrices.items():
        for row, column in np.ndindex(matrix.shape):
            kind = slice(None) if name == "pos" else slice(2) if row < 2 else slice(2, None)
            values: dict[Way, float] = {"zero": 0.0, "mean": matrix[kind, column].mean()}
            for way, value in values.items():
                changed = matrix.copy()
                changed[row, column] = value
                expected = share_misread(HeadWeights(**{**head.matrices, name: changed}), 2, 3)
                assert found.misread[way][name][row][column] == pytest.approx(expected - whole, abs=1e-12)


def test_a_letter_without_its_value_is_always_misread() -> None:
    found = change_cells(design(TASKS["identity"]()).weights, TASKS["identity"](), 1e-9)
    np.testing.assert_allclose(found.misread["zero"]["Vm"], np.eye(3) / 3)
    assert (found.nonzero, found.broken["zero"], found.needed("zero"), len(found.shares("zero"))) == (9, 9, 9, 27)
