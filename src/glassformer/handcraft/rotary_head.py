"""Write the weights of one head of a decoder as a sum of relations between a query and an earlier key.

The residual stream is divided into *parts*: ranges of coordinates with the one-hot vector of a token, and a coordinate
that is 1 everywhere. With rotary positions, pair f of a query's and a key's coordinates adds
``cos(distance theta_f + angle)`` times both lengths to their score, so fast pairs tell distances apart, and slow ones
compare contents at any distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import require
from glassformer.layers.blocks import Block
from glassformer.models.decoder import Decoder


class RotaryHead:
    """A head of a decoder whose weights, all 0 at first, are written relation by relation. Their scores add up.

    Args:
        model: A decoder in the half-split layout, with as many key-value heads as query heads.
        layer: Index of the block.
        head: Index of the head.
    """

    def __init__(self, model: Decoder, layer: int, head: int = 0) -> None:
        config, block = model.config, model.layers[layer]
        assert isinstance(block, Block)
        attention = block.attention
        self._pairs = config.head_dim // 2
        turns = torch.arange(self._pairs, dtype=torch.float64) / self._pairs
        self.frequencies = torch.pow(config.rope_base, -turns)
        rows = slice(head * config.head_dim, (head + 1) * config.head_dim)
        maps = attention.query, attention.key, attention.value
        self._query, self._key, self._value = (each.weight.detach()[rows] for each in maps)
        self._output = attention.output.weight.detach()[:, rows]
        for matrix in (self._query, self._key, self._value, self._output):
            matrix.zero_()

    def at_distance(self, distance: int, weight: float, pairs: Sequence[int], one: int) -> None:
        """Score the key ``distance`` before the query by ``weight`` for each pair, others less.

        Args:
            distance: From 0.
            weight: Of each pair.
            pairs: Pairs that no other relation uses, fast ones.
            one: A coordinate of the stream that is 1 everywhere.
        """
        for pair in pairs:
            self._write(pair, one, one, weight, -distance * float(self.frequencies[pair]))

    def latest(self, weight: float, pair: int, one: int) -> None:
        """Score later keys higher: ``weight cos(pi / 4 + distance theta)``, falling up to 3/4 pi."""
        self._write(pair, one, one, weight, math.pi / 4)

    def match(self, query: range, key: range, weight: float, pairs: Sequence[int]) -> None:
        """Score keys whose part ``key`` equals the query's part ``query`` by ``weight cos(distance theta)``."""
        for pair, asks, answers in zip(pairs, query, key, strict=True):
            self._write(pair, asks, answers, weight)

    def attend_to(self, key: int, weight: float, pair: int, one: int) -> None:
        """Score keys whose coordinate ``key`` is 1 by ``weight cos(distance theta)``."""
        self._write(pair, one, key, weight)

    def copy(self, read: range, write: range) -> None:
        """Add the part ``read`` of the attended key to the part ``write`` of the query's stream."""
        for coordinate, (source, target) in enumerate(zip(read, write, strict=True)):
            self._value[coordinate, source] = self._output[target, coordinate] = 1.0

    def _write(self, pair: int, query: int, key: int, weight: float, angle: float = 0.0) -> None:
        free = not bool(self._key[pair].any())
        require(free, f"pair {pair}, which has a relation", "a free pair", "Use a larger head_dim.")
        length = weight * math.sqrt(2 * self._pairs)
        self._query[pair, query] = length * math.cos(angle)
        self._query[pair + self._pairs, query] = length * math.sin(angle)
        self._key[pair, key] = 1.0


def distance_gap(frequencies: Float[Tensor, " pair"], distance: int, longest: int) -> float:
    """The least difference in score, for weight 1, of the key at ``distance`` from one at another of up to ``longest``.

    It is the gap of :meth:`RotaryHead.at_distance`: ``sum over pairs of 1 - cos((d - distance) theta)``.
    """
    away = torch.arange(longest + 1, dtype=torch.float64) - distance
    return float((1 - torch.outer(away[away != 0], frequencies).cos()).sum(1).min())
