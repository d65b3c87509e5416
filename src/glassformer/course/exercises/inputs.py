"""Inputs for exercises of several labs."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

LARGE = 1e6
"""Factor for a module's inputs, with which exponentials of its scores overflow.

The largest score then has all the weight, so that rounding makes no difference.
"""
LARGE_LOGITS = 1000.0
"""Factor for logits whose exponentials overflow."""


class Batches(list[tuple[Tensor, ...]]):
    """Batches with the attributes of a ``DataLoader`` that answers may read."""

    @property
    def dataset(self) -> list[tuple[Any, ...]]:
        """Examples of all batches."""
        return list(chain.from_iterable(zip(*batch, strict=True) for batch in self))

    @property
    def batch_size(self) -> int:
        """Number of examples in the first batch."""
        return len(self[0][0])


def attention_far_from_zero(
    dtype: torch.dtype,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Yield q, k, v and a mask, with scores whose exponentials overflow or vanish.

    Some scores are equal. The others are around 128 and -128 in float32, and 1024 and -1024 in
    float64. Vectors have one number: the square root of the width is 1, and scores are exact in any
    order of operations. The mask hides a large score from the first query.
    """
    size = 2.0 if dtype == torch.float32 else 16.0
    q = torch.tensor([[size], [-size], [0.0]], dtype=dtype)
    k = 64 - torch.tensor([[0.0], [1.0], [2.0]], dtype=dtype) / size
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, -6.0]], dtype=dtype)
    mask = torch.tensor([[False, True, True], [True, True, False], [True, False, True]])
    yield q, k, v, None
    yield q, k, v, mask
    # For the first query, the hidden key's score is now far above all others.
    yield q, torch.cat([2 * k[:1], k[1:]]), v, mask
