"""Choices of layers, as data. Imports no torch."""

import math
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt

from glassformer.config import Config, Positive, Size, config
from glassformer.errors import InputError

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""Activation of a feed-forward network.

``silu(x) = x / (1 + exp(-x))``; ``gelu(x) = x P(Z <= x)`` for a standard normal Z, exact;
``gelu_tanh(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x ** 3))) / 2``, which approximates it;
``relu(x) = max(x, 0)``; ``relu2(x) = relu(x) ** 2``.
"""
EncoderActivation = Literal["relu", "gelu"]
"""Activations of encoders: the first transformer has ReLU, BERT GELU."""
NormKind = Literal["rms", "layer"]
"""RMSNorm, or LayerNorm."""
NormPlace = Literal["before", "after", "both", "sum"]
"""Places of a block's norms, see :class:`~glassformer.layers.blocks.Block`."""


@config
class Yarn(Config):
    """YaRN: a model trained on ``original_max_seq_len`` positions reads ``factor`` times as many.

    Pairs of coordinates that turn more than ``beta_fast`` times within the original length keep
    their frequency; those that turn less than ``beta_slow`` times are slowed down by ``factor``;
    between the two the change is linear. Cosines and sines are multiplied by
    ``0.1 ln(factor) + 1``, which sharpens the attention.

    Args:
        factor: Ratio of the new length to the original one, > 1.
        original_max_seq_len: The length the model was trained on, in tokens.
        beta_fast: Turns above which nothing changes.
        beta_slow: Turns below which everything changes.
        truncate: Round the two borders outwards to whole pairs (Hugging Face's default; gpt-oss
            does not).
        kind: Its name in a ``config.json``.

    Source: Peng et al. 2023, arXiv 2309.00071, sections 3.2-3.4.
    """

    factor: Annotated[float, Gt(1)] = 32.0
    original_max_seq_len: Size = 4096
    beta_fast: float = 32.0
    beta_slow: Positive = 1.0
    truncate: bool = False
    kind: Literal["yarn"] = "yarn"

    def __post_init__(self) -> None:
        if not self.beta_fast > self.beta_slow:
            raise InputError(
                got=f"beta_fast = {self.beta_fast}, beta_slow = {self.beta_slow}",
                expected="beta_fast > beta_slow",
                fix="Use 32 and 1, as the paper does.",
            )

    @property
    def concentration(self) -> float:
        """Factor on cosines and sines."""
        return 0.1 * math.log(self.factor) + 1.0


@config
class Linear(Config):
    """Position interpolation: position p rotates as position ``p / factor`` did before.

    All frequencies are divided by ``factor``.

    Source: Chen et al. 2023, "Position Interpolation", arXiv 2306.15595.
    """

    factor: Positive
    kind: Literal["linear"] = "linear"
    concentration: ClassVar[float] = 1.0


@config
class Llama3(Config):
    """Scaling of Llama 3.1: slow pairs are slowed down by ``factor``, fast ones are kept.

    For a pair of frequency f::

        turns  = original_max_seq_len * f / (2 pi)
        share  = (turns - low_turns) / (high_turns - low_turns), clamped to [0, 1]
        output = f * share + f / factor * (1 - share)

    Args:
        factor: Ratio of the new length to the original one, > 1.
        original_max_seq_len: The length the model was trained on, in tokens.
        low_turns: Turns below which the frequency is divided by ``factor`` (``low_freq_factor`` in
            Hugging Face).
        high_turns: Turns above which nothing changes (``high_freq_factor``).
        kind: Its name in a ``config.json``.

    Source: Meta 2024, llama-models, ``apply_scaling``.
    """

    factor: Annotated[float, Gt(1)]
    original_max_seq_len: Size = 8192
    low_turns: Positive = 1.0
    high_turns: Positive = 4.0
    kind: Literal["llama3"] = "llama3"
    concentration: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not self.high_turns > self.low_turns:
            raise InputError(
                got=f"low_turns = {self.low_turns}, high_turns = {self.high_turns}",
                expected="high_turns > low_turns",
                fix="Use 1 and 4, as Llama 3.1 does.",
            )


@config
class LongRope(Config):
    """LongRoPE: the frequency of each pair is divided by a factor of its own.

    Texts of up to ``original_max_seq_len`` tokens take the factors ``short``, longer ones ``long``,
    for all their positions. Keys of a text that grows past that length would have to be rotated
    again, so a cache cannot cross it; generation reads such a text once more there.

    Args:
        short: Factor for each pair of coordinates, fastest first.
        long: Factors for longer texts.
        original_max_seq_len: The length the model was first trained on, in tokens.
        concentration: Factor on cosines and sines. For a model of ``s * original_max_seq_len``
            positions Phi-3 has ``sqrt(1 + ln(s) / ln(original_max_seq_len))``.
        kind: Its name in a ``config.json``.

    Source: Ding et al. 2024, arXiv 2402.13753; Microsoft 2024, Phi-3, arXiv 2404.14219.
    """

    short: tuple[Positive, ...]
    long: tuple[Positive, ...]
    original_max_seq_len: Size
    concentration: Positive = 1.0
    kind: Literal["longrope"] = "longrope"

    def __post_init__(self) -> None:
        if len(self.short) != len(self.long):
            raise InputError(
                got=f"{len(self.short)} short and {len(self.long)} long factors",
                expected="as many short as long ones",
                fix="Pass one of each for every pair of coordinates.",
            )


RopeScaling = Yarn | Linear | Llama3 | LongRope
"""Changes of the rotary frequencies that let a model read longer texts than it was trained on."""
