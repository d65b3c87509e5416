"""What a decoder is made of, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glassformer.errors import require, require_positive
from glassformer.layers.feedforward import Clamp
from glassformer.layers.positions import Layout, Yarn, require_layout
from glassformer.models.config_json import config_from_json, config_to_json


@dataclass(frozen=True)
class DecoderConfig:
    """What a :class:`~glassformer.models.decoder.Decoder` is made of. Checked when made; JSON both ways.

    Raises:
        InputError: A size that is impossible by itself or beside another.
    """

    vocab_size: int
    """Number of different tokens."""
    num_layers: int
    """Number of blocks."""
    hidden_dim: int
    """Width of the residual stream."""
    ff_dim: int
    """Width inside the feed-forward network, or inside each expert."""
    num_heads: int
    """Query heads."""
    head_dim: int
    """Width of a head; even, because positions are rotations of pairs."""
    num_kv_heads: int | None = None
    """Key-value heads, a divisor of num_heads; None: as many as query heads."""
    window: int | None = None
    """Keys a query sees in a windowed layer, itself included; None: no layer is windowed."""
    windowed_layers: Literal["odd", "even", "all"] = "odd"
    """Which layers, counted from 0, have the window: the course's are odd, gpt-oss's even."""
    num_experts: int | None = None
    """Experts in each layer; None: one dense feed-forward network."""
    top_k: int = 2
    """Experts each token passes through."""
    expert_format: Literal["dense", "mxfp4"] = "dense"
    """Experts as matrices that can be trained, or packed into 4.25 bits a weight, for inference alone."""
    balance_experts: bool = False
    """Compute the load-balancing loss in training."""
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
    dropout: float = 0.0
    """Probability of dropping an attention weight in training."""
    max_seq_len: int = 2048
    """Longest text in tokens."""
    rope_base: float = 10000.0
    """Base of the rotary frequencies."""
    rope_layout: Layout = "half-split"
    """Which coordinates rotate together."""
    yarn: Yarn | None = None
    """Stretch of the rotary frequencies to longer texts."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    tied_output: bool = False
    """Use the embedding as output projection too."""

    def __post_init__(self) -> None:
        require_positive(
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
            hidden_dim=self.hidden_dim,
            ff_dim=self.ff_dim,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            max_seq_len=self.max_seq_len,
        )
        require(self.head_dim % 2 == 0, f"head_dim = {self.head_dim}", "an even number", "Rotation works on pairs.")
        if self.num_kv_heads is not None:
            require_positive(num_kv_heads=self.num_kv_heads)
        require(
            self.num_kv_heads is None or self.num_heads % self.num_kv_heads == 0,
            f"num_kv_heads = {self.num_kv_heads} with num_heads = {self.num_heads}",
            "a divisor of num_heads",
            "Each key-value head serves an equal number of query heads.",
        )
        if self.window is not None:
            require_positive(window=self.window)
        require(
            self.windowed_layers in ("odd", "even", "all"),
            f"windowed_layers = {self.windowed_layers!r}",
            "'odd', 'even' or 'all'",
            "Layers count from 0.",
        )
        if self.num_experts is not None:
            require_positive(num_experts=self.num_experts, top_k=self.top_k)
            require(
                self.top_k <= self.num_experts,
                f"top_k = {self.top_k} with num_experts = {self.num_experts}",
                "top_k <= num_experts",
                "A token cannot get more experts than there are.",
            )
        require(
            self.expert_format in ("dense", "mxfp4"),
            f"expert_format = {self.expert_format!r}",
            "'dense' or 'mxfp4'",
            "Only 'dense' can be trained.",
        )
        if self.expert_format == "mxfp4":
            require(
                self.num_experts is not None and self.hidden_dim % 32 == 0 and self.ff_dim % 32 == 0,
                f"expert_format = 'mxfp4' with num_experts = {self.num_experts}, hidden_dim = {self.hidden_dim}, "
                f"ff_dim = {self.ff_dim}",
                "experts whose widths are multiples of 32",
                "32 weights of a row share one exponent.",
            )
        require(0 <= self.dropout < 1, f"dropout = {self.dropout}", "a probability in [0, 1)", "0 switches it off.")
        require(self.rope_base > 1, f"rope_base = {self.rope_base}", "a number above 1", "The paper uses 10000.")
        require_layout(self.rope_layout)
        require(self.norm_eps > 0, f"norm_eps = {self.norm_eps}", "a number above 0", "Mixtral and gpt-oss use 1e-5.")

    def layer_window(self, layer: int) -> int | None:
        """The window of this layer, None where it sees everything."""
        chosen = self.windowed_layers == "all" or (layer % 2 == 1) == (self.windowed_layers == "odd")
        return self.window if chosen else None

    def to_json(self) -> str:
        """The configuration as a JSON object."""
        return config_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> DecoderConfig:
        """The configuration that :meth:`to_json` wrote.

        Raises:
            InputError: Text that is no JSON object, or names a field that does not exist or misses one that must.
        """
        return config_from_json(cls, text, clamp=Clamp, yarn=Yarn)
