"""Inputs that exercises of several labs share."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

LARGE = 1e6
"""Factor for inputs of a module: exponentials of its scores overflow, and the largest has all
weight, so that rounding does not count.
"""
LARGE_LOGITS = 1000.0
"""Factor for logits whose exponentials overflow."""


class Batches(list[tuple[Tensor, ...]]):
    """Batches with what answers may read of a ``DataLoader``."""

    @property
    def dataset(self) -> list[tuple[Any, ...]]:
        """The examples of all batches."""
        return [row for batch in self for row in zip(*batch, strict=True)]

    @property
    def batch_size(self) -> int:
        """The number of examples in the first batch."""
        return len(self[0][0])


def attention_far_from_zero(
    dtype: torch.dtype,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Queries, keys, values and a mask with scores whose exponentials overflow or vanish, and equal
    ones.

    They are around 128 and -128 in float32, 1024 and -1024 in float64. Vectors have one number, so
    that all scores are exact in float32 in whatever order one divides by the root, which is 1. The
    mask hides a large score from the first query.
    """
    size = 2.0 if dtype == torch.float32 else 16.0
    q = torch.tensor([[size], [-size], [0.0]], dtype=dtype)
    k = 64 - torch.tensor([[0.0], [1.0], [2.0]], dtype=dtype) / size
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, -6.0]], dtype=dtype)
    mask = torch.tensor([[False, True, True], [True, True, False], [True, False, True]])
    yield q, k, v, None
    yield q, k, v, mask
    yield (
        q,
        torch.cat([2 * k[:1], k[1:]]),
        v,
        mask,
    )  # for the first query far above all others, and hidden
