"""The matrix that a module multiplies by: its weights where they are all that it does, else found
by running it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.feedforward import Linear
from glassformer.layers.quantized.packed import PackedLinear
from glassformer.modes import evaluating
from glassformer.observe.module_hooks import other_hooks, suspended

_KNOWN = (nn.Linear, Linear, PackedLinear)
_ROWS_AT_ONCE = 1024


class LinearMap(NamedTuple):
    """``matrix @ x + bias``."""

    matrix: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None


@torch.no_grad()
def linear_map(
    module: Any, width: int, rows: Sequence[int] | None = None, like: Tensor | None = None
) -> LinearMap | None:
    """What ``module`` does, with its hooks, adapters and wrappers but without edits; None if that
    is no linear map with a bias.

    A module other than a plain linear layer is run on the rows of the identity, and its map is
    compared with what it makes of other vectors.

    Args:
        module: Takes ``[batch, position, width]``.
        rows: The outputs that are wanted; all when None.
        like: Vectors of the kind that the module reads, of any shape [..., width]; random ones when
            None.
    """
    chosen = slice(None) if rows is None else list(rows)
    plain = "forward" not in vars(module) and not other_hooks(module)
    if plain and type(module) in _KNOWN:
        return LinearMap(
            module.weight[chosen], None if module.bias is None else module.bias[chosen]
        )
    if (
        plain
        and type(module).__name__ == "Conv1D"
        and type(module).__module__.startswith("transformers.")
    ):
        return LinearMap(module.weight.T[chosen], module.bias[chosen])
    known = next(
        (each for each in (*module.parameters(), *module.buffers()) if each.is_floating_point()),
        None,
    )
    if like is not None:
        example = like
    elif known is not None:
        example = known
    else:
        example = torch.empty(0)
    random = torch.Generator().manual_seed(0)
    if like is None:
        drawn = torch.randn(8, width, generator=random).to(example)
    else:
        drawn = like.reshape(-1, width)[:64]
    found = []
    made = []
    bias = None
    with evaluating(module), suspended():
        for start in range(0, width, _ROWS_AT_ONCE):
            some = torch.eye(width, dtype=example.dtype, device=example.device)[
                start : start + _ROWS_AT_ONCE
            ]
            nothing = torch.zeros_like(some)
            drawn_here = torch.zeros_like(some)
            drawn_here[: len(drawn)] = drawn[
                : len(some)
            ]  # in the same shape, as hooks may mean positions
            at_zero, of_rows, of_drawn = (
                module(each[None])[0][:, chosen] for each in (nothing, some, drawn_here)
            )
            found.append(of_rows - at_zero)
            made.append((drawn_here, of_drawn - at_zero))
            bias = at_zero[0]
    matrix = torch.cat(found).T
    for given, expected in made:
        error = float((given @ matrix.T - expected).abs().max())
        near = _NEAR.get(matrix.dtype, 0.03) * float(expected.abs().max())
        if not error <= near:
            return None
    return LinearMap(matrix, bias)


_NEAR = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Of the largest number: an error that is rounding."""


def require_linear(module: Any, name: str, width: int, **options: Any) -> LinearMap:
    """:func:`linear_map`."""
    found = linear_map(module, width, **options)
    got = f"{name}, a {type(module).__name__} that is no linear map"
    if found is None:
        raise InputError(
            got, "a projection with or without adapters", "Use patch_sweep() or intervene()."
        )
    return found


@torch.no_grad()
def value_sizes(
    projection: LinearMap | None, v: Float[Tensor, "batch kv_head key value_dim"], heads: int
) -> Float[Tensor, "batch head key"]:
    """The length of what each key adds to the residual stream through each head that reads it with
    a weight of 1.

    ``sizes[b, h, j] = |W_h v[b, g, j]|`` with g = h // group and W_h the columns of ``projection``
    for head h; the length of the value without a projection.

    Source: Kobayashi et al. 2020, arXiv 2004.10102.
    """
    group = heads // v.shape[1]
    if projection is None:
        matrix = None
    else:
        matrix = projection.matrix.unflatten(1, (heads, -1))

    def added(head: int) -> Tensor:
        value = v[:, head // group]
        return (
            (value if matrix is None else value.to(matrix.dtype) @ matrix[:, head].T)
            .float()
            .norm(dim=-1)
        )

    return torch.stack([added(head) for head in range(heads)], 1)


def added_by_heads(
    projection: LinearMap, heads: Float[Tensor, "batch head *query dim"]
) -> Float[Tensor, "batch head *query hidden"]:
    """What each head adds to the residual stream, without the projection's bias."""
    split = projection.matrix.unflatten(1, (heads.shape[1], heads.shape[-1]))
    return torch.einsum("bh...d,ohd->bh...o", heads.to(split.dtype), split)
