"""The compiled step of decoding: one new token for each text, with shapes that never change."""

import builtins
from collections.abc import Callable
from types import FunctionType
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import require
from glassformer.layers.cache import Cache, LayerCache
from glassformer.layers.options import LongRope
from glassformer.models.decoder import Decoder


class SlotCache(LayerCache):
    """A :class:`LayerCache` that is given one new position at a time, known only as a tensor.

    All slots are returned, and :meth:`visible` marks those in use. The keys and values are those of ``cache``, whose
    ``length`` does not change.
    """

    def __init__(self, cache: LayerCache, position: Int[Tensor, " 1"]) -> None:
        self.keys, self.values, self.slots = cache.keys, cache.values, cache.slots
        self.position, self.in_order = position, False

    @property
    def length(self) -> int:  # type: ignore[override]
        """Positions before the new one."""
        return int(self.position)

    def append(
        self, k: Float[Tensor, "batch kv_head 1 head_dim"], v: Float[Tensor, "batch kv_head 1 head_dim"]
    ) -> tuple[Float[Tensor, "batch kv_head slot head_dim"], Float[Tensor, "batch kv_head slot head_dim"]]:
        """Write the position into its slot and return all slots."""
        slot = self.position % self.slots
        self.keys.index_copy_(2, slot, k)
        self.values.index_copy_(2, slot, v)
        return self.keys, self.values

    def positions(self, new: int) -> Int[Tensor, " slot"]:
        """The position in each slot, negative where there is none yet."""
        return self.position - (self.position - torch.arange(self.slots, device=self.position.device)) % self.slots

    def visible(self, key_padding: Bool[Tensor, "batch position"] | None, new: int) -> Bool[Tensor, "#batch slot"]:
        """Which slots hold a real key; ``key_padding`` is that of all ``max_seq_len`` positions."""
        positions = self.positions(new)
        filled = (positions >= 0)[None]
        return filled if key_padding is None else filled & key_padding[:, positions.clamp(min=0)]


def step(
    model: Decoder,
    tokens: Int[Tensor, "batch 1"],
    position: Int[Tensor, " 1"],
    cache: Cache,
    key_padding: Bool[Tensor, "batch max_seq_len"] | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Logits after the newest token of each text, whose keys and values are added to the cache.

    Nothing is checked, and ``cache.length`` is not read or changed. ``key_padding`` is that of all positions that the
    cache can hold.
    """
    layers = [SlotCache(layer, position) for layer in cache.layers]
    x = model.embedding(tokens)
    rotations = model.rotations(lambda rotary: rotary.rotation_at(position), x)
    x = model.embed(x, position, key_padding)
    return model.logits(model.run_layers(x, rotations, key_padding, layers)[:, -1])


_steps: WeakKeyDictionary[Decoder, dict[tuple[int, int], Callable[..., Tensor]]] = WeakKeyDictionary()
_CODE = (lambda *arguments: step(*arguments)).__code__


def compiled_step(model: Decoder, batch: int, slots: int) -> Callable[..., Tensor]:
    """:func:`step` for this model and these sizes, compiled when it is first called."""
    longrope = isinstance(model.config.rope_scaling, LongRope)  # whose rotation depends on the number of positions
    require(not longrope, "a compiled step of a model with LongRoPE", "another scaling", "Generate without compiling.")
    steps = _steps.setdefault(model, {})
    if (batch, slots) not in steps:
        # torch.compile counts compilations by code object, runs the ninth uncompiled, and with fullgraph refuses it
        # instead. With a code object for each step none comes near that.
        own = FunctionType(_CODE.replace(), {"__name__": __name__, "__builtins__": builtins, "step": step})
        steps[batch, slots] = torch.compile(own, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})
    return steps[batch, slots]
