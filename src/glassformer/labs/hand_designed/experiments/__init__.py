"""What the lab does: its settings, its results, and the steps, figures and words that make the
report.
"""

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
"""The course trains its first head from this seed."""


@dataclass(frozen=True)
class Settings:
    """How much a run does."""

    steps: int = 10_001  # of each head that is compared with its design
    again: bool = True  # train a second head for each comparison
    trainings: int = 10  # of a head on unique, each from another seed; 0: none
    large_len: int = (
        64  # letters of the longest sequences that the designs are verified for by the bound
    )
    num_random: int = 200  # random heads on the task that none can do
    parity_steps: int = 5_000  # of the head that is trained on it


@dataclass(frozen=True)
class Results:
    """All that one run measured."""

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
    steps = current.settings.steps
    return [
        current.kept(
            f"training-{seed}", Training, partial(comparisons.train_again, "unique", steps, seed)
        )
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
