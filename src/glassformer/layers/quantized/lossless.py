"""bfloat16 weights of 12 bits each, without loss: encoding, decoding, and a linear layer that holds them."""

from typing import Any

import torch
from jaxtyping import BFloat16, Float, Int32, UInt8
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.kernels.dispatch import native_library, use_definition
from glassformer.kernels.huge_pages import empty_in_huge_pages
from glassformer.kernels.linear import parts, threads_for
from glassformer.kernels.lossless import GROUP, GROUP_BYTES, MULTIPLE, encode_definition, fits, inside, lossless_linear
from glassformer.kernels.lossless import expand as decode

# With one exception in so many, the list takes what the codes save.
_NUMBERS_PER_EXCEPTION = 16


def encode(
    values: BFloat16[Tensor, "out in"],
) -> tuple[UInt8[Tensor, "out groups 96"], Int32[Tensor, "entries 2"]]:
    """``packed`` and ``index`` as :mod:`glassformer.kernels.lossless` describes them.

    The width is a multiple of 16. Of 3,000 normally distributed numbers about one is an exception, which takes 8 bytes.
    More than one in 16, where nothing would be saved, are an error: the numbers of a row differ by many powers of two.
    """
    require(
        values.dim() == 2 and values.dtype == torch.bfloat16 and values.shape[1] % MULTIPLE == 0 < values.shape[1],
        f"values of shape {tuple(values.shape)}, {values.dtype}",
        f"a matrix of bfloat16 numbers whose width is a multiple of {MULTIPLE}",
        "Keep these weights as they are.",
    )
    (out, width), device = values.shape, values.device
    packed = empty_in_huge_pages((out, -(-width // GROUP), GROUP_BYTES), torch.uint8, device)
    index = torch.zeros(out + 1, 2, dtype=torch.int32, device=device)
    tops, counts = index[:-1, 0], index[1:, 1]
    values, exceptions = values.detach().contiguous(), []
    library = None if use_definition() else native_library(values)
    if library is not None:
        library.call("encode_lossless", values, packed, index, out, width, threads_for(values))
        exceptions.append(index.new_zeros(_limited(int(counts.sum()), values), 2))
    elif not values.is_meta:
        for rows in parts(values, 2**18):  # what is computed with stays in caches
            packed[rows], tops[rows], counts[rows], listed = encode_definition(values[rows])
            exceptions.append(listed)
            _limited(sum(map(len, exceptions)), values)
    index[:, 1] = index[:, 1].cumsum(0) + out + 1
    index = torch.cat([index, *exceptions])
    if library is not None:
        library.call("list_exceptions", values, index, out, width, len(index), threads_for(values))
    return packed, index


def _limited(exceptions: int, values: Tensor) -> int:
    require(
        exceptions <= values.numel() // _NUMBERS_PER_EXCEPTION,
        f"weights with {exceptions:,} exceptions or more among {values.numel():,}",
        f"at most one in {_NUMBERS_PER_EXCEPTION}: rows whose numbers are of similar size",
        "Keep these weights as they are.",
    )
    return exceptions


class LosslessLinear(nn.Linear):
    """A linear layer of three quarters of bfloat16's size, for inference: the same weights, encoded by :func:`encode`.

    They are buffers without a gradient. ``weight`` is the decoded matrix in the bias's or bfloat16's dtype, made anew
    at each use. On other devices than the CPU, with gradients and without the C++ library each forward pass decodes it.
    ``in_features`` is a multiple of 16; a bias has no gradient either.

    Shape: ``[..., in_features]`` to ``[..., out_features]``.
    """

    packed: Tensor
    index: Tensor

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        nn.Module.__init__(self)
        multiple = f"a multiple of {MULTIPLE}"
        require(in_features % MULTIPLE == 0, f"in_features = {in_features}", multiple, "Keep the layer as it is.")
        self.in_features, self.out_features = in_features, out_features
        groups = -(-in_features // GROUP)
        self.register_buffer("packed", torch.zeros(out_features, groups, GROUP_BYTES, dtype=torch.uint8))
        index = torch.tensor([[0, out_features + 1]], dtype=torch.int32).repeat(out_features + 1, 1)
        self.register_buffer("index", index)
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features), requires_grad=False) if bias else None)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, local_metadata: Any, strict: bool, *others: Any
    ) -> None:
        packed, index = (state_dict.get(prefix + name, getattr(self, name)) for name in ("packed", "index"))
        fit = len(packed) == self.out_features and fits(packed, index, self.in_features)
        # Whether C++ may follow what is in the index.
        if not (fit and (index.is_meta or inside(packed, index, self.in_features))):
            _missing, _unexpected, errors = others
            errors.append(f"{prefix}packed and {prefix}index: not what encode() makes of weights of this layer's shape")
            return
        self.index = self.index.new_empty(index.shape)  # as many exceptions
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *others)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The decoded weights."""
        weights = decode(self.packed, self.index, self.in_features)
        return weights if self.bias is None else weights.to(self.bias.dtype)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """``x @ weight.T + bias``."""
        return lossless_linear(x, self.packed, self.index, self.in_features, self.bias)
