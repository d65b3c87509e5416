"""Modules with packed weights: a linear layer, an embedding and a mixture of experts.

Every weight has a kind of the table :data:`~glassformer.kernels.packed.KINDS`, and the bytes that
it has in a file. Packed weights are buffers without a gradient; activations have gradients of any
order. The weight of a linear layer or an embedding is a property, expanded anew at each use.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require_positive
from glassformer.kernels.options import Clamp
from glassformer.kernels.packed import KINDS, packed_linear, require_width_fits, values
from glassformer.kernels.packed_experts import PackedMatrices, mix_packed_matrices
from glassformer.layers.experts import MixtureOfExperts, Router


@dataclass(frozen=True)
class PackedWeight:
    """A packed weight of a module."""

    kind: str
    """Kind, a name in :data:`~glassformer.kernels.packed.KINDS`."""
    blocks: Tensor
    """Bytes, uint8 ``[..., row, bytes of a row]``."""

    @property
    def shape(self) -> list[int]:
        """Shape of the expanded weight."""
        return [*self.blocks.shape[:-1], KINDS[self.kind].width(self.blocks.shape[-1])]

    def dense(self) -> Tensor:
        """Return the expanded weight in float32."""
        return values(self.kind, self.blocks)


class PackedLinear(nn.Linear):
    """A linear layer whose weights are packed, for inference and for gradients of activations.

    Products are those of the expanded weights: activations are not rounded to 8 bits. ``weight`` is
    the expanded matrix in float32, computed anew at each use.

    Args:
        in_features: Width of the input, a multiple of the kind's block.
        out_features: Width of the output.
        kind: A name in :data:`~glassformer.kernels.packed.KINDS`.
        bias: Whether to add a bias, which has no gradient.

    Shape: ``[..., in_features]`` to ``[..., out_features]``.
    """

    blocks: Tensor

    def __init__(self, in_features: int, out_features: int, kind: str, bias: bool = False) -> None:
        nn.Module.__init__(self)
        self.in_features = in_features
        self.out_features = out_features
        self.kind = kind
        self.register_buffer("blocks", _zeros(kind, out_features, in_features))
        self.register_parameter("bias", _frozen_bias(bias, out_features))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The expanded weights."""
        return values(self.kind, self.blocks)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """Return ``x @ weight.T + bias``."""
        return packed_linear(x, self.blocks, self.kind, self.bias)

    def packed_weights(self) -> dict[str, PackedWeight]:
        """Return the packed weights, by their names in the dense module."""
        return {"weight": PackedWeight(self.kind, self.blocks)}

    def extra_repr(self) -> str:
        """Return the sizes of a linear layer, and the kind."""
        return f"{super().extra_repr()}, kind={self.kind}"


class PackedEmbedding(nn.Embedding):
    """An embedding with packed rows, which are expanded when they are looked up."""

    blocks: Tensor

    def __init__(self, num_embeddings: int, embedding_dim: int, kind: str) -> None:
        nn.Module.__init__(self)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.kind = kind
        self.max_norm = None
        self.padding_idx = None
        self.register_buffer("blocks", _zeros(kind, num_embeddings, embedding_dim))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The expanded rows in float32."""
        return values(self.kind, self.blocks)

    def forward(self, numbers: Int[Tensor, "*places"]) -> Float[Tensor, "*places embedding_dim"]:
        """Return the rows of these numbers."""
        return values(self.kind, nn.functional.embedding(numbers, self.blocks))

    def packed_weights(self) -> dict[str, PackedWeight]:
        """Return the packed weights, by their names in the dense module."""
        return {"weight": PackedWeight(self.kind, self.blocks)}

    def extra_repr(self) -> str:
        """Return the sizes and the kind."""
        return f"{self.num_embeddings}, {self.embedding_dim}, kind={self.kind}"


class PackedExperts(MixtureOfExperts):
    """A mixture of experts with packed matrices, whose kinds may differ.

    Only the experts that a batch chose are read. Everything is computed in float32 at least; the
    output has ``x``'s dtype. There are no ``gate``, ``up`` and ``down``, because expanding all
    experts takes much memory; :meth:`packed_weights` can do it.

    Args:
        hidden_dim: Width of input and output.
        ff_dim: Width inside each expert.
        num_experts: Number of experts.
        top_k: Experts per token.
        kinds: The kind of ``"gate"``, ``"up"`` and ``"down"``.
        bias: Give router and experts biases; those of experts have no gradient.
        clamp: gpt-oss's clamped activation instead of the plain one.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``.
    Buffers are ``[expert, out, bytes of a row]``.
    """

    gate_blocks: Tensor
    up_blocks: Tensor
    down_blocks: Tensor

    def __init__(
        self,
        hidden_dim: int,
        ff_dim: int,
        num_experts: int = 8,
        top_k: int = 2,
        *,
        kinds: Mapping[str, str],
        bias: bool = False,
        clamp: Clamp | None = None,
    ) -> None:
        nn.Module.__init__(self)
        require_positive(ff_dim=ff_dim)
        self.router = Router(hidden_dim, num_experts, top_k, bias=bias)
        self.hidden_dim = hidden_dim
        self.ff_dim = ff_dim
        self.num_experts = num_experts
        self.top_k = top_k
        self.kinds = dict(kinds)
        self.clamp = clamp
        for name, rows, width in (
            ("gate", ff_dim, hidden_dim),
            ("up", ff_dim, hidden_dim),
            ("down", hidden_dim, ff_dim),
        ):
            self.register_buffer(f"{name}_blocks", _zeros(kinds[name], num_experts, rows, width))
            self.register_parameter(f"{name}_bias", _frozen_bias(bias, num_experts, rows))

    def mix(
        self,
        tokens: Float[Tensor, "token hidden_dim"],
        weights: Float[Tensor, "token choice"],
        indices: Int[Tensor, "token choice"],
    ) -> Float[Tensor, "token hidden_dim"]:
        """Return the weighted sum of the given experts, independent of the router."""
        experts = PackedMatrices(
            self.gate_blocks,
            self.up_blocks,
            self.down_blocks,
            self.gate_bias,
            self.up_bias,
            self.down_bias,
            (self.kinds["gate"], self.kinds["up"], self.kinds["down"]),
            self.clamp,
        )
        return mix_packed_matrices(experts, tokens, weights, indices)

    def packed_weights(self) -> dict[str, PackedWeight]:
        """Return the packed weights, by their names in the dense module."""
        return {
            name: PackedWeight(kind, getattr(self, buffer_name(name)))
            for name, kind in self.kinds.items()
        }

    def extra_repr(self) -> str:
        """Return the kinds of the matrices."""
        return ", ".join(f"{name}={kind}" for name, kind in self.kinds.items())


PACKED = (PackedLinear, PackedEmbedding, PackedExperts)
"""The classes of this module."""


def packed_like(module: nn.Module, kinds: Mapping[str, str]) -> nn.Module | None:
    """Return an empty module, on the device meta, for ``module`` with packed weights.

    The result is None if no class of this file can hold them.

    Args:
        module: A module of numbers.
        kinds: Kind of each weight that is to be packed, by its name in ``module``.
    """
    with torch.device("meta"):
        layer = _empty_like(module, kinds)
    if layer is None:
        return None
    return layer.to(next(module.parameters()).dtype)  # its biases


def _empty_like(module: nn.Module, kinds: Mapping[str, str]) -> nn.Module | None:
    if isinstance(module, nn.Embedding) and kinds.keys() == {"weight"}:
        return PackedEmbedding(module.num_embeddings, module.embedding_dim, kinds["weight"])
    if isinstance(module, nn.Linear) and kinds.keys() == {"weight"}:
        bias = module.bias is not None
        return PackedLinear(module.in_features, module.out_features, kinds["weight"], bias)
    if type(module) is MixtureOfExperts and kinds.keys() == {"gate", "up", "down"}:
        return PackedExperts(
            module.hidden_dim,
            module.ff_dim,
            module.num_experts,
            module.top_k,
            kinds=kinds,
            bias=module.gate_bias is not None,
            clamp=module.clamp,
        )
    return None


def buffer_name(weight: str) -> str:
    """Return the name of a weight's packed buffer: ``blocks``, or ``gate_blocks`` for experts."""
    if weight == "weight" or weight.endswith(".weight"):
        return f"{weight.removesuffix('weight')}blocks"
    return f"{weight}_blocks"


def _zeros(kind: str, *shape: int) -> Tensor:
    require_width_fits(kind, shape[-1])
    return torch.zeros(KINDS[kind].packed_shape(shape), dtype=torch.uint8)


def _frozen_bias(bias: bool, *shape: int) -> nn.Parameter | None:
    """Return a bias of zeros without a gradient; None without a bias."""
    if not bias:
        return None
    return nn.Parameter(torch.zeros(shape), requires_grad=False)
