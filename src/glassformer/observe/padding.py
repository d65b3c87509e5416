"""Read from a block's masks which positions of its texts are padding."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from glassformer.observe.module_hooks import Arguments


@dataclass(frozen=True, eq=False)
class Padding:
    """Padding by the masks among the arguments of a block.

    Args:
        exists: Whether some positions of some texts are padding.
        keys: True where a key of its self-attention is real; None if all are, or if the masks mask
            more than padding.
        memory: True where a key of its cross-attention is real; None as for ``keys``.
    """

    exists: bool = False
    keys: Bool[Tensor, "text key"] | None = None
    memory: Bool[Tensor, "text source"] | None = None

    def real_keys(
        self, positions: Sequence[int], length: int
    ) -> Bool[Tensor, "text position"] | None:
        """Return which of some positions of texts of ``length`` are real; None if all are.

        A windowed cache has dropped the first keys.
        """
        if self.keys is None:
            return None
        num_dropped = max(0, length - self.keys.shape[1])
        return _at(self.keys, [position - num_dropped for position in positions])

    def real_memory(self, positions: Sequence[int]) -> Bool[Tensor, "text position"] | None:
        """Return which of some positions of the memory are real; None if all are."""
        return _at(self.memory, positions)


NO_PADDING = Padding()


def padding_of(block: nn.Module, arguments: Arguments, start: int, length: int) -> Padding:
    """Return the padding by the masks among a block's arguments.

    A mask of padding is ``[text, key]``, or ``[text, 1, query, key]`` of transformers.

    Args:
        block: The block.
        arguments: The arguments of its call.
        start: The position of the first query of the call.
        length: Number of positions of the texts so far.
    """
    exists = False
    keys: Tensor | None = None
    memory: Tensor | None = None
    for name, value in _named(block, arguments):
        if not isinstance(value, Tensor):
            continue
        reads_memory = "memory" in name or "encoder" in name
        if value.dim() == 2 and (value.dtype == torch.bool or name.endswith("mask")):
            real: Tensor | None = value.bool()
            has_padding = not bool(value.all())
        elif value.dim() == 4 and value.shape[1] == 1:
            real = _real_keys(value)
            has_padding = bool((value != value[:1]).any())
            if real is not None and not has_padding and not reads_memory:
                # Other keys may be outside the window of each query, or empty slots of a cache.
                num_dropped = max(0, length - real.shape[1])
                of_call = real[:, start - num_dropped : length - num_dropped]
                has_padding = not bool(of_call.all())
        else:
            continue
        exists = exists or has_padding
        if has_padding and reads_memory:
            memory = real
        elif has_padding:
            keys = real
    return Padding(exists, keys, memory)


def _real_keys(mask: Tensor) -> Bool[Tensor, "text key"] | None:
    """Return the keys that some query sees.

    None unless the mask combines padding with one pattern for all texts.
    """
    if mask.is_floating_point():
        if bool((mask > 0).any()):  # a bias of scores, not a mask
            return None
        allowed = mask > torch.finfo(mask.dtype).min / 2
    else:
        allowed = mask.bool()
    allowed = allowed[:, 0]
    real = allowed.any(1)
    pattern = allowed.any(0)
    if torch.equal(allowed, pattern & real[:, None]):
        return real
    return None


def _at(real: Tensor | None, positions: Sequence[int]) -> Bool[Tensor, "text position"] | None:
    """Return a copy of some columns; None if a column does not exist, or if all are real."""
    if real is None or not positions or min(positions) < 0 or max(positions) >= real.shape[1]:
        return None
    chosen = real[:, list(positions)]
    return None if bool(chosen.all()) else chosen


def _named(block: nn.Module, arguments: Arguments) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a block's call with their names, "" for those of ``*args``."""
    num_positional = len(arguments) - len(arguments.named)
    block_type: Any = type(block)
    names = [*_parameters(block_type), *[""] * num_positional]
    yield from zip(names, arguments[:num_positional], strict=False)
    yield from arguments.named.items()


@cache
def _parameters(kind: Any) -> tuple[str, ...]:
    """Return the names of the positional arguments of a module's ``forward``."""
    parameters = [*inspect.signature(kind.forward).parameters.values()][1:]
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    )
