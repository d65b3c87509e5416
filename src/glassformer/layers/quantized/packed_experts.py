"""A mixture of experts whose weights stay packed as MXFP4 and are expanded only inside products."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.kernels.mxfp4 import PackedExperts, mix_packed_experts
from glassformer.kernels.options import Clamp
from glassformer.layers.experts import MixtureOfExperts, Router
from glassformer.layers.quantized import mxfp4


class PackedMixture(nn.Module):
    """A :class:`MixtureOfExperts` of a quarter of bfloat16's size, for inference only.

    The weights stay packed, in the order of gpt-oss's checkpoints (see :class:`PackedExperts`), and only the experts
    that a batch chose are read. On the CPU a kernel expands them in registers; without it, and elsewhere, torch expands
    them piece by piece. Products, biases and the activation are computed in float32 (on other devices a product is
    rounded to ``x``'s dtype); the activation is rounded to ``x``'s dtype before the second product, and the output at
    the end.

    The weights are buffers of bytes, zero until they are loaded or packed from a dense mixture by :meth:`pack`; biases
    are parameters without a gradient. A backward pass raises :class:`InputError`. Arguments are those of
    :class:`MixtureOfExperts`, with widths that are multiples of 32.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``.

    Source: OpenAI 2025, gpt-oss model card, arXiv 2508.10925, section 2.1.
    """

    gate_up_blocks: Tensor
    gate_up_scales: Tensor
    down_blocks: Tensor
    down_scales: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None

    def __init__(
        self,
        hidden_dim: int,
        ff_dim: int,
        num_experts: int = 8,
        top_k: int = 2,
        *,
        bias: bool = False,
        clamp: Clamp | None = None,
    ) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, ff_dim=ff_dim)
        for name, width in (("hidden_dim", hidden_dim), ("ff_dim", ff_dim)):
            multiple = f"a multiple of {mxfp4.GROUP}"
            require(width % mxfp4.GROUP == 0, f"{name} = {width}", multiple, "MXFP4 packs that many weights of a row.")
        self.router = Router(hidden_dim, num_experts, top_k, bias=bias)
        self.hidden_dim, self.ff_dim, self.num_experts, self.top_k = hidden_dim, ff_dim, num_experts, top_k
        for name, rows, width in (("gate_up", 2 * ff_dim, hidden_dim), ("down", hidden_dim, ff_dim)):
            shape = (num_experts, rows, width // mxfp4.GROUP)
            self.register_buffer(f"{name}_blocks", torch.zeros(*shape, mxfp4.GROUP_BYTES, dtype=torch.uint8))
            self.register_buffer(f"{name}_scales", torch.zeros(shape, dtype=torch.uint8))
            start = nn.Parameter(torch.zeros(num_experts, rows), requires_grad=False) if bias else None
            self.register_parameter(f"{name}_bias", start)
        self.clamp = clamp

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Route every position and mix the outputs of its experts."""
        tokens = x.reshape(-1, x.shape[-1])
        return self.mix(tokens, *self.router(tokens)).view(x.shape)

    def mix(
        self,
        tokens: Float[Tensor, "token hidden_dim"],
        weights: Float[Tensor, "token choice"],
        indices: Int[Tensor, "token choice"],
    ) -> Float[Tensor, "token hidden_dim"]:
        """The weighted sum of the given experts, independent of the router."""
        experts = PackedExperts._make(getattr(self, name) for name in PackedExperts._fields)
        return mix_packed_experts(experts, tokens, weights, indices)

    @classmethod
    @torch.no_grad()
    def pack(cls, dense: MixtureOfExperts) -> PackedMixture:
        """A dense mixture with its weights rounded to MXFP4 (see :func:`glassformer.layers.quantized.mxfp4.encode`)."""
        bias = dense.gate_bias is not None
        with torch.device("meta"):
            packed = cls(dense.hidden_dim, dense.ff_dim, dense.num_experts, dense.top_k, bias=bias, clamp=dense.clamp)
        tensors = {f"router.{name}": weight.clone() for name, weight in dense.router.state_dict().items()}
        gate, up = mxfp4.encode(dense.gate), mxfp4.encode(dense.up)
        for kind, even, odd, down in zip(("blocks", "scales"), gate, up, mxfp4.encode(dense.down), strict=True):
            tensors |= {f"gate_up_{kind}": _interleaved(even, odd), f"down_{kind}": down}
        if dense.gate_bias is not None and dense.up_bias is not None and dense.down_bias is not None:
            tensors |= {
                "gate_up_bias": _interleaved(dense.gate_bias, dense.up_bias),
                "down_bias": dense.down_bias.clone(),
            }
        packed.load_state_dict(tensors, assign=True)
        return packed.train(dense.training)

    @torch.no_grad()
    def unpack(self, dtype: torch.dtype = torch.bfloat16) -> MixtureOfExperts:
        """The same mixture with its weights expanded (exactly, unless to float16), which can be trained."""
        bias = self.gate_up_bias is not None
        with torch.device("meta"):
            dense = MixtureOfExperts(
                self.hidden_dim, self.ff_dim, self.num_experts, self.top_k, bias=bias, clamp=self.clamp
            )
        gate_up = mxfp4.decode(self.gate_up_blocks, self.gate_up_scales, dtype)
        tensors = {f"router.{name}": weight.to(dtype, copy=True) for name, weight in self.router.state_dict().items()}
        tensors |= {"gate": gate_up[:, 0::2].contiguous(), "up": gate_up[:, 1::2].contiguous()}
        tensors["down"] = mxfp4.decode(self.down_blocks, self.down_scales, dtype)
        if self.gate_up_bias is not None and self.down_bias is not None:
            biases = self.gate_up_bias.to(dtype)
            tensors |= {"gate_bias": biases[:, 0::2].contiguous(), "up_bias": biases[:, 1::2].contiguous()}
            tensors["down_bias"] = self.down_bias.to(dtype, copy=True)
        dense.load_state_dict(tensors, assign=True)
        return dense.train(self.training)


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    return torch.stack([even, odd], dim=2).flatten(1, 2)
