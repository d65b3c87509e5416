"""The configuration of a decoder."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt

from glassformer.config import Config, Count, Positive, Probability, Size, config
from glassformer.errors import InputError
from glassformer.kernels.options import Clamp, Layout
from glassformer.layers.options import Activation, LongRope, NormKind, RopeScaling
from glassformer.models.block_config import Attention, Experts, FeedForward, Norms, Rotations


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
    """Layers with the window, counted from 0: the odd ones (as in the course), the even ones
    (gpt-oss), or a list.
    """
    num_experts: Size | None = None
    """Experts in each layer; None: one dense feed-forward network."""
    top_k: Size = 2
    """Experts per token."""
    expert_format: Literal["dense", "mxfp4"] = "dense"
    """Experts as matrices that can be trained, or packed in 4.25 bits per weight, for inference
    only.
    """
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
    norm: NormKind = "rms"
    """RMSNorm, x / sqrt(mean(x ** 2) + norm_eps) * weight; or LayerNorm, (x - mean(x)) /
    sqrt(var(x) + norm_eps) * weight + bias (GPT-2, GPT-NeoX).
    """
    norm_place: Literal["before", "after", "both"] = "before"
    """Norms of a part f of a block: x + f(norm(x)); x + norm(f(x)) (OLMo 2, arXiv 2501.00656); or
    x + norm2(f(norm1(x))) (Gemma 2, arXiv 2408.00118)."""
    parallel: bool = False
    """x + attention(attention_norm(x)) + ffn(ffn_norm(x)), both of the same x (GPT-NeoX, arXiv
    2204.06745).
    """
    qk_norm: Literal["head", "all"] | None = None
    """RMSNorm of queries and of keys before their rotation: of each head by itself, with one weight
    of head_dim numbers (Qwen3, Gemma 3; Henry et al. 2020, arXiv 2010.04245), or of all heads
    together (OLMo 2).
    """
    activation: Activation = "silu"
    """Activation of the dense feed-forward network, see glassformer.layers.options."""
    gated: bool = True
    """True: down(activation(gate(x)) * up(x)), arXiv 2002.05202. False: down(activation(up(x)))."""
    rotary_dim: Size | None = None
    """First coordinates of a head that rotate, an even number; the others pass (GPT-NeoX). None:
    all.
    """
    local_rope_base: Annotated[float, Gt(1)] | None = None
    """Base of the rotary frequencies in windowed layers, where rope_scaling does not act (Gemma 3:
    10000; OLMo 3: rope_base). None: these layers rotate as the others.
    """
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
        # A part checks its fields when it is created.
        _parts = (self.attention, self.network, self.norms, self.rotations)
        self._check_layer_numbers()
        self._check_network()
        self._check_positions()

    def _check_layer_numbers(self) -> None:
        for name in ("windowed_layers", "unrotated_layers"):
            layers = getattr(self, name)
            if not isinstance(layers, str) and any(layer >= self.num_layers for layer in layers):
                raise InputError(
                    got=f"{name} = {layers} with num_layers = {self.num_layers}",
                    expected="numbers below num_layers",
                    fix="Count layers from 0.",
                )

    def _check_network(self) -> None:
        names = ("num_experts", "clamp", "ff_bias", "parallel")
        network_fields = [name for name in names if getattr(self, name)]
        if self.ff_dim == 0 and network_fields:
            raise InputError(
                got=f"ff_dim = 0 with {', '.join(network_fields)}",
                expected="ff_dim above 0",
                fix="Set ff_dim, or leave these out: attention-only decoders have none of them.",
            )
        if self.expert_format == "mxfp4" and self.num_experts is None:
            raise InputError(
                got="expert_format = 'mxfp4' with num_experts = None",
                expected="experts",
                fix="Set num_experts, or leave expert_format out.",
            )

    def _check_positions(self) -> None:
        if self.local_rope_base is not None and self.window is None:
            raise InputError(
                got=f"local_rope_base = {self.local_rope_base} without a window",
                expected="a window",
                fix="Set window, or leave out local_rope_base.",
            )
        names = ("rotary_dim", "rope_scaling", "local_rope_base", "unrotated_layers")
        rotation_fields = [name for name in names if getattr(self, name)]
        if self.learned_positions and rotation_fields:
            raise InputError(
                got=f"learned_positions with {', '.join(rotation_fields)}",
                expected="positions of one kind",
                fix="Leave out learned_positions, or the fields of rotations.",
            )

    @property
    def attention(self) -> Attention:
        """Attention of every block, without the window."""
        return Attention(
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            bias=self.attention_bias,
            key_weights=self.key_weights,
            sinks=self.sinks,
            dropout=self.dropout,
            layout=self.rope_layout,
            scale=self.attention_scale,
            cap=self.attention_cap,
            qk_norm=self.qk_norm,
            norm_eps=self.norm_eps,
        )

    @property
    def network(self) -> FeedForward | Experts | None:
        """Feed-forward network of every block; None for attention only."""
        if self.ff_dim == 0:
            return None
        network = FeedForward(
            ff_dim=self.ff_dim,
            activation=self.activation,
            gated=self.gated,
            bias=self.ff_bias,
            clamp=self.clamp,
        )
        if self.num_experts is None:
            return network
        return Experts(
            hidden_dim=self.hidden_dim,
            network=network,
            num_experts=self.num_experts,
            top_k=self.top_k,
            format=self.expert_format,
        )

    @property
    def norms(self) -> Norms:
        """Norms of every block."""
        return Norms(self.norm_eps, self.norm, self.norm_place, self.parallel)

    @property
    def rotations(self) -> Rotations:
        """Rotations of queries and keys. Decoders with learned positions do not use them."""
        return Rotations(
            head_dim=self.head_dim,
            rotary_dim=self.head_dim if self.rotary_dim is None else self.rotary_dim,
            base=self.rope_base,
            layout=self.rope_layout,
            scaling=self.rope_scaling,
            local_base=self.local_rope_base,
        )

    @property
    def cache_border(self) -> int:
        """Greatest length with LongRoPE's short factors, past which no cache can grow; else 0."""
        scaling = self.rope_scaling
        if isinstance(scaling, LongRope):
            return scaling.original_max_seq_len
        return 0

    def layer_window(self, layer: int) -> int | None:
        """Return the window of a layer; None for full attention."""
        layers = self.windowed_layers
        if isinstance(layers, tuple):
            has_window = layer in layers
        else:
            has_window = layers == "all" or (layer % 2 == 1) == (layers == "odd")
        return self.window if has_window else None
