"""The configuration of a decoder."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Literal, Self

from annotated_types import Gt

from glassformer.config import Config, Count, Positive, Probability, Size, config
from glassformer.errors import require
from glassformer.kernels.options import Clamp, Layout
from glassformer.layers.options import Activation, HeadNorm, NormKind, Place, RopeScaling

_FORM = (
    *("qk_norm", "attention_scale", "attention_cap", "activation", "gated", "rope_scaling", "local_rope_base"),
    *("rotary_dim", "unrotated_layers", "learned_positions", "embedding_scale", "embedding_norm", "norm", "norm_place"),
    *("parallel", "logit_cap"),
)


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
    attention_bias: bool | Literal["qkv"] = False
    """Biases on the projections of attention; "qkv": on all but the output (Qwen 2)."""
    qk_norm: HeadNorm | None = None
    """RMSNorm of queries and of keys before the rotation: over each head (Qwen 3), or over all together (OLMo 2)."""
    attention_scale: Positive | None = None
    """Factor on the scores; None: ``head_dim ** -0.5``."""
    attention_cap: Positive | None = None
    """Soft cap: scores become ``cap * tanh(scores / cap)`` (Gemma 2)."""
    ff_bias: bool = False
    """Biases in feed-forward networks, experts and routers."""
    activation: Activation = "silu"
    """Activation of dense feed-forward networks."""
    gated: bool = True
    """``down(activation(gate(x)) * up(x))``, as SwiGLU; otherwise ``down(activation(up(x)))``."""
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
    local_rope_base: Annotated[float, Gt(1)] | None = None
    """Base in windowed layers, whose frequencies are then not stretched (Gemma 3); None: as in the others."""
    rotary_dim: Size | None = None
    """Coordinates of a head that rotate, the first ones (GPT-NeoX); None: all."""
    unrotated_layers: tuple[Count, ...] = ()
    """Layers without rotation (SmolLM3)."""
    learned_positions: bool = False
    """A learned vector for each position is added to the embedding, and nothing rotates (GPT-2)."""
    embedding_scale: Positive = 1.0
    """Factor on the embedding, in the dtype of the weights (Gemma)."""
    embedding_norm: bool = False
    """A norm of the embedding (nanochat)."""
    norm: NormKind = "rms"
    """RMSNorm, or LayerNorm with weight and bias (GPT-2)."""
    norm_place: Place = "before"
    """``x + f(norm(x))``, ``x + norm(f(x))`` (OLMo 2), or ``x + norm(f(norm(x)))`` (Gemma)."""
    norm_eps: Positive = 1e-5
    """Added to the mean square in RMSNorm, or to the variance in LayerNorm."""
    parallel: bool = False
    """Attention and feed-forward network read the same stream: ``x + attention(norm(x)) + ffn(norm(x))`` (GPT-NeoX)."""
    logit_cap: Positive | None = None
    """Soft cap: logits become ``cap * tanh(logits / cap)`` (Gemma 2)."""
    tied_output: bool = False
    """Use the embedding as the output projection."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """As of other configurations; what earlier versions wrote as ``yarn`` is ``rope_scaling``."""
        with suppress(ValueError):  # which the next line reports
            fields = json.loads(text)
            if isinstance(fields, dict) and "yarn" in fields:
                text = json.dumps({"rope_scaling": fields.pop("yarn"), **fields})
        return super().from_json(text)

    def __post_init__(self) -> None:
        rotated = self.rotary_dim or self.head_dim
        require(
            rotated % 2 == 0, f"{rotated} coordinates of a head rotate", "an even number", "Rotation works on pairs."
        )
        require(rotated <= self.head_dim, f"rotary_dim = {rotated}", f"at most head_dim = {self.head_dim}", "Lower it.")
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
        for fault, present in (
            ("learned_positions with settings of the rotation", self.learned_positions and self._rotates()),
            ("a parallel block with norms after its parts", self.parallel and self.norm_place != "before"),
            ("num_experts with another activation than SwiGLU", bool(self.num_experts) and not self._is_swiglu()),
            ("clamp with another activation than SwiGLU", self.clamp is not None and not self._is_swiglu()),
            ("rope_layout = 'interleaved' with rotary_dim", self.rope_layout != "half-split" and bool(self.rotary_dim)),
        ):
            require(not present, fault, "fields that go together", "Leave one of them out.")
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

    def _is_swiglu(self) -> bool:
        return self.gated and self.activation == "silu"

    def _rotates(self) -> bool:
        """Whether a field that has a meaning for rotating heads only is set."""
        return bool(self.rope_scaling or self.local_rope_base or self.rotary_dim or self.unrotated_layers)

    def beyond_llama(self) -> list[str]:
        """Fields with a form that a Llama does not have: what is made for that form refuses them, or knows them."""
        found = [f"{name} = {getattr(self, name)!r}" for name in _FORM if getattr(self, name) != _default(name)]
        return [*found, *(["attention_bias = 'qkv'"] if self.attention_bias == "qkv" else [])]

    def layer_rotation(self, layer: int) -> Literal["global", "local"] | None:
        """Which of the two rotations a layer has: windowed ones the local one, where there is one."""
        if self.learned_positions or layer in self.unrotated_layers:
            return None
        return "local" if self.local_rope_base is not None and self.layer_window(layer) else "global"

    def layer_window(self, layer: int) -> int | None:
        """The window of this layer; None for full attention."""
        layers = self.windowed_layers
        if isinstance(layers, tuple):
            return self.window if layer in layers else None
        return self.window if layers == "all" or (layer % 2 == 1) == (layers == "odd") else None


def _default(name: str) -> object:
    return DecoderConfig.__dataclass_fields__[name].default
