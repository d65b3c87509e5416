"""How a model is trained, as data: checked when made, JSON both ways, the same fields as command-line flags."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Literal, cast

from glassformer.errors import InputError, require, require_positive

# Fields that say when to look at a run and what to keep of it, or split the same sums differently.
_FREE_ON_RESUME = {
    "accumulation",
    "eval_every",
    "checkpoint_every",
    "keep_checkpoints",
    "patience",
    "log_every",
    "tensorboard",
}


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Raises:
        InputError: If a field is out of its range, or two fields contradict each other.
    """

    steps: int = 1000
    """Updates of the weights in the whole run."""
    batch_size: int = 128
    """Examples per update, over all processes and micro-batches together."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW, or of SGD."""
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    """AdamW for every weight, Muon for the matrices inside the network and AdamW for the rest, or plain SGD."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of the weights that Muon updates; unused without Muon."""
    weight_decay: float = 0.01
    """Weight decay of matrices, decoupled (SGD's is part of the gradient); vectors, as biases, are never decayed."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the first and the second moment."""
    momentum: float = 0.0
    """SGD's momentum: the share of the last update's direction that is kept; unused without SGD."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """Course of the learning rate after warm-up: constant, or half a cosine down to final_lr_fraction."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly to its peak."""
    final_lr_fraction: float = 0.0
    """Where the cosine ends, as a fraction of the peak learning rate."""
    clip_norm: float | None = 1.0
    """Largest norm of the gradient of all weights together; a longer one is scaled down. None: never."""
    accumulation: int = 1
    """Micro-batches per update and process: more of them need less memory and give the same gradient."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Number format of the forward pass: no autocast (the weights' own format), bfloat16 or float16."""
    eval_every: int | None = None
    """Steps between evaluations. None: evaluate after the last step only."""
    checkpoint_every: int | None = None
    """Steps between checkpoints. None: save after the last step, and when interrupted."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints stay on the disk; the best model is kept besides."""
    patience: int | None = None
    """Stop after this many evaluations in a row without a better metric. None: never."""
    seed: int = 0
    """Seed of what is random while training (dropout). Data and initial weights have their own seeds."""
    log_every: int = 10
    """Steps between lines in metrics.jsonl."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run directory."""

    def __post_init__(self) -> None:
        require_positive(
            steps=self.steps,
            batch_size=self.batch_size,
            accumulation=self.accumulation,
            keep_checkpoints=self.keep_checkpoints,
            log_every=self.log_every,
        )
        for name in ("eval_every", "checkpoint_every", "patience"):
            if getattr(self, name) is not None:
                require_positive(**{name: getattr(self, name)})
        for name in ("learning_rate", "muon_learning_rate"):
            _require_number(name, getattr(self, name), "a number above 0", lambda value: value > 0)
        _require_number("weight_decay", self.weight_decay, "a number of at least 0", lambda value: value >= 0)
        _require_number(
            "final_lr_fraction", self.final_lr_fraction, "a number in [0, 1]", lambda value: 0 <= value <= 1
        )
        _require_number("momentum", self.momentum, "a number in [0, 1)", lambda value: 0 <= value < 1)
        if self.clip_norm is not None:
            _require_number("clip_norm", self.clip_norm, "a number above 0, or None", lambda value: value > 0)
        require(
            isinstance(self.betas, tuple)
            and len(self.betas) == 2
            and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in self.betas),
            f"betas = {self.betas!r}",
            "two numbers in [0, 1)",
            "Pass betas=(0.9, 0.95), for example.",
        )
        for name, whole in (("warmup_steps", self.warmup_steps), ("seed", self.seed)):
            require(
                isinstance(whole, int) and not isinstance(whole, bool) and whole >= 0,
                f"{name} = {whole!r}",
                "a whole number of at least 0",
                f"Pass {name} >= 0.",
            )
        require(
            self.warmup_steps <= self.steps,
            f"warmup_steps = {self.warmup_steps} with steps = {self.steps}",
            "a warm-up no longer than the run",
            "Lower warmup_steps or raise steps.",
        )
        _require_choice("optimizer", self.optimizer, ("adamw", "muon", "sgd"))
        _require_choice("schedule", self.schedule, ("constant", "cosine"))
        _require_choice("precision", self.precision, ("no", "bf16", "fp16"))
        require(
            not (self.optimizer == "muon" and self.precision == "fp16"),
            'optimizer = "muon" with precision = "fp16"',
            "one optimizer under float16's loss scale, which two optimizers would undo twice",
            'Use precision="bf16" with "muon", or "fp16" with "adamw".',
        )

    def to_json(self) -> str:
        """The configuration as a JSON object, one field a line."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> TrainingConfig:
        """Read what :meth:`to_json` wrote. Absent fields take their defaults.

        Raises:
            InputError: If ``text`` is not a JSON object, or holds an unknown field or a value out of range.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"text that is not JSON ({error})", "a JSON object", "Write it with to_json().") from error
        require(isinstance(values, dict), f"JSON of type {type(values).__name__}", "a JSON object", "Use {...}.")
        known = [field.name for field in fields(cls)]
        for name in values:
            close = difflib.get_close_matches(name, known, n=1)
            require(
                name in known,
                f"the unknown field {name!r}",
                f"fields among {', '.join(known)}",
                f"Did you mean {close[0]!r}?" if close else "Remove it.",
            )
        if isinstance(values.get("betas"), list):
            values["betas"] = tuple(values["betas"])
        return cls(**values)

    def require_continues(self, earlier: TrainingConfig) -> None:
        """Check that a run begun with ``earlier`` may be continued with this configuration.

        What decides the weights must stay. Free are: accumulation, eval_every, checkpoint_every, keep_checkpoints,
        patience, log_every, tensorboard, and with a constant schedule the number of steps.

        Raises:
            InputError: Naming each field that differs and may not.
        """
        free = _FREE_ON_RESUME | ({"steps"} if self.schedule == "constant" else set())
        pairs = {field.name: (getattr(earlier, field.name), getattr(self, field.name)) for field in fields(self)}
        changed = [
            f"{name} was {old!r}, is {new!r}" for name, (old, new) in pairs.items() if name not in free and old != new
        ]
        require(
            not changed,
            f"a changed configuration: {', '.join(changed)}",
            "the configuration that the run was started with",
            "Resume with the old values, or start a new run in another directory.",
        )


def _require_number(name: str, value: object, expected: str, accept: Callable[[float], bool]) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    require(number and accept(cast(float, value)), f"{name} = {value!r}", expected, f"Pass {name} as {expected}.")


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    listed = " or ".join(f'"{choice}"' for choice in choices)
    require(value in choices, f"{name} = {value!r}", listed, f"Pass {name} as {listed}.")
