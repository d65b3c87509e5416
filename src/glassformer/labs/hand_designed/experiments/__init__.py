"""The lab on hand-designed attention: its settings, results, steps and figures."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from glassformer.files import write_text
from glassformer.handcraft.designs import designable
from glassformer.labs.hand_designed.course_tasks import SHOWN, submission
from glassformer.labs.hand_designed.experiments import comparisons, designs
from glassformer.labs.hand_designed.experiments.comparisons import Comparison, Training
from glassformer.labs.hand_designed.experiments.designs import DesignResult, Refutation
from glassformer.labs.run import Lab, Run
from glassformer.training.classification import wilson

COURSE_SEED = 227
"""Seed of the first head that the course trains."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run of the lab."""

    steps: int = 10_001
    """Training steps of each head that is compared with its design."""
    again: bool = True
    """If True, a second head is trained for each comparison."""
    trainings: int = 10
    """Number of further trainings on the task unique, each from another seed."""
    large_len: int = 64
    """Longest sequences, in letters, for which the bound verifies the designs."""
    num_random: int = 200
    """Number of random heads on parity, which no head can compute."""
    parity_steps: int = 5_000
    """Training steps of the head that is trained on parity."""


@dataclass(frozen=True)
class Results:
    """Results of a run of the lab."""

    quick: bool
    seed: int
    designs: list[DesignResult]
    refutation: Refutation
    comparisons: dict[str, Comparison]
    trainings: list[Training]
    submission: dict[str, Any]


def _compare(current: Run) -> dict[str, Comparison]:
    settings = current.settings
    seed = COURSE_SEED + current.seed
    measure = partial(comparisons.compare, steps=settings.steps, seed=seed, again=settings.again)
    return {
        task: current.kept(f"compare-{task}", Comparison, partial(measure, task)) for task in SHOWN
    }


def _train_again(current: Run) -> list[Training]:
    first = COURSE_SEED + current.seed
    train = partial(comparisons.train_again, "unique", current.settings.steps)
    return [
        current.kept(f"training-{seed}", Training, partial(train, seed))
        for seed in range(first, first + current.settings.trainings)
    ]


def _submit(current: Run) -> dict[str, Any]:
    log = submission()
    write_text(current.out / "submission_log.json", json.dumps(log, indent=1) + "\n")
    return log


def _draw(draw: Callable[[Comparison], Figure], task: str, results: Results) -> Figure:
    return draw(results.comparisons[task])


LAB = Lab(
    name="hand-designed",
    template=Path(__file__).parent.parent / "report.md.j2",
    settings=Settings(),
    quick={"again": False, "trainings": 0, "large_len": 16, "num_random": 50, "parity_steps": 500},
    results=Results,
    steps={
        "designs": lambda current: [
            designs.measure_design(name, current.settings.large_len) for name in designable()
        ],
        "refutation": lambda current: designs.refute(
            current.settings.num_random, current.settings.parity_steps, COURSE_SEED + current.seed
        ),
        "comparisons": _compare,
        "trainings": _train_again,
        "submission": _submit,
    },
    figures={
        "what-can-be-compared": lambda results: comparisons.draw_cosines(
            list(results.comparisons.values())
        ),
        "unique-signs": lambda results: comparisons.draw_signs(results.comparisons["unique"]),
        **{
            f"{task.replace('_', '-')}-heads": partial(_draw, comparisons.draw_heads, task)
            for task in SHOWN
        },
        **{
            f"{task.replace('_', '-')}-circuits": partial(_draw, comparisons.draw_circuits, task)
            for task in SHOWN
        },
    },
    context={
        "contrast": comparisons.contrast,
        "wilson": wilson,
    },
)
