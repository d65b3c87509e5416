"""The lookup lab: its settings, results, steps and figures."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from glassformer.data.in_context_lookup import bag_ceiling
from glassformer.data.lookup import FACTS
from glassformer.labs.lookup.course import NUM_EPOCHS
from glassformer.labs.lookup.experiments import course_runs, fresh_facts, recipes
from glassformer.labs.lookup.experiments.course_runs import CourseRun
from glassformer.labs.lookup.experiments.fresh_facts import Answers
from glassformer.labs.lookup.experiments.recipes import shortened
from glassformer.labs.run import Lab, Run
from glassformer.training.classification import wilson
from glassformer.training.in_context_lookup import InContextRecipe


@dataclass(frozen=True)
class Settings:
    """Settings of a run of the lab."""

    epochs: int = NUM_EPOCHS
    seeds: int = 3
    """Number of trainings of the seed's model, and of each encoding."""
    encodings: tuple[InContextRecipe, ...] = (recipes.SLOTS, recipes.BAG, recipes.POSITIONS)
    lengths: tuple[int, ...] = fresh_facts.LENGTHS
    num_questions: int = 4000


@dataclass(frozen=True)
class Results:
    """Results of a run of the lab."""

    quick: bool
    seed: int
    course: list[CourseRun]
    control: CourseRun
    encodings: dict[str, list[Answers]]


def _seeds(current: Run) -> range:
    return range(current.seed, current.seed + current.settings.seeds)


LAB = Lab(
    name="lookup",
    template=Path(__file__).parents[1] / "report.md.j2",
    settings=Settings(),
    quick={
        "epochs": 2,
        "seeds": 1,
        "encodings": tuple(
            shortened(recipe, 200) for recipe in (recipes.SLOTS, recipes.BAG, recipes.POSITIONS)
        ),
        "lengths": (1, 2, 4, 8, 16),
        "num_questions": 1000,
    },
    results=Results,
    steps={
        "course": lambda current: [course_runs.measure(current, seed) for seed in _seeds(current)],
        "control": lambda current: course_runs.measure(current, current.seed, "sinusoidal"),
        "encodings": lambda current: {
            recipe.encoding: [
                fresh_facts.measure(current, recipe, seed) for seed in _seeds(current)
            ]
            for recipe in current.settings.encodings
        },
    },
    figures={
        "accuracy": fresh_facts.draw_accuracy,
        "training": course_runs.draw_training,
        "scrambling": course_runs.draw_scrambling,
        "cross-attention": course_runs.draw_cross_attention,
        "sharpness": course_runs.draw_sharpness,
        "slot-sharpness": fresh_facts.draw_slot_sharpness,
    },
    context={
        "FACTS": FACTS,
        "NAMES": fresh_facts.NAMES,
        "NUM_EPOCHS": NUM_EPOCHS,
        "accuracies": fresh_facts.accuracies,
        "bag_ceiling": bag_ceiling,
        "shares": course_runs.shares,
        "median": median,
        "wilson": wilson,
    },
)
