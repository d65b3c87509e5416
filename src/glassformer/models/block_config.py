"""Parts of a block, as data. Imports no torch.

The configurations of models are flat, like files and flags; their properties group the fields into
the parts here. A configuration checks the type and the bounds of each field. A part checks, when it
is created, how its fields fit together. Fields have the names of the arguments of the layers that
are built of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glassformer.errors import InputError, require_groups, require_heads
from glassformer.kernels.options import Clamp, Layout
from glassformer.layers.options import Activation, LongRope, NormKind, NormPlace, RopeScaling


@dataclass(frozen=True)
class Attention:
    """Attention: see :class:`~glassformer.layers.grouped_query.GroupedQueryAttention`."""

    num_heads: int
    head_dim: int
    num_kv_heads: int
    bias: bool | Literal["qkv"] = False
    key_weights: bool = False
    sinks: bool = False
    dropout: float = 0.0
    layout: Layout = "half-split"
    scale: float | None = None
    cap: float | None = None
    qk_norm: Literal["head", "all"] | None = None
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        require_groups(self.num_heads, self.num_kv_heads)

    @classmethod
    def sharing(cls, hidden_dim: int, num_heads: int, dropout: float = 0.0) -> Attention:
        """Return an attention with biases whose heads share the width of the residual stream."""
        require_heads(num_heads, hidden_dim=hidden_dim)
        return cls(num_heads, hidden_dim // num_heads, num_heads, bias=True, dropout=dropout)


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward network, see :class:`~glassformer.layers.feedforward.MLP`.

    Args:
        ff_dim: Width inside.
        activation: See :data:`~glassformer.layers.options.Activation`.
        gated: Build a :class:`~glassformer.layers.feedforward.SwiGLU`, which has no dropout.
        bias: Biases on all linear maps.
        clamp: gpt-oss's clamped SwiGLU.
        dropout: Probability in training of dropping a number inside.
    """

    ff_dim: int
    activation: Activation
    gated: bool = False
    bias: bool = True
    clamp: Clamp | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.clamp is not None:
            self.require_swiglu("clamp")

    def require_swiglu(self, part: str) -> None:
        """Raise :class:`InputError` if this network is no SwiGLU, which ``part`` needs."""
        if self.activation != "silu" or not self.gated:
            raise InputError(
                got=f"activation = {self.activation!r}, gated = {self.gated} with {part}",
                expected="'silu' and gated",
                fix=f"Use a gated 'silu' network, or leave out {part}, which needs SwiGLU.",
            )


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: see :class:`~glassformer.layers.experts.MixtureOfExperts`.

    Args:
        hidden_dim: Width of the residual stream.
        network: Network of each expert.
        num_experts: Experts in each layer.
        top_k: Experts per token.
        format: ``"dense"``, or ``"mxfp4"`` for
            :class:`~glassformer.layers.quantized.packed_experts.PackedMixture`.
    """

    hidden_dim: int
    network: FeedForward
    num_experts: int
    top_k: int
    format: Literal["dense", "mxfp4"] = "dense"

    def __post_init__(self) -> None:
        self.network.require_swiglu("num_experts")
        if self.top_k > self.num_experts:
            raise InputError(
                got=f"top_k = {self.top_k} with num_experts = {self.num_experts}",
                expected="top_k <= num_experts",
                fix="Lower top_k or add experts.",
            )
        ff_dim = self.network.ff_dim
        if self.format == "mxfp4" and (self.hidden_dim % 32 or ff_dim % 32):
            raise InputError(
                got=(
                    f"expert_format = 'mxfp4' with hidden_dim = {self.hidden_dim}, "
                    f"ff_dim = {ff_dim}"
                ),
                expected="experts whose widths are multiples of 32",
                fix="Use such widths (32 weights of a row share an exponent), or 'dense'.",
            )


@dataclass(frozen=True)
class Norms:
    """Norms of a block: see :class:`~glassformer.layers.blocks.Block`."""

    norm_eps: float
    norm: NormKind
    norm_place: NormPlace
    parallel: bool = False

    def __post_init__(self) -> None:
        if self.parallel and self.norm_place != "before":
            raise InputError(
                got=f"parallel with norm_place = {self.norm_place!r}",
                expected="'before'",
                fix="Set norm_place = 'before', or leave out parallel.",
            )


@dataclass(frozen=True)
class Rotations:
    """Rotations of queries and keys: see :class:`~glassformer.layers.positions.RotaryEmbedding`.

    Args:
        head_dim: Width of a head.
        rotary_dim: Number of coordinates that rotate, the first ones of a head.
        base: Base of the frequencies.
        layout: Pairs of coordinates that rotate together.
        scaling: Stretch of the frequencies to longer texts.
        local_base: Base in windowed layers, which ``scaling`` leaves alone; None: windowed layers
            rotate as the others.
    """

    head_dim: int
    rotary_dim: int
    base: float
    layout: Layout
    scaling: RopeScaling | None
    local_base: float | None

    def __post_init__(self) -> None:
        if self.head_dim % 2:
            raise InputError(
                got=f"head_dim = {self.head_dim}",
                expected="an even number",
                fix="Use an even head_dim: rotation works on pairs.",
            )
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise InputError(
                got=f"rotary_dim = {self.rotary_dim} with head_dim = {self.head_dim}",
                expected="an even number, at most head_dim",
                fix="Change rotary_dim: rotation works on pairs of a head's coordinates.",
            )
        pairs = self.rotary_dim // 2
        if isinstance(self.scaling, LongRope) and len(self.scaling.short) != pairs:
            raise InputError(
                got=f"{len(self.scaling.short)} factors in rope_scaling",
                expected=f"{pairs}, one for each pair of rotated coordinates",
                fix="Pass rotary_dim / 2 short factors and as many long ones.",
            )
