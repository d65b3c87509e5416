"""The lab from start to end: train what is not trained yet, measure, draw, write the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import torch

from glassformer.checkpoints.hub import find_directory, minilm
from glassformer.classifier import Classifier, load_classifier, save_classifier
from glassformer.data.examples import Example, SentimentData, fingerprint, split_by_text
from glassformer.data.sentiment import reviews
from glassformer.data.sentiment_sources import find_data, kind_examples
from glassformer.errors import InputError, require
from glassformer.files import write_text
from glassformer.labs.claim import claim
from glassformer.labs.kept import kept, to_json
from glassformer.labs.sentiment.compare import Contestant, ModelResult, best_encoder, compete, contestants
from glassformer.labs.sentiment.figures import draw_figures
from glassformer.labs.sentiment.growth import GrowthResult, measure_growth
from glassformer.labs.sentiment.heads import HeadsResult, measure_heads
from glassformer.labs.sentiment.leak import HELD_OUT, CourseTraining, LeakResult, measure_leak, train_course
from glassformer.labs.sentiment.looks import look_at
from glassformer.labs.sentiment.measured import table
from glassformer.labs.sentiment.norms import NormResult, measure_norms
from glassformer.labs.sentiment.padding import PaddingResult, measure_padding
from glassformer.labs.sentiment.plan import FULL, QUICK, Plan
from glassformer.labs.sentiment.probes import probe_pairs, probe_words
from glassformer.labs.sentiment.reach import ReachResult, measure_reach
from glassformer.labs.sentiment.recipes import FROM_MINILM, FROM_SCRATCH
from glassformer.labs.sentiment.report import write_report
from glassformer.labs.sentiment.results import Asked, CourseRun, DataSummary, Experiments, Results

_Part = TypeVar("_Part")

CLASSIFIER = "classifier"


def run(out: Path, quick: bool, seed: int, resume: bool, data: str | None = None) -> Path:
    """Run the lab in the directory ``out`` and return the path of its report.

    ``out`` then holds report.md, figures/ (PNG and SVG), results.json with every number, models.md with the table of
    models, lab.json with what was asked for, in trainings/ what each training left, in parts/ what is kept while it
    runs, and as classifier/ the best encoder by validation accuracy, for ``glassformer classify``. The same seed gives
    the same numbers on one machine, times apart.

    Args:
        out: Where to write; it is made if missing.
        quick: The short version: fewer models, epochs and seeds, told in the report.
        seed: Of splits, initial weights and the order of texts.
        resume: Continue what an earlier run left in ``out``. What is finished is kept, what is not there is started.
        data: What the table's models are trained on, see :func:`~glassformer.data.sentiment_sources.find_data`.

    Raises:
        InputError: A negative seed, data that cannot be had, ``out`` holds a run and ``resume`` is false, or it holds
            the run of another plan, seed or data set, other texts under the same name among them.
        KeyboardInterrupt: Interrupted; the same call with ``resume`` goes on.
    """
    return run_plan(QUICK if quick else FULL, out, seed, resume, data)


def run_plan(plan: Plan, out: Path, seed: int, resume: bool, data: str | None = None) -> Path:
    """As :func:`run`, with a plan of one's own."""
    require(seed >= 0, f"seed = {seed}", "a whole number of at least 0", "Pass seed >= 0.")
    name, examples = find_data(data)
    claim(out, {"seed": seed, "data": data, "texts": fingerprint(examples), **asdict(plan)}, resume)
    experiments = _experiments(plan, out / "parts", seed, examples)
    models, missing = _models(plan, out, seed, examples)
    best = best_encoder(models)
    classifier = _kept_classifier(out, best)
    asked = kept(out / "parts" / f"asked-{best.slug}.json", Asked, lambda: _ask(best.measured.name, classifier))
    course = _train_course(plan, seed)
    results = Results(
        plan.name, seed, _summary(name, examples), models, missing, _course_run(course), experiments, asked
    )
    write_text(out / "results.json", to_json(results, Results))
    write_text(out / "models.md", table([model.measured for model in models]))
    figures = draw_figures(results, course, classifier, out / "figures")
    report = write_report(results, figures, out / "report.md")
    print(f"figures: {out / 'figures'}\nto use what was trained: glassformer classify --run {out / CLASSIFIER} TEXT")
    return report


def _experiments(plan: Plan, parts: Path, seed: int, data: SentimentData) -> Experiments:
    def part(name: str, kind: type[_Part], compute: Callable[[], _Part]) -> _Part:
        return _part(parts, name, kind, compute)

    def seeds(count: int) -> tuple[int, ...]:
        return tuple(range(seed, seed + count))

    training = FROM_SCRATCH.training.shortened() if plan.short else FROM_SCRATCH.training
    scratch = replace(FROM_SCRATCH, training=training)
    # Networks this small lose time to threads that wait for one another, and times differ less with one.
    with one_thread():
        leak = part("leak", LeakResult, lambda: measure_leak(seeds(plan.leak_seeds), plan.course_epochs))
        padding = part(
            "padding",
            PaddingResult,
            lambda: measure_padding(seeds=seeds(plan.padding_seeds), epochs=plan.course_epochs),
        )
        reach = part(
            "reach",
            ReachResult,
            lambda: measure_reach(
                plan.reach_distances, seeds(plan.reach_seeds), plan.reach_lengths, plan.reach_updates
            ),
        )
        heads = part(
            "heads", HeadsResult, lambda: measure_heads(data, plan.head_counts, seeds(plan.heads_seeds), scratch)
        )
        growth = part("growth", GrowthResult, lambda: measure_growth(plan.growth_lengths, plan.growth_rounds))
    return Experiments(
        leak=leak,
        padding=padding,
        norms=part("norms", NormResult, measure_norms),
        reach=reach,
        heads=heads,
        growth=growth,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _models(plan: Plan, out: Path, seed: int, data: SentimentData) -> tuple[list[ModelResult], dict[str, str]]:
    """Every model of the plan, and why those are not there whose weights cannot be had."""
    missing = {}
    if plan.pretrained:
        try:
            find_directory(minilm())
        except InputError as error:
            missing[FROM_MINILM.name] = str(error)
    kinds = kind_examples(data)

    def result(each: Contestant) -> ModelResult:
        return _part(
            out / "parts", each.slug, ModelResult, lambda: compete(each, data, kinds, out / "trainings" / each.slug)
        )

    entered = contestants(plan.seeds, seed, pretrained=plan.pretrained and not missing, short=plan.short)
    return [result(each) for each in entered], missing


def _part(parts: Path, name: str, kind: type[_Part], compute: Callable[[], _Part]) -> _Part:
    """The part of that name, told when it has to be computed."""

    def told() -> _Part:
        print(f"{name.replace('-', ' ')} ...", flush=True)
        return compute()

    return kept(parts / f"{name}.json", kind, told)


def _kept_classifier(out: Path, best: ModelResult) -> Classifier:
    """The best encoder, with a copy of it as ``out / "classifier"``, made anew: what is there may be another's."""
    save_classifier(load_classifier(out / "trainings" / best.slug), out / CLASSIFIER)
    return load_classifier(out / CLASSIFIER)


def _ask(name: str, classifier: Classifier) -> Asked:
    return Asked(name, probe_words(classifier), probe_pairs(classifier), look_at(classifier))


def _train_course(plan: Plan, seed: int) -> CourseTraining:
    """The course's model, trained on reviews none of which it is validated on."""
    train, held_out = split_by_text(reviews(), (1 - HELD_OUT, HELD_OUT), seed)
    return train_course(train, held_out, seed, plan.course_epochs)


def _course_run(course: CourseTraining) -> CourseRun:
    model = course.model
    parts = {"embeddings": model.embeddings, "blocks": model.transformer_blocks, "classifier": model.classifier}
    return CourseRun(
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        parts={name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()},
        history=course.history,
    )


def _summary(name: str, data: SentimentData) -> DataSummary:
    labels = Counter(example.label for example in data.test)
    kinds: Counter[str] = Counter(_kinds(kind_examples(data)))
    return DataSummary(
        name=name,
        num_train=len(data.train),
        num_validation=len(data.validation),
        num_test=len(data.test),
        majority=labels.most_common(1)[0][1] / len(data.test),
        kinds=dict(kinds),
    )


def _kinds(examples: tuple[Example, ...]) -> list[str]:
    return [example.kind for example in examples]
