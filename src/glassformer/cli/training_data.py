"""Training data of ``glassformer train``: any text, byte by byte, or the recurrence."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from glassformer.cli import RECURRENCE, TEXT
from glassformer.data.bayes import optimal_accuracy
from glassformer.data.recurrence import RecurrenceConfig, fresh_batch, make_split
from glassformer.errors import InputError
from glassformer.files import local_path
from glassformer.training.task import Batch, mix_seed
from glassformer.untrusted import require_regular

BYTES = 256

_TEXT_SEQ_LEN = 256
_EVALUATION_SEQUENCES = 256
HELD_OUT_RECURRENCES = 1000


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Sequences for training and evaluation, with their description.

    Args:
        vocab_size: Number of different tokens.
        seq_len: Tokens per sequence that a model reads; one more is the last to predict.
        batches: ``batches(step, size)`` gives ``{"tokens": [size, seq_len + 1]}``, a function of
            both and of a seed.
        evaluation: Sequences that training never sees.
        metric: The metric that selects the best model.
        description: Stored with the run, as JSON values.
        summary: The description in one readable line.
        optimal_accuracy: Highest accuracy that any model can expect on ``evaluation``, in [0, 1];
            None if unknown.
    """

    vocab_size: int
    seq_len: int
    batches: Callable[[int, int], Batch]
    evaluation: Int64[Tensor, "example position"]
    metric: Literal["loss", "accuracy"]
    description: dict[str, Any]
    summary: str
    optimal_accuracy: float | None = None


def open_data(name: str, seq_len: int | None, seed: int) -> TrainingData:
    """Return the data called ``name``: "recurrence", or the path of a text file.

    A file of that name is ``./recurrence``.

    A model reads ``seq_len`` tokens of each sequence; None: 256 of a text, 64 of the recurrence.
    """
    if name == RECURRENCE:
        if seq_len is None:
            config = RecurrenceConfig()
        else:
            config = RecurrenceConfig(seq_len=seq_len)
        return recurrence_data(config, seed)
    return text_data(local_path(name), seq_len or _TEXT_SEQ_LEN, seed)


def recurrence_data(config: RecurrenceConfig, seed: int) -> TrainingData:
    """Return new sequences of the recurrence at every step.

    1,000 sequences and their generators are held out for evaluation.
    """
    held_out = make_split(config, num_train=1, num_test=HELD_OUT_RECURRENCES, seed=seed).test

    def batches(step: int, size: int) -> Batch:
        return {
            "tokens": fresh_batch(
                config, size, seed=seed, step=step, excluded=held_out.generators
            ).tokens
        }

    return TrainingData(
        vocab_size=config.vocab_size,
        seq_len=config.seq_len,
        batches=batches,
        evaluation=held_out.tokens,
        metric="accuracy",
        description={"kind": RECURRENCE, **asdict(config)},
        summary=f"the recurrence modulo {config.vocab_size}, new sequences of {config.seq_len} "
        f"tokens at every step; {HELD_OUT_RECURRENCES:,} of held-out generators for evaluation",
        optimal_accuracy=float(optimal_accuracy(held_out.tokens, config).expected.mean()),
    )


def text_data(path: Path, seq_len: int, seed: int) -> TrainingData:
    """Return the bytes of a file as tokens: random crops of its first nine tenths.

    Evaluation runs over the last tenth from end to end. If that holds more than 256 sequences, it
    runs over 256 spread evenly in it.
    """
    try:
        require_regular(path)
        content = np.fromfile(path, dtype=np.uint8)
    except (InputError, OSError) as error:
        reason = error.got if isinstance(error, InputError) else error.strerror
        raise InputError(
            got=f"--data {path}, which cannot be read ({reason})",
            expected=f"'{RECURRENCE}', or the path of a text file",
            fix="Correct the path.",
        ) from error
    text = torch.from_numpy(content)
    held_out = len(text) // 10
    learned = len(text) - held_out
    if held_out <= seq_len:
        raise InputError(
            got=f"{path} of {len(text):,} bytes with sequences of {seq_len} + 1",
            expected=(
                f"at least {10 * (seq_len + 1):,} bytes, so that the last tenth, held out for "
                "evaluation, holds a sequence"
            ),
            fix="Give a longer text, or shorter sequences with --seq-len.",
        )

    def batches(step: int, size: int) -> Batch:
        generator = torch.Generator().manual_seed(mix_seed(seed, step, purpose="crops"))
        starts = torch.randint(learned - seq_len, (size,), generator=generator)
        return {"tokens": _crops(text, starts, seq_len)}

    count = held_out // (seq_len + 1)
    measured = min(count, _EVALUATION_SEQUENCES)
    spread = torch.linspace(0, count - 1, measured, dtype=torch.float64).round().long()
    return TrainingData(
        vocab_size=BYTES,
        seq_len=seq_len,
        batches=batches,
        evaluation=_crops(text, learned + spread * (seq_len + 1), seq_len),
        metric="loss",
        description={
            "kind": TEXT,
            "path": str(path.resolve()),
            "bytes": len(text),
            "sha256": hashlib.sha256(content.data).hexdigest(),
            "seq_len": seq_len,
        },
        summary=f"{path}, {learned:,} bytes to learn from in random crops of {seq_len}, "
        f"{held_out:,} held out, of which evaluation reads {measured * (seq_len + 1):,}",
    )


def _crops(
    text: UInt8[Tensor, " byte"], starts: Int64[Tensor, " example"], seq_len: int
) -> Int64[Tensor, "example position"]:
    return text[starts[:, None] + torch.arange(seq_len + 1)].long()
