"""Training adders on sums."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.kernels.cross_entropy import cross_entropy
from glassformer.programs.adder import addition_texts
from glassformer.training.task import Batch, mix_seed

_EVALUATED = 256
"""Pairs of numbers of each length that an evaluation runs."""


class AdditionTask:
    """The digits of sums, after texts of :class:`~glassformer.programs.adder.Adder`; a task for ``train``.

        loss = mean over the digits of sums of -log p(digit | text and digits before)

    Each number of digits up to ``max_len`` is as often the longer number's limit as the others.

    Args:
        num_digits: Digits of each number in a text, of which those above are zeros.
        max_len: Digits of the largest numbers to train on.
        seed: Of the numbers.

    Raises:
        InputError: ``max_len`` that is not from 1 to ``num_digits``, or a negative seed.
    """

    metric, higher_is_better, unit = "accuracy", True, "digits"

    def __init__(self, num_digits: int, max_len: int, seed: int = 0) -> None:
        require(1 <= max_len <= num_digits, f"max_len = {max_len}", f"1 to {num_digits}", "Use more digits.")
        require(seed >= 0, f"seed = {seed}", "at least 0", "Pass seed >= 0.")
        self.num_digits, self.max_len, self.seed = num_digits, max_len, seed

    def batch(self, step: int, size: int) -> Batch:
        """The texts of update ``step``, with their sums."""
        rng = np.random.default_rng(mix_seed(self.seed, step))
        most = 10 ** rng.integers(1, self.max_len + 1, (size, 1))
        return {"tokens": self._texts(rng.integers(0, most, (size, 2)))}

    def count(self, batch: Batch) -> int:
        """Digits of sums."""
        return len(batch["tokens"]) * (self.num_digits + 1)

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss above, in nats per digit."""
        logits, digits = self._read(model, batch["tokens"])
        return cross_entropy(logits.flatten(0, 1), digits.flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """ "accuracy": the mean of :meth:`accuracy` over all numbers of digits up to ``max_len``."""
        found = [self.accuracy(model, length) for length in range(1, self.max_len + 1)]
        return {"accuracy": sum(found) / len(found)}

    @torch.no_grad()
    def accuracy(self, model: nn.Module, length: int) -> float:
        """The share of random pairs of numbers of this many digits whose sum is the most likely text.

        Each digit is predicted after the right ones; a sum has a wrong digit then if and only if it has without them.
        """
        rng = np.random.default_rng(mix_seed(self.seed, length, purpose="test"))
        pairs = rng.integers(10 ** (length - 1) if length > 1 else 0, 10**length, (_EVALUATED, 2))
        logits, digits = self._read(model, self._texts(pairs))
        return float((logits.argmax(-1) == digits).all(1).double().mean())

    def _texts(self, pairs: np.ndarray) -> Int64[Tensor, "pair position"]:
        return torch.from_numpy(addition_texts(pairs, self.num_digits))

    def _read(self, model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
        first = 2 * self.num_digits + 3
        return model(tokens[:, :-1])[:, first - 1 :], tokens[:, first:]
