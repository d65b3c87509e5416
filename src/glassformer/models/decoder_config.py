"""The configuration of a decoder."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt

from glassformer.config import Config, Count, Positive, Probability, Size, config
from glassformer.errors import require
from glassformer.kernels.options import Clamp, Layout
from glassformer.layers.options import Yarn


@config
class DecoderConfig(Config):
    """The parts of a :class:`~glassformer.models.decoder.Decoder`.

    Raises:
        InputError: A field of another type, or a size that is impossible by itself or with another.
    """

    vocab_size: Size
    """Number of different tokens."""
    num_layers: Size
    """Number of blocks."""
    hidden_dim: Size
    """Width of the residual stream."""
    ff_dim: Count
    """Width inside the feed-forward network, or inside each expert; 0: attention only."""
    num_heads: Size
    """Query heads."""
    head_dim: Size
    """Width of a head, an even number."""
    num_kv_heads: Size | None = None
    """Key-value heads, a divisor of num_heads; None: as many as query heads."""
    window: Size | None = None
    """Keys a query sees in a windowed layer, itself included; None: no layer is windowed."""
    windowed_layers: Literal["odd", "even", "all"] | tuple[Count, ...] = "odd"
    """Layers with the window, counted from 0: the odd ones (as in the course), the even ones (gpt-oss), or a list."""
    num_experts: Size | None = None
    """Experts in each layer; None: one dense feed-forward network."""
    top_k: Size = 2
    """Experts per token."""
    expert_format: Literal["dense", "mxfp4"] = "dense"
    """Experts as matrices that can be trained, or packed in 4.25 bits per weight, for inference only."""
    balance_experts: bool = False
    """Add the load-balancing loss in training."""
    key_weights: bool = False
    """A learned factor per query head on its keys."""
    sinks: bool = False
    """A learned sink logit per query head."""
    attention_bias: bool = False
    """Biases on the projections of attention."""
    ff_bias: bool = False
    """Biases in feed-forward networks, experts and routers."""
    clamp: Clamp | None = None
    """gpt-oss's clamped SwiGLU; None: the plain one."""
    dropout: Probability = 0.0
    """Probability of dropping an attention weight in training."""
    max_seq_len: Size = 2048
    """Longest text in tokens."""
    rope_base: Annotated[float, Gt(1)] = 10000.0
    """Base of the rotary frequencies."""
    rope_layout: Layout = "half-split"
    """Which coordinates rotate together."""
    yarn: Yarn | None = None
    """Stretch of the rotary frequencies to longer texts."""
    norm_eps: Positive = 1e-5
    """Added to the mean square in RMSNorm."""
    tied_output: bool = False
    """Use the embedding as the output projection."""

    def __post_init__(self) -> None:
        require(self.head_dim % 2 == 0, f"head_dim = {self.head_dim}", "an even number", "Rotation works on pairs.")
        require(
            self.num_heads % (self.num_kv_heads or 1) == 0,
            f"num_kv_heads = {self.num_kv_heads} with num_heads = {self.num_heads}",
            "a divisor of num_heads",
            "Each key-value head serves an equal number of query heads.",
        )
        if isinstance(self.windowed_layers, tuple):
            require(
                all(layer < self.num_layers for layer in self.windowed_layers),
                f"windowed_layers = {self.windowed_layers} with num_layers = {self.num_layers}",
                "numbers below num_layers",
                "Layers count from 0.",
            )
        given = [name for name in ("num_experts", "clamp", "ff_bias") if getattr(self, name) not in (None, False)]
        require(
            self.ff_dim > 0 or not given,
            f"ff_dim = 0 with {', '.join(given)}",
            "ff_dim above 0",
            "Attention-only decoders have none of these.",
        )
        if self.num_experts is not None:
            sizes = f"top_k = {self.top_k} with num_experts = {self.num_experts}"
            require(self.top_k <= self.num_experts, sizes, "top_k <= num_experts", "Lower top_k or add experts.")
        require(
            self.expert_format == "dense"
            or (self.num_experts is not None and self.hidden_dim % 32 == 0 and self.ff_dim % 32 == 0),
            f"expert_format = 'mxfp4' with num_experts = {self.num_experts}, hidden_dim = {self.hidden_dim}, "
            f"ff_dim = {self.ff_dim}",
            "experts whose widths are multiples of 32",
            "32 weights of a row share one exponent.",
        )

    def layer_window(self, layer: int) -> int | None:
        """The window of this layer; None for full attention."""
        layers = self.windowed_layers
        if isinstance(layers, tuple):
            return self.window if layer in layers else None
        return self.window if layers == "all" or (layer % 2 == 1) == (layers == "odd") else None
