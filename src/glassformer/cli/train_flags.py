"""The flags of ``glassformer train``. Importing them imports neither torch nor pydantic."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import AvoidSubcommands, FlagCreatePairsOff, SuppressFixed

from glassformer.cli import RECURRENCE
from glassformer.config import Count, NonNegative, Positive, Seed, Size, config
from glassformer.errors import InputError
from glassformer.files import local_path
from glassformer.layers.options import RopeScaling
from glassformer.models.decoder_config import DecoderConfig
from glassformer.training.config import TrainingConfig


# tyro reads flags from classes: these subclasses have the same fields with the defaults of a small
# model. Where a field's default factory is its type, tyro makes no instance for --help, which would
# import pydantic.
@config
class ModelFlags(DecoderConfig):
    """Parts of the model; the data determine its vocabulary."""

    vocab_size: tyro.conf.Suppress[int] = 256
    num_layers: Size = 4
    hidden_dim: Size = 128
    ff_dim: Count = 384
    num_heads: Size = 4
    head_dim: Size = 32
    attention_bias: bool = False  # on all projections or none
    rope_scaling: tyro.conf.Suppress[RopeScaling | None] = None
    # Packed experts cannot be trained.
    expert_format: tyro.conf.Suppress[Literal["dense", "mxfp4"]] = "dense"


@config
class TrainingFlags(TrainingConfig):
    """Settings of the training."""

    batch_size: Size = 32
    optimizer: Literal["adamw", "muon", "sgd"] = "muon"
    learning_rate: Positive = 5e-3
    warmup_steps: Count | None = None
    eval_every: Size | None = 100
    checkpoint_every: Size | None = 100


@config
class TrainFlags:
    """Train a decoder to predict the next token of a text, byte by byte, or of the recurrence.

    For example:
      glassformer train --data recurrence --run runs/mine
      glassformer train --data FILE --run runs/experts --model.num-experts 8 --model.balance-experts

    Common options:
      --data, --run, --resume, --seq-len                       what is trained, and where
      --model.num-layers, --model.hidden-dim, --model.ff-dim   size of the model
      --model.num-heads, --model.head-dim                      its attention
      --training.steps, --training.batch-size                  length of the training
      --training.learning-rate, --training.optimizer           its updates

    The defaults make a small model that a laptop can train. Ctrl-C saves the run, and 'glassformer
    train --run DIR --resume' continues it.
    """

    data: Annotated[str, tyro.conf.arg(metavar="FILE|recurrence")]
    """Text file, read as bytes; or 'recurrence': sequences from hidden rules, whose best accuracy
    is known.
    """

    run: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Directory for the configuration, metrics, checkpoints and the best model."""

    resume: bool = False
    """Continue the run in the directory; its flags become the defaults, --data included."""

    seq_len: Size | None = None
    """Tokens per sequence that the model reads. None: 256 for a text, 64 for the recurrence."""

    seed: Seed = 0
    """Seed of the initial weights and of the data."""

    balance_weight: NonNegative = 0.01
    """Weight of the load-balancing loss, with --model.balance-experts."""

    model: ModelFlags = field(default_factory=ModelFlags)
    training: TrainingFlags = field(default_factory=TrainingFlags)

    def __post_init__(self) -> None:
        if self.model.num_experts is None and self.model.balance_experts:
            raise InputError(
                got="--model.balance-experts without experts",
                expected="both or none",
                fix="Pass --model.num-experts 8, for example.",
            )

    @classmethod
    def parse(cls, args: Sequence[str], prog: str) -> TrainFlags:
        """Read ``args``; with ``--resume`` the flags of the stored run are the defaults."""
        directory = _resumed_run(args)
        return tyro.cli(
            cls,
            prog=prog,
            args=args,
            default=tyro.MISSING_NONPROP if directory is None else _flags_of(directory),
            config=(FlagCreatePairsOff, AvoidSubcommands, SuppressFixed),
        )


def _resumed_run(arguments: Sequence[str]) -> Path | None:
    """Return the run to resume, before parsing: its flags become the defaults."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--run", type=local_path, nargs="?")
    parser.add_argument("--resume", action="store_true")
    known, _ = parser.parse_known_args(arguments)
    return known.run if known.resume else None


def _flags_of(directory: Path) -> TrainFlags:
    """Return the flags that started the run in ``directory``."""
    from glassformer.cli.runs import read_run  # imports torch

    stored = read_run(directory)
    if stored.options.keys() != {"seed", "balance_weight"}:
        raise InputError(
            got=f"--run {directory} with {sorted(stored.options)} in its description",
            expected="seed and balance_weight, as in a run of 'glassformer train'",
            fix="Continue the run with the program that started it.",
        )
    return TrainFlags(
        data=stored.data.get("path", RECURRENCE),
        run=directory,
        seq_len=stored.data.get("seq_len"),
        model=ModelFlags(**vars(stored.model)),
        training=TrainingFlags(**vars(stored.training)),
        **stored.options,
    )
