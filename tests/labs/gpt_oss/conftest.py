"""A run of the lab small enough for tests, and results that were made up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.labs.gpt_oss.lab import run_plan
from glassformer.labs.gpt_oss.plan import ALL_TOGETHER, BASE, LONG, RULES, SHOWN, Plan
from glassformer.labs.gpt_oss.results import Behaviour, GenerationResult, ModelResult, NextToken, Results
from glassformer.training import TrainingConfig

TINY = TrainingConfig(steps=3, batch_size=8, eval_every=2, log_every=1, checkpoint_every=2)


@pytest.fixture(scope="session")
def tiny_plan() -> Plan:
    """Three models, three or four steps each."""
    return Plan(
        "full",
        (BASE, ALL_TOGETHER, LONG),
        {"course": TINY, "long": dataclasses.replace(TINY, steps=4)},
        num_train=40,
        num_test=20,
        num_measured=30,
        num_prompts=6,
        new_tokens=12,
        temperatures=(0.5, 2.0),
        top_ps=(0.5, 1.0),
    )


@pytest.fixture(scope="session")
def tiny_run(tiny_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of ``tiny_plan`` with seed 5."""
    out = tmp_path_factory.mktemp("lab") / "run"
    run_plan(tiny_plan, out, seed=5, resume=False)
    return out


@pytest.fixture
def results() -> Results:
    """What a good run might have measured."""
    return made_up()


@pytest.fixture
def make_results() -> Callable[..., Results]:
    """Makes results of runs that went well or badly."""
    return made_up


def made_up(level: float = 0.9, generation: str = "good", fresh: bool = True, plan: str = "full") -> Results:
    """Results of models that reach ``level`` at late positions, and generate well or badly."""
    optimum = [0.24, 0.28, 0.38, 0.8, 0.86, 0.89] + [0.92] * 58
    titles = ["course's model", "grouped-heads model"] + ["longer-run model"] * fresh
    models = [
        ModelResult(
            name=title.split()[0],
            title=title,
            fresh=title.startswith("longer"),
            num_parameters=1000 + number,
            steps=10 * (number + 1),
            losses=[[1, 2.0], [5, 1.5], [10 * (number + 1), 0.7]],
            evaluations=[[5, 0.4], [10 * (number + 1), level]],
            accuracy_by_position=[min(best, level + 0.002 * number) for best in optimum],
        )
        for number, title in enumerate(titles)
    ]
    return Results(
        plan=plan,
        seed=0,
        num_train=100,
        num_test=10,
        num_measured=40,
        optimum_test=0.88,
        optimum_by_position=optimum,
        models=models,
        generation=_generation(models[-1].name, generation),
    )


def _generation(model: str, kind: str) -> GenerationResult:
    true = Behaviour(rule=0.91, increment=0.09, neither=0.0, repeated=0.4, cycling=0.05)
    shown = {
        "good": [(1.0, 0.0, 0.0, 0.8, 0.7), (0.90, 0.08, 0.02, 0.35, 0.04), (0.96, 0.03, 0.01, 0.5, 0.2)],
        "bad": [(0.2, 0.4, 0.4, 0.1, 0.0), (0.15, 0.2, 0.65, 0.2, 0.1), (0.14, 0.2, 0.66, 0.2, 0.0)],
    }[kind]
    greedy, full, cut = (Behaviour(*numbers) for numbers in shown)
    rules = dict(zip(RULES, (greedy, cut, full, full, cut, cut), strict=True))
    return GenerationResult(
        model=model,
        num_prompts=20,
        prompt_length=16,
        new_tokens=48,
        true=true,
        rules=rules,
        temperatures=[0.5, 1.0],
        top_ps=[0.8, 1.0],
        grid=[[greedy, cut], [cut, full]],
        next_token=NextToken(
            context=[1, 2, 3],
            by_rule=5,
            by_increment=4,
            optimal=[0.0, 0.0, 0.0, 0.0, 0.1, 0.9, 0.0],
            model={title: [0.01, 0.02, 0.03, 0.04, 0.2, 0.6, 0.1] for title in SHOWN},
        ),
    )
