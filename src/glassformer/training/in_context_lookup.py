"""Encoder-decoders that answer from fresh facts in their context: recipe, model, training."""

import re
from dataclasses import asdict, field
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from glassformer.config import NonNegative, Positive, Size, config
from glassformer.data.in_context_lookup import Encoding, Facts, LookupConfig, Split, encode, sample
from glassformer.errors import InputError
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.modes import seeded
from glassformer.training import Batch, TargetTask, TrainingConfig, TrainingResult
from glassformer.training.loop import train_in

LONGEST = 1024
"""Maximum number of facts in a context of an evaluation."""

MEASURING_SEED = 10_000_000
"""First seed of evaluation contexts; training uses the seeds below."""


@config
class InContextRecipe:
    """A one-layer encoder-decoder that answers from fresh facts, and its training.

    The learning rate rises over the first 100 steps and falls as a cosine.
    """

    name: str
    encoding: Encoding
    data: LookupConfig = field(default_factory=LookupConfig)
    split: Split = "train"
    steps: Size = 4000
    batch_size: Size = 128
    learning_rate: Positive = 3e-3
    weight_decay: NonNegative = 0.01
    hidden_dim: Size = 64
    ff_dim: Size = 128
    num_heads: Size = 4
    norm_first: bool = True

    @property
    def directory(self) -> str:
        """Return the name as a directory name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def asks_unseen(self) -> bool:
        """Return whether evaluation asks exactly the pairings that training left out."""
        return self.split == "train" and self.data.num_held_out > 0

    def model_config(self) -> EncoderDecoderConfig:
        """Return the network's configuration, with room for :data:`LONGEST` facts.

        It has no dropout, since no context is repeated.
        """
        # A slot holds a key and its value; otherwise each is a token.
        if self.encoding == "slots":
            max_source_len = LONGEST
            fields_per_slot = 2
        else:
            max_source_len = 2 * LONGEST
            fields_per_slot = 1
        return EncoderDecoderConfig(
            vocab_size=self.data.vocab_size,
            hidden_dim=self.hidden_dim,
            ff_dim=self.ff_dim,
            num_heads=self.num_heads,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_source_len=max_source_len,
            max_target_len=1,
            fields_per_slot=fields_per_slot,
            source_positions="sinusoidal" if self.encoding == "positions" else "none",
            target_positions="none",
            norm_first=self.norm_first,
            final_norm=self.norm_first,
            dropout=0.0,
        )


def batch(facts: Facts, recipe: InContextRecipe, seed: int = 0, step: int = 0) -> Batch:
    """Return contexts and questions as a batch of :class:`~glassformer.training.TargetTask`.

    The seed shuffles bags.
    """
    source, real = encode(facts, recipe.encoding, seed=seed, step=step)
    return {
        "source": source,
        "source_real": real,
        "inputs": facts.query[:, None],
        "targets": facts.answer[:, None],
    }


@torch.no_grad()
def answers(model: nn.Module, facts: Facts, recipe: InContextRecipe) -> Int64[Tensor, " batch"]:
    """Return the most likely token for each question."""
    questions = batch(facts, recipe)
    logits = model(questions["source"], questions["inputs"], questions["source_real"])
    return logits[:, -1].argmax(-1)


def build_model(recipe: InContextRecipe, seed: int) -> EncoderDecoder:
    """Return the model of ``recipe`` before training, with weights drawn from ``seed``."""
    with seeded(seed):
        return EncoderDecoder(recipe.model_config())


def train_in_context(
    recipe: InContextRecipe, seed: int, directory: Path | None = None
) -> tuple[EncoderDecoder, TrainingResult]:
    """Train the model of ``recipe`` on new contexts in every step, in ``directory`` if given."""
    if not 0 <= seed < MEASURING_SEED:
        raise InputError(
            got=f"seed = {seed}",
            expected=f"0 to {MEASURING_SEED - 1}",
            fix="Larger ones are for measuring.",
        )
    data = recipe.data
    split = recipe.split

    def batches(step: int, size: int) -> Batch:
        return batch(sample(data, size, seed, split=split, step=step), recipe, seed, step)

    config = TrainingConfig(
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        warmup_steps=min(100, recipe.steps // 2),
        keep_checkpoints=1,
        seed=seed,
        log_every=max(1, recipe.steps // 40),
    )
    evaluation = batch(sample(data, 1000, MEASURING_SEED, split=split), recipe)
    task = TargetTask(batches, evaluation)
    model = build_model(recipe, seed)
    return model, train_in(directory, model, task, config, {"recipe": asdict(recipe), "seed": seed})
