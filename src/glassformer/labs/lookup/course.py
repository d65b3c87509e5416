"""The course's experiment: its examples and hyperparameters, the best weights kept, and what the model writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn

from glassformer.data.lookup import (
    EOS,
    ID_TO_TOKEN,
    PAD,
    SOS,
    LookupExample,
    lookup_batch,
    lookup_examples,
    split_lookup,
)
from glassformer.errors import require, require_positive
from glassformer.generation.greedy import greedy_decode
from glassformer.labs.lookup.course_data import (
    BATCH_SIZE,
    D_FF,
    D_MODEL,
    LEARNING_RATE,
    MAX_SEQ_LEN,
    NUM_EPOCHS,
    NUM_HEADS,
    NUM_LAYERS,
    VOCAB_SIZE,
)
from glassformer.models.encoder_config import Positions
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig
from glassformer.training import Batch, EpochBatches, TrainingConfig, TrainingResult, load_weights, train

NUM_SAMPLES = 5000
DROPOUT = 0.1
TARGET_LEN = 2


@dataclass(frozen=True)
class CourseSplit:
    """The course's examples: 80 % to train on, 10 % to choose weights by, 10 % to test on, cut where they stand."""

    train: tuple[LookupExample, ...]
    validation: tuple[LookupExample, ...]
    test: tuple[LookupExample, ...]


@dataclass(frozen=True, eq=False)
class CourseRun:
    """A trained model of the course.

    Attributes:
        model: With the best weights, in evaluation mode.
        result: What its training came to.
        split: What it was trained, chosen and tested on.
    """

    model: EncoderDecoder
    result: TrainingResult
    split: CourseSplit

    @property
    def steps_per_epoch(self) -> int:
        """Updates in an epoch."""
        return -(-len(self.split.train) // BATCH_SIZE)

    @property
    def epochs(self) -> int:
        """Epochs trained."""
        return self.result.step // self.steps_per_epoch

    @property
    def epochs_needed(self) -> int | None:
        """The first epoch after which every validation example is answered right; None if there is none."""
        for step, metrics in self.result.evaluations:
            if metrics["accuracy"] == 1:
                return step // self.steps_per_epoch
        return None


class CourseTask:
    """Writing the value and ``[EOS]`` for a context; a task for :func:`glassformer.training.train`.

        loss = mean over target tokens of -log p(token | context, tokens before it)

    Validation gives this loss, which chooses the best weights, and "accuracy", the share of examples all of whose
    tokens are the most likely ones. Accuracy could not choose: it is perfect after a few epochs, and would keep the
    first of many equals.

    Args:
        split: Examples.
        seed: Seed of their order.
    """

    metric = "loss"
    higher_is_better = False
    unit = "examples"

    def __init__(self, split: CourseSplit, seed: int = 0) -> None:
        self._train = EpochBatches(_tensors(split.train), seed=seed)
        self._validation = _tensors(split.validation)

    def batch(self, step: int, size: int) -> Batch:
        """``{"source": [batch, 5], "inputs": [batch, 2], "targets": [batch, 2]}``."""
        return self._train(step, size)

    def count(self, batch: Batch) -> int:
        """Examples in ``batch``."""
        return len(batch["source"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss above, in nats."""
        return target_loss(model(batch["source"], batch["inputs"]), batch["targets"])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """ "loss" and "accuracy" on the validation examples."""
        device = next(model.parameters()).device
        held_out = {name: tensor.to(device) for name, tensor in self._validation.items()}
        logits, targets = model(held_out["source"], held_out["inputs"]), held_out["targets"]
        return {
            "loss": float(target_loss(logits, targets)),
            "accuracy": float(all_right(logits, targets).double().mean()),
        }


def target_loss(
    logits: Float[Tensor, "batch target vocab"], targets: Int64[Tensor, "batch target"]
) -> Float[Tensor, ""]:
    """The mean of ``-log p(token)`` over all target tokens but padding, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def all_right(
    logits: Float[Tensor, "batch target vocab"], targets: Int64[Tensor, "batch target"]
) -> Bool[Tensor, " batch"]:
    """Whether every target token but padding is the most likely one."""
    return ((logits.argmax(-1) == targets) | (targets == PAD)).all(-1)


def course_split(seed: int, num_samples: int = NUM_SAMPLES) -> CourseSplit:
    """The course's 4,000, 500 and 500 examples, or as large shares of ``num_samples``.

    There are but 72 different contexts, so nearly every held-out one was also trained on.

    Raises:
        InputError: A negative seed, or too few samples for three parts.
    """
    return CourseSplit(*split_lookup(lookup_examples(num_samples, seed), together="nothing"))


def build_course_model(seed: int, source_positions: Positions = "none") -> EncoderDecoder:
    """The course's model before training; its weights are drawn from ``seed``, torch's generator is left alone.

    It is :attr:`~glassformer.labs.lookup.network.CrossAttentionLookupModel.network` of the course's sizes;
    ``source_positions`` gives its encoder positions, which the course forbids.
    """
    config = EncoderDecoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_dim=D_MODEL,
        ff_dim=D_FF,
        num_heads=NUM_HEADS,
        num_encoder_layers=NUM_LAYERS,
        num_decoder_layers=NUM_LAYERS,
        max_source_len=MAX_SEQ_LEN,
        max_target_len=MAX_SEQ_LEN,
        source_positions=source_positions,
        dropout=DROPOUT,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EncoderDecoder(config)


def train_course(
    seed: int,
    directory: Path,
    *,
    epochs: int = NUM_EPOCHS,
    num_samples: int = NUM_SAMPLES,
    source_positions: Positions = "none",
    progress: bool = False,
) -> CourseRun:
    """Train the course's model as it says, going on with what is in ``directory``; the best weights are kept.

    Adam (AdamW without decay) at a constant 1e-4, batches of 32, at most 50 epochs of 4,000 examples.

    Args:
        seed: Of the examples, their order, the initial weights and dropout.
        directory: The run directory.
        epochs: Passes over the training examples.
        num_samples: Examples in all, of which 80 % are trained on.
        source_positions: As for :func:`build_course_model`.
        progress: Show a bar.

    Raises:
        InputError: ``epochs`` below 1, a negative seed, or ``directory`` holds the run of another configuration.
        KeyboardInterrupt: The training was interrupted. What it did is saved.
    """
    require_positive(epochs=epochs)
    model, split = build_course_model(seed, source_positions), course_split(seed, num_samples)
    steps = -(-len(split.train) // BATCH_SIZE)
    config = TrainingConfig(
        steps=epochs * steps,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        weight_decay=0.0,
        betas=(0.9, 0.999),
        schedule="constant",
        clip_norm=None,
        eval_every=steps,
        checkpoint_every=steps,
        keep_checkpoints=1,
        seed=seed,
        log_every=max(1, steps // 5),
    )
    description = {"model": json.loads(model.config.to_json()), "samples": num_samples, "seed": seed}
    begun = (directory / "config.json").exists()
    task = CourseTask(split, seed)
    result = train(model, task, config, directory, resume=begun, description=description, progress=progress)
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    model.cpu()  # training leaves it on the device that it used; what is measured lies on the CPU
    load_weights(model, directory / "best")
    return CourseRun(model.eval(), result, split)


def share_right(model: EncoderDecoder, examples: Sequence[LookupExample]) -> float:
    """The share of examples for which the model writes exactly the value and ``[EOS]``, in [0, 1].

    Raises:
        InputError: No examples.
    """
    require(len(examples) > 0, "no examples", "at least one", "Pass some.")
    batch = lookup_batch(examples)
    written = decode(model, batch.source, TARGET_LEN)
    missing = TARGET_LEN - written.shape[1]
    written = F.pad(written, (0, missing), value=model.config.pad_id)
    return float((written == batch.targets).all(-1).double().mean())


def decode(
    model: EncoderDecoder, source: Int[Tensor, "batch source"], max_new_tokens: int
) -> Int64[Tensor, "batch token"]:
    """The course's decoding: from ``[SOS]`` to ``[EOS]``, always the most likely token; padding behind the end."""
    return greedy_decode(model, source, max_new_tokens, SOS, EOS)


@torch.no_grad()
def written_logits(model: EncoderDecoder, source: Int[Tensor, "batch source"]) -> Float[Tensor, "batch target vocab"]:
    """The logits of each token that the model writes for contexts without padding, in evaluation mode.

    What it has written itself stands before each: a value that changes with the order changes what follows too.
    """
    memory = model.encode(source)
    written = torch.full((len(source), 1), SOS, device=source.device)
    for _ in range(TARGET_LEN):
        logits = model.decode(written, memory)
        written = torch.cat([written, logits[:, -1:].argmax(-1)], dim=1)
    return logits


def side_by_side(model: EncoderDecoder, examples: Sequence[LookupExample], seed: int = 0) -> list[str]:
    """Two lines for each example: the words that the model reads and writes, as they stand and in another order.

    Raises:
        InputError: No examples, or a negative seed.
    """
    require(len(examples) > 0, "no examples", "at least one", "Pass some.")
    require(seed >= 0, f"seed = {seed}", "a whole number of at least 0", "Pass seed >= 0.")
    source = lookup_batch(examples).source
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([_another_order(source.shape[1], generator) for _ in examples])
    scrambled = source.gather(1, order)
    width = max(len(words(row)) for row in (*source, *scrambled))
    lines = []
    for name, rows in (("original", source), ("scrambled", scrambled)):
        outputs = decode(model, rows, TARGET_LEN)
        lines.append(
            [f"{name:9}  {words(row):{width}}  ->  {words(out)}" for row, out in zip(rows, outputs, strict=True)]
        )
    return [line for pair in zip(*lines, strict=True) for line in pair]


def words(tokens: Tensor) -> str:
    """The words of a row of tokens."""
    return " ".join(ID_TO_TOKEN[token] for token in tokens.tolist())


def _another_order(length: int, generator: torch.Generator) -> Tensor:
    while True:
        order = torch.randperm(length, generator=generator)
        if length == 1 or not torch.equal(order, torch.arange(length)):
            return order


def _tensors(examples: Sequence[LookupExample]) -> dict[str, Tensor]:
    batch = lookup_batch(examples)
    return {"source": batch.source, "inputs": batch.inputs, "targets": batch.targets}
