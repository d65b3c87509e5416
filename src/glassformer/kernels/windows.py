"""Attention within a pattern, by a product that takes no pattern.

It is computed in one piece, or for a window in blocks, whose cost grows linearly.

Source: Beltagy et al. 2020, arXiv 2004.05150 (windows).
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.kernels.pattern import Pattern

_SHORTEST_BLOCK = 32
_LONGEST_BLOCK = 512


@runtime_checkable
class Product(Protocol):
    """Attention with a causal rule, with a mask, or with neither.

    The causal rule aligns the first query with the first key.
    """

    def __call__(
        self,
        q: Float[Tensor, "batch head query head_dim"],
        k: Float[Tensor, "batch kv_head key head_dim"],
        v: Float[Tensor, "batch kv_head key value_dim"],
        causal: bool,
        mask: Bool[Tensor, "#batch #head #query key"] | None,
        scale: float,
        sink: Float[Tensor, "1 head #query"] | None,
    ) -> Float[Tensor, "batch head query value_dim"]:
        """Return the values averaged with the weights."""


def in_one_piece(
    product: Product,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    scale: float,
    sink: Float[Tensor, "1 head #query"] | None,
) -> Tensor:
    """Compute one product, without a mask where the product's causal rule says the same."""
    batch, heads, queries, head_dim = q.shape
    keys = k.shape[2]
    groups = heads // k.shape[1]
    if pattern.key_padding is None:
        padding = None
    else:
        padding = pattern.key_padding[:, None, None, :]
    if queries == 1 and groups > 1:
        # One query per head: heads that share keys become the queries of one head, so that no key
        # is read twice.
        folded = q.view(batch, k.shape[1], groups, head_dim)
        if sink is not None:
            sink = sink.view(1, k.shape[1], groups)
        out = product(folded, k, v, False, padding, scale, sink)
        return out.reshape(batch, heads, 1, -1)
    if not pattern.causal:
        return product(q, k, v, False, padding, scale, sink)
    # The product's causal rule is ours only if there are as many queries as keys. It scales after
    # masking, so that a scale of 0 or below would spoil -inf.
    if queries == keys and pattern.window is None and pattern.key_padding is None and scale > 0:
        return product(q, k, v, True, None, scale, sink)
    return product(q, k, v, False, pattern.mask(queries, keys, q.device), scale, sink)


def in_blocks(
    product: Product,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    scale: float,
    sink: Float[Tensor, "1 head #query"] | None,
) -> Tensor:
    """Compute attention in a causal window by blocks of queries and the keys that they can see.

    The first queries are computed apart: those before one that sees a full window, and as many more
    as fill no block.
    """
    window = pattern.window
    assert window is not None  # narrowed() keeps causal with it
    queries = q.shape[2]
    keys = min(k.shape[2], queries + window - 1)
    k = k[:, :, -keys:]
    v = v[:, :, -keys:]
    if pattern.key_padding is None:
        padding = None
    else:
        padding = pattern.key_padding[:, -keys:]
    block = min(max(window // 2, _SHORTEST_BLOCK), _LONGEST_BLOCK)
    first = min(queries, window + queries - keys)
    first += (queries - first) % block
    last = keys - queries + first
    # One split, whose gradient is one join. Each of two slices would have a gradient of zeros for
    # all queries.
    q_first, q_others = q.split((first, queries - first), dim=2)
    first_padding = None if padding is None else padding[:, :last]
    first_pattern = Pattern(True, window, first_padding).narrowed(first, last)
    out = in_one_piece(product, q_first, k[:, :, :last], v[:, :, :last], first_pattern, scale, sink)
    if first == queries:
        return out
    seen = slice(last - window + 1, keys)
    seen_padding = None if padding is None else padding[:, seen]
    others = _banded(
        product, q_others, k[:, :, seen], v[:, :, seen], window, block, seen_padding, scale, sink
    )
    # Joined in the kernel's memory order, position before head: merging heads then copies nothing.
    return torch.cat([part.transpose(1, 2) for part in (out, others)], dim=1).transpose(1, 2)


def _banded(
    product: Product,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    block: int,
    padding: Bool[Tensor, "batch key"] | None,
    scale: float,
    sink: Tensor | None,
) -> Tensor:
    """Compute attention in blocks of queries, where query i sees keys i .. i + window - 1.

    There are ``queries + window - 1`` keys.
    """
    batch, heads, queries, _ = q.shape
    blocks = queries // block
    width = window - 1 + block

    def blocks_of(keys: Tensor) -> Tensor:
        return keys.unfold(2, width, block).permute(0, 2, 1, 4, 3).flatten(0, 1)

    row = torch.arange(block, device=q.device)[:, None]
    key = torch.arange(width, device=q.device)[None, :]
    mask = ((key >= row) & (key < row + window))[None, None]
    if padding is not None:
        real = padding.unfold(1, width, block).expand(batch, -1, -1).flatten(0, 1)
        mask = mask & real[:, None, None, :]
    folded = q.unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)
    out = product(folded, blocks_of(k), blocks_of(v), False, mask, scale, sink)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).reshape(batch, heads, queries, -1)
