"""What each cell of a head's matrices does: the outputs that are misread when it alone is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from matplotlib.figure import Figure

from glassformer.figures.heat_maps import LABELLED_CELL, SEQUENTIAL, finish, name_row, panel, side
from glassformer.figures.style import in_style, new_figure
from glassformer.handcraft.circuits import in_random_bases
from glassformer.handcraft.designs import design, designable
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import verify
from glassformer.labs.hand_designed.experiments.comparisons import Comparison
from glassformer.labs.hand_designed.experiments.study import course_recipe
from glassformer.labs.hand_designed.head_training import unstacked

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


@dataclass(frozen=True)
class CellsResult:
    """Heads by task, each cell changed alone."""

    designed: dict[str, Cells]  # certified with a largest error of 1e-9; the others by what is read
    trained: dict[str, Cells]  # the heads that are compared with the designs
    moved: dict[str, Cells]  # the same in other bases
    further: dict[str, dict[Way, list[float]]]  # the shares of needed cells, of heads from further seeds that solve
    num_further: int  # trained for each task


def measure_cells(comparisons: Mapping[str, Comparison], seeds: Sequence[int]) -> CellsResult:
    """Change each cell of every design, of the heads of ``comparisons``, and of a head by the course's recipe for each
    of ``seeds``."""
    trained = {name: each.head("learned") for name, each in comparisons.items()}
    further: dict[str, dict[Way, list[float]]] = {}
    for name in comparisons if seeds else ():
        heads = course_recipe(name).new(seeds)
        course_recipe(name).train(heads, seeds)
        task = TASKS[name]()
        solving = [head for head in unstacked(heads) if verify(head, task, tolerance=None).holds]
        found = [change_cells(head, task, None) for head in solving]
        further[name] = {way: [each.needed_share(way) for each in found] for way in get_args(Way)}
    return CellsResult(
        designed={name: change_cells(design(TASKS[name]()).weights, TASKS[name](), 1e-9) for name in designable()},
        trained={name: change_cells(head, TASKS[name](), None) for name, head in trained.items()},
        moved={name: change_cells(in_random_bases(head, 0), TASKS[name](), None) for name, head in trained.items()},
        further=further,
        num_further=len(seeds),
    )


@in_style
def draw_cells(name: str, heads: Mapping[str, Cells]) -> Figure:
    """The share of outputs of the task ``name`` that are misread with each cell at 0, for each of ``heads`` by name."""
    space = TASKS[name]().space
    tables = {
        (row, matrix): 100 * np.array(shares).T
        for row, each in heads.items()
        for matrix, shares in each.misread["zero"].items()
    }
    shapes, columns = [table.shape for table in tables.values()], len(tables) // len(heads)
    widths = [side(width, LABELLED_CELL) for _, width in shapes[:columns]]
    height = max(side(height, LABELLED_CELL, LABELLED_CELL) for height, _ in shapes)
    size = sum(widths) + 0.6 * columns + 0.4, len(heads) * (height + 0.9) + 0.5
    figure, axes = new_figure(*size, len(heads), columns, width_ratios=widths)
    largest = max(1.0, *(float(table.max()) for table in tables.values()))
    inputs = [*space.token_names, *(f"p{position}" for position in range(space.num_positions))]
    for ax, ((row, matrix), table) in zip(axes, tables.items(), strict=True):
        positions = matrix == "pos"
        names = list(map(str, range(table.shape[1]))) if positions else inputs[: table.shape[1]]
        along = "position" if positions else None
        panel(ax, table, matrix, along, labels=True, limits=(0, largest), colormap=SEQUENTIAL, x_names=names)
        name_row(ax, row if matrix == "Km" else "")
    finish(figure, f"Outputs that are misread with one cell at 0, in percent ({name})")
    return figure
