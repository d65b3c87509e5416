"""Training the transformers of :mod:`glassformer.programs` on a program's values."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.programs.model import CompiledProgram
from glassformer.training.task import Batch, mix_seed

_EVALUATED = 256
"""Number of sequences of each length in an evaluation."""


class ProgramTask:
    """The values of a program on random sequences; a task for :func:`glassformer.training.train`.

        loss = mean over positions of (output - number of the value)^2

    A batch has sequences of independent tokens and of one length, drawn uniformly up to
    ``max_len``. Positions where the program has no value are left out of the loss.

    Args:
        reference: The compiled program, which gives the numbers of the values. The trained model is
            called like a :class:`~glassformer.programs.model.CompiledProgram`.
        max_len: Tokens of the longest sequences to train on.
        seed: Seed of the sequences.
    """

    metric = "accuracy"
    higher_is_better = True
    unit = "outputs"

    def __init__(self, reference: CompiledProgram, max_len: int, seed: int = 0) -> None:
        longest = reference.domains.max_len
        allowed_error = reference.allowed_error
        if not 1 <= max_len <= longest:
            raise InputError(
                got=f"max_len = {max_len}",
                expected=f"1 to {longest}",
                fix="Compile with a larger max_len.",
            )
        if seed < 0:
            raise InputError(
                got=f"seed = {seed}",
                expected="at least 0",
                fix="Pass seed >= 0.",
            )
        if allowed_error is None:
            raise InputError(
                got="a program whose output is a number",
                expected="one with listed values",
                fix="Map it to fewer values.",
            )
        self.reference = reference
        self.max_len = max_len
        self.seed = seed
        self._allowed_error = allowed_error

    def batch(self, step: int, size: int) -> Batch:
        """Return the sequences of update ``step`` and their numbers."""
        rng = np.random.default_rng(mix_seed(self.seed, step))
        return self._batch(rng, size, int(rng.integers(1, self.max_len + 1)))

    def count(self, batch: Batch) -> int:
        """Return the number of positions with a value; at least 1."""
        return max(1, int(batch["wanted"].isfinite().sum()))

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the loss above."""
        known = batch["wanted"].isfinite()
        error = (model(batch["tokens"]) - batch["wanted"].where(known, 0)) * known
        return error.square().sum() / self.count(batch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return "accuracy": the mean of :meth:`accuracy` over all lengths up to ``max_len``."""
        shares = [self.accuracy(model, length) for length in range(1, self.max_len + 1)]
        return {"accuracy": sum(shares) / len(shares)}

    @torch.no_grad()
    def accuracy(self, model: nn.Module, length: int) -> float:
        """Return the share of random sequences of ``length`` whose values are all right."""
        rng = np.random.default_rng(mix_seed(self.seed, length, purpose="test"))
        batch = self._batch(rng, _EVALUATED, length)
        outputs = model(batch["tokens"].to(next(model.parameters()).device)).cpu()
        error = (outputs - batch["wanted"]).abs()
        right = (error < self._allowed_error) | batch["wanted"].isnan()
        return float(right.all(1).double().mean())

    def _batch(self, rng: np.random.Generator, size: int, length: int) -> Batch:
        tokens = rng.integers(0, len(self.reference.domains.vocabulary), (size, length))
        numbers = torch.from_numpy(self.reference.wanted(self.reference.batch(tokens)))
        return {
            "tokens": torch.from_numpy(tokens),
            "wanted": numbers.to(self.reference.output.weight.dtype),
        }
