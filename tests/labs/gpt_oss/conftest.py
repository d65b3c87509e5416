"""A run of the lab small enough for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer.labs.gpt_oss import LAB
from glassformer.labs.gpt_oss.experiments import RECIPES, Settings
from glassformer.labs.run import run
from glassformer.training import TrainingConfig

TINY = TrainingConfig(steps=3, batch_size=8, eval_every=2, log_every=1, checkpoint_every=2)
SMALL: dict[str, Any] = {
    "models": ("course", "base", "all-together", "long-new", "long-sinks"),
    "recipes": {**dict.fromkeys(RECIPES, TINY), "Muon, long": replace(TINY, steps=4)},
    "epochs": 2,
    "most_seeds": 2,
    "num_train": 40,
    "num_test": 20,
    "num_measured": 30,
    "num_prompts": 6,
    "new_tokens": 12,
    "temperatures": (0.5, 2.0),
    "top_ps": (0.5, 1.0),
}


@pytest.fixture(scope="session")
def small() -> Settings:
    """Settings of a run of a few seconds."""
    return replace(LAB.settings, **SMALL)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of the ``small`` settings with seed 5."""
    out = tmp_path_factory.mktemp("lab") / "run"
    run(LAB, out, seed=5, **SMALL)
    return out
