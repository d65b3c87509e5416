"""Find the matrix that a module multiplies by, from its weights or by running it."""

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
    """Return the linear map of ``module``, or None if it is not linear.

    The map includes hooks, adapters and wrappers, but no edits. A module other than a plain linear
    layer is run on the rows of the identity, and its map is checked on other vectors.

    Args:
        module: Takes ``[batch, position, width]``.
        width: Number of inputs.
        rows: Indices of the outputs to return; all when None.
        like: Vectors of the kind that the module reads, of any shape [..., width], for the check;
            random ones when None.
    """
    selected = slice(None) if rows is None else list(rows)
    weights = _plain_map(module)
    if weights is not None:
        bias = None if weights.bias is None else weights.bias[selected]
        return LinearMap(weights.matrix[selected], bias)
    vectors = _random_vectors(module, width) if like is None else like.reshape(-1, width)[:64]
    identity = torch.eye(width, dtype=vectors.dtype, device=vectors.device)
    rows_of_matrix: list[Tensor] = []
    checks: list[tuple[Tensor, Tensor]] = []
    with evaluating(module), suspended():
        for unit_vectors in identity.split(_ROWS_AT_ONCE):
            # All inputs have the same shape, since hooks may select positions.
            zeros = torch.zeros_like(unit_vectors)
            others = torch.zeros_like(unit_vectors)
            others[: len(vectors)] = vectors[: len(unit_vectors)]
            at_zero = module(zeros[None])[0][:, selected]
            rows_of_matrix.append(module(unit_vectors[None])[0][:, selected] - at_zero)
            checks.append((others, module(others[None])[0][:, selected] - at_zero))
    matrix = torch.cat(rows_of_matrix).T
    for inputs, outputs in checks:
        error = float((inputs @ matrix.T - outputs).abs().max())
        tolerance = _TOLERANCE.get(matrix.dtype, 0.03) * float(outputs.abs().max())
        if not error <= tolerance:  # refuses NaN too
            return None
    return LinearMap(matrix, at_zero[0])


def _plain_map(module: Any) -> LinearMap | None:
    """Return the map of a plain linear layer from its weights, or None for other modules."""
    if "forward" in vars(module) or other_hooks(module):
        return None
    if type(module) in _KNOWN:
        return LinearMap(module.weight, module.bias)
    is_foreign = type(module).__module__.startswith("transformers.")
    if is_foreign and type(module).__name__ == "Conv1D":
        return LinearMap(module.weight.T, module.bias)
    return None


def _random_vectors(module: nn.Module, width: int) -> Float[Tensor, "vector width"]:
    """Return random vectors in the dtype and on the device of a module."""
    vectors = torch.randn(8, width, generator=torch.Generator().manual_seed(0))
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return vectors.to(tensor)
    return vectors


_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest error by rounding, in units of the largest number."""


def require_linear(module: Any, name: str, width: int, **options: Any) -> LinearMap:
    """Return the :func:`linear_map` of a module; refuse a module that is not linear."""
    linear = linear_map(module, width, **options)
    if linear is None:
        raise InputError(
            got=f"{name}, a {type(module).__name__} that is no linear map",
            expected="a projection with or without adapters",
            fix="Use patch_sweep() or intervene().",
        )
    return linear


@torch.no_grad()
def value_sizes(
    projection: LinearMap | None, v: Float[Tensor, "batch kv_head key value_dim"], heads: int
) -> Float[Tensor, "batch head key"]:
    """Return the length of each key's contribution to the residual stream through each head.

    The contribution is that at a weight of 1: ``sizes[b, h, j] = |W_h v[b, g, j]|`` with
    g = h // group and W_h the columns of ``projection`` for head h. Without a projection, it is the
    value itself.

    Source: Kobayashi et al. 2020, arXiv 2004.10102.
    """
    group = heads // v.shape[1]
    matrix: Tensor | None = None
    if projection is not None:
        matrix = projection.matrix.unflatten(1, (heads, -1))
    sizes: list[Tensor] = []
    for head in range(heads):
        added = v[:, head // group]
        if matrix is not None:
            added = added.to(matrix.dtype) @ matrix[:, head].T
        sizes.append(added.float().norm(dim=-1))
    return torch.stack(sizes, 1)


def added_by_heads(
    projection: LinearMap, heads: Float[Tensor, "batch head *query dim"]
) -> Float[Tensor, "batch head *query hidden"]:
    """Return what each head adds to the residual stream, without the projection's bias."""
    split = projection.matrix.unflatten(1, (heads.shape[1], heads.shape[-1]))
    return torch.einsum("bh...d,ohd->bh...o", heads.to(split.dtype), split)
