"""Training configuration as data: checked when it is made, JSON both ways, command-line flags."""

from __future__ import annotations

from typing import Literal

from glassformer.config import (
    Config,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Probability,
    Seed,
    Size,
    config,
)
from glassformer.errors import InputError

# Fields that do not change the weights: they decide when to measure, what to store, how to split.
_FREE_ON_RESUME = {
    "accumulation",
    "eval_every",
    "checkpoint_every",
    "keep_checkpoints",
    "patience",
    "log_every",
    "tensorboard",
}


@config
class TrainingConfig(Config):
    """Settings of the training."""

    steps: Size = 1000
    """Updates of the weights in the whole run."""
    batch_size: Size = 128
    """Examples per update, over all processes and micro-batches together."""
    learning_rate: Positive = 1e-3
    """Peak learning rate of AdamW, or of SGD."""
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    """AdamW for all weights; Muon for inner matrices and AdamW for the rest; or plain SGD."""
    muon_learning_rate: Positive = 0.02
    """Peak learning rate of the weights that Muon updates; unused without Muon."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay of matrices (SGD adds it to the gradient); vectors have none."""
    betas: tuple[Probability, Probability] = (0.9, 0.95)
    """AdamW's decay rates of the first and the second moment."""
    momentum: Probability = 0.0
    """SGD's momentum: share of the last update's direction that stays; unused without SGD."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """Learning rate after warm-up: constant, or half a cosine down to final_lr_fraction."""
    warmup_steps: Count | None = 0
    """Steps of linear warm-up. None: 10, or all steps of a shorter run."""
    final_lr_fraction: Fraction = 0.0
    """Final learning rate of the cosine, as a fraction of the peak."""
    clip_norm: Positive | None = 1.0
    """Largest norm of the whole gradient; larger ones are scaled down. None: no clipping."""
    accumulation: Size = 1
    """Micro-batches per update and process: more need less memory, with the same gradient."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Number format of the forward pass: no autocast, bfloat16 or float16."""
    eval_every: Size | None = None
    """Steps between evaluations. None: evaluate after the last step only."""
    checkpoint_every: Size | None = None
    """Steps between checkpoints. None: save after the last step, and when interrupted."""
    keep_checkpoints: Size = 2
    """Number of latest checkpoints to keep; the best model is kept besides."""
    patience: Size | None = None
    """Stop after so many evaluations without a better metric; needs eval_every. None: never."""
    seed: Seed = 0
    """Seed of training's random numbers (dropout), apart from the data's and the weights'."""
    log_every: Size = 10
    """Steps between lines in metrics.jsonl."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run directory."""

    def __post_init__(self) -> None:
        if self.warmup > self.steps:
            raise InputError(
                got=f"warmup_steps = {self.warmup_steps} with steps = {self.steps}",
                expected="a warm-up no longer than the run",
                fix="Lower warmup_steps or raise steps.",
            )
        if self.patience is not None and self.eval_every is None:
            raise InputError(
                got=f"patience = {self.patience} with eval_every = None",
                expected="evaluations to be patient with",
                fix="Set eval_every, for example to 100.",
            )
        if self.optimizer == "muon" and self.precision == "fp16":
            raise InputError(
                got='optimizer = "muon" with precision = "fp16"',
                expected=(
                    "one optimizer under float16's loss scale, which two optimizers would undo "
                    "twice"
                ),
                fix='Use precision="bf16" with "muon", or "fp16" with "adamw".',
            )

    def require_continues(self, earlier: TrainingConfig) -> None:
        """Check that a run started with ``earlier`` may be continued with this configuration.

        Fields that decide the weights must stay the same; with a constant schedule the number of
        steps may change.
        """
        free = set(_FREE_ON_RESUME)
        if self.schedule == "constant":
            free.add("steps")
        old = vars(earlier)
        new = vars(self)
        changed = [
            f"{name} was {old[name]!r}, is {new[name]!r}"
            for name in new
            if name not in free and old[name] != new[name]
        ]
        # With warmup_steps = None the warm-up depends on the number of steps.
        if earlier.warmup != self.warmup and not changed:
            changed = [f"warmup_steps was {earlier.warmup}, is {self.warmup}"]
        if changed:
            raise InputError(
                got=f"a changed configuration: {', '.join(changed)}",
                expected="the configuration that the run was started with",
                fix="Resume with the old values, or start a new run in another directory.",
            )

    @property
    def warmup(self) -> int:
        """The number of steps of the warm-up."""
        if self.warmup_steps is None:
            return min(10, self.steps)
        return self.warmup_steps
