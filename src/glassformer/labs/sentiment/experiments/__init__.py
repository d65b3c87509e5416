"""The experiments of the sentiment lab, and what makes a lab of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.examples import fingerprint
from glassformer.labs.run import Lab, Run
from glassformer.labs.sentiment.experiments import growth, heads, mini_transformer, models, norms, pitfalls
from glassformer.labs.sentiment.experiments.models import ModelResult, Models
from glassformer.labs.sentiment.experiments.ranking import RankingResult, draw_ranking, measure_ranking
from glassformer.labs.sentiment.experiments.reach import ReachResult, measure_reach
from glassformer.labs.sentiment.experiments.recipes import (
    BIGRAM_TFIDF,
    FROM_MINILM,
    FROM_SCRATCH,
    FULL_TFIDF,
    one_thread,
)
from glassformer.labs.sentiment.experiments.word_probes import Asked, draw_effects, measure_asked
from glassformer.labs.sentiment.figures import (
    draw_positions,
    draw_recurrent_and_parallel,
    draw_timeline,
    draw_training_curves,
)
from glassformer.labs.sentiment.model_diagram import architecture, block
from glassformer.labs.sentiment.sources import find_data


@dataclass(frozen=True)
class Settings:
    """How much is done; ``data`` is an argument of :func:`~glassformer.labs.sentiment.sources.find_data`."""

    data: str | None = None
    seeds: int = 3  # of each network of the table
    pretrained: bool = True
    ranked_texts: int = 200  # of each encoder from scratch, whose words are ranked
    ranked_seeds: int = 3  # trainings of the course's model for the same; 0: none
    course_epochs: int = 10
    all_kinds: bool = True  # train the course's model on reviews of all kinds as well
    leak_seeds: int = 10
    leak_epochs: int = 10
    padding_seeds: int = 3
    head_counts: tuple[int, ...] = (1, 2, 4, 8)  # none: the comparison is left out
    heads_seeds: int = 3
    reach_distance: int = 255
    reach_seeds: int = 3
    reach_length: int = 128
    reach_updates: int = 300
    growth_lengths: tuple[int, ...] = growth.LENGTHS


@dataclass(frozen=True)
class Results:
    """All that one run of the lab measured; see :mod:`glassformer.labs.run`."""

    quick: bool
    seed: int
    models: Models
    asked: Asked
    ranking: RankingResult
    course: mini_transformer.CourseResult
    leak: pitfalls.LeakResult
    padding: pitfalls.PaddingResult
    norms: norms.NormsResult
    reach: ReachResult
    heads: heads.HeadsResult | None
    growth: growth.GrowthResult


def _alone(measure: Callable[[Run, Settings, tuple[int, ...]], Any]) -> Callable[[Run], Any]:
    """A step of small networks, with one thread; ``measure`` gets the settings and the seeds from the run's on."""

    def step(run: Run) -> Any:
        with one_thread():
            return measure(run, run.settings, tuple(range(run.seed, run.seed + 100)))

    return step


def _heads(run: Run, s: Settings, seeds: tuple[int, ...]) -> heads.HeadsResult | None:
    return heads.measure_heads(find_data(s.data)[1], s.head_counts, seeds[: s.heads_seeds]) if s.head_counts else None


def _five(models: Models) -> list[ModelResult]:
    """Median results, without the word counts of pairs, which lie on those of single words."""
    return [row for name, row in models.medians.items() if name != BIGRAM_TFIDF.name]


LAB = Lab(
    name="sentiment",
    template=Path(__file__).parents[1] / "report.md.j2",
    settings=Settings(),
    quick={
        "seeds": 1,
        "pretrained": False,
        "ranked_texts": 20,
        "ranked_seeds": 0,
        "all_kinds": False,
        "leak_seeds": 2,
        "leak_epochs": 5,  # enough to learn twenty sentences by heart
        "padding_seeds": 1,
        "head_counts": (),
        "reach_distance": 63,
        "reach_seeds": 1,
        "reach_length": 16,
        "growth_lengths": (64, 128, 256),
    },
    results=Results,
    steps={
        "models": models.measure_models,
        "asked": _alone(lambda run, s, seeds: measure_asked(run)),
        "ranking": _alone(lambda run, s, seeds: measure_ranking(run, s.ranked_texts, seeds[: s.ranked_seeds])),
        "course": _alone(
            lambda run, s, seeds: mini_transformer.measure_course(run.seed, s.course_epochs, all_kinds=s.all_kinds)
        ),
        "leak": _alone(lambda run, s, seeds: pitfalls.measure_leak(seeds[: s.leak_seeds], s.leak_epochs)),
        "padding": _alone(lambda run, s, seeds: pitfalls.measure_padding(seeds[: s.padding_seeds], s.course_epochs)),
        "norms": _alone(lambda run, s, seeds: norms.measure_norms()),
        "reach": _alone(
            lambda run, s, seeds: measure_reach(
                s.reach_distance, seeds[: s.reach_seeds], s.reach_length, s.reach_updates
            )
        ),
        "heads": _alone(_heads),
        "growth": _alone(lambda run, s, seeds: growth.measure_growth(s.growth_lengths)),
    },
    figures={
        "training": lambda r: models.draw_training([row for row in r.models.medians.values() if row.epochs]),
        "calibration": lambda r: models.draw_calibration(_five(r.models)),
        "kinds": lambda r: models.draw_kinds({row.name: row.kinds for row in _five(r.models)}, r.models.kinds),
        "leak": lambda r: pitfalls.draw_leak(r.leak),
        "norms": lambda r: norms.draw_norms(r.norms),
        "positions": lambda r: draw_positions(),
        "embeddings": lambda r: mini_transformer.draw_embeddings(r.course),
        "architecture": lambda r: architecture(mini_transformer.outline(r.course.config)),
        "block": lambda r: block(mini_transformer.outline(r.course.config)),
        "course-training": lambda r: draw_training_curves(
            r.course.plain.history,
            f"MiniTransformer on plain reviews: {r.course.plain.num_trained} for training, "
            f"{r.course.plain.num_validated} for validation",
        ),
        "recurrent-and-parallel": lambda r: draw_recurrent_and_parallel(),
        "attention-example": lambda r: mini_transformer.draw_attention_example(r.course.readings["both"]),
        "heads-praise": lambda r: None if r.quick else mini_transformer.draw_heads(r.course.readings["praise"]),
        "heads-blame": lambda r: None if r.quick else mini_transformer.draw_heads(r.course.readings["blame"]),
        "heads-both": lambda r: mini_transformer.draw_heads(r.course.readings["both"]),
        "attention-rows": lambda r: mini_transformer.draw_attention_rows(r.course.readings["both"]),
        "ranking": lambda r: draw_ranking(r.ranking) if r.ranking.networks else None,
        "effects": lambda r: draw_effects(r.asked.looks, r.asked.classes),
        "best-architecture": lambda r: architecture(mini_transformer.outline(r.asked.config)),
        "complexity": lambda r: growth.draw_growth(r.growth),
        "timeline": lambda r: draw_timeline(),
    },
    context={"linear": FULL_TFIDF.name, "scratch": FROM_SCRATCH, "minilm": FROM_MINILM.name},
    inputs=lambda settings: {"texts": fingerprint(find_data(settings.data)[1])},
)
