"""A mixture of experts in gpt-oss's MXFP4, which is expanded only inside products."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.kernels.mxfp4 import Mxfp4Experts, mix_packed_experts
from glassformer.kernels.options import Clamp
from glassformer.layers.experts import MixtureOfExperts, Router
from glassformer.layers.quantized import mxfp4

_KINDS = ("blocks", "scales")  # the two tensors of a matrix


class PackedMixture(MixtureOfExperts):
    """A mixture of experts in a quarter of bfloat16's size, for inference only.

    The weights stay packed, in the order of gpt-oss's checkpoints: see
    :class:`~glassformer.kernels.mxfp4.Mxfp4Experts`. Only the experts that a batch chose are read.
    On the CPU a kernel expands them in registers; without it, and on other devices, torch expands
    them piece by piece. Products, biases and the activation are computed in float32 (on other
    devices a product is rounded to ``x``'s dtype). The activation is rounded to ``x``'s dtype
    before the second product, and the output at the end.

    The weights are buffers of bytes, zero until they are loaded or packed from a dense mixture by
    :meth:`pack`; biases are parameters without a gradient. A backward pass raises
    :class:`InputError`. Arguments are those of :class:`MixtureOfExperts`, with widths that are
    multiples of 32.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``.

    Source: OpenAI 2025, gpt-oss model card, arXiv 2508.10925, section 2.1.
    """

    gate_up_blocks: Tensor
    gate_up_scales: Tensor
    down_blocks: Tensor
    down_scales: Tensor
    gate_up_bias: Tensor | None

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
        nn.Module.__init__(self)
        require_positive(hidden_dim=hidden_dim, ff_dim=ff_dim)
        for name, width in (("hidden_dim", hidden_dim), ("ff_dim", ff_dim)):
            if width % mxfp4.GROUP != 0:
                raise InputError(
                    got=f"{name} = {width}",
                    expected=f"a multiple of {mxfp4.GROUP}",
                    fix=f"Use such widths: {mxfp4.GROUP} weights of a row share an exponent.",
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
            row_bias = None
            if bias:
                row_bias = nn.Parameter(torch.zeros(num_experts, rows), requires_grad=False)
            self.register_parameter(f"{name}_bias", row_bias)
        self.clamp = clamp

    def mix(
        self,
        tokens: Float[Tensor, "token hidden_dim"],
        weights: Float[Tensor, "token choice"],
        indices: Int[Tensor, "token choice"],
    ) -> Float[Tensor, "token hidden_dim"]:
        """Return the weighted sum of the given experts, independent of the router."""
        experts = Mxfp4Experts._make(getattr(self, name) for name in Mxfp4Experts._fields)
        return mix_packed_experts(experts, tokens, weights, indices)

    @classmethod
    @torch.no_grad()
    def pack(cls, dense: MixtureOfExperts) -> PackedMixture:
        """Return a dense mixture with its weights rounded to MXFP4.

        See :func:`glassformer.layers.quantized.mxfp4.encode`.
        """
        bias = dense.gate_bias is not None
        with torch.device("meta"):
            mixture = cls(
                dense.hidden_dim,
                dense.ff_dim,
                dense.num_experts,
                dense.top_k,
                bias=bias,
                clamp=dense.clamp,
            )
        dense_state = dense.state_dict()
        state: dict[str, Tensor] = {}
        for name, tensor in packed(dense_state).items():
            # A tensor of the same name in both is still that of the dense mixture.
            state[name] = tensor.clone() if name in dense_state else tensor
        mixture.load_state_dict(state, assign=True)
        return mixture.train(dense.training)

    @torch.no_grad()
    def unpack(self, dtype: torch.dtype = torch.bfloat16) -> MixtureOfExperts:
        """Return the mixture with its weights expanded, which can be trained.

        Expansion is exact, except to float16.
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
        packed_state = self.state_dict()
        state = {
            name: tensor.to(dtype, copy=name in packed_state)
            for name, tensor in unpacked(packed_state, dtype).items()
        }
        dense.load_state_dict(state, assign=True)
        return dense.train(self.training)


def packed(dense: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a :class:`PackedMixture` from that of a dense mixture, or a part of it.

    Experts are rounded to MXFP4. Gate and up come together, as they are stored in one tensor.
    """
    state = {
        name: tensor
        for name, tensor in dense.items()
        if name.startswith("router") or name == "down_bias"
    }
    if "gate" in dense:
        for kind, gate, up in zip(
            _KINDS, mxfp4.encode(dense["gate"]), mxfp4.encode(dense["up"]), strict=True
        ):
            state[f"gate_up_{kind}"] = interleaved(gate, up)
    if "down" in dense:
        state["down_blocks"], state["down_scales"] = mxfp4.encode(dense["down"])
    if "gate_bias" in dense:
        state["gate_up_bias"] = interleaved(dense["gate_bias"], dense["up_bias"])
    return state


def unpacked(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the state of a dense mixture from that of a :class:`PackedMixture`, or a part of it.

    Experts are expanded in ``dtype``; biases and the router stay as they are.
    """
    dense = {name: tensor for name, tensor in state.items() if not name.endswith(_KINDS)}
    for matrix in ("gate_up", "down"):
        if f"{matrix}_blocks" in state:
            blocks = state[f"{matrix}_blocks"]
            dense[matrix] = mxfp4.decode(blocks, state[f"{matrix}_scales"], dtype)
    for ending in ("", "_bias"):
        gate_up = dense.pop(f"gate_up{ending}", None)
        if gate_up is not None:
            dense[f"gate{ending}"] = gate_up[:, 0::2].contiguous()
            dense[f"up{ending}"] = gate_up[:, 1::2].contiguous()
    return dense


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """Return the rows of every expert's gate and up in turns."""
    return torch.stack([gate, up], dim=2).flatten(1, 2)
