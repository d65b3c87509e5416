"""The course's vocabulary, facts and examples under its own names: views on :mod:`glassformer.data.lookup`.

The lab itself draws its examples with :func:`~glassformer.data.lookup.lookup_examples`, which no global generator
disturbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.data import lookup
from glassformer.data.lookup import EOS, FACTS, PAD, SOS
from glassformer.errors import require, require_positive

D_MODEL, NUM_HEADS, NUM_LAYERS, D_FF = 64, 4, 1, 128
BATCH_SIZE, LEARNING_RATE, NUM_EPOCHS = 32, 1e-4, 50
MAX_SEQ_LEN = 10

VOCAB = dict(lookup.VOCAB)
"""The token of each word."""

VOCAB_SIZE = len(VOCAB)

ID_TO_TOKEN = dict(lookup.ID_TO_TOKEN)
"""The word of each token."""

FACTS_DICT = {VOCAB[key]: VOCAB[value] for key, value in FACTS.items()}
"""The value's token for the token of each key."""

FACT_PAIRS = list(FACTS_DICT.items())


class LookupSample(TypedDict):
    """One example: five tokens to read, the value and ``[EOS]`` to write, and the value alone."""

    enc_input: Int64[Tensor, " source"]
    dec_target: Int64[Tensor, " target"]
    query_val_id: int


LookupBatch = tuple[
    Int64[Tensor, "batch source"],
    Int64[Tensor, "batch target"],
    Int64[Tensor, "batch target"],
    Bool[Tensor, "batch source"],
    Bool[Tensor, "batch target"],
]
"""enc_inputs, dec_inputs, dec_targets, src_padding_mask, tgt_padding_mask; in the masks True is padding."""


def generate_synthetic_data(num_samples: int) -> list[LookupSample]:
    """Draw examples: ``NAME``, then ``COLOR``, a key, ``ITEM`` and the key's value in a random order.

    Random numbers come from numpy's global generator, a fact and then an order for each example, so that
    ``np.random.seed`` gives the course's own examples.

    Raises:
        InputError: ``num_samples`` below 1.
    """
    require_positive(num_samples=num_samples)
    samples: list[LookupSample] = []
    for _ in range(num_samples):
        key, value = FACT_PAIRS[np.random.randint(len(FACT_PAIRS))]  # noqa: NPY002 - the course's generator
        told = [VOCAB["COLOR"], key, VOCAB["ITEM"], value]
        np.random.shuffle(told)  # noqa: NPY002
        samples.append(
            {
                "enc_input": torch.tensor([VOCAB["NAME"], *told]),
                "dec_target": torch.tensor([value, EOS]),
                "query_val_id": value,
            }
        )
    return samples


class LookupDataset(torch.utils.data.Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Examples for a torch ``DataLoader``: (enc_input, dec_input, true_target), where dec_input starts with ``[SOS]``.

    Args:
        data: Of :func:`generate_synthetic_data`.
    """

    def __init__(self, data: Sequence[LookupSample]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor, Tensor]:
        sample = self.data[idx]
        target = sample["dec_target"]
        return sample["enc_input"], torch.cat([target.new_tensor([SOS]), target[:-1]]), target


def collate_fn(batch: Sequence[tuple[Tensor, Tensor, Tensor]]) -> LookupBatch:
    """Examples as one batch, each part filled up with ``[PAD]`` to its longest.

    Raises:
        InputError: No examples, or one with nothing to read.
    """
    require(len(batch) > 0, "no examples", "at least one", "Pass examples of a LookupDataset.")
    empty = [row for row, parts in enumerate(batch) if len(parts[0]) == 0]
    require(
        not empty,
        f"an empty context in example {empty[0] if empty else ''}",
        "at least one token to read",
        "Leave examples without facts out.",
    )
    enc_inputs, dec_inputs, dec_targets = (
        pad_sequence([parts[place] for parts in batch], batch_first=True, padding_value=PAD) for place in range(3)
    )
    return enc_inputs, dec_inputs, dec_targets, enc_inputs == PAD, dec_inputs == PAD
