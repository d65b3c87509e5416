"""A run of the lab small enough for tests, and results that were made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.labs.lookup.in_context_measured import InContextMeasured, LengthMeasured, OrderMeasured
from glassformer.labs.lookup.lab import run_plan
from glassformer.labs.lookup.plan import Plan, shortened
from glassformer.labs.lookup.recipes import BAG, POSITIONS, SLOTS
from glassformer.labs.lookup.results import CourseMeasured, HeadShares, HeatMap, OrdersMeasured, Results


@pytest.fixture(scope="session")
def tiny_plan() -> Plan:
    """Two models of the course and four of fresh facts, of a few steps each."""
    slots, bag, positions = (shortened(recipe, steps=3) for recipe in (SLOTS, BAG, POSITIONS))
    return Plan(
        "quick",
        course_seeds=1,
        course_samples=80,
        course_epochs=2,
        max_orders=3,
        encodings=(slots, bag, positions),
        slots_seeds=2,
        changes=(replace(slots, name="plain"),),
        combined=(replace(slots, name="no mixing, wide", mixing=False, ff_dim=256),),
        lengths=(1, 8, 16),
        num_questions=20,
    )


@pytest.fixture(scope="session")
def tiny_run(tiny_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of ``tiny_plan`` with seed 5."""
    out = tmp_path_factory.mktemp("lab") / "run"
    run_plan(tiny_plan, out, seed=5, resume=False)
    return out


@pytest.fixture
def make_results() -> Callable[..., Results]:
    """Makes results of runs that went well or badly."""
    return made_up


@pytest.fixture
def results() -> Results:
    """What a good run might have measured."""
    return made_up()


_CHANGES = (("plain", 0.0), ("wider", 0.005), ("post-norm", -0.02))
_COMBINED = (("1 to 32 facts, wider", 0.2),)


def made_up(good: bool = True, plan: str = "full", changes: bool = True, seeds: int = 2) -> Results:
    """Results of models that learned what they can, or nothing."""
    encodings = [in_context("slots", seed, good) for seed in range(seeds)]
    encodings += [in_context("bag", 0, good), in_context("positions", 0, good)]
    return Results(
        plan=plan,
        seed=0,
        trained_facts=(1, 8),
        course=[course(seed, good) for seed in range(seeds)],
        control=course(0, good, "sinusoidal"),
        encodings=encodings,
        changes=[in_context("slots", 0, good, name, gain) for name, gain in _CHANGES] if changes else [],
        combined=[in_context("slots", 0, good, name, gain) for name, gain in _COMBINED] if changes else [],
    )


def course(seed: int, good: bool, source_positions: str = "none") -> CourseMeasured:
    """One model of the course."""
    change = 0.3 if source_positions != "none" or not good else 2e-6
    sharp = HeadShares(0.6, 0.35, 0.93) if good else HeadShares(0.2, 0.3, 0.25)
    weights = [[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]], [[0.0, 1.0, 0.0], [0.5, 0.25, 0.25]]]
    shown = HeatMap(["NAME", "RED", "BLUE"], ["[SOS]", "BLUE"], weights)
    return CourseMeasured(
        seed=seed,
        source_positions=source_positions,
        num_parameters=86_414,
        seconds=20.0,
        epochs=3,
        epochs_needed=1 + seed if good else None,
        best_epoch=3,
        num_test=500,
        test_seen=0.98,
        test_accuracy=1.0 if good else 0.4,
        contexts_accuracy=1.0 if good else 0.35,
        losses=[(25, 1.5), (50, 0.7)],
        evaluations=[(1, 1.1, 0.9), (2, 0.5, 1.0), (3, 0.3, 1.0)],
        before=[HeadShares(0.2, 0.1, 0.15), HeadShares(0.3, 0.25, 0.3)],
        after=[sharp, HeadShares(0.1, 0.1, 0.1)],
        map_before=shown,
        map_after=shown,
        scrambling=OrdersMeasured(3, 360, True, [change, change / 2, 0.0], 0 if good else 7, 714, 1e-5),
        side_by_side=["original   NAME RED  ->  BLUE [EOS]", "scrambled  RED NAME  ->  BLUE [EOS]"],
    )


def in_context(encoding: str, seed: int, good: bool, name: str | None = None, gain: float = 0.0) -> InContextMeasured:
    """One model of fresh facts."""
    lengths = []
    for count in (1, 2, 8, 64) if encoding == "bag" else (1, 2, 8, 64, 1024):
        ceiling = 1 / count if encoding == "bag" else 1.0
        reached = {"slots": 1 - count / 4000 + gain, "bag": ceiling, "positions": 1 - count / 1100}[encoding]
        slots = encoding == "slots"
        scores = slots and count > 1
        lengths.append(
            LengthMeasured(
                num_facts=count,
                num_questions=4000,
                accuracy=min(1.0, reached) if good else 0.01,
                ceiling=ceiling,
                found=1 - count / 4100 if slots else None,
                read=1.0 if slots else None,
                sharpness=(0.98, 0.7) if slots else (0.5, 0.5),
                gap=(10.0, 11.0) if scores else None,
                noise=(3.0, 3.1) if scores else None,
                margin=(0.4, 0.6) if scores else None,
            )
        )
    moved = 0 if encoding != "positions" else 100
    recipe = {"slots": SLOTS, "bag": BAG, "positions": POSITIONS}[encoding]
    data = replace(recipe.data, max_facts=32 if name and "32" in name else 8)
    return InContextMeasured(
        recipe=replace(recipe, name=name or encoding, data=data),
        seed=seed,
        num_parameters=100_000,
        seconds=60.0,
        lengths=tuple(lengths),
        sharpness_before=(0.12, 0.13),
        order=OrderMeasured(data.max_facts, 1000, 0.99, 0.99, moved, 1e-6 if encoding == "slots" else 0.5),
    )
