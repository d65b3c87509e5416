"""Batches of texts of different length, with little padding.

In training, texts of similar length form a batch, and batches are shuffled in each epoch. A whole
set is sorted by length.
"""

import operator
from collections.abc import Sequence
from itertools import chain
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.data.random_streams import generator
from glassformer.errors import InputError, require_positive

_POOL = 50
_MOST_CLASSES = 1 << 31


class Padded(NamedTuple):
    """Rows of equal length, and a mask of their real tokens."""

    tokens: Int64[Tensor, "batch position"]
    real: Bool[Tensor, "batch position"]


def pad(rows: Sequence[Sequence[int]], pad_id: int, length: int | None = None) -> Padded:
    """Pad rows on the right with ``pad_id`` to ``length`` (None: the longest row's).

    A row may contain ``pad_id`` too; ``real`` is then True there.
    """
    if len(rows) == 0:
        raise InputError(
            got="no rows",
            expected="at least one",
            fix="Pass the tokens of at least one text.",
        )
    _require_tokens(rows)
    lengths = np.array([len(row) for row in rows])
    longest = int(lengths.max())
    width = longest if length is None else length
    if width < longest:
        raise InputError(
            got=f"length = {width} for a row of {longest} tokens",
            expected=f"at least {longest}",
            fix="Encode texts with max_len = length.",
        )
    tokens = np.full((len(rows), width), pad_id, np.int64)
    real = np.arange(width) < lengths[:, None]
    whole_numbers = map(operator.index, chain.from_iterable(rows))  # NumPy would cut fractions off
    try:
        tokens[real] = np.fromiter(whole_numbers, np.int64, count=int(lengths.sum()))
    except (TypeError, OverflowError) as error:
        raise InputError(
            got=f"a row with another thing than tokens ({error})",
            expected="whole numbers",
            fix="Encode it.",
        ) from error
    return Padded(torch.from_numpy(tokens), torch.from_numpy(real))


def in_length_order(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return row numbers in batches of ``size``, the longest texts first.

    With this order, too little memory shows at once. Every row is in exactly one batch; the last
    batch may be smaller. Rows of equal length keep their order.
    """
    require_positive(size=size)
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [order[start : start + size] for start in range(0, len(order), size)]


class TextBatches:
    """Labelled texts in batches, as a function of the step: the data of a training task.

    Epoch e draws an order from (``seed``, e) and cuts it into pools of 50 batches. Each pool is
    sorted by length and cut into batches; the batches of all pools are shuffled. An example occurs
    once per epoch; one batch may be smaller.

    Labels are classes from 0. A batch has "tokens", int64 ``[batch, position]``; "real", bool
    ``[batch, position]``; and "labels", int64 ``[batch]``.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        labels: Sequence[int],
        pad_id: int,
        *,
        seed: int = 0,
    ) -> None:
        if not len(rows) == len(labels) > 0:
            raise InputError(
                got=f"{len(rows)} texts with {len(labels)} labels",
                expected="one label per text, and at least one of both",
                fix="Encode the texts of the same examples.",
            )
        for label in labels:
            if not isinstance(label, Integral) or not 0 <= label < _MOST_CLASSES:
                raise InputError(
                    got=f"the label {label!r}",
                    expected="whole numbers from 0",
                    fix="Number the classes from 0.",
                )
        _require_tokens(rows)
        if seed < 0:
            raise InputError(
                got=f"seed = {seed}",
                expected="a seed of at least 0",
                fix="Pass seed >= 0.",
            )
        self.rows = [list(row) for row in rows]
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.pad_id = pad_id
        self.seed = seed
        self._lengths = np.array([len(row) for row in self.rows])
        self._drawn: tuple[int, int] | None = None
        self._batches: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.rows)

    def steps_per_epoch(self, size: int) -> int:
        """Return the number of batches of ``size`` in an epoch: ceil(texts / size)."""
        require_positive(size=size)
        return -(-len(self) // size)

    def __call__(self, step: int, size: int) -> dict[str, Tensor]:
        """Return the batch of update ``step`` (from 0), a pure function of step and size."""
        if step < 0:
            raise InputError(
                got=f"step = {step}",
                expected="a step of at least 0",
                fix="Count steps from 0.",
            )
        epoch, index = divmod(step, self.steps_per_epoch(size))
        if self._drawn != (epoch, size):
            self._batches = self._draw(epoch, size)
            self._drawn = (epoch, size)
        return self.gather(self._batches[index].tolist())

    def gather(self, chosen: Sequence[int]) -> dict[str, Tensor]:
        """Return the batch of the rows with these numbers, padded to the longest of them."""
        tokens, real = pad([self.rows[row] for row in chosen], self.pad_id)
        return {"tokens": tokens, "real": real, "labels": self.labels[torch.tensor(chosen)]}

    def _draw(self, epoch: int, size: int) -> list[np.ndarray]:
        rng = generator(self.seed, epoch)
        order = rng.permutation(len(self))
        batches = []
        for start in range(0, len(order), _POOL * size):
            pool = order[start : start + _POOL * size]
            pool = pool[np.argsort(self._lengths[pool], kind="stable")]
            batches += [pool[first : first + size] for first in range(0, len(pool), size)]
        return [batches[index] for index in rng.permutation(len(batches))]


def _require_tokens(rows: Sequence[Sequence[int]]) -> None:
    for row in rows:
        if isinstance(row, str):  # NumPy would take digits in a text for tokens.
            raise InputError(
                got=f"the text {row[:40]!r} as a row",
                expected="token ids",
                fix="Encode it with a tokenizer.",
            )
        if len(row) == 0:
            raise InputError(
                got="a row without tokens",
                expected="at least one token each",
                fix="Encode texts: an empty one has CLS.",
            )
