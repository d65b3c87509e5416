"""The GPT-OSS lab: its settings, results, steps and figures."""

from dataclasses import dataclass, field
from pathlib import Path

from glassformer.labs.gpt_oss.experiments import generation, models, sequences
from glassformer.labs.gpt_oss.experiments.generation import FirstTokens, Generation
from glassformer.labs.gpt_oss.experiments.models import MODELS, RECIPES, Seeds
from glassformer.labs.gpt_oss.experiments.sequences import DATA, Optimum
from glassformer.labs.run import Lab
from glassformer.training import TrainingConfig


@dataclass(frozen=True)
class Settings:
    """Settings of a run of the lab."""

    models: tuple[str, ...] = tuple(name for name in MODELS if name != "quick")
    compared: tuple[str, ...] = ("long-new", "long-sinks")
    """Models that are compared after a first token and after a run of it."""
    continued: str = "base"
    """Model whose continuations are measured."""
    recipes: dict[str, TrainingConfig] = field(default_factory=lambda: dict(RECIPES))
    epochs: int = 8
    """Number of epochs of the course's train()."""
    most_seeds: int = 3
    num_train: int = 10_000
    num_test: int = 1_000
    """Number of test sequences, whose generators are held out of training."""
    num_measured: int = 4_000
    """Number of new sequences of the held-out generators."""
    num_prompts: int = 512
    prompt_length: int = 16
    new_tokens: int = 48
    temperatures: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    top_ps: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Results:
    """Results of a run of the lab."""

    quick: bool
    seed: int
    optimum: Optimum
    models: dict[str, Seeds]
    first_tokens: FirstTokens
    generation: Generation


LAB = Lab(
    name="gpt-oss",
    template=Path(__file__).parents[1] / "report.md.j2",
    settings=Settings(),
    quick={
        "models": ("quick",),
        "compared": ("quick",),
        "continued": "quick",
        "num_measured": 1_000,
        "num_prompts": 128,
        "temperatures": (0.5, 1.0, 1.5, 2.0),
        "top_ps": (0.5, 0.8, 0.9, 1.0),
    },
    results=Results,
    steps={
        "optimum": sequences.measure,
        "models": models.measure,
        "first_tokens": generation.measure_first_tokens,
        "generation": generation.measure,
    },
    figures={
        "training": lambda results: models.draw_training(results.optimum, results.models),
        "first-tokens": lambda results: generation.draw_first_tokens(results.first_tokens),
        "generation": lambda results: generation.draw_rules(results.generation),
        "next-token": lambda results: generation.draw_next_token(results.generation),
        "sampling-grid": lambda results: generation.draw_grid(results.generation),
        "accuracy-by-position": lambda results: models.draw_accuracy(
            results.optimum, results.models, reported=results.generation.model
        ),
    },
    context={"MODELS": MODELS, "DATA": DATA, "SPREADS": models.SPREADS},
)
