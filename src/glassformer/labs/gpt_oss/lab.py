"""The lab from start to end: train what is not trained yet, measure, draw, write the report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from glassformer.data.recurrence import make_split
from glassformer.errors import require
from glassformer.labs.claim import claim
from glassformer.labs.gpt_oss.figures import draw_figures
from glassformer.labs.gpt_oss.measure import measure_all, measure_model, new_sequences
from glassformer.labs.gpt_oss.plan import DATA, FULL, QUICK, Plan
from glassformer.labs.gpt_oss.report import write_report
from glassformer.labs.gpt_oss.results import Results
from glassformer.labs.gpt_oss.training_runs import train_model


def run(out: Path, quick: bool, seed: int, resume: bool) -> Path:
    """Run the lab in the directory ``out`` and return the path of its report.

    ``out`` then holds report.md, figures/ (PNG and SVG), results.json with every number, lab.json with what was asked
    for, and in trainings/ a run directory for each model. The same seed gives the same results.json on one machine.

    Args:
        out: Where to write; it is made if missing.
        quick: The short version: fewer models, steps and sequences, told in the report.
        seed: Seed of data, initial weights and sampling.
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
    results = Results.read(stored) if stored.exists() else _train_and_measure(plan, out, seed)
    results.write(stored)
    figures = draw_figures(results, out / "figures")
    report = write_report(results, figures, out / "report.md")
    print(f"figures: {out / 'figures'}")
    return report


def _train_and_measure(plan: Plan, out: Path, seed: int) -> Results:
    split = make_split(DATA, num_train=plan.num_train, num_test=plan.num_test, seed=seed)
    measured = new_sequences(DATA, split, plan.num_measured, seed)
    trained = []
    for number, experiment in enumerate(plan.experiments, start=1):
        config = plan.config(experiment, seed)
        print(f"model {number} of {len(plan.experiments)}: {experiment.title}, {config.steps} steps", flush=True)
        model, training = train_model(experiment, config, DATA, split, out / "trainings" / experiment.name, seed)
        trained.append((measure_model(experiment, model, training, measured), model))
    print("measuring generation", flush=True)
    return measure_all(plan, seed, split, measured, trained)
