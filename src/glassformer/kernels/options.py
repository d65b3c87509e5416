"""Variants of operations, as data. Imports no torch."""

from typing import Literal

from glassformer.config import Config, Positive, config

Layout = Literal["half-split", "interleaved"]
"""Pairs of coordinates that rotate together.

"half-split": (i, i + d/2), as in GPT-NeoX, Llama and gpt-oss. "interleaved": (2 i, 2 i + 1).
"""


@config
class Clamp(Config):
    """gpt-oss's SwiGLU: ``gate * sigmoid(alpha * gate) * (up + 1)``.

    Before it ``gate`` is cut to at most ``limit``, and ``up`` to [-limit, limit].

    Source: OpenAI 2025, gpt-oss reference implementation, ``swiglu``.
    """

    alpha: float = 1.702
    limit: Positive = 7.0
