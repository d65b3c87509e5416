"""Choices of layers, as data. Imports no torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from annotated_types import Gt

from glassformer.config import Config, Positive, Size, config
from glassformer.errors import require

Activation = Literal["relu", "gelu"]
"""``relu(x) = max(x, 0)``; ``gelu(x) = x P(Z <= x)`` for a standard normal Z, exact."""


@config
class Yarn(Config):
    """YaRN: a model trained on ``original_max_seq_len`` positions reads ``factor`` times as many.

    Pairs of coordinates that turn more than ``beta_fast`` times within the original length keep their frequency; those
    that turn less than ``beta_slow`` times are slowed down by ``factor``; between the two the change is linear. Cosines
    and sines are multiplied by ``0.1 ln(factor) + 1``, which sharpens the attention.

    Args:
        factor: How many times longer, > 1.
        original_max_seq_len: The length the model was trained on, in tokens.
        beta_fast: Turns above which nothing changes.
        beta_slow: Turns below which everything changes.
        truncate: Round the two borders outwards to whole pairs (Hugging Face's default; gpt-oss does not).

    Source: Peng et al. 2023, arXiv 2309.00071, sections 3.2-3.4.
    """

    factor: Annotated[float, Gt(1)] = 32.0
    original_max_seq_len: Size = 4096
    beta_fast: float = 32.0
    beta_slow: Positive = 1.0
    truncate: bool = False

    def __post_init__(self) -> None:
        betas = f"beta_fast = {self.beta_fast}, beta_slow = {self.beta_slow}"
        require(self.beta_fast > self.beta_slow, betas, "beta_fast > beta_slow", "The paper uses 32 and 1.")

    @property
    def concentration(self) -> float:
        """The factor on cosines and sines."""
        return 0.1 * math.log(self.factor) + 1.0
