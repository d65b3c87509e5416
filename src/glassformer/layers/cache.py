"""Keys and values that are cached between decoding steps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import InputError, require_positive

KeysAndValues = tuple[
    Float[Tensor, "batch kv_head key head_dim"], Float[Tensor, "batch kv_head key head_dim"]
]
"""Keys and values, split into heads."""


class LayerCache:
    """Keys and values of one attention layer.

    A layer without a window keeps ``max_seq_len`` positions. A windowed layer keeps ``window``:
    position p is in slot ``p % window``, which held a position that no later query can see.

    It allocates ``2 * batch * num_kv_heads * min(window, max_seq_len) * head_dim`` numbers at once.
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        max_seq_len: int,
        window: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        require_positive(
            batch=batch, num_kv_heads=num_kv_heads, head_dim=head_dim, max_seq_len=max_seq_len
        )
        if window is not None and window < 1:
            raise InputError(
                got=f"window = {window}",
                expected="at least 1",
                fix="Pass window >= 1 or None.",
            )
        if window is not None and window >= max_seq_len:
            window = None
        self.max_seq_len = max_seq_len
        self.window = window
        self.slots = self.window or max_seq_len
        shape = (batch, num_kv_heads, self.slots, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0
        self.in_order = True

    def reset(self) -> None:
        """Forget all positions; the memory stays allocated."""
        self.length = 0
        self.in_order = True

    def append(
        self,
        k: Float[Tensor, "batch kv_head position head_dim"],
        v: Float[Tensor, "batch kv_head position head_dim"],
    ) -> KeysAndValues:
        """Add new positions and return all keys and values that the new queries can see.

        For several new positions they are in the order of positions, the new ones last. For a
        single new position in a windowed layer they are in slot order, on which one query's
        attention does not depend; see :meth:`positions`.
        """
        batch, heads, _, head_dim = self.keys.shape
        if k.shape != v.shape or k.dim() != 4 or k.shape != (batch, heads, k.shape[2], head_dim):
            raise InputError(
                got=f"keys {list(k.shape)} and values {list(v.shape)}",
                expected=f"[{batch}, {heads}, positions, {head_dim}] as the cache was made for",
                fix="Make a new cache for another batch or model.",
            )
        start = self.length
        new = k.shape[2]
        self.require_room(new)
        self.length = start + new
        self.in_order = self.window is None or new > 1
        if self.window is None or new == 1:
            slot = start % self.slots
            filled = min(self.length, self.slots)
            self.keys[:, :, slot : slot + new] = k
            self.values[:, :, slot : slot + new] = v
            return self.keys[:, :, :filled], self.values[:, :, :filled]
        earlier = min(start, self.window - 1)
        seen_k = k
        seen_v = v
        if earlier:
            slots = torch.arange(start - earlier, start, device=k.device) % self.window
            seen_k = torch.cat([self.keys[:, :, slots], k], dim=2)
            seen_v = torch.cat([self.values[:, :, slots], v], dim=2)
        last = min(new, self.window)
        slots = torch.arange(self.length - last, self.length, device=k.device) % self.window
        self.keys[:, :, slots] = k[:, :, -last:]
        self.values[:, :, slots] = v[:, :, -last:]
        return seen_k, seen_v

    def positions(self, new: int) -> Int[Tensor, " key"]:
        """Return the positions of the keys that the last :meth:`append` returned, in their order.

        ``new`` is the number of positions that it added.
        """
        device = self.keys.device
        if self.in_order:
            first = max(0, self.length - new - self.slots + 1)
            return torch.arange(first, self.length, device=device)
        last = self.length - 1
        slots = torch.arange(min(self.length, self.slots), device=device)
        return last - (last - slots) % self.slots

    def snapshot(self) -> KeysAndValues | None:
        """Return copies of keys and values that later positions overwrite.

        The result is None in a layer without a window, where they overwrite none.
        """
        if self.window is None:
            return None
        filled = min(self.length, self.window)
        return self.keys[:, :, :filled].clone(), self.values[:, :, :filled].clone()

    def restore(self, length: int, saved: KeysAndValues | None) -> None:
        """Go back to the ``length`` positions of a :meth:`snapshot`."""
        self.length = length
        if saved is not None:
            keys, values = saved
            filled = keys.shape[2]
            self.keys[:, :, :filled] = keys
            self.values[:, :, :filled] = values

    def require_room(self, new: int) -> None:
        """Raise :class:`InputError` if ``new`` more positions do not fit."""
        if self.length + new > self.max_seq_len:
            raise InputError(
                got=f"{new} new positions on top of {self.length}",
                expected=f"at most {self.max_seq_len} in all",
                fix="Make the cache longer (max_seq_len), or reset() it for a new text.",
            )


@dataclass(frozen=True)
class Snapshot:
    """Copies of :meth:`Cache.snapshot`."""

    length: int
    layers: tuple[tuple[Tensor, Tensor] | None, ...]
    """Keys and values of each layer with a window; None for other layers.

    Layers may differ in their number of positions.
    """


class Cache:
    """The caches of all layers of a decoder, and which positions are padding.

    ``Decoder.new_cache`` makes it. Pass it to every call of the decoder that continues the texts.
    """

    def __init__(self, layers: Sequence[LayerCache]) -> None:
        if len(layers) == 0:
            raise InputError(
                got="a cache of no layers",
                expected="one LayerCache per layer",
                fix="Use Decoder.new_cache().",
            )
        self.layers = list(layers)
        self.padding: Bool[Tensor, "batch position"] | None = None
        self.broken = False
        """A forward pass broke off: some layers, but not all, have added its positions."""

    @property
    def length(self) -> int:
        """Positions read so far."""
        return self.layers[0].length

    @property
    def max_seq_len(self) -> int:
        """Positions it can hold."""
        return self.layers[0].max_seq_len

    def reset(self) -> None:
        """Forget all texts; the memory stays allocated."""
        self.padding = None
        self.broken = False
        for layer in self.layers:
            layer.reset()

    def snapshot(self) -> Snapshot:
        """Copy keys and values that later positions overwrite, so that :meth:`restore` can go back.

        Memory: at most ``2 * batch * num_kv_heads * window * head_dim`` numbers for each windowed
        layer. Other layers overwrite nothing.
        """
        return Snapshot(self.length, tuple(layer.snapshot() for layer in self.layers))

    def restore(self, snapshot: Snapshot) -> None:
        """Forget all positions that were added since ``snapshot``.

        Raises:
            InputError: Fewer positions than at the snapshot: the cache was reset since.
        """
        length = snapshot.length
        if self.length < length:
            raise InputError(
                got=f"a cache of {self.length} positions",
                expected=f"the {length} of the snapshot, and those added since",
                fix="Take a new snapshot after reset().",
            )
        if self.padding is not None:
            self.padding = self.padding[:, :length]
        for layer, saved in zip(self.layers, snapshot.layers, strict=True):
            layer.restore(length, saved)
        self.broken = False

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Guard a forward pass that adds positions, from :meth:`begin` on.

        A pass that breaks off is forgotten if no layer has added its positions; otherwise the cache
        is :attr:`broken`.
        """
        padding = self.padding
        lengths = [layer.length for layer in self.layers]
        try:
            yield
        except BaseException:
            self.padding = padding
            self.broken = self.broken or [layer.length for layer in self.layers] != lengths
            raise

    def begin(
        self, batch: int, new: int, padding: Bool[Tensor, "batch position"] | None
    ) -> Bool[Tensor, "batch key"] | None:
        """Prepare for ``new`` more positions of ``batch`` texts, which every layer will append.

        ``padding`` is True where a new position is real; None: all are. The result is such a mask
        for every position so far, the new ones included, or None.
        """
        keys = self.layers[0].keys
        if batch != len(keys):
            raise InputError(
                got=f"{batch} texts",
                expected=f"{len(keys)}, as the cache was made for",
                fix="Make a new cache.",
            )
        self.layers[0].require_room(new)
        if self.broken:
            raise InputError(
                got="a cache in which a forward pass broke off",
                expected="one that each layer has added to",
                fix="reset() it, and read the texts again.",
            )
        if padding is not None or self.padding is not None:
            before = self.padding
            if before is None:
                before = torch.ones(batch, self.length, dtype=torch.bool, device=keys.device)
            if padding is None:
                padding = torch.ones(batch, new, dtype=torch.bool, device=keys.device)
            self.padding = torch.cat([before, padding], dim=1)
        return self.padding
