"""Choices of layers, as data. Imports no torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from annotated_types import Gt

from glassformer.config import Config, Positive, Size, config
from glassformer.errors import require

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "relu2"]
"""Activations of feed-forward networks::

    relu(x) = max(x, 0)      relu2(x) = relu(x) ** 2      silu(x) = x / (1 + exp(-x))
    gelu(x) = x P(Z <= x) for a standard normal Z
    gelu_tanh(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x ** 3))) / 2, an approximation of gelu

Source: Hendrycks and Gimpel 2016, arXiv 1606.08415 (GELU); So et al. 2021, arXiv 2109.08668 (squared ReLU).
"""

NormKind = Literal["rms", "layer"]
"""RMSNorm, or LayerNorm with weight and bias."""
HeadNorm = Literal["head", "all"]
"""What an RMSNorm of queries or keys is over: each head by itself, or all heads together."""
Place = Literal["before", "after", "both"]
"""Where a block's norms stand: before attention and feed-forward network, after them, or both."""


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


@config
class Linear(Config):
    """Linear interpolation of positions: every frequency is divided by ``divisor``.

    Source: Chen et al. 2023, arXiv 2306.15595.
    """

    divisor: Annotated[float, Gt(0)]


@config
class Llama3(Config):
    """Llama 3.1's stretch. With ``turns = original_max_seq_len * frequency / (2 pi)``, a pair keeps its frequency if it
    turns more than ``high_freq_factor`` times, and is divided by ``factor`` if it turns less than ``low_freq_factor``
    times; between the two the change is linear in ``turns``.

    Source: Grattafiori et al. 2024, arXiv 2407.21783; ``apply_scaling`` of Meta's reference implementation.
    """

    factor: Annotated[float, Gt(0)]
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_seq_len: Size

    def __post_init__(self) -> None:
        factors = f"low_freq_factor = {self.low_freq_factor}, high_freq_factor = {self.high_freq_factor}"
        require(self.high_freq_factor > self.low_freq_factor, factors, "the first below the second", "Swap them.")


@config
class LongRope(Config):
    """LongRoPE: the frequency of each pair is divided by its own factor: by ``short``, or by ``long`` once a text has
    more than ``original_max_seq_len`` tokens. Cosines and sines are multiplied by ``concentration``.

    A cache keeps the keys as they were rotated when they were read.

    Source: Ding et al. 2024, arXiv 2402.13753; transformers' ``Phi3RotaryEmbedding``.
    """

    short: tuple[Positive, ...]
    long: tuple[Positive, ...]
    original_max_seq_len: Size
    concentration: Positive

    def __post_init__(self) -> None:
        lengths = f"{len(self.short)} short factors and {len(self.long)} long ones"
        require(len(self.short) == len(self.long), lengths, "one of each for every pair", "Take both from one file.")


@config
class Factors(Config):
    """The frequency of each pair is divided by its own factor, as files in GGUF's format say it.

    Source: llama.cpp, ``rope_freqs``.
    """

    divisors: tuple[Positive, ...]


RopeScaling = Yarn | Llama3 | Linear | LongRope | Factors
"""Stretches of the rotary frequencies to longer texts."""
