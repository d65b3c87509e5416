"""Encoder-decoders that answer from fresh facts in their context: a recipe as data, its model, its training."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from glassformer.config import NonNegative, Positive, Size, config
from glassformer.data.in_context_lookup import Encoding, Facts, LookupConfig, Split, encode, sample
from glassformer.errors import require
from glassformer.layers.blocks import CrossBlock
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.modes import seeded
from glassformer.training import Batch, TargetTask, TrainingConfig, TrainingResult
from glassformer.training.loaders import train_in

LONGEST = 1024
"""Most facts of a context that is measured."""

MEASURING_SEED = 10_000_000
"""Contexts that are measured come from seeds from here on, those of training from seeds below."""


@config
class InContextRecipe:
    """An encoder-decoder of one layer on each side that answers from fresh facts, and how it is trained.

    The learning rate rises over the first 100 steps and falls as a cosine. Without ``mixing`` the encoder has no
    self-attention: it reads each position by itself. With ``shared_tables`` (for slots) the decoder embeds the query by
    the encoder's table of keys and answers by its table of values. ``length_scaling = "log"`` multiplies the scores of
    the cross-attention by ``log(n + 1) / log(max_facts + 1)`` for n positions to read.
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
    mixing: bool = True
    shared_tables: bool = False
    length_scaling: Literal["none", "log"] = "none"

    def __post_init__(self) -> None:
        got, fix = f"shared_tables with encoding = {self.encoding!r}", "Set shared_tables=False."
        fits = not self.shared_tables or self.encoding == "slots"
        require(fits, got, "'slots', which have a table for keys and one for values", fix)

    @property
    def directory(self) -> str:
        """The name as one for a file."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def asks_unseen(self) -> bool:
        """Whether its model is measured on pairings of key and value that training left out, and on no others."""
        return self.split == "train" and self.data.num_held_out > 0

    def scale(self, num_facts: int) -> float:
        """The factor of the scores among so many facts."""
        if self.length_scaling == "none":
            return 1.0
        return math.log(num_facts + 1) / math.log(self.data.max_facts + 1)

    def model_config(self) -> EncoderDecoderConfig:
        """The network: no dropout, since no context is repeated; room for :data:`LONGEST` facts."""
        slots = self.encoding == "slots"
        return EncoderDecoderConfig(
            vocab_size=self.data.vocab_size,
            hidden_dim=self.hidden_dim,
            ff_dim=self.ff_dim,
            num_heads=self.num_heads,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_source_len=LONGEST * (1 if slots else 2),
            max_target_len=1,
            fields_per_slot=2 if slots else 1,
            source_positions="sinusoidal" if self.encoding == "positions" else "none",
            target_positions="none",
            norm_first=self.norm_first,
            final_norm=self.norm_first,
            dropout=0.0,
        )


def batch(facts: Facts, recipe: InContextRecipe, seed: int = 0, step: int = 0) -> Batch:
    """Contexts and questions as a :class:`~glassformer.training.TargetTask` has them; the seed shuffles bags."""
    source, real = encode(facts, recipe.encoding, seed=seed, step=step)
    return {"source": source, "source_real": real, "inputs": facts.query[:, None], "targets": facts.answer[:, None]}


@torch.no_grad()
def answers(model: nn.Module, facts: Facts, recipe: InContextRecipe) -> Int64[Tensor, " batch"]:
    """The most likely token for each question."""
    asked = batch(facts, recipe)
    return model(asked["source"], asked["inputs"], asked["source_real"])[:, -1].argmax(-1)


def build_model(recipe: InContextRecipe, seed: int) -> EncoderDecoder:
    """The model of ``recipe`` before training, with weights drawn from ``seed``."""
    with seeded(seed):
        model = EncoderDecoder(recipe.model_config())
    if recipe.shared_tables:
        keys, values = model.source_embeddings
        assert isinstance(keys, nn.Embedding)
        assert isinstance(values, nn.Embedding)
        model.target_embedding.weight, model.output.weight = keys.weight, values.weight
    if not recipe.mixing:
        for block in model.encoder_layers:
            block.attention = _Nothing()
    if recipe.length_scaling == "log":
        for block in model.decoder_layers:
            assert isinstance(block, CrossBlock)
            _scale_by_length(block.cross_attention, recipe)
    return model


def train_in_context(
    recipe: InContextRecipe, seed: int, directory: Path | None = None
) -> tuple[EncoderDecoder, TrainingResult]:
    """Train the model of ``recipe`` on new contexts in every step, in a run directory if one is given."""
    fix = "Larger ones are for measuring."
    require(0 <= seed < MEASURING_SEED, f"seed = {seed}", f"0 to {MEASURING_SEED - 1}", fix)
    data, split = recipe.data, recipe.split

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
    task = TargetTask(batches, batch(sample(data, 1000, MEASURING_SEED, split=split), recipe))
    model = build_model(recipe, seed)
    return model, train_in(directory, model, task, config, {"recipe": asdict(recipe), "seed": seed})


class _Nothing(nn.Module):
    """In the place of an attention: adds nothing to the residual stream."""

    def forward(self, x: Tensor, *, key_padding: Tensor | None = None) -> Tensor:
        return torch.zeros_like(x)


def _scale_by_length(attention: nn.Module, recipe: InContextRecipe) -> None:
    """Multiply queries, and so scores, by ``recipe.scale`` of the real positions in each row."""
    factor: list[Tensor] = []

    def count(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        source, real = arguments[1], keywords.get("key_padding")
        # With a cache the keys and values of the memory come instead: [batch, head, position, head_dim].
        kept, axis = (source[0], 2) if isinstance(source, tuple) else (source, 1)
        length = kept.new_full((len(kept),), kept.shape[axis]) if real is None else real.sum(1).to(kept.dtype)
        factor[:] = [(length + 1).log() / math.log(recipe.data.max_facts + 1)]

    attention.register_forward_pre_hook(count, with_kwargs=True)
    query = attention.query
    assert isinstance(query, nn.Module)
    query.register_forward_hook(lambda _module, _inputs, output: output * factor[0][:, None, None])
