"""Descriptions of heads: which places a query attends to, and the values of places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from glassformer.errors import InputError, require
from glassformer.handcraft.selectors import Selector, Table
from glassformer.handcraft.sequences import Block, SequenceSpace


@dataclass(frozen=True)
class Description:
    """The function of a head: every query outputs the mean value of the places it attends to.

    Args:
        space: The sequences it is for.
        attend: Which places a query attends to.
        values: The value of each token, numbers or lists of numbers of one length; zeros for omitted tokens. None gives
            each letter its one-hot vector, and CLS zeros.
        position_values: Added to the value for the position, ``[num_positions, v_dim]``; zeros when None.

    Raises:
        InputError: Values for unknown tokens, of different lengths, or not finite.
    """

    space: SequenceSpace
    attend: Selector
    values: Mapping[str, Any] | None = None
    position_values: Any = None

    @cached_property
    def table(self) -> Table:
        """The selector evaluated for all pairs of places.

        Raises:
            InputError: A tier below 0.
        """
        table = self.attend.table(self.space)
        require(
            bool((table.tiers >= 0).all()), f"tiers down to {table.tiers.min()}", "tiers of at least 0", "Count from 0."
        )
        return table

    @cached_property
    def value_rows(self) -> Float[np.ndarray, "inputs v_dim"]:
        """The value map: a row for each token, then one for each position."""
        tokens = self._token_values()
        shape = (self.space.num_positions, tokens.shape[1])
        positions = np.zeros(shape) if self.position_values is None else np.array(self.position_values, dtype=float)
        require(
            positions.shape == shape and bool(np.isfinite(positions).all()),
            f"position_values of shape {list(positions.shape)}",
            f"finite numbers of shape {list(shape)}, a row for each position",
            "Give one row for each position, CLS first.",
        )
        return np.concatenate([tokens, positions])

    @cached_property
    def place_values(self) -> Float[np.ndarray, "place v_dim"]:
        """The value of each place."""
        tokens, positions = self.space.places
        return self.value_rows[tokens] + self.value_rows[self.space.num_tokens + positions]

    def wanted(self, block: Block) -> Bool[np.ndarray, "sequence query key"]:
        """The keys that each query should attend to: those in the highest tier present in its sequence."""
        place = self.space.place_of(block)
        tiers = self.table.tiers[place[:, :, None], place[:, None, :]]
        tiers = np.where(block.real[:, None, :], tiers, -1)
        return np.asarray(tiers == tiers.max(axis=2, keepdims=True))

    def output(self, block: Block) -> Float[np.ndarray, "sequence query v_dim"]:
        """The exact output of this description: the mean over the wanted keys."""
        wanted = self.wanted(block).astype(float)
        values = self.place_values[self.space.place_of(block)]
        return wanted @ values / wanted.sum(axis=2, keepdims=True)

    def __str__(self) -> str:
        return f"attend to {self.attend.text}"

    def _token_values(self) -> Float[np.ndarray, "token v_dim"]:
        if self.values is None:
            return np.eye(self.space.num_tokens, len(self.space.letters))
        names = self.space.token_names
        for name in self.values:
            require(name in names, f"a value for {name!r}", f"values for {', '.join(names)}", "Name one of these.")
        require(bool(self.values), "no values", "a value for at least one token", "Omit values for one-hot ones.")
        try:
            given = {name: np.atleast_1d(np.array(value, dtype=float)) for name, value in self.values.items()}
        except (TypeError, ValueError) as error:
            raise InputError(
                f"values {self.values!r}", "a number or a list of numbers for each token", "Pass numbers."
            ) from error
        lengths = {value.shape for value in given.values()}
        require(
            len(lengths) == 1 and all(value.ndim == 1 and np.isfinite(value).all() for value in given.values()),
            f"values of shapes {sorted(lengths)}",
            "finite numbers, equally many for every token",
            "Give every token a number, or lists of the same length.",
        )
        v_dim = len(next(iter(given.values())))
        return np.stack([given.get(name, np.zeros(v_dim)) for name in names])
