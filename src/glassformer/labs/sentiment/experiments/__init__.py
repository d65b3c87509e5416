"""The experiments of the sentiment lab, and what makes a lab of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.examples import fingerprint
from glassformer.labs.run import Lab, Run
from glassformer.labs.sentiment.course_training import overtakes
from glassformer.labs.sentiment.experiments import mini_transformer, models, pitfalls
from glassformer.labs.sentiment.experiments.ranking import RankingResult, draw_ranking, measure_ranking
from glassformer.labs.sentiment.experiments.recipes import FROM_MINILM, FROM_SCRATCH, FULL_TFIDF, one_thread
from glassformer.labs.sentiment.figures import draw_training_curves
from glassformer.labs.sentiment.sources import find_data
from glassformer.training.classification import wilson


@dataclass(frozen=True)
class Settings:
    """How much is done; ``data`` is an argument of :func:`~glassformer.labs.sentiment.sources.find_data`."""

    data: str | None = None
    seeds: int = 3  # of each encoder of the table
    pretrained: bool = True
    ranked_texts: int = 200  # of each encoder from scratch, whose words are ranked
    ranked_seeds: int = 3  # trainings of the course's model for the same; 0: none
    course_epochs: int = 10
    leak_seeds: int = 10
    leak_epochs: int = 10
    padding_seeds: int = 3


@dataclass(frozen=True)
class Results:
    """All that one run of the lab measured; see :mod:`glassformer.labs.run`."""

    quick: bool
    seed: int
    models: models.Models
    ranking: RankingResult
    course: mini_transformer.CourseResult
    leak: pitfalls.LeakResult
    padding: pitfalls.PaddingResult


def _alone(measure: Callable[[Run, Settings, tuple[int, ...]], Any]) -> Callable[[Run], Any]:
    """A step of small networks, with one thread; ``measure`` gets the settings and the seeds from the run's on."""

    def step(run: Run) -> Any:
        with one_thread():
            return measure(run, run.settings, tuple(range(run.seed, run.seed + 100)))

    return step


LAB = Lab(
    name="sentiment",
    template=Path(__file__).parents[1] / "report.md.j2",
    settings=Settings(),
    quick={
        "seeds": 1,
        "pretrained": False,
        "ranked_texts": 20,
        "ranked_seeds": 0,
        "leak_seeds": 2,
        "leak_epochs": 5,  # enough to learn twenty sentences by heart
        "padding_seeds": 1,
    },
    results=Results,
    steps={
        "models": models.measure_models,
        "ranking": _alone(lambda run, s, seeds: measure_ranking(run, s.ranked_texts, seeds[: s.ranked_seeds])),
        "course": _alone(lambda run, s, seeds: mini_transformer.measure_course(run.seed, s.course_epochs)),
        "leak": _alone(lambda run, s, seeds: pitfalls.measure_leak(seeds[: s.leak_seeds], s.leak_epochs)),
        "padding": _alone(lambda run, s, seeds: pitfalls.measure_padding(seeds[: s.padding_seeds], s.course_epochs)),
    },
    figures={
        "calibration": lambda r: models.draw_calibration(list(r.models.medians.values())),
        "kinds": lambda r: models.draw_kinds(
            {name: row.kinds for name, row in r.models.medians.items()}, r.models.kinds
        ),
        "leak": lambda r: pitfalls.draw_leak(r.leak),
        "course-training": lambda r: draw_training_curves(
            r.course.plain.history,
            f"MiniTransformer on plain reviews: {r.course.plain.num_trained} for training, "
            f"{r.course.plain.num_validated} for validation",
        ),
        "heads": lambda r: mini_transformer.draw_heads(r.course.reading),
        "ranking": lambda r: draw_ranking(r.ranking) if r.ranking.networks else None,
    },
    context={
        "linear": FULL_TFIDF.name,
        "scratch": FROM_SCRATCH,
        "minilm": FROM_MINILM.name,
        "overtakes": overtakes,
        "wilson": wilson,
    },
    inputs=lambda settings: {"texts": fingerprint(find_data(settings.data)[1])},
)
