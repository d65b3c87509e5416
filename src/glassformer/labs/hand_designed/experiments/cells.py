"""What each cell of the designed heads and of trained ones does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from glassformer.handcraft.cells import Cells, Way, change_cells
from glassformer.handcraft.circuits import in_random_bases
from glassformer.handcraft.designs import design, designable
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.verification import verify
from glassformer.labs.hand_designed.experiments.comparisons import Comparison
from glassformer.labs.hand_designed.experiments.study import course_recipe
from glassformer.labs.hand_designed.head_training import unstacked


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
