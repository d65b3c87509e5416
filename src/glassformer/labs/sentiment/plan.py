"""How much of everything a run of the sentiment lab does."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.observe.complexity_measured import LENGTHS


@dataclass(frozen=True)
class Plan:
    """What is done how often.

    Attributes:
        name: "full" or "quick".
        seeds: Trainings of each recipe of the table.
        pretrained: Whether pretrained weights are trained on, where they are to be had.
        short: Train each recipe for one epoch alone.
        course_epochs: Passes of the course's model over its texts.
        leak_seeds: Splits of the toy set.
        padding_seeds: Trainings of the course's model in either way of padding.
        head_counts: Numbers of heads that are compared.
        heads_seeds: Trainings for each of them.
        reach_distances: Of the words whose influence on the last state is measured.
        reach_lengths: Of the texts whose first token is to be told.
        reach_updates: Of each of these trainings.
        reach_seeds: Networks of each kind there.
        growth_lengths: Tokens at which a layer's cost is measured.
        growth_rounds: Measurements of each, of which the median counts.
    """

    name: str
    seeds: int
    pretrained: bool
    short: bool
    course_epochs: int
    leak_seeds: int
    padding_seeds: int
    head_counts: tuple[int, ...]
    heads_seeds: int
    reach_distances: tuple[int, ...]
    reach_lengths: tuple[int, ...]
    reach_updates: int
    reach_seeds: int
    growth_lengths: tuple[int, ...]
    growth_rounds: int


FULL = Plan(
    "full",
    seeds=3,
    pretrained=True,
    short=False,
    course_epochs=10,
    leak_seeds=10,
    padding_seeds=3,
    head_counts=(1, 2, 4, 8),
    heads_seeds=3,
    reach_distances=(0, 1, 2, 4, 8, 16, 32, 64, 128, 255),
    reach_lengths=(8, 32, 128),
    reach_updates=300,
    reach_seeds=1,
    growth_lengths=LENGTHS,
    growth_rounds=5,
)
QUICK = Plan(
    "quick",
    seeds=1,
    pretrained=False,
    short=True,
    course_epochs=5,
    leak_seeds=2,
    padding_seeds=1,
    head_counts=(1, 4),
    heads_seeds=1,
    reach_distances=(0, 1, 4, 16, 31),
    reach_lengths=(8, 32),
    reach_updates=50,
    reach_seeds=1,
    growth_lengths=(32, 64, 128, 256),
    growth_rounds=2,
)
