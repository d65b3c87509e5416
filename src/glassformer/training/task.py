"""Training tasks: batches as a function of the step, a loss, and an evaluation."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive

Batch = dict[str, Tensor]
"""Named tensors whose first axis counts the same examples."""


@runtime_checkable
class Task(Protocol):
    """A model's training task: the training loop's only access to data.

    ``batch`` is a pure function of the step (and of the task's seed). So a resumed run needs no
    saved position in the data, and each process computes the global batch and takes its share.
    """

    @property
    def metric(self) -> str:
        """Name of the metric of ``evaluate`` that selects the best model."""

    @property
    def higher_is_better(self) -> bool:
        """True if a larger ``metric`` is better."""

    @property
    def unit(self) -> str:
        """Name of the units that ``count`` counts, in the plural: "tokens", "sentences".

        Speed is reported in them.
        """

    def batch(self, step: int, size: int) -> Batch:
        """Return the global batch of update ``step`` (from 0).

        It has ``size`` examples, or fewer at the end of an epoch.
        """

    def count(self, batch: Batch) -> int:
        """Return the number of units in ``batch`` that the mean in ``loss`` runs over.

        It is at least 1, and the counts of a batch's parts add up.
        """

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean loss over the ``count(batch)`` units.

        It calls ``model(...)``, which may be a wrapped model.
        """

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics of ``model``, which is in evaluation mode without gradients.

        Every process calls this on the same data; the first process's numbers count.
        """


class EpochBatches:
    """Batches that pass over a data set repeatedly, in a new order each time.

    A batch is a function of the step. Epoch e visits the examples in the order of a permutation
    drawn from (``seed``, e). The last batch of an epoch may be shorter: 10,000 examples in batches
    of 128 are 79 batches, the last of 16.

    Args:
        tensors: Named tensors with one row per example each.
        shuffle: False keeps the order of the examples.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], *, seed: int = 0, shuffle: bool = True
    ) -> None:
        if seed < 0:
            raise InputError(
                got=f"seed = {seed}",
                expected="a seed of at least 0",
                fix="Pass seed >= 0.",
            )
        self.tensors = dict(tensors)
        self.num_examples = num_examples(self.tensors)
        self.seed = seed
        self.shuffle = shuffle
        self._epoch = -1
        self._order = torch.arange(self.num_examples)

    def steps_per_epoch(self, size: int) -> int:
        """Return the number of batches of ``size`` in an epoch: ceil(examples / size)."""
        require_positive(size=size)
        return -(-self.num_examples // size)

    def __call__(self, step: int, size: int) -> Batch:
        """Return the batch of update ``step`` (from 0)."""
        if step < 0:
            raise InputError(
                got=f"step = {step}",
                expected="a step of at least 0",
                fix="Count steps from 0.",
            )
        epoch, index = divmod(step, self.steps_per_epoch(size))
        if self.shuffle and epoch != self._epoch:
            generator = torch.Generator().manual_seed(mix_seed(self.seed, epoch))
            self._order = torch.randperm(self.num_examples, generator=generator)
            self._epoch = epoch
        rows = self._order[index * size : (index + 1) * size]
        return {name: tensor[rows] for name, tensor in self.tensors.items()}


def mix_seed(*numbers: int, purpose: str = "") -> int:
    """Return a seed in [0, 2^63) from whole numbers of at least 0 and a purpose.

    Other arguments give an unrelated seed.

    Source: ``numpy.random.SeedSequence``, whose hash spreads each bit of the input over the output.
    """
    # NumPy joins the 32-bit words of all numbers and pads them with zeros: without the lengths as a
    # key, (s), (s, 0) and (s, 0, 0) would be one seed, and so would (2 ** 32,) and (0, 1).
    words = [max(1, -(-number.bit_length() // 32)) for number in numbers]
    ambiguous = max(words) > 1 or (len(numbers) > 1 and numbers[-1] == 0)
    key = (*words, *purpose.encode()) if ambiguous or purpose else ()
    state = np.random.SeedSequence(numbers, spawn_key=key).generate_state(1, np.uint64)[0]
    return int(state >> np.uint64(1))


def num_examples(batch: Batch) -> int:
    """Return the number of examples in ``batch``."""
    lengths = {name: len(tensor) if tensor.ndim else 0 for name, tensor in batch.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InputError(
            got=f"tensors of lengths {lengths}",
            expected="named tensors with the same number of examples, at least one",
            fix="Pass a dictionary of tensors with one row per example.",
        )
    return next(iter(lengths.values()))


def shares(batch: Batch, parts: int) -> list[Batch | None]:
    """Return ``batch`` cut into ``parts`` whose lengths differ by at most one; None if empty."""
    require_positive(parts=parts)
    size = num_examples(batch)
    bounds = [size * part // parts for part in range(parts + 1)]
    result: list[Batch | None] = []
    for start, stop in pairwise(bounds):
        if start < stop:
            result.append({name: tensor[start:stop] for name, tensor in batch.items()})
        else:
            result.append(None)
    return result
