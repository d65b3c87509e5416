"""A mixture of experts whose weights stay packed as MXFP4 and are expanded only inside products."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.kernels.mxfp4 import PackedExperts, mix_packed_experts
from glassformer.kernels.options import Clamp
from glassformer.layers.experts import MixtureOfExperts, Router
from glassformer.layers.quantized import mxfp4

_KINDS = ("blocks", "scales")


class PackedMixture(nn.Module):
    """A :class:`MixtureOfExperts` of a quarter of bfloat16's size, for inference only.

    The weights stay packed, in the order of gpt-oss's checkpoints (see :class:`PackedExperts`), and
    only the experts that a batch chose are read. On the CPU a kernel expands them in registers;
    without it, and elsewhere, torch expands them piece by piece. Products, biases and the
    activation are computed in float32 (on other devices a product is rounded to ``x``'s dtype); the
    activation is rounded to ``x``'s dtype before the second product, and the output at the end.

    The weights are buffers of bytes, zero until they are loaded or packed from a dense mixture by
    :meth:`pack`; biases are parameters without a gradient. A backward pass raises
    :class:`InputError`. Arguments are those of
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
            if width % mxfp4.GROUP != 0:
                raise InputError(
                    got=f"{name} = {width}",
                    expected=f"a multiple of {mxfp4.GROUP}",
                    fix="MXFP4 packs that many weights of a row.",
                )
        self.router = Router(hidden_dim, num_experts, top_k, bias=bias)
        self.hidden_dim = hidden_dim
        self.ff_dim = ff_dim
        self.num_experts = num_experts
        self.top_k = top_k
        for name, rows, width in (
            ("gate_up", 2 * ff_dim, hidden_dim),
            ("down", hidden_dim, ff_dim),
        ):
            shape = (num_experts, rows, width // mxfp4.GROUP)
            self.register_buffer(
                f"{name}_blocks", torch.zeros(*shape, mxfp4.GROUP_BYTES, dtype=torch.uint8)
            )
            self.register_buffer(f"{name}_scales", torch.zeros(shape, dtype=torch.uint8))
            start = None
            if bias:
                start = nn.Parameter(torch.zeros(num_experts, rows), requires_grad=False)
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
        """A dense mixture with its weights rounded to MXFP4 (see
        :func:`glassformer.layers.quantized.mxfp4.encode`).
        """
        bias = dense.gate_bias is not None
        with torch.device("meta"):
            made = cls(
                dense.hidden_dim,
                dense.ff_dim,
                dense.num_experts,
                dense.top_k,
                bias=bias,
                clamp=dense.clamp,
            )
        own = dense.state_dict()
        # What has the same name in both is not made anew.
        tensors = {
            name: each.clone() if name in own else each for name, each in packed(own).items()
        }
        made.load_state_dict(tensors, assign=True)
        return made.train(dense.training)

    @torch.no_grad()
    def unpack(self, dtype: torch.dtype = torch.bfloat16) -> MixtureOfExperts:
        """The same mixture with its weights expanded (exactly, unless to float16), which can be
        trained.
        """
        bias = self.gate_up_bias is not None
        with torch.device("meta"):
            dense = MixtureOfExperts(
                self.hidden_dim,
                self.ff_dim,
                self.num_experts,
                self.top_k,
                bias=bias,
                clamp=self.clamp,
            )
        own = self.state_dict()
        tensors = {
            name: each.to(dtype, copy=name in own) for name, each in unpacked(own, dtype).items()
        }
        dense.load_state_dict(tensors, assign=True)
        return dense.train(self.training)


def packed(dense: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a :class:`PackedMixture` from that of a dense mixture, or from a part of it:
    experts are rounded to MXFP4. Gate and up come together, as they are stored in one tensor.
    """
    found = {
        name: each
        for name, each in dense.items()
        if name.startswith("router") or name == "down_bias"
    }
    if "gate" in dense:
        for kind, gate, up in zip(
            _KINDS, mxfp4.encode(dense["gate"]), mxfp4.encode(dense["up"]), strict=True
        ):
            found[f"gate_up_{kind}"] = interleaved(gate, up)
    if "down" in dense:
        found |= zip((f"down_{kind}" for kind in _KINDS), mxfp4.encode(dense["down"]), strict=True)
    if "gate_bias" in dense:
        found["gate_up_bias"] = interleaved(dense["gate_bias"], dense["up_bias"])
    return found


def unpacked(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The opposite of :func:`packed`: experts are expanded in ``dtype``, biases and the router stay
    as they are.
    """
    found = {name: each for name, each in state.items() if not name.endswith(_KINDS)}
    for part in ("gate_up", "down"):
        if f"{part}_blocks" in state:
            found[part] = mxfp4.decode(state[f"{part}_blocks"], state[f"{part}_scales"], dtype)
    for ending in ("", "_bias"):
        if (both := found.pop(f"gate_up{ending}", None)) is not None:
            found |= {
                f"gate{ending}": both[:, 0::2].contiguous(),
                f"up{ending}": both[:, 1::2].contiguous(),
            }
    return found


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """The rows of every expert's gate and up in turns."""
    return torch.stack([gate, up], dim=2).flatten(1, 2)
