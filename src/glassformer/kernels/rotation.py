"""Rotation of pairs of coordinates (rotary position embedding).

Source: Su et al. 2021, "RoFormer", arXiv 2104.09864, section 3.2.
"""

from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError
from glassformer.kernels.dispatch import (
    NATIVE_NAMES,
    defined_backward,
    native_library,
    use_definition,
)
from glassformer.kernels.native import Library, declare
from glassformer.kernels.options import Layout

Rotation = tuple[Float[Tensor, "*batch position pair"], Float[Tensor, "*batch position pair"]]
"""Cosines and sines of positions, one of each for every pair of coordinates."""


def definition(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Return ``a' = a cos - b sin`` and ``b' = b cos + a sin`` for every pair (a, b)."""
    a, b = pairs(x, layout)
    return join_pairs(a * cos - b * sin, b * cos + a * sin, layout)


def rotate(
    x: Float[Tensor, "batch head position head_dim"],
    rotation: Rotation,
    layout: Layout = "half-split",
) -> Float[Tensor, "batch head position head_dim"]:
    """Rotate every pair of coordinates of ``x`` by :func:`definition`, in the dtype of ``x``.

    Angles for fewer pairs than ``x`` has rotate its first coordinates only; the others pass
    unchanged. The backward pass of the fast form needs only the angles.
    """
    width = 2 * rotation[0].shape[-1]
    if width != x.shape[-1]:
        if width > x.shape[-1]:
            raise InputError(
                got=f"angles of {width // 2} pairs for a head_dim of {x.shape[-1]}",
                expected="at most head_dim / 2",
                fix="Build the rotation with the head_dim of these heads.",
            )
        return torch.cat((rotate(x[..., :width], rotation, layout), x[..., width:]), dim=-1)
    cos, sin = rotation
    if not cos.dtype == sin.dtype == x.dtype:
        cos = cos.to(x.dtype)
        sin = sin.to(x.dtype)
    # A compiler fuses the definition, and torch.func transforms it.
    if torch.compiler.is_compiling() or use_definition():
        return definition(x, cos, sin, layout)
    # Angles of other shapes may broadcast to more than the shape of x. The fast forms have no
    # gradient of angles.
    one_for_each_position = cos.shape == sin.shape == (x.shape[-2], width // 2)
    if not one_for_each_position or cos.requires_grad or sin.requires_grad:
        return definition(x, cos, sin, layout)
    if torch.is_grad_enabled():
        return _Rotate.apply(x, cos, sin, layout)
    return _rotated(x, cos, sin, layout)


def pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the first and the second coordinates of all pairs, as views."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def join_pairs(a: Tensor, b: Tensor, layout: Layout) -> Tensor:
    """Return the inverse of :func:`pairs`."""
    if layout == "interleaved":
        return torch.stack((a, b), dim=-1).flatten(-2)
    return torch.cat((a, b), dim=-1)


def _sizes(batch: int, heads: int, positions: int, head_dim: int, _threads: int) -> tuple[Any, ...]:
    shape = (batch, heads, positions, head_dim)
    angles = positions * (head_dim // 2)
    return shape, angles, angles, shape


declare("rotate", "TTTT", _sizes)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Rotate in C++, or by torch without joining pairs."""
    if layout == "half-split" and x.dim() == 4 and x.stride(3) == 1:
        library = native_library(x, cos, sin)
        if library is not None:
            return _in_cpp(library, x, cos, sin)
    return _in_torch(x, cos, sin, layout)


def _in_cpp(library: Library, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty_like(x)
    name = f"rotate_{NATIVE_NAMES[x.dtype]}"
    library.call(
        name, x, cos.contiguous(), sin.contiguous(), out, *x.shape, torch.get_num_threads()
    )
    return out


def _in_torch(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    a, b = pairs(x, layout)
    out = torch.empty_like(x)
    out_a, out_b = pairs(out, layout)
    torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=out_b).addcmul_(a, sin)
    return out


class _Rotate(torch.autograd.Function):
    """A rotation whose gradient is the rotation back, which can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout = layout
        return _rotated(x, cos, sin, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if defined_backward(grads[0]):
            rotate_back = definition
        else:
            rotate_back = _Rotate.apply
        return rotate_back(grads[0], cos, -sin, ctx.layout), None, None, None


def require_layout(layout: Layout) -> None:
    """Raise :class:`InputError` for an unknown layout."""
    if layout not in get_args(Layout):
        raise InputError(
            got=f"layout = {layout!r}",
            expected="'half-split' or 'interleaved'",
            fix="Hugging Face, gpt-oss and Llama files are 'half-split'.",
        )


def convert_rows(
    weight: Float[Tensor, "head_x_dim *in"], num_heads: int, to: Layout
) -> Float[Tensor, "head_x_dim *in"]:
    """Reorder a query or key projection (weight or bias) from one rotary layout to the other.

    A model with converted query *and* key projections computes the same scores in the other layout.

    Args:
        weight: ``[num_heads * head_dim, ...]``; rows are the coordinates of all heads, head after
            head.
        num_heads: Number of heads in ``weight``: ``num_heads`` for a query projection,
            ``num_kv_heads`` for a key projection.
        to: The layout to convert to; the weight is in the other.
    """
    rows = weight.shape[0]
    if num_heads < 1 or rows % (2 * num_heads) != 0:
        raise InputError(
            got=f"{rows} rows for {num_heads} heads",
            expected="num_heads * head_dim rows with an even head_dim",
            fix="Pass num_kv_heads for a key projection.",
        )
    require_layout(to)
    per_head = weight.unflatten(0, (num_heads, rows // num_heads)).movedim(1, -1)
    before: Layout = "interleaved" if to == "half-split" else "half-split"
    return join_pairs(*pairs(per_head, before), to).movedim(-1, 1).flatten(0, 1)
