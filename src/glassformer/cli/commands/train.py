"""``glassformer train``: train a decoder on a text or the recurrence, in a run directory."""

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from glassformer.checkpoints.assembly import available_memory, count_parameters
from glassformer.cli import RECURRENCE
from glassformer.cli.runs import read_run
from glassformer.cli.terminal import say
from glassformer.cli.train_flags import TrainFlags
from glassformer.cli.training_data import HELD_OUT_RECURRENCES, TrainingData, open_data
from glassformer.errors import InputError
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.modes import seeded
from glassformer.text import byte_size
from glassformer.training import DivergedError, TrainingResult, train
from glassformer.training.run_directory import RunDirectory
from glassformer.training.sequence_tasks import NextTokenTask
from glassformer.training.stepper import open_accelerator

EXIT_DIVERGED = 1
EXIT_INTERRUPTED = 130


def run(flags: TrainFlags) -> TrainingResult:
    """Train as ``flags`` say, and print the model, the data and the result."""
    if not flags.resume:
        RunDirectory(flags.run).require_new()
    _require_memory(flags)
    data = open_data(flags.data, flags.seq_len, flags.seed)
    longest = flags.model.max_seq_len
    if data.seq_len > longest:
        raise InputError(
            got=f"sequences of {data.seq_len} tokens with max_seq_len = {longest}",
            expected="sequences that the model can read",
            fix="Pass a smaller --seq-len or a larger --model.max-seq-len.",
        )
    config = DecoderConfig(**{**vars(flags.model), "vocab_size": data.vocab_size})
    with seeded(flags.seed):
        model = Decoder(config)
    described: dict[str, Any] = {"model": asdict(config), "data": _data_description(flags, data)}
    described |= {"seed": flags.seed, "balance_weight": flags.balance_weight}
    task = NextTokenTask(
        data.batches,
        data.evaluation,
        metric=data.metric,
        balance_weight=flags.balance_weight if config.balance_experts else 0.0,
    )
    # Under a launcher, only the first process prints.
    report: Callable[[str], object]
    if open_accelerator(flags.training.precision).is_local_main_process:
        report = say
    else:
        report = str
    report(f"model: {sum(weight.numel() for weight in model.parameters()):,} parameters")
    report(f"data: {data.summary}")
    report(f"run: {flags.run}")
    result = train(
        model,
        task,
        flags.training,
        flags.run,
        resume=flags.resume,
        description=described,
        advice=None,  # _outcome() has the whole command
    )
    report("\n".join(_outcome(flags, data, result)))
    return result


def _require_memory(flags: TrainFlags) -> None:
    """Refuse sizes that cannot fit into memory: the system would end the process without a message.

    The sum is a lower bound. It has the weights, their gradients and the optimiser's state; the
    logits and the residual stream after each layer for the tokens of one pass; and the sequences.
    """
    model = flags.model
    training = flags.training
    copies = 4 if training.optimizer == "adamw" else 3
    processes = training.accumulation * int(os.environ.get("WORLD_SIZE", "1"))
    seq_len = flags.seq_len or 64
    tokens = -(-training.batch_size // processes) * seq_len
    held_out = HELD_OUT_RECURRENCES if flags.data == RECURRENCE else 0
    needed = 4 * copies * count_parameters(DecoderConfig(**vars(model)))
    needed += 4 * tokens * (model.vocab_size + model.num_layers * model.hidden_dim)
    needed += 8 * seq_len * (training.batch_size + held_out)
    available = available_memory()
    if available is not None and needed > available:
        raise InputError(
            got=(
                f"--model, --training and --seq-len sizes that take at least {byte_size(needed)} "
                "of memory"
            ),
            expected=f"at most the {byte_size(available)} that this process may take now",
            fix="Choose smaller ones.",
        )


def main(flags: TrainFlags) -> int:
    """Train; return the exit status: 0, 1 if training diverged, 130 if it was interrupted."""
    try:
        result = run(flags)
    except DivergedError as error:
        print(f"glassformer: error: training diverged: {error}", file=sys.stderr)
        return EXIT_DIVERGED
    return EXIT_INTERRUPTED if result.ending == "interrupted" else 0


def _data_description(flags: TrainFlags, data: TrainingData) -> dict[str, Any]:
    """Return the stored description of the data; a text file may have moved since the start."""
    if not flags.resume:
        return data.description
    earlier = read_run(flags.run).data
    if {**data.description, "path": earlier.get("path")} == earlier:
        return earlier
    return data.description


def _outcome(flags: TrainFlags, data: TrainingData, result: TrainingResult) -> list[str]:
    """Return the last lines: the best evaluation, and the command to continue or generate."""
    lines = []
    if result.best is not None:
        metrics = dict(result.evaluations).get(result.best.step, {data.metric: result.best.value})
        formats = {"loss": "loss {:.4f} nats per token", "accuracy": "accuracy {:.4f}"}
        numbers = ", ".join(
            text.format(metrics[name]) for name, text in formats.items() if name in metrics
        )
        lines.append(f"best: {numbers} after step {result.best.step:,}")
    if data.optimal_accuracy is not None:
        lines.append(
            "accuracy that the best possible model expects on these sequences: "
            f"{data.optimal_accuracy:.4f}"
        )
    directory = shlex.quote(str(flags.run))
    if result.ending == "interrupted":
        return [*lines, f"continue: glassformer train --run {directory} --resume"]
    if result.ending == "patience":
        lines.append(
            f"ended after {flags.training.patience} evaluations in a row without a better "
            f"{data.metric}"
        )
    prompt = '"1 2 3"' if data.description["kind"] == RECURRENCE else '"Once"'
    return [*lines, f"generate: glassformer generate {directory} {prompt}"]
