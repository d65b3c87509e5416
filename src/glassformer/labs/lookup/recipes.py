"""What the lookup lab trains on fresh facts, as data: the one place where it is decided."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from glassformer.data.in_context_lookup import ENCODINGS, Encoding, LookupConfig, Split
from glassformer.errors import require, require_positive
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig
from glassformer.training import TrainingConfig

LONGEST = 1024
"""Most facts of a context that is measured."""


@dataclass(frozen=True)
class InContextRecipe:
    """An encoder-decoder of one layer on each side that answers from fresh facts, and how it is trained.

    Attributes:
        name: For tables and directories.
        encoding: How facts are written down for the encoder.
        data: The contexts it is trained on.
        split: The pairings it is trained on: "train" leaves out those held out, "all" none.
        steps: Updates, each on ``batch_size`` new contexts.
        batch_size: Contexts per update.
        learning_rate: AdamW's peak; it rises over the first 100 steps and falls as a cosine.
        weight_decay: AdamW's, of matrices.
        hidden_dim: Width.
        ff_dim: Width inside the feed-forward networks.
        num_heads: Heads of every attention.
        norm_first: LayerNorm before each part of a block, and one more behind the last.
        mixing: Whether the encoder's places attend to one another. Without it the encoder is a feed-forward network
            that reads each place by itself, and cheaper.
        shared_tables: Whether the decoder embeds the asked key by the encoder's table of keys, and answers by its table
            of values: with one embedding for each token, wherever it stands.
        length_scaling: "log" multiplies the cross-attention's scores by ``log(n + 1) / log(max_facts + 1)`` for n
            places to read, so that the right one can hold its weight among more than it was trained with.

    Raises:
        InputError: A size below 1, an unknown choice, or shared tables for another encoding than slots.
    """

    name: str
    encoding: Encoding
    data: LookupConfig = field(default_factory=LookupConfig)
    split: Split = "train"
    steps: int = 4000
    batch_size: int = 128
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    hidden_dim: int = 64
    ff_dim: int = 128
    num_heads: int = 4
    norm_first: bool = True
    mixing: bool = True
    shared_tables: bool = False
    length_scaling: Literal["none", "log"] = "none"

    def __post_init__(self) -> None:
        require_positive(steps=self.steps, batch_size=self.batch_size)
        for name, choices in (
            ("encoding", ENCODINGS),
            ("split", ("train", "unseen", "all")),
            ("length_scaling", ("none", "log")),
        ):
            value = getattr(self, name)
            require(value in choices, f"{name} = {value!r}", f"one of {', '.join(choices)}", "Choose one of them.")
        require(
            not self.shared_tables or self.encoding == "slots",
            f"shared_tables with encoding = {self.encoding!r}",
            "'slots', which have a table for keys and one for values",
            "Set shared_tables=False.",
        )

    @property
    def directory(self) -> str:
        """The name as one for a file."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def asks_unseen(self) -> bool:
        """Whether its model is measured on pairings that training left out, and on no others."""
        return self.split == "train" and self.data.num_held_out > 0

    def model_config(self) -> EncoderDecoderConfig:
        """The network: no dropout, since no context comes twice; room for :data:`LONGEST` facts."""
        slots = self.encoding == "slots"
        return EncoderDecoderConfig(
            vocab_size=self.data.vocab_size,
            hidden_dim=self.hidden_dim,
            ff_dim=self.ff_dim,
            num_heads=self.num_heads,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_source_len=(LONGEST + self.data.distractors) * (1 if slots else 2),
            max_target_len=1,
            fields_per_slot=2 if slots else 1,
            source_positions="sinusoidal" if self.encoding == "positions" else "none",
            target_positions="none",
            norm_first=self.norm_first,
            final_norm=self.norm_first,
            dropout=0.0,
        )

    def training_config(self, seed: int) -> TrainingConfig:
        """The configuration of the training loop; it evaluates once, at the end."""
        return TrainingConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            warmup_steps=min(100, self.steps // 2),
            keep_checkpoints=1,
            seed=seed,
            log_every=max(1, self.steps // 40),
        )


SLOTS = InContextRecipe("slots", "slots")
"""One place per fact, 1 to 8 facts in training."""

BAG = InContextRecipe("bag", "bag", LookupConfig(num_keys=64, num_values=64, held_out=0.0), split="all")
"""Single tokens in any order. No pairing is held out: for that the ceiling is derived."""

POSITIONS = replace(BAG, name="positions", encoding="positions")
"""Key, value, key, value, ... for an encoder that knows positions; otherwise as :data:`BAG`, to be compared with it."""

FAR = InContextRecipe("plain", "slots", LookupConfig(num_keys=1024, num_values=2048))
"""As :data:`SLOTS`, with keys and values enough for contexts of 1,024 facts: where the search for limits begins."""

CHANGES: tuple[InContextRecipe, ...] = (
    replace(FAR, name="shared tables", shared_tables=True),
    replace(FAR, name="no mixing", mixing=False),
    replace(FAR, name="one head", num_heads=1),
    replace(FAR, name="width 128", hidden_dim=128, ff_dim=256),
    replace(FAR, name="log-length scaling", length_scaling="log"),
    replace(FAR, name="1 to 32 facts", data=replace(FAR.data, max_facts=32)),
    replace(FAR, name="256 values", data=replace(FAR.data, num_values=256, distinct_values=False)),
)
""":data:`FAR` with one thing changed at a time."""

UP_TO_32 = replace(
    FAR,
    name="1 to 32 facts, shared tables, no mixing, log-length scaling",
    data=replace(FAR.data, max_facts=32),
    shared_tables=True,
    mixing=False,
    length_scaling="log",
)
"""Longer contexts in training, and what may make them cheaper to learn from."""

UP_TO_128 = replace(
    UP_TO_32,
    name="1 to 128 facts, shared tables, no mixing, batches of 64",
    data=replace(FAR.data, max_facts=128),
    batch_size=64,
    length_scaling="none",
)
"""Still longer contexts, half as many in an update. Among 8 facts a key need differ from 7 others only, and the loss
vanishes long before it differs from 1,023; among 128 it goes on teaching."""

COMBINATIONS: tuple[InContextRecipe, ...] = (UP_TO_32, UP_TO_128)
""":data:`FAR` with several things changed together."""
