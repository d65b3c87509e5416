"""The configuration of a decoder."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt

from glassformer.config import Config, Count, Positive, Probability, Size, config
from glassformer.errors import require, require_groups
from glassformer.kernels.options import Clamp, Layout
from glassformer.layers.options import Activation, LongRope, RopeScaling


@config
class DecoderConfig(Config):
    """The parts of a :class:`~glassformer.models.decoder.Decoder`."""

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
    attention_bias: bool | Literal["qkv"] = False
    """Biases on the projections of attention; "qkv": on all but the output (Qwen2)."""
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
    rope_scaling: RopeScaling | None = None
    """Stretch of the rotary frequencies to longer texts."""
    norm_eps: Positive = 1e-5
    """Added to the mean square, or to the variance, in norms."""
    tied_output: bool = False
    """Use the embedding as the output projection."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm, x / sqrt(mean(x ** 2) + norm_eps) * weight; or LayerNorm, (x - mean(x)) / sqrt(var(x) + norm_eps) *
    weight + bias (GPT-2, GPT-NeoX)."""
    norm_place: Literal["before", "after", "both"] = "before"
    """Norms of a part f of a block: x + f(norm(x)); x + norm(f(x)) (OLMo 2, arXiv 2501.00656); or
    x + norm2(f(norm1(x))) (Gemma 2, arXiv 2408.00118)."""
    parallel: bool = False
    """x + attention(attention_norm(x)) + ffn(ffn_norm(x)), both of the same x (GPT-NeoX, arXiv 2204.06745)."""
    qk_norm: Literal["head", "all"] | None = None
    """RMSNorm of queries and of keys before their rotation: of each head by itself, with one weight of head_dim numbers
    (Qwen3, Gemma 3; Henry et al. 2020, arXiv 2010.04245), or of all heads together (OLMo 2)."""
    activation: Activation = "silu"
    """Activation of the dense feed-forward network, see glassformer.layers.options."""
    gated: bool = True
    """True: down(activation(gate(x)) * up(x)), arXiv 2002.05202. False: down(activation(up(x)))."""
    rotary_dim: Size | None = None
    """First coordinates of a head that rotate, an even number; the others pass (GPT-NeoX). None: all."""
    local_rope_base: Annotated[float, Gt(1)] | None = None
    """Base of the rotary frequencies in windowed layers, where rope_scaling does not act (Gemma 3: 10000; OLMo 3:
    rope_base). None: these layers rotate as the others."""
    unrotated_layers: tuple[Count, ...] = ()
    """Layers without rotation, counted from 0 (SmolLM3; Yang et al. 2025, arXiv 2501.18795)."""
    learned_positions: bool = False
    """Add a learned vector for each position to the embedding, and rotate nothing (GPT-2)."""
    attention_scale: Positive | None = None
    """Factor on the scores; None: head_dim ** -0.5."""
    attention_cap: Positive | None = None
    """Scores become cap * tanh(scores / cap) before the mask and the softmax (Gemma 2: 50)."""
    logit_cap: Positive | None = None
    """Logits become cap * tanh(logits / cap) (Gemma 2: 30, nanochat: 15)."""
    embedding_scale: Positive = 1.0
    """Factor on the embedding, rounded to its dtype (Gemma: sqrt(hidden_dim))."""
    embedding_norm: bool = False
    """A norm right after the embedding (nanochat)."""

    def __post_init__(self) -> None:
        require(self.head_dim % 2 == 0, f"head_dim = {self.head_dim}", "an even number", "Rotation works on pairs.")
        require_groups(self.num_heads, self.num_kv_heads or 1)
        for name in ("windowed_layers", "unrotated_layers"):
            layers = getattr(self, name)
            inside = isinstance(layers, str) or all(layer < self.num_layers for layer in layers)
            got = f"{name} = {layers} with num_layers = {self.num_layers}"
            require(inside, got, "numbers below num_layers", "Layers count from 0.")
        given = [name for name in ("num_experts", "clamp", "ff_bias", "parallel") if getattr(self, name)]
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
        special = [name for name in ("num_experts", "clamp") if getattr(self, name) is not None]
        plain = self.activation == "silu" and self.gated
        got = f"activation = {self.activation!r}, gated = {self.gated} with {' and '.join(special)}"
        require(plain or not special, got, "'silu' and gated", "Experts and the clamped activation are SwiGLU.")
        got = f"parallel with norm_place = {self.norm_place!r}"
        require(not self.parallel or self.norm_place == "before", got, "'before'", "Both parts read a norm of x.")
        self._check_positions()

    def _check_positions(self) -> None:
        turned, scaling = self.head_dim if self.rotary_dim is None else self.rotary_dim, self.rope_scaling
        got = f"rotary_dim = {turned} with head_dim = {self.head_dim}"
        fits = turned % 2 == 0 and turned <= self.head_dim
        require(fits, got, "an even number, at most head_dim", "Rotation works on pairs.")
        if isinstance(scaling, LongRope):
            got = f"{len(scaling.short)} factors in rope_scaling"
            require(len(scaling.short) == turned // 2, got, f"{turned // 2}, one for each pair", "Change the factors.")
        got = f"local_rope_base = {self.local_rope_base} without a window"
        require(
            self.local_rope_base is None or self.window is not None, got, "a window", "Set window, or leave it out."
        )
        names = ("rotary_dim", "rope_scaling", "local_rope_base", "unrotated_layers")
        given = [name for name in names if getattr(self, name)]
        got = f"learned_positions with {', '.join(given)}"
        require(not (self.learned_positions and given), got, "positions of one kind", "Nothing rotates beside them.")

    @property
    def cache_border(self) -> int:
        """The greatest length with LongRoPE's short factors, past which no cache can grow; 0 without LongRoPE."""
        scaling = self.rope_scaling
        return scaling.original_max_seq_len if isinstance(scaling, LongRope) else 0

    def layer_window(self, layer: int) -> int | None:
        """The window of this layer; None for full attention."""
        layers = self.windowed_layers
        if isinstance(layers, tuple):
            return self.window if layer in layers else None
        return self.window if layers == "all" or (layer % 2 == 1) == (layers == "odd") else None
