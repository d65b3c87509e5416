"""The decoder: small ones of the course, and those of Llama, Gemma, GPT-2, Mixtral and gpt-oss."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.kernels.dispatch import autocast_dtype
from glassformer.kernels.rotation import Rotation
from glassformer.layers.blocks import initialise, run_stack
from glassformer.layers.cache import Cache, LayerCache
from glassformer.layers.embedding import check_tokens, look_up
from glassformer.layers.feedforward import Linear
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import SoftCap, make_norm
from glassformer.layers.positions import RotaryEmbedding
from glassformer.models.building import build_block
from glassformer.models.decoder_config import DecoderConfig


class Decoder(nn.Module):
    """A decoder-only transformer.

    It is a token embedding, blocks, a last norm and a projection to the vocabulary.

    Initialisation: see :func:`~glassformer.layers.blocks.initialise`; the embedding is normal with
    standard deviation ``EMBEDDING_STD``, or ``hidden_dim ** -0.5`` where it is the output
    projection as well.

    Shape: tokens ``[batch, position]`` to logits ``[batch, position, vocab]``.

    Example:
        >>> model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8, num_kv_heads=2))
        >>> model(torch.tensor([[3, 1, 4]])).shape
        torch.Size([1, 3, 50])

    Source: OpenAI 2025, gpt-oss model card; Jiang et al. 2024, arXiv 2401.04088.
    """

    EMBEDDING_STD = 0.5
    family: str | None = None
    """The ``model_type`` of the files that it was loaded from; None if there are none.

    It is saved in the layout of that family if it still fits.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_dim
        norm = (config.norm, width, config.norm_eps)
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.positions: nn.Embedding | None = None
        if config.learned_positions:
            self.positions = nn.Embedding(config.max_seq_len, width)
        self.embedding_norm: nn.Module | None = None
        if config.embedding_norm:
            self.embedding_norm = make_norm(*norm)
        rotations = config.rotations
        self.rotary = RotaryEmbedding(
            rotations.rotary_dim,
            rotations.base,
            layout=rotations.layout,
            scaling=rotations.scaling,
        )
        self.local_rotary: RotaryEmbedding | None = None
        if rotations.local_base is not None:
            self.local_rotary = RotaryEmbedding(
                rotations.rotary_dim,
                rotations.local_base,
                layout=rotations.layout,
            )
        self.layers = nn.ModuleList(
            build_block(
                width,
                config.attention,
                config.network,
                config.norms,
                window=config.layer_window(layer),
                rotated=layer not in config.unrotated_layers,
            )
            for layer in range(config.num_layers)
        )
        self.final_norm = make_norm(*norm)
        self.output = Linear(width, config.vocab_size, bias=False)
        self.logit_cap: SoftCap | None = None
        if config.logit_cap is not None:
            self.logit_cap = SoftCap(config.logit_cap)
        self.reset_parameters()
        if config.tied_output:
            self.output.weight = self.embedding.weight

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> Decoder:
        """Load a decoder from a directory or from the Hugging Face hub.

        A model on the hub is named as ``"openai/gpt-oss-20b"``. The families of
        :mod:`glassformer.checkpoints.families` can be loaded, gpt-oss in Hugging Face's and
        OpenAI's layout, Mixtral, and directories of :meth:`save_pretrained`. Options are those of
        :func:`glassformer.checkpoints.decoders.load_decoder`.
        """
        # Resolved by name, because checkpoints imports models.
        decoder: Decoder = pkgutil.resolve_name("glassformer.checkpoints.decoders:load_decoder")(
            source, **options
        )
        return decoder

    def save_pretrained(self, directory: str | Path, **options: Any) -> None:
        """Write a directory that :meth:`from_pretrained` can load.

        Its layout is that of a model family that has exactly the decoder's parts, which other
        programs read with the same logits, or else our own. The directory is complete or absent,
        whatever happens. It has neither a tokenizer nor the tokens that end a text, which
        ``glassformer convert`` copies. Options are those of
        :func:`glassformer.checkpoints.decoders.save_decoder`.
        """
        pkgutil.resolve_name("glassformer.checkpoints.decoders:save_decoder")(
            self, directory, **options
        )

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self._stored.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of embedded tokens."""
        if self._stored.is_floating_point():
            return self._stored.dtype
        return torch.float32  # of expanded rows

    @property
    def _stored(self) -> Tensor:
        """Embedding as it is in memory, perhaps packed."""
        return next(chain(self.embedding.parameters(), self.embedding.buffers()))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights anew from torch's generator."""
        config = self.config
        initialise(self, {"layers": 2 * config.num_layers})
        if config.tied_output:
            std = config.hidden_dim**-0.5
        else:
            std = self.EMBEDDING_STD
        nn.init.normal_(self.embedding.weight, std=std)

    def forward(
        self,
        tokens: Int[Tensor, "batch position"],
        *,
        cache: Cache | None = None,
        key_padding: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position vocab"]:
        """Return the logits of the token after each position.

        Args:
            tokens: Token ids in [0, vocab_size).
            cache: Earlier positions of the same texts; these tokens continue them and are added to
                it.
            key_padding: True where a token is real. Texts of different lengths are padded on the
                *left* when they will be continued: rotary scores depend on distances alone, so a
                shift of a whole text changes nothing.

        Raises:
            InputError: Tokens that are no integers, empty, outside the vocabulary, or longer than
                ``max_seq_len``; a mask that does not fit them; or a cache that is full or was made
                for another number of texts.
        """
        return self.logits(self.hidden(tokens, cache=cache, key_padding=key_padding))

    def logits(self, hidden: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch vocab"]:
        """Return the logits for the result of :meth:`hidden`."""
        logits: Tensor = self.output(hidden)
        if self.logit_cap is None:
            return logits
        return self.logit_cap(logits)

    def hidden(
        self,
        tokens: Int[Tensor, "batch position"],
        *,
        cache: Cache | None = None,
        key_padding: Bool[Tensor, "batch position"] | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "batch last hidden_dim"]:
        """Return the residual stream after the last norm, which the output projection reads.

        Args:
            tokens: As for :meth:`forward`.
            cache: As for :meth:`forward`.
            key_padding: As for :meth:`forward`.
            last: Positions at the end that are returned; all when None. The last layer computes
                only keys and values of the others, unless a hook, a capture or an intervention
                reads this layer or the norm, or another module is in its place.
        """
        start = 0 if cache is None else cache.length
        check_tokens(tokens, self.config.max_seq_len, start, real=key_padding)
        batch, length = tokens.shape
        if last is not None and not 1 <= last <= length:
            raise InputError(
                got=f"last = {last}",
                expected=f"1 to {length}, the number of positions",
                fix="Pass None for all positions.",
            )
        x = look_up(self.embedding, "tokens", tokens)
        rotations = self.rotations(lambda rotary: rotary.rotation(length, start, x.device), x)
        with nullcontext() if cache is None else cache.adding():
            if cache is not None:
                key_padding = cache.begin(batch, length, key_padding)
            return run_stack(
                self.layers,
                self.final_norm,
                self._embed(x, start, key_padding),
                key_padding=key_padding,
                rotations=rotations,
                caches=None if cache is None else cache.layers,
                last=last,
            )

    def _embed(
        self,
        x: Float[Tensor, "batch position hidden_dim"],
        start: int,
        key_padding: Bool[Tensor, "batch seen"] | None,
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Return the first block's input. Learned positions count real tokens only."""
        if self.config.embedding_scale != 1:
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype, device=x.device)
        if self.positions is not None:
            if key_padding is None:
                positions = torch.arange(start, start + x.shape[1], device=x.device)
            else:
                positions = (key_padding.cumsum(1) - 1).clamp(min=0)[:, start:]
            x = x + self.positions(positions)
        if self.embedding_norm is None:
            return x
        return self.embedding_norm(x)

    def rotations(
        self, rotation_of: Callable[[RotaryEmbedding], Rotation], x: Tensor
    ) -> list[Rotation | None]:
        """Return the rotation of each layer, or None, in the dtype of products of ``x``.

        Args:
            rotation_of: Returns the rotation of a rotary embedding.
            x: Embedded tokens.
        """
        if self.config.learned_positions:
            return [None] * len(self.layers)
        dtype = autocast_dtype(x)  # converted once instead of in every layer

        def converted(rotary: RotaryEmbedding) -> Rotation:
            cos, sin = rotation_of(rotary)
            return cos.to(dtype), sin.to(dtype)

        full = converted(self.rotary)
        if self.local_rotary is None:
            local = full
        else:
            local = converted(self.local_rotary)
        rotations: list[Rotation | None] = []
        for layer, block in enumerate(self.layers):
            if not getattr(block, "rotated", True):
                rotations.append(None)
            elif self.layer_window(layer) is None:
                rotations.append(full)
            else:
                rotations.append(local)
        return rotations

    def layer_window(self, layer: int) -> int | None:
        """Return the window of a layer's attention; None for full attention."""
        attention = getattr(self.layers[layer], "attention", None)
        if isinstance(attention, GroupedQueryAttention):
            return attention.pattern.window
        return self.config.layer_window(layer)

    def new_cache(self, batch: int, max_seq_len: int | None = None) -> Cache:
        """Return an empty cache for ``batch`` texts of up to ``max_seq_len`` tokens.

        It has the model's dtype and device. ``max_seq_len`` is the model's when None.
        """
        config = self.config
        if max_seq_len is None:
            max_seq_len = config.max_seq_len
        if max_seq_len > config.max_seq_len:
            raise InputError(
                got=f"a cache of max_seq_len = {max_seq_len}",
                expected=f"at most the model's {config.max_seq_len}",
                fix="Make the model with a larger max_seq_len.",
            )
        sizes = (batch, config.attention.num_kv_heads, config.head_dim, max_seq_len)
        layers = [
            LayerCache(*sizes, self.layer_window(layer), dtype=self.dtype, device=self.device)
            for layer in range(len(self.layers))
        ]
        return Cache(layers)
