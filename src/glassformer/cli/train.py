"""``glassformer train``: train a decoder on a text or on the recurrence, in a directory that can be continued."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from tyro.conf import AvoidSubcommands, FlagCreatePairsOff, SuppressFixed

from glassformer.cli.runs import StoredRun, description, read_run
from glassformer.cli.training_data import RECURRENCE, TrainingData, open_data
from glassformer.errors import require
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.training import DivergedError, TrainingConfig, TrainingResult, train
from glassformer.training.next_token import NextTokenTask
from glassformer.training.run_directory import RunDirectory
from glassformer.training.stepper import open_accelerator

EXIT_DIVERGED = 1
EXIT_INTERRUPTED = 130


SMALL_TRAINING = TrainingConfig(
    batch_size=32,
    optimizer="muon",
    learning_rate=5e-3,
    warmup_steps=10,
    eval_every=100,
    checkpoint_every=100,
)
"""How a small model is trained: the flags' defaults."""


# A subclass, because the flags are read off a class: the same fields with the defaults of a small model.
@dataclass(frozen=True)
class ModelFlags(DecoderConfig):
    """What the model is made of; its vocabulary is that of the data."""

    vocab_size: tyro.conf.Suppress[int] = 256
    num_layers: int = 4
    hidden_dim: int = 128
    ff_dim: int = 384
    num_heads: int = 4
    head_dim: int = 32
    # Packed experts cannot be trained.
    expert_format: tyro.conf.Suppress[Literal["dense", "mxfp4"]] = "dense"


@dataclass(frozen=True)
class TrainFlags:
    """Train a decoder to predict the next token of a text, byte by byte, or of the recurrence.

    The defaults make a small model that a laptop can train: 'glassformer train --data FILE --run DIR'. Ctrl-C saves the
    run, and 'glassformer train --run DIR --resume' continues it.

    Raises:
        InputError: A seed or weight that is negative, or balanced experts where there are none.
    """

    data: Annotated[str, tyro.conf.arg(metavar="FILE|recurrence")]
    """A text file, read as bytes; or 'recurrence': sequences from hidden rules, whose best accuracy is known."""

    run: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Directory for the configuration, metrics, checkpoints and the best model."""

    resume: bool = False
    """Continue the run in the directory; the flags it was begun with are then the defaults, --data included."""

    seq_len: int | None = None
    """Tokens the model reads of each sequence. None: 256 of a text, 64 of the recurrence."""

    seed: int = 0
    """Seed of the initial weights and of the data."""

    balance_weight: float = 0.01
    """Weight of the load-balancing loss, with --model.balance-experts."""

    model: ModelFlags = ModelFlags()
    training: TrainingConfig = SMALL_TRAINING

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed = {self.seed}", "a whole number of at least 0", "Pass --seed 0 or more.")
        require(
            self.balance_weight >= 0,
            f"balance_weight = {self.balance_weight}",
            "a number of at least 0",
            "Pass --balance-weight 0 or more.",
        )
        require(
            self.model.num_experts is not None or not self.model.balance_experts,
            "--model.balance-experts without experts",
            "both or none",
            "Pass --model.num-experts 8, for example.",
        )


def run(flags: TrainFlags) -> TrainingResult:
    """Train as ``flags`` say, and tell on standard output what is trained and what it came to.

    Raises:
        InputError: Data that cannot be read or are too short, sequences longer than the model's ``max_seq_len``, a
            directory with a run and no ``resume``, or with another run.
        DivergedError: The loss became NaN or infinite.
    """
    require(not flags.run.is_file(), f"--run {flags.run}, which is a file", "a directory", "Choose another path.")
    if not flags.resume:
        RunDirectory(flags.run).require_new()
    data = open_data(flags.data, flags.seq_len, flags.seed)
    require(
        data.seq_len <= flags.model.max_seq_len,
        f"sequences of {data.seq_len} tokens with max_seq_len = {flags.model.max_seq_len}",
        "sequences that the model can read",
        "Pass a smaller --seq-len or a larger --model.max-seq-len.",
    )
    model = _build_model(flags, data)
    described = description(
        model.config,
        _data_description(flags, data),
        seed=flags.seed,
        balance_weight=flags.balance_weight,
    )
    task = NextTokenTask(
        data.batches,
        data.evaluation,
        metric=data.metric,
        balance_weight=flags.balance_weight if model.config.balance_experts else 0.0,
    )
    # Under a launcher, from the first process only.
    say = open_accelerator(flags.training.precision).print
    say(f"model: {sum(weight.numel() for weight in model.parameters()):,} parameters")
    say(f"data: {data.summary}")
    say(f"run: {flags.run}", flush=True)
    result = train(model, task, flags.training, flags.run, resume=flags.resume, description=described)
    say(*_outcome(flags, data, result), sep="\n")
    return result


def main(arguments: Sequence[str], prog: str) -> int:
    """Parse ``arguments`` and train; return the exit status: 0, 1 if training diverged, 130 if it was interrupted."""
    begun = _named_run(arguments)
    flags: TrainFlags = tyro.cli(
        TrainFlags,
        prog=prog,
        args=arguments,
        default=tyro.MISSING_NONPROP if begun is None else _flags_of(begun, read_run(begun)),
        config=(FlagCreatePairsOff, AvoidSubcommands, SuppressFixed),
    )
    try:
        result = run(flags)
    except DivergedError as error:
        print(f"glassformer: error: training diverged: {error}", file=sys.stderr)
        return EXIT_DIVERGED
    return EXIT_INTERRUPTED if result.ending == "interrupted" else 0


def _named_run(arguments: Sequence[str]) -> Path | None:
    """The run to be resumed, known before anything else is parsed, because its flags become the defaults."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--run", type=Path, nargs="?")
    parser.add_argument("--resume", action="store_true")
    known, _ = parser.parse_known_args(arguments)
    return known.run if known.resume else None


def _flags_of(directory: Path, stored: StoredRun) -> TrainFlags:
    """The flags that begin what is stored in ``directory``."""
    require(
        stored.options.keys() == {"seed", "balance_weight"},
        f"--run {directory} with {sorted(stored.options)} in its description",
        "seed and balance_weight, as 'glassformer train' writes them",
        "Continue the run with what began it.",
    )
    return TrainFlags(
        data=stored.data.get("path", RECURRENCE),
        run=directory,
        seq_len=stored.data.get("seq_len"),
        model=ModelFlags(**_fields(stored.model)),
        training=stored.training,
        **stored.options,
    )


def _build_model(flags: TrainFlags, data: TrainingData) -> Decoder:
    config = DecoderConfig(**{**_fields(flags.model), "vocab_size": data.vocab_size})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(flags.seed)
        return Decoder(config)


def _fields(config: DecoderConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _data_description(flags: TrainFlags, data: TrainingData) -> dict[str, Any]:
    """What the run keeps about its data; a text that only moved since the run was begun is the same text."""
    if not flags.resume:
        return data.description
    earlier = read_run(flags.run).data
    moved = {**data.description, "path": earlier.get("path")}
    return earlier if moved == earlier else data.description


def _outcome(flags: TrainFlags, data: TrainingData, result: TrainingResult) -> list[str]:
    """The lines that end a training: the best evaluation, and what can be done next."""
    lines = []
    if result.best is not None:
        metrics = dict(result.evaluations)[result.best.step]
        lines.append(
            f"best: loss {metrics['loss']:.4f} nats per token, accuracy {metrics['accuracy']:.4f} "
            f"after step {result.best.step:,}"
        )
    if data.optimal_accuracy is not None:
        lines.append(f"best possible accuracy of any model on these sequences: {data.optimal_accuracy:.4f}")
    directory = shlex.quote(str(flags.run))
    if result.ending == "interrupted":
        return [*lines, f"continue: glassformer train --run {directory} --resume"]
    if result.ending == "patience":
        lines.append(f"ended after {flags.training.patience} evaluations in a row without a better {data.metric}")
    prompt = '"1 2 3"' if data.description["kind"] == RECURRENCE else '"Once"'
    return [*lines, f"generate: glassformer generate --run {directory} --prompt {prompt}"]
