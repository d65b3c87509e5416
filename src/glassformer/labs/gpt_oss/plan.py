"""What the lab trains and measures: the models, the training recipes, and how much of everything."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from glassformer.data.recurrence import RecurrenceConfig
from glassformer.errors import require, require_positive
from glassformer.generation.sampling import SamplingRule
from glassformer.training import TrainingConfig

DATA = RecurrenceConfig(order=2, vocab_size=7, next_prob=0.1, seq_len=64)
"""The course's sequences."""

COURSE_MODEL = {"vocab_size": 7, "n_layers": 4, "hidden_dim": 64, "ff_dim": 128, "num_heads": 4, "head_dim": 16}
"""The course's model, as arguments of Transformer."""

COURSE_STEPS = 632
"""The course's budget: 8 epochs of 10,000 sequences in batches of 128, of which the last of each epoch holds 16."""

_COURSE = TrainingConfig(
    steps=COURSE_STEPS,
    batch_size=128,
    optimizer="muon",
    learning_rate=1e-2,
    muon_learning_rate=0.02,
    weight_decay=0.0,
    betas=(0.9, 0.98),
    warmup_steps=50,
    eval_every=79,
    checkpoint_every=158,
    keep_checkpoints=1,
)

RECIPES: dict[str, TrainingConfig] = {
    "course": _COURSE,
    "long": dataclasses.replace(_COURSE, steps=5000, warmup_steps=100, eval_every=500, checkpoint_every=500),
    "quick": dataclasses.replace(_COURSE, steps=800, batch_size=16, eval_every=200, checkpoint_every=200),
}
"""How each model is trained. The one place where the lab's training is decided."""


@dataclass(frozen=True)
class Experiment:
    """One model and how it is trained.

    Args:
        name: Its name in directories and results.
        title: Its name in figures and tables.
        recipe: A key of the plan's recipes.
        model: What differs from the course's model, as arguments of Transformer.
        fresh: New sequences of all generators at every step, instead of passing over the training sequences again and
            again.
    """

    name: str
    title: str
    recipe: str = "course"
    model: dict[str, Any] = field(default_factory=dict)
    fresh: bool = False


_GROUPED = {"num_kv_heads": 2}
_WINDOW = {"use_sliding_window_alternating": True, "window_size": 16}
_MIXTURE = {"use_moe": True, "num_experts": 4, "top_k": 2}

BASE = Experiment("base", "course's model")
ALL_TOGETHER = Experiment("all-together", "all-together model", model={**_GROUPED, **_WINDOW, **_MIXTURE})
VARIANTS = (
    Experiment("grouped-heads", "grouped-heads model", model=_GROUPED),
    Experiment("sliding-window", "sliding-window model", model=_WINDOW),
    Experiment("mixture-of-experts", "mixture-of-experts model", model=_MIXTURE),
    ALL_TOGETHER,
)
LONG = Experiment("long", "longer-run model", recipe="long", fresh=True)


@dataclass(frozen=True)
class Plan:
    """How much of everything a run of the lab does.

    Args:
        name: "full" or "quick"; the report says which.
        experiments: The models, the course's own first.
        recipes: How they are trained.
        num_train: Training sequences.
        num_test: Test sequences; their generators are kept out of training.
        num_measured: New sequences of the held-out generators, on which every model is compared with the optimum.
        num_prompts: Sequences that are continued.
        prompt_length: Tokens given of each.
        new_tokens: Tokens generated for each.
        temperatures: Rows of the sampling grid.
        top_ps: Columns of the sampling grid.

    Raises:
        InputError: A size below 1, a continuation beyond the trained length, no experiment, or one without a recipe.
    """

    name: str
    experiments: tuple[Experiment, ...]
    recipes: dict[str, TrainingConfig] = field(default_factory=lambda: dict(RECIPES))
    num_train: int = 10_000
    num_test: int = 1_000
    num_measured: int = 4_000
    num_prompts: int = 512
    prompt_length: int = 16
    new_tokens: int = 48
    temperatures: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    top_ps: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95, 1.0)

    def __post_init__(self) -> None:
        require_positive(
            num_train=self.num_train,
            num_test=self.num_test,
            num_measured=self.num_measured,
            num_prompts=self.num_prompts,
            prompt_length=self.prompt_length,
            new_tokens=self.new_tokens,
        )
        require(
            self.prompt_length >= DATA.order and self.prompt_length + self.new_tokens <= DATA.seq_len + 1,
            f"prompt_length = {self.prompt_length} with new_tokens = {self.new_tokens}",
            f"a prompt of at least {DATA.order} and at most {DATA.seq_len + 1} tokens in all",
            "The true sequences, with which continuations are compared, end there.",
        )
        require(
            self.num_prompts <= self.num_measured,
            f"num_prompts = {self.num_prompts} with num_measured = {self.num_measured}",
            "no more prompts than measured sequences",
            "Prompts are the beginnings of measured sequences.",
        )
        require(len(self.experiments) > 0, "a plan without experiments", "at least one", "Start with BASE.")
        missing = [experiment.name for experiment in self.experiments if experiment.recipe not in self.recipes]
        require(not missing, f"no recipe for {missing}", f"recipes among {sorted(self.recipes)}", "Add the recipe.")

    def config(self, experiment: Experiment, seed: int) -> TrainingConfig:
        """How ``experiment`` is trained with ``seed``."""
        return dataclasses.replace(self.recipes[experiment.recipe], seed=seed)


RULES: dict[str, SamplingRule] = {
    "greedy": SamplingRule(temperature=0.0),
    "temperature 0.5": SamplingRule(temperature=0.5),
    "temperature 1": SamplingRule(temperature=1.0),
    "temperature 1.5": SamplingRule(temperature=1.5),
    "top-p 0.9": SamplingRule(top_p=0.9),
    "temp. 1.5, top-p 0.9": SamplingRule(temperature=1.5, top_p=0.9),
}
"""The ways of choosing a token that are compared in detail."""

SHOWN: dict[str, SamplingRule] = {
    "temperature 0.5": SamplingRule(temperature=0.5),
    "temperature 1": SamplingRule(),
    "temperature 2": SamplingRule(temperature=2.0),
    "temperature 2, top-k 3": SamplingRule(temperature=2.0, top_k=3),
    "temperature 2, top-p 0.8": SamplingRule(temperature=2.0, top_p=0.8),
    "top-p 0.9": SamplingRule(top_p=0.9),
}
"""The ways whose distribution of one next token is drawn."""

FULL = Plan("full", (BASE, *VARIANTS, LONG))

QUICK = Plan(
    "quick",
    (dataclasses.replace(BASE, recipe="quick"), dataclasses.replace(ALL_TOGETHER, recipe="quick")),
    num_measured=1_000,
    num_prompts=128,
    temperatures=(0.5, 1.0, 1.5, 2.0),
    top_ps=(0.5, 0.8, 0.9, 1.0),
)
