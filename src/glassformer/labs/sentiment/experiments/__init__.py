"""The sentiment lab: its settings, results and steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.examples import fingerprint
from glassformer.labs.run import Lab, Run
from glassformer.labs.sentiment.course_training import overtakes
from glassformer.labs.sentiment.experiments import models, pitfalls
from glassformer.labs.sentiment.experiments.mini_transformer import COURSE_MODEL
from glassformer.labs.sentiment.experiments.recipes import FROM_MINILM, FULL_TFIDF, one_thread
from glassformer.labs.sentiment.sources import find_data
from glassformer.training.classification import wilson


@dataclass(frozen=True)
class Settings:
    """Settings of a run of the lab."""

    data: str | None = None
    """Data set, see :func:`~glassformer.labs.sentiment.sources.find_data`."""
    seeds: int = 3
    """Number of trainings of each encoder in the table."""
    pretrained: bool = True
    leak_seeds: int = 10
    leak_epochs: int = 10
    padding_seeds: int = 3
    padding_epochs: int = 10


@dataclass(frozen=True)
class Results:
    """Results of a run of the lab; see :mod:`glassformer.labs.run`."""

    quick: bool
    seed: int
    models: models.Models
    leak: pitfalls.LeakResult
    padding: pitfalls.PaddingResult


def _with_one_thread(measure: Callable[[Settings, Sequence[int]], Any]) -> Callable[[Run], Any]:
    """Return a step that calls ``measure`` with settings and seeds, and uses one thread."""

    def step(run: Run) -> Any:
        with one_thread():
            return measure(run.settings, range(run.seed, run.seed + 100))

    return step


LAB = Lab(
    name="sentiment",
    template=Path(__file__).parents[1] / "report.md.j2",
    settings=Settings(),
    quick={
        "seeds": 1,
        "pretrained": False,
        "leak_seeds": 2,
        "leak_epochs": 5,  # enough to learn twenty sentences by heart
        "padding_seeds": 1,
    },
    results=Results,
    steps={
        "models": models.measure_models,
        "leak": _with_one_thread(
            lambda s, seeds: pitfalls.measure_leak(seeds[: s.leak_seeds], s.leak_epochs)
        ),
        "padding": _with_one_thread(
            lambda s, seeds: pitfalls.measure_padding(seeds[: s.padding_seeds], s.padding_epochs)
        ),
    },
    figures={
        "calibration": lambda r: models.draw_calibration(list(r.models.medians.values())),
        "kinds": lambda r: models.draw_kinds(
            {name: row.kinds for name, row in r.models.medians.items()}, r.models.kinds
        ),
        "leak": lambda r: pitfalls.draw_leak(r.leak),
    },
    context={
        "course_model": COURSE_MODEL,
        "linear": FULL_TFIDF.name,
        "minilm": FROM_MINILM.name,
        "overtakes": overtakes,
        "wilson": wilson,
    },
    inputs=lambda settings: {"texts": fingerprint(find_data(settings.data)[1])},
)
