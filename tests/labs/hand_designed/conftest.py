"""A run of the lab small enough for tests, and stories that were made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.labs.hand_designed.lab import Plan, run_plan
from glassformer.labs.hand_designed.results import Results
from glassformer.labs.hand_designed.study import Story
from glassformer.labs.hand_designed.training_runs import Circuit, Minimum, Moment


@pytest.fixture(scope="session")
def tiny_plan() -> Plan:
    """A few dozen steps of everything."""
    return Plan(
        "full",
        steps=60,
        study_seeds=2,
        study_factor=0.002,
        num_followed=0,
        large_len=5,
        num_random=3,
        parity_steps=20,
    )


@pytest.fixture(scope="session")
def tiny_run(tiny_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of ``tiny_plan`` with seed 5."""
    out = tmp_path_factory.mktemp("hand_designed") / "run"
    run_plan(tiny_plan, out, seed=5, resume=False)
    return out


@pytest.fixture(scope="session")
def results(published: Path) -> Results:
    """What the published run measured."""
    return Results.read(published / "hand-designed" / "results.json")


@pytest.fixture
def stories() -> list[Story]:
    """What might have become of four heads: one solved, one late, two trapped."""

    def moment(steps: int, wrong: tuple[str, ...], cls_share: float, own: float) -> Moment:
        return Moment(steps, 1 - len(wrong) / 100, wrong, 0.1, Circuit(cls_share, (0.0, own)))

    late = (moment(100, ("ABBA", "AA"), 0.98, 0.4), moment(300, (), 0.99, 0.1))
    stuck = (moment(100, ("ABBA", "BBCC", "AA"), 0.5, 0.2), moment(1000, ("ABBA",), 0.45, 0.2))
    return [
        Story(0, "solved", (moment(100, (), 0.97, 0.15),)),
        Story(1, "slow", late),
        Story(2, "trapped", stuck, Minimum(0.25, 1e-6, -1e-9, 2.0), moment(1100, (), 0.99, 0.05)),
        Story(3, "trapped", stuck, Minimum(0.35, 1e-3, -0.5, 2.0), moment(1100, ("AA",), 0.5, 0.05)),
    ]
