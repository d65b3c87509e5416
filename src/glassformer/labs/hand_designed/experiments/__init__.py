"""What the lab does: its settings, its results, and the steps, figures and words that make the report."""

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
from glassformer.labs.hand_designed.experiments import comparisons, designs, study
from glassformer.labs.hand_designed.experiments.comparisons import Comparison
from glassformer.labs.hand_designed.experiments.designs import DesignResult, Refutation
from glassformer.labs.hand_designed.experiments.study import Group, Story
from glassformer.labs.run import Lab, Run
from glassformer.training.classification import wilson

COURSE_SEED = 227
"""The course trains its first head from this seed."""


@dataclass(frozen=True)
class Settings:
    """How much a run does."""

    steps: int = 10_001  # of each head that is compared with its design
    again: bool = True  # train a second head for each comparison
    study_seeds: int = 100  # trainings of each task and recipe; 0: no study
    large_len: int = 64  # letters of the longest sequences that the designs are verified for by the bound
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
    study: list[Group]
    stories: list[Story]
    submission: dict[str, Any]


def _compare(current: Run) -> dict[str, Comparison]:
    settings, seed = current.settings, COURSE_SEED + current.seed
    measure = partial(comparisons.compare, steps=settings.steps, seed=seed, again=settings.again)
    return {task: current.kept(f"compare-{task}", Comparison, partial(measure, task)) for task in SHOWN}


def _study(current: Run) -> list[Group]:
    measure = partial(study.measure_group, seeds=_seeds(current, current.settings.study_seeds))
    return [
        current.kept(f"study-{each.task}-{each.name.replace(', ', '-')}", Group, partial(measure, each))
        for task in SHOWN
        for each in study.recipes(task)
        if current.settings.study_seeds
    ]


def _seeds(current: Run, count: int) -> list[int]:
    return list(range(current.seed, current.seed + count))


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
    quick={"again": False, "study_seeds": 0, "large_len": 16, "num_random": 50, "parity_steps": 500},
    results=Results,
    steps={
        "designs": lambda current: [designs.measure_design(name, current.settings.large_len) for name in designable()],
        "refutation": lambda current: designs.refute(
            current.settings.num_random, current.settings.parity_steps, COURSE_SEED + current.seed
        ),
        "comparisons": _compare,
        "study": _study,
        "stories": lambda current: study.follow(
            _seeds(current, current.settings.study_seeds), study.course_recipe("unique")
        ),
        "submission": _submit,
    },
    figures={
        "what-can-be-compared": lambda results: comparisons.draw_cosines(list(results.comparisons.values())),
        "unique-signs": lambda results: comparisons.draw_signs(results.comparisons["unique"]),
        **{f"{task.replace('_', '-')}-heads": partial(_draw, comparisons.draw_heads, task) for task in SHOWN},
        **{f"{task.replace('_', '-')}-circuits": partial(_draw, comparisons.draw_circuits, task) for task in SHOWN},
        "study": lambda results: study.draw_study(results.study) if results.study else None,
        "unique-failures": lambda results: study.draw_failures(results.stories) if results.stories else None,
    },
    context={
        "contrast": comparisons.contrast,
        "misreading": study.misreading,
        "range_of": study.range_of,
        "wilson": wilson,
    },
)
