"""The decoder of the GPT-OSS family: from the course's small one to Mixtral's and gpt-oss's form."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require, require_positive
from glassformer.layers.block import Block
from glassformer.layers.cache import Cache, LayerCache, SlotCache
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.feedforward import Clamp, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import RMSNorm
from glassformer.layers.positions import Layout, RotaryEmbedding, Rotation, Yarn, require_layout


@dataclass(frozen=True)
class DecoderConfig:
    """What a :class:`Decoder` is made of. Checked when made; JSON both ways.

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
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> DecoderConfig:
        """The configuration that :meth:`to_json` wrote.

        Raises:
            InputError: Text that is no JSON object, or names a field that does not exist or misses one that must.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.get("clamp") is not None:
                fields["clamp"] = Clamp(**fields["clamp"])
            if fields.get("yarn") is not None:
                fields["yarn"] = Yarn(**fields["yarn"])
            return cls(**fields)
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            known = ", ".join(field.name for field in dataclasses.fields(cls))
            raise InputError(
                f"a configuration with a fault: {error}", f"JSON with the fields {known}", "Mend it."
            ) from error


class Decoder(nn.Module):
    """A decoder-only transformer: token embedding, pre-norm blocks, a last norm, a projection to the vocabulary.

    Initialisation: each matrix is normal with standard deviation ``fan_in ** -0.5``, so that it keeps the size of
    what passes; the two matrices of a block that write to the residual stream are smaller by
    ``(2 * num_layers) ** -0.5``, so that the stream does not grow with depth; embeddings are normal with standard
    deviation ``EMBEDDING_STD``, or as the output projection where they are that too; biases and sinks start at 0,
    norms and key weights at 1.

    Args:
        config: See :class:`DecoderConfig`.

    Shape: tokens ``[batch, position]`` to logits ``[batch, position, vocab]``.

    Source: OpenAI 2025, gpt-oss model card; Jiang et al. 2024, arXiv 2401.04088.
    """

    EMBEDDING_STD = 0.5

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_dim)
        self.rotary = RotaryEmbedding(
            config.head_dim,
            min(config.max_seq_len, 4096),
            config.rope_base,
            layout=config.rope_layout,
            yarn=config.yarn,
        )
        self.layers = nn.ModuleList(_block(config, layer) for layer in range(config.num_layers))
        self.final_norm = RMSNorm(config.hidden_dim, config.norm_eps)
        self.output = nn.Linear(config.hidden_dim, config.vocab_size, bias=False)
        self.reset_parameters()
        if config.tied_output:
            self.output.weight = self.embedding.weight

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights anew from torch's generator."""
        for name, weight in self.named_parameters():
            if weight.dim() >= 2 and not name.endswith("bias"):
                residual = name.endswith(("attention.output.weight", "ffn.down.weight", "ffn.down"))
                scale = (2 * self.config.num_layers) ** -0.5 if residual else 1.0
                nn.init.normal_(weight, std=scale * weight.shape[-1] ** -0.5)
            else:
                nn.init.constant_(weight, 1.0 if name.endswith(("norm.weight", "key_weights")) else 0.0)
        tied_std = self.config.hidden_dim**-0.5
        nn.init.normal_(self.embedding.weight, std=tied_std if self.config.tied_output else self.EMBEDDING_STD)

    def forward(
        self,
        tokens: Int[Tensor, "batch position"],
        *,
        cache: Cache | None = None,
        key_padding: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position vocab"]:
        """Logits of the token after each position.

        Args:
            tokens: Token ids in [0, vocab_size).
            cache: Earlier positions of the same texts; these tokens continue them and are added to it.
            key_padding: True where a token is real. Texts of different lengths are padded on the *left* when they
                will be continued: rotary scores depend on distances alone, so a shift of a whole text changes nothing.

        Raises:
            InputError: Tokens that are no integers, empty, outside the vocabulary, or longer than ``max_seq_len``.
        """
        return self.output(self.hidden(tokens, cache=cache, key_padding=key_padding))

    def hidden(
        self,
        tokens: Int[Tensor, "batch position"],
        *,
        cache: Cache | None = None,
        key_padding: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """What the output projection reads: the residual stream behind the last norm. Arguments as for the model."""
        start = 0 if cache is None else cache.length
        self._check(tokens, start, key_padding)
        batch, length = tokens.shape
        if cache is not None:
            cache.require_room(batch, length)
        x = self._embed(tokens)
        if cache is not None:
            key_padding = cache.extend_padding(key_padding, batch, length)
        caches = None if cache is None else cache.layers
        return self._through_layers(x, self.rotary.rotation(length, start), key_padding, caches)

    def step(
        self,
        tokens: Int[Tensor, "batch 1"],
        position: Int[Tensor, " 1"],
        cache: Cache,
        key_padding: Bool[Tensor, "batch max_seq_len"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Logits after one more token: a step of decoding whose shapes are the same each time, fit for compiling.

        Nothing is checked, and ``cache.length`` is not read or changed: both are left to
        :func:`glassformer.generation.generate`.

        Args:
            tokens: The newest token of each text.
            position: Its position.
            cache: Earlier positions; this one is added.
            key_padding: True where a position is real, for all positions the cache can hold.
        """
        layers = [SlotCache(layer, position) for layer in cache.layers]
        rotation = self.rotary.rotation_at(position)
        return self.output(self._through_layers(self.embedding(tokens), rotation, key_padding, layers)[:, -1])

    def _through_layers(
        self,
        x: Tensor,
        rotation: Rotation,
        key_padding: Tensor | None,
        caches: Sequence[LayerCache | SlotCache] | None,
    ) -> Tensor:
        cos, sin = rotation
        autocast = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
        rotation = cos.to(dtype), sin.to(dtype)
        for layer, block in enumerate(self.layers):
            cache = None if caches is None else caches[layer]
            x = block(x, rotation=rotation, key_padding=key_padding, cache=cache)
        return self.final_norm(x)

    def new_cache(self, batch: int, max_seq_len: int | None = None) -> Cache:
        """An empty cache for ``batch`` texts of up to ``max_seq_len`` tokens, in the model's dtype and place.

        Raises:
            InputError: ``max_seq_len`` beyond the model's.
        """
        config = self.config
        length = config.max_seq_len if max_seq_len is None else max_seq_len
        require(
            length <= config.max_seq_len,
            f"a cache of max_seq_len = {length}",
            f"at most the model's {config.max_seq_len}",
            "Make the model with a larger max_seq_len.",
        )
        weight = self.embedding.weight
        heads = config.num_kv_heads or config.num_heads
        return Cache(
            [
                LayerCache(
                    batch,
                    heads,
                    config.head_dim,
                    length,
                    config.layer_window(layer),
                    dtype=weight.dtype,
                    device=weight.device,
                )
                for layer in range(config.num_layers)
            ]
        )

    def balance_loss(self) -> Float[Tensor, ""]:
        """The mean load-balancing loss of the last training forward pass; 1 when all experts got equally many tokens.

        Raises:
            InputError: The configuration does not ask for it, or no training forward pass has run.
        """
        losses = [
            m.balance_loss for m in self.modules() if isinstance(m, MixtureOfExperts) and m.balance_loss is not None
        ]
        require(
            len(losses) > 0,
            "no balance loss",
            "balance_experts = True, experts, and a forward pass in training mode",
            "Set balance_experts in the configuration and call model.train().",
        )
        return torch.stack(losses).mean()

    def _embed(self, tokens: Tensor) -> Tensor:
        if tokens.device.type != "cpu":
            low, high = tokens.aminmax()
            require(
                bool((low >= 0) & (high < self.config.vocab_size)),
                f"tokens from {int(low)} to {int(high)}",
                f"tokens in [0, {self.config.vocab_size})",
                "Use the tokenizer that belongs to the model.",
            )
        try:
            return self.embedding(tokens)
        except IndexError as error:
            raise InputError(
                f"tokens from {int(tokens.min())} to {int(tokens.max())}",
                f"tokens in [0, {self.config.vocab_size})",
                "Use the tokenizer that belongs to the model.",
            ) from error

    def _check(self, tokens: Tensor, start: int, key_padding: Tensor | None) -> None:
        require(
            tokens.dim() == 2 and tokens.shape[0] >= 1 and tokens.shape[1] >= 1,
            f"tokens of shape {list(tokens.shape)}",
            "[batch, position] with at least one of each",
            "Add a batch axis with tokens[None], and start an empty text with a token.",
        )
        require(
            tokens.dtype in (torch.int64, torch.int32),
            f"tokens of dtype {tokens.dtype}",
            "int64 or int32",
            "Convert them with tokens.long().",
        )
        require(
            start + tokens.shape[1] <= self.config.max_seq_len,
            f"{start + tokens.shape[1]} positions",
            f"at most max_seq_len = {self.config.max_seq_len}",
            "Shorten the text, or make the model with a larger max_seq_len.",
        )
        if key_padding is not None:
            require(
                key_padding.shape == tokens.shape and key_padding.dtype == torch.bool,
                f"key_padding of shape {list(key_padding.shape)} and dtype {key_padding.dtype}",
                f"torch.bool and the shape of the tokens, {list(tokens.shape)}",
                "Give True for each real token and False for each padding token, as tokens != pad_id does.",
            )


def _block(config: DecoderConfig, layer: int) -> Block:
    attention = GroupedQueryAttention(
        config.hidden_dim,
        config.num_heads,
        config.head_dim,
        config.num_kv_heads,
        window=config.layer_window(layer),
        bias=config.attention_bias,
        key_weights=config.key_weights,
        sinks=config.sinks,
        dropout=config.dropout,
        layout=config.rope_layout,
    )
    ffn: nn.Module
    if config.num_experts is None:
        ffn = SwiGLU(config.hidden_dim, config.ff_dim, bias=config.ff_bias, clamp=config.clamp)
    else:
        ffn = MixtureOfExperts(
            config.hidden_dim,
            config.ff_dim,
            config.num_experts,
            config.top_k,
            bias=config.ff_bias,
            clamp=config.clamp,
            balance=config.balance_experts,
        )
    return Block(config.hidden_dim, attention, ffn, config.norm_eps)
