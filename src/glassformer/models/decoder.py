"""The decoder of the GPT-OSS family: from the course's small one to Mixtral's and gpt-oss's form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.layers.block import Block
from glassformer.layers.cache import Cache, LayerCache, SlotCache
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.feedforward import SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.linear import autocast_dtype
from glassformer.layers.norms import RMSNorm
from glassformer.layers.positions import RotaryEmbedding, Rotation
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.pretrained import file_function
from glassformer.models.tokens import look_up, require_real, require_tokens
from glassformer.quantized.packed_experts import PackedMixture


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

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> Decoder:
        """The decoder of a directory or of a model on the Hugging Face hub, such as ``"openai/gpt-oss-20b"``.

        gpt-oss in Hugging Face's and OpenAI's layout, Mixtral, and what :meth:`save_pretrained` wrote.

        Args:
            source: Where it is.
            options: Those of :func:`glassformer.checkpoints.decoders.load_decoder`, which does the work.

        Raises:
            InputError: As there.
        """
        decoder: Decoder = file_function("load_decoder")(source, **options)
        return decoder

    def save_pretrained(self, directory: str | Path, **options: Any) -> None:
        """Write a directory that other programs read as gpt-oss or Mixtral with the same logits.

        Args:
            directory: Where to; it is complete or absent, whatever happens.
            options: Those of :func:`glassformer.checkpoints.decoders.save_decoder`, which does the work.

        Raises:
            InputError: As there: where nothing equivalent exists, among others.
        """
        file_function("save_decoder")(self, directory, **options)

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
        require_tokens(tokens, self.config.max_seq_len, start)
        require_real("key_padding", key_padding, tokens)
        batch, length = tokens.shape
        if cache is not None:
            cache.require_room(batch, length)
        x = look_up(self.embedding, "tokens", tokens)
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
        dtype = autocast_dtype(x)
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
        self.rotary.rotation(length)  # step() looks positions up, and cannot lengthen the tables
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
    elif config.expert_format == "mxfp4":
        ffn = PackedMixture(
            config.hidden_dim,
            config.ff_dim,
            config.num_experts,
            config.top_k,
            bias=config.ff_bias,
            clamp=config.clamp,
        )
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
