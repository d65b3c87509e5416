"""What each cell of a single head's matrices does: the outputs that are misread when it alone is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import Task
from glassformer.handcraft.verification import verify

Way = Literal["zero", "mean"]
"""A cell is set to 0, or to the mean of its column over the rows of tokens, or over those of positions."""


@dataclass(frozen=True)
class Cells:
    """A head, each cell changed alone; see :func:`change_cells`.

    ``misread[way][matrix][row][column]`` is by how much a change raises the share of misread outputs.
    """

    nonzero: int  # cells that are not 0 to begin with
    broken: dict[Way, int]  # changes that break the certificate
    misread: dict[Way, dict[str, list[list[float]]]]

    def shares(self, way: Way) -> list[float]:
        """The shares of all cells."""
        return [share for matrix in self.misread[way].values() for row in matrix for share in row]

    def needed(self, way: Way) -> int:
        """Cells whose change makes some output misread."""
        return sum(share > 0 for share in self.shares(way))

    def needed_share(self, way: Way) -> float:
        """Those as a share of all cells."""
        return self.needed(way) / len(self.shares(way))


def change_cells(head: HeadWeights, task: Task, tolerance: float | None) -> Cells:
    """Change each cell of ``head``, one at a time, and verify the changed head on every sequence of ``task``.

    ``tolerance`` and errors are those of :func:`~glassformer.handcraft.verification.verify`.
    """
    whole = verify(head, task, tolerance=tolerance)
    broken: dict[Way, int] = dict.fromkeys(get_args(Way), 0)
    misread: dict[Way, dict[str, list[list[float]]]] = {way: {} for way in broken}
    for way in broken:
        for name, matrix in head.matrices.items():
            shares, values = np.zeros_like(matrix), _values(head, name, way)
            for cell in np.ndindex(matrix.shape):
                found = whole
                if values[cell] != matrix[cell]:
                    changed = matrix.copy()
                    changed[cell] = values[cell]
                    found = verify(HeadWeights(**{**head.matrices, name: changed}), task, tolerance=tolerance)
                shares[cell] = (whole.num_right - found.num_right) / found.num_outputs
                broken[way] += not found.holds
            misread[way][name] = shares.tolist()
    return Cells(sum(int(np.count_nonzero(each)) for each in head.matrices.values()), broken, misread)


def _values(head: HeadWeights, name: str, way: Way) -> np.ndarray:
    """What the cells of a matrix are set to."""
    matrix = head.matrices[name]
    if way == "zero":
        return np.zeros_like(matrix)
    kinds = [matrix] if name == "pos" else np.split(matrix, [head.input_dim])
    return np.concatenate(
        [np.repeat(rows.mean(axis=0, keepdims=True), len(rows), axis=0) for rows in kinds if len(rows)]
    )
