"""Which positions of its texts a block is told are padding."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from glassformer.observe.module_hooks import Given


@dataclass(frozen=True, eq=False)
class Padding:
    """What the masks among the arguments of a block say.

    Args:
        exists: Whether some positions of some texts are padding.
        keys: True where a key of its self-attention is real; None: all are, or the masks do not
            say.
        memory: The same of the keys of its cross-attention.
    """

    exists: bool = False
    keys: Bool[Tensor, "text key"] | None = None
    memory: Bool[Tensor, "text source"] | None = None

    def real_keys(
        self, positions: Sequence[int], length: int
    ) -> Bool[Tensor, "text position"] | None:
        """Return which of some positions of texts of ``length`` are real, None if all are.

        The keys that a windowed cache no longer has are the first ones.
        """
        if self.keys is None:
            missing = 0
        else:
            missing = max(0, length - self.keys.shape[1])
        return _at(self.keys, [position - missing for position in positions])

    def real_memory(self, positions: Sequence[int]) -> Bool[Tensor, "text position"] | None:
        """Return which of some positions of the memory are real, None if all are."""
        return _at(self.memory, positions)


NO_PADDING = Padding()


def padding_of(block: nn.Module, given: Given, start: int, length: int) -> Padding:
    """Return what a block is told by its arguments.

    A mask of padding is ``[text, key]``, or ``[text, 1, query, key]`` of transformers.

    Args:
        block: The block.
        given: The arguments of its call.
        start: The position of the first query of the call.
        length: The positions of the texts by then.
    """
    exists = False
    keys: Tensor | None = None
    memory: Tensor | None = None
    for name, value in _named(block, given):
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
                missing = max(0, length - real.shape[1])
                has_padding = not bool(real[:, start - missing : length - missing].all())
        else:
            continue
        exists = exists or has_padding
        if has_padding and reads_memory:
            memory = real
        elif has_padding:
            keys = real
    return Padding(exists, keys, memory)


def _real_keys(mask: Tensor) -> Bool[Tensor, "text key"] | None:
    """Return the keys that some query sees; None where the mask is more than that and one pattern
    for all texts.
    """
    if mask.is_floating_point():
        if bool((mask > 0).any()):  # no mask that is added to scores
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
    """A copy of some columns, None if there are none such or all are real."""
    if real is None or not positions or min(positions) < 0 or max(positions) >= real.shape[1]:
        return None
    chosen = real[:, list(positions)]
    return None if bool(chosen.all()) else chosen


def _named(block: nn.Module, given: Given) -> Iterator[tuple[str, Any]]:
    """The arguments of a block's call with their names."""
    by_position = len(given) - len(given.named)
    kind: Any = type(block)
    names = _parameters(kind)
    yield from zip([*names, *[""] * by_position], given[:by_position], strict=False)
    yield from given.named.items()


@cache
def _parameters(kind: Any) -> tuple[str, ...]:
    """The names of the arguments by position of a module's ``forward``."""
    parameters = [*inspect.signature(kind.forward).parameters.values()][1:]
    return tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
