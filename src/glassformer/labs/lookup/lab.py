"""The lab from start to end: train what is not trained yet, measure, draw, write the report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from glassformer.errors import require
from glassformer.labs.claim import claim
from glassformer.labs.kept import kept
from glassformer.labs.lookup.figures import draw_figures
from glassformer.labs.lookup.in_context import MEASURING_SEED
from glassformer.labs.lookup.in_context_measured import InContextMeasured, measure_recipe
from glassformer.labs.lookup.measure import measure_course
from glassformer.labs.lookup.plan import FULL, QUICK, Plan
from glassformer.labs.lookup.recipes import InContextRecipe
from glassformer.labs.lookup.report import write_report
from glassformer.labs.lookup.results import CourseMeasured, Results
from glassformer.models.encoder_config import Positions


def run(out: Path, quick: bool, seed: int, resume: bool) -> Path:
    """Run the lab in the directory ``out`` and return the path of its report.

    ``out`` then holds report.md, figures/ (PNG and SVG), results.json with every number, lab.json with what was asked
    for, in trainings/ a run directory for each model, and in parts/ what was measured of each. The same seed gives the
    same numbers on one machine, times apart.

    Args:
        out: Where to write; it is made if missing.
        quick: The short version: fewer seeds and steps, and a smaller vocabulary, told in the report.
        seed: Added to the seeds of data and weights.
        resume: Continue what an earlier run left in ``out``. What is finished is kept, what is not there is started.

    Raises:
        InputError: A seed that is negative or among those kept for measuring, ``out`` holds a run and ``resume`` is
            false, or it holds the run of another plan or seed.
        KeyboardInterrupt: Interrupted; the same call with ``resume`` goes on.
    """
    return run_plan(QUICK if quick else FULL, out, seed, resume)


def run_plan(plan: Plan, out: Path, seed: int, resume: bool) -> Path:
    """As :func:`run`, with a plan of one's own."""
    require(seed >= 0, f"seed = {seed}", "a whole number of at least 0", "Pass seed >= 0.")
    require(
        seed + plan.slots_seeds <= MEASURING_SEED,
        f"seed = {seed}",
        f"at most {MEASURING_SEED - plan.slots_seeds}, so that no seed is one of those kept for measuring",
        "Pass a smaller seed.",
    )
    claim(out, {"seed": seed, **asdict(plan)}, resume)
    stored = out / "results.json"
    results = Results.read(stored) if stored.exists() else _measure(plan, out, seed)
    results.write(stored)
    figures = draw_figures(results, out / "figures")
    report = write_report(results, figures, out / "report.md")
    print(f"figures: {out / 'figures'}")
    return report


def _measure(plan: Plan, out: Path, seed: int) -> Results:
    course = [_course(plan, out, seed + number) for number in range(plan.course_seeds)]
    control = _course(plan, out, seed, "sinusoidal")
    encodings = [
        _in_context(plan, recipe, out, seed + number)
        for recipe in plan.encodings
        for number in range(plan.slots_seeds if recipe.encoding == "slots" else 1)
    ]
    changes, combined = (
        [_in_context(plan, recipe, out, seed) for recipe in recipes] for recipes in (plan.changes, plan.combined)
    )
    data = plan.encodings[0].data
    return Results(plan.name, seed, (data.min_facts, data.max_facts), course, control, encodings, changes, combined)


def _course(plan: Plan, out: Path, seed: int, source_positions: Positions = "none") -> CourseMeasured:
    name = f"course-{seed}" if source_positions == "none" else f"course-{source_positions}-{seed}"

    def measure() -> CourseMeasured:
        print(f"the course's model, source positions {source_positions}, seed {seed}", flush=True)
        return measure_course(
            seed,
            out / "trainings" / name,
            epochs=plan.course_epochs,
            num_samples=plan.course_samples,
            source_positions=source_positions,
            max_orders=plan.max_orders,
        )

    return kept(out / "parts" / f"{name}.json", CourseMeasured, measure)


def _in_context(plan: Plan, recipe: InContextRecipe, out: Path, seed: int) -> InContextMeasured:
    name = f"{recipe.directory}-{seed}"

    def measure() -> InContextMeasured:
        print(f"fresh facts: {recipe.name}, seed {seed}, {recipe.steps:,} steps", flush=True)
        directory = out / "trainings" / name
        return measure_recipe(recipe, seed, directory, lengths=plan.lengths, num_questions=plan.num_questions)

    return kept(out / "parts" / f"{name}.json", InContextMeasured, measure)
