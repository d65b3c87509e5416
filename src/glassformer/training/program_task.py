"""Training the transformers of :mod:`glassformer.programs` on a program's values."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.programs.model import CompiledProgram
from glassformer.training.task import Batch, mix_seed

_EVALUATED = 256
"""Sequences of each length that an evaluation runs."""


class ProgramTask:
    """The values of a program on random sequences; a task for :func:`glassformer.training.train`.

        loss = mean over positions of (output - number of the value)^2

    A batch has sequences of one length, each length up to ``max_len`` as often as the others, of
    independent tokens. Positions where the program has no value are left out of the loss.

    Args:
        reference: The compiled program, which gives the numbers that stand for values. The model
            that is trained has its shape, or that of
            :class:`~glassformer.programs.model.CompiledProgram` anyway.
        max_len: Tokens of the longest sequences to train on.
        seed: Of the sequences.
    """

    metric = "accuracy"
    higher_is_better = True
    unit = "outputs"

    def __init__(self, reference: CompiledProgram, max_len: int, seed: int = 0) -> None:
        most = reference.domains.max_len
        allowed = reference.allowed_error
        if not 1 <= max_len <= most:
            raise InputError(
                got=f"max_len = {max_len}",
                expected=f"1 to {most}",
                fix="Compile with a larger max_len.",
            )
        if not seed >= 0:
            raise InputError(
                got=f"seed = {seed}",
                expected="at least 0",
                fix="Pass seed >= 0.",
            )
        if allowed is None:
            raise InputError(
                "a program whose output is a number",
                "one with listed values",
                "Map it to fewer values.",
            )
        self.reference = reference
        self.max_len = max_len
        self.seed = seed
        self._allowed = allowed

    def batch(self, step: int, size: int) -> Batch:
        """The sequences of update ``step`` and their numbers."""
        rng = np.random.default_rng(mix_seed(self.seed, step))
        return self._batch(rng, size, int(rng.integers(1, self.max_len + 1)))

    def count(self, batch: Batch) -> int:
        """Positions with a value; at least 1."""
        return max(1, int(batch["wanted"].isfinite().sum()))

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss above."""
        known = batch["wanted"].isfinite()
        error = (model(batch["tokens"]) - batch["wanted"].where(known, 0)) * known
        return error.square().sum() / self.count(batch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """ "accuracy": the mean of :meth:`accuracy` over all lengths up to ``max_len``."""
        found = [self.accuracy(model, length) for length in range(1, self.max_len + 1)]
        return {"accuracy": sum(found) / len(found)}

    @torch.no_grad()
    def accuracy(self, model: nn.Module, length: int) -> float:
        """The share of random sequences of this length whose values are read correctly at every
        position.
        """
        batch = self._batch(
            np.random.default_rng(mix_seed(self.seed, length, purpose="test")), _EVALUATED, length
        )
        outputs = model(batch["tokens"].to(next(model.parameters()).device)).cpu()
        error = (outputs - batch["wanted"]).abs()
        return float(((error < self._allowed) | batch["wanted"].isnan()).all(1).double().mean())

    def _batch(self, rng: np.random.Generator, size: int, length: int) -> Batch:
        tokens = rng.integers(0, len(self.reference.domains.vocabulary), (size, length))
        wanted = torch.from_numpy(self.reference.wanted(self.reference.batch(tokens)))
        return {
            "tokens": torch.from_numpy(tokens),
            "wanted": wanted.to(self.reference.output.weight.dtype),
        }
