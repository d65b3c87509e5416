"""The lab from start to end: design, prove, train, compare, study, draw, write the report and the course's log."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from glassformer.errors import InputError, require
from glassformer.files import write_text
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.claim import claim
from glassformer.labs.hand_designed.cases import COURSE_TASKS
from glassformer.labs.hand_designed.figures import draw_figures
from glassformer.labs.hand_designed.measure import compare, measure_design, refute
from glassformer.labs.hand_designed.recipes import recipes
from glassformer.labs.hand_designed.report import write_report
from glassformer.labs.hand_designed.results import Comparison, Results, comparison_text, read_comparison
from glassformer.labs.hand_designed.study import follow_failures, run_study
from glassformer.labs.hand_designed.submission import write_submission

DESIGNED = tuple(name for name, task in TASKS.items() if task().description is not None)
"""The built-in tasks that one head can do."""

BEYOND = "parity"
"""The built-in task that none can do."""

COURSE_SEED = 227
"""The course trains its first head from this seed."""


@dataclass(frozen=True)
class Plan:
    """How much of everything a run does.

    Args:
        name: "full" or "quick".
        steps: Updates of each head that is compared with its design.
        study_seeds: Trainings of each task and recipe in the study.
        study_factor: Share of each recipe's steps that the study makes.
        num_followed: Trainings on unique that are followed on where they fail.
        large_len: Letters of the longest sequences that the designs are verified for by the bound.
        num_random: Random heads that try what none can do.
        parity_steps: Updates of the one that is trained on it.
    """

    name: str
    steps: int
    study_seeds: int
    study_factor: float
    num_followed: int
    large_len: int
    num_random: int
    parity_steps: int


FULL = Plan(
    "full",
    steps=10_001,
    study_seeds=20,
    study_factor=1.0,
    num_followed=20,
    large_len=64,
    num_random=200,
    parity_steps=5_000,
)
QUICK = Plan(
    "quick",
    steps=2_501,
    study_seeds=2,
    study_factor=0.25,
    num_followed=0,
    large_len=16,
    num_random=50,
    parity_steps=500,
)


def run(out: Path, quick: bool, seed: int, resume: bool) -> Path:
    """Run the lab in the directory ``out`` and return the path of its report.

    ``out`` then holds report.md, figures/ (PNG and SVG), submission_log.json for the course, results.json with every
    number, lab.json with what was asked for, and in parts/ and study/ what is kept while it runs. study/study.csv has
    every training of the study. The same seed gives the same numbers on one machine, times apart.

    Args:
        out: Where to write; it is made if missing.
        quick: The short version: fewer steps and seeds, told in the report.
        seed: Added to the course's seed, which seed 0 thus leaves as it is.
        resume: Continue what an earlier run left in ``out``. What is finished is kept, what is not there is started.

    Raises:
        InputError: A negative seed, ``out`` holds a run and ``resume`` is false, or it holds the run of another
            plan or seed.
        KeyboardInterrupt: Interrupted; the same call with ``resume`` goes on.
    """
    return run_plan(QUICK if quick else FULL, out, seed, resume)


def run_plan(plan: Plan, out: Path, seed: int, resume: bool) -> Path:
    """As :func:`run`, with a plan of one's own."""
    require(seed >= 0, f"seed = {seed}", "a whole number of at least 0", "Pass seed >= 0.")
    claim(out, {"seed": seed, **asdict(plan)}, resume)
    stored = out / "results.json"
    results = Results.read(stored) if stored.exists() else _measure(plan, out, seed)
    results.write(stored)
    log = out / "submission_log.json"
    if not log.exists():
        write_submission(log)
    figures = draw_figures(results, out / "figures")
    report = write_report(results, figures, out / "report.md")
    print(f"figures: {out / 'figures'}\nfor the course: {log}")
    return report


def _measure(plan: Plan, out: Path, seed: int) -> Results:
    print(f"designing and verifying {len(DESIGNED)} heads", flush=True)
    designs = [measure_design(name, plan.large_len) for name in DESIGNED]
    refutation = refute(BEYOND, plan.num_random, plan.parity_steps, COURSE_SEED + seed)
    comparisons = [_kept_comparison(task, plan, out / "parts", seed) for task in COURSE_TASKS]
    print(f"studying {plan.study_seeds} seeds of each task and recipe", flush=True)
    chosen = [recipe.scaled(plan.study_factor) for task in COURSE_TASKS for recipe in recipes(task)]
    study = run_study(out / "study", seeds=plan.study_seeds, first_seed=seed, chosen=chosen)
    stories = []
    if plan.num_followed:
        print(f"following the heads of {plan.num_followed} seeds that fail on unique", flush=True)
        stories = follow_failures(out / "study", range(seed, seed + plan.num_followed))
    return Results(plan.name, seed, designs, refutation, comparisons, list(study.summaries), list(study.cells), stories)


def _kept_comparison(task: str, plan: Plan, directory: Path, seed: int) -> Comparison:
    """The comparison for ``task``, from its file in ``directory`` if an earlier run has finished it."""
    path = directory / f"{task}.json"
    if not path.exists():
        print(f"training two heads for {task}, {plan.steps:,} steps each", flush=True)
        write_text(path, comparison_text(compare(task, plan.steps, COURSE_SEED + seed)))
    try:
        return read_comparison(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}, which cannot be read", "a comparison", "Remove it and run the lab again.") from error
