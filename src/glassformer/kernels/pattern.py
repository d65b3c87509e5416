"""Attention masks as a compact description, built only where they are needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from glassformer.errors import InputError
from glassformer.kernels.dispatch import transformed


@dataclass(frozen=True, eq=False)
class Pattern:
    """The keys that each query may attend to.

    The queries are the *last* positions of the keys: with ``K`` keys and ``L`` queries, query ``i``
    stands at position ``K - L + i``. For self-attention over a whole sequence that is position
    ``i``; for a step of cached decoding it is the newest position. Without ``causal`` the positions
    do not matter and ``L`` may exceed ``K`` (cross-attention).

    Query at position ``p`` sees key ``j`` when all of these hold::

        j <= p                  if causal
        j >  p - window         if window is given
        key_padding[batch, j]   if key_padding is given

    Args:
        causal: Each query sees only its own and earlier positions.
        window: Keys that a query sees at most, itself included, as gpt-oss, FlashAttention and
            Hugging Face count. Needs ``causal``. Longformer's "k previous tokens and itself" is
            ``window = k + 1``.
        key_padding: True where the key is real, False where it is padding.

    Source: Beltagy et al. 2020, "Longformer", section 3.1 (window); Vaswani et al. 2017, section
    3.2.3 (causal).
    """

    causal: bool = False
    window: int | None = None
    key_padding: Bool[Tensor, "batch key"] | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            if self.window < 1:
                raise InputError(
                    got=f"window = {self.window}",
                    expected="at least 1, the query itself",
                    fix="Pass window >= 1.",
                )
            if not self.causal:
                raise InputError(
                    got="a window without causal",
                    expected="causal = True",
                    fix="Pass Pattern(causal=True, window=...).",
                )
        if self.key_padding is not None and self.key_padding.dtype != torch.bool:
            raise InputError(
                got=f"key_padding of dtype {self.key_padding.dtype}",
                expected="torch.bool, True = real key",
                fix="Convert it: tokens != pad_id.",
            )

    def check(self, batch: int, queries: int, keys: int) -> None:
        """Raise :class:`InputError` if the pattern cannot describe attention of these sizes."""
        if self.causal and queries > keys:
            raise InputError(
                got=f"{queries} queries and {keys} keys in a causal pattern",
                expected="queries that are the last positions of the keys",
                fix="Pass the keys of the queries too, or use causal = False.",
            )
        if self.key_padding is not None:
            shape = tuple(self.key_padding.shape)
            if shape not in {(batch, keys), (1, keys)}:
                raise InputError(
                    got=f"key_padding of shape {shape}",
                    expected=f"[batch, key] = [{batch}, {keys}]",
                    fix="Give one True or False for each key.",
                )

    def narrowed(self, queries: int, keys: int) -> Pattern:
        """Return the pattern without the rules that have no effect at these sizes.

        A window that reaches past the first key is dropped. So is causality for a single query,
        which is the last position and sees everything.
        """
        if self.window is None or self.window >= keys:
            window = None
        else:
            window = self.window
        causal = self.causal and (queries > 1 or window is not None)
        return Pattern(causal, window, self.key_padding)

    def mask(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "#b 1 query key"]:
        """Return the dense mask, True = may attend, of ``queries x keys`` bytes for each text.

        Its shape is ``[batch or 1, 1, query, key]``.
        """
        position = torch.arange(keys - queries, keys, device=device)[:, None]
        key = torch.arange(keys, device=device)[None, :]
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=device)
        if self.causal:
            allowed = key <= position
        if self.window is not None:
            allowed = allowed & (key > position - self.window)
        allowed = allowed[None, None]
        if self.key_padding is not None:
            allowed = allowed & self.key_padding[:, None, None, :]
        return allowed


def unless_all(real: Tensor) -> Tensor | None:
    """Return ``real``, or None if it is True everywhere: fused kernels are faster without a mask.

    Under ``torch.compile`` and ``torch.func``, which cannot branch on values, it is ``real``.
    """
    if torch.compiler.is_compiling() or transformed() or not bool(real.all()):
        return real
    return None


FULL = Pattern()
CAUSAL = Pattern(causal=True)
