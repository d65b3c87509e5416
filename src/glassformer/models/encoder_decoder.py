"""The encoder-decoder: a decoder writes a target, attending to what an encoder read."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.config import Config, Count, Positive, Probability, Size, config
from glassformer.errors import InputError
from glassformer.kernels.pattern import unless_all
from glassformer.layers.blocks import Block, initialise, run_stack
from glassformer.layers.cache import Cache, KeysAndValues, LayerCache
from glassformer.layers.embedding import check_real, check_tokens, look_up
from glassformer.layers.options import EncoderActivation
from glassformer.models.block_config import Attention, FeedForward, Norms
from glassformer.models.building import build_block
from glassformer.models.encoder import Positions, make_positions


@config
class EncoderDecoderConfig(Config):
    """The parts of an :class:`~glassformer.models.encoder_decoder.EncoderDecoder`.

    The defaults are the lookup course's model. The first transformer is
    ``source_positions="sinusoidal"``.
    """

    vocab_size: Size
    """Number of different source tokens."""
    hidden_dim: Size
    """Width of both residual streams, a multiple of num_heads."""
    ff_dim: Size
    """Width inside the feed-forward networks."""
    num_heads: Size
    """Heads of every attention, each of width hidden_dim / num_heads."""
    num_encoder_layers: Size
    """Blocks of the encoder."""
    num_decoder_layers: Size
    """Blocks of the decoder."""
    max_source_len: Size
    """Most positions (tokens or slots) of a source."""
    max_target_len: Size
    """Longest target in tokens, the start token included."""
    target_vocab_size: Size | None = None
    """Number of different target tokens; None: as many as source tokens."""
    fields_per_slot: Size = 1
    """Source tokens per position, each with a separate embedding; 1: a position is a token."""
    source_positions: Positions = "none"
    """Kind of position embedding of the source; "none": its order has no effect."""
    target_positions: Positions = "sinusoidal"
    """Kind of position embedding of the target."""
    activation: EncoderActivation = "relu"
    """Between the layers of the feed-forward networks."""
    norm_first: bool = False
    """Pre-norm: LayerNorm before each part of a block instead of after each residual addition."""
    final_norm: bool = False
    """LayerNorm after the last block of the encoder and of the decoder."""
    norm_eps: Positive = 1e-5
    """Added to the variance in LayerNorm."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(hidden_dim)."""
    dropout: Probability = 0.1
    """Probability in training of dropping a number of an embedding, of what a part adds, and inside
    feed-forward.
    """
    pad_id: Count = 0
    """The padding token of sources and targets."""

    def __post_init__(self) -> None:
        # A part checks its fields when it is created.
        _parts = (self.attention, self.network, self.norms)
        smaller_vocab = min(self.vocab_size, self.target_vocab)
        if self.pad_id >= smaller_vocab:
            raise InputError(
                got=f"pad_id = {self.pad_id}",
                expected=f"a number below {smaller_vocab}, a token of both vocabularies",
                fix="Reserve a token of both vocabularies for padding.",
            )

    @property
    def attention(self) -> Attention:
        """Attentions of every block."""
        return Attention.sharing(self.hidden_dim, self.num_heads)

    @property
    def network(self) -> FeedForward:
        """Feed-forward network of every block."""
        return FeedForward(self.ff_dim, self.activation, dropout=self.dropout)

    @property
    def norms(self) -> Norms:
        """Norms of every block."""
        return Norms(self.norm_eps, "layer", "before" if self.norm_first else "sum")

    @property
    def target_vocab(self) -> int:
        """Number of different target tokens."""
        if self.target_vocab_size is None:
            return self.vocab_size
        return self.target_vocab_size


@dataclass(frozen=True, eq=False)
class DecodingCache:
    """Keys and values cached between decoding steps; see :meth:`EncoderDecoder.new_cache`.

    Args:
        memory: The memory that the cache belongs to.
        read: Keys and values of the memory in each layer's cross-attention.
        own: Keys and values of the target so far.
    """

    memory: Float[Tensor, "batch source hidden_dim"]
    read: tuple[KeysAndValues, ...]
    own: Cache

    @property
    def length(self) -> int:
        """Target positions read so far."""
        return self.own.length


class EncoderDecoder(nn.Module):
    """An encoder-decoder transformer. With source tokens s, target tokens t and positions p::

        memory = encoder(sum_f tables[f][s[:, f]] * sqrt(hidden_dim) + p)
        logits = output(decoder(table[t] * sqrt(hidden_dim) + p, memory))

    The source is ``[batch, position]``, or, with ``fields_per_slot`` = f > 1, ``[batch, slot, f]``.
    A slot is one position, embedded as the sum of its fields. Each field has its own table, so that
    [a, b] and [b, a] differ. Without source positions the source is a set: apart from rounding, its
    order changes no logit.

    Without a mask, padding is every token ``pad_id``, and every slot of such tokens alone. Nothing
    attends to it. Targets are padded on the right. A source of padding alone is allowed: the
    cross-attention then adds its output bias only, so the logits are finite. A source without any
    position is refused.

    Initialisation: see :func:`~glassformer.layers.blocks.initialise`; embeddings are normal such
    that they enter the residual stream with a size of about 1; the output projection is normal with
    standard deviation ``OUTPUT_STD``, so that initial predictions are close to uniform.

    Source: Vaswani et al. 2017, arXiv 1706.03762; Lee et al. 2019, "Set Transformer", arXiv
    1810.00825 (sets).
    """

    OUTPUT_STD = 0.02

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_dim
        parts = (width, config.attention, config.network, config.norms)
        self.source_embeddings = nn.ModuleList(
            nn.Embedding(config.vocab_size, width) for _ in range(config.fields_per_slot)
        )
        self.source_positions = make_positions(
            config.source_positions, width, config.max_source_len
        )
        self.encoder_layers = nn.ModuleList(
            build_block(*parts, causal=False, dropout=config.dropout)
            for _ in range(config.num_encoder_layers)
        )
        self.encoder_norm: nn.LayerNorm | None = None
        if config.final_norm:
            self.encoder_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.target_embedding = nn.Embedding(config.target_vocab, width)
        self.target_positions = make_positions(
            config.target_positions, width, config.max_target_len
        )
        self.decoder_layers = nn.ModuleList(
            build_block(*parts, cross=True, dropout=config.dropout)
            for _ in range(config.num_decoder_layers)
        )
        self.decoder_norm: nn.LayerNorm | None = None
        if config.final_norm:
            self.decoder_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.output = nn.Linear(width, config.target_vocab)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights anew from torch's generator."""
        config = self.config
        initialise(
            self,
            {
                "encoder_layers": 2 * config.num_encoder_layers,
                "decoder_layers": 3 * config.num_decoder_layers,
            },
        )
        for positions in (self.source_positions, self.target_positions):
            if isinstance(positions, nn.Embedding):
                nn.init.normal_(positions.weight)
        if config.scale_embeddings:
            size = config.hidden_dim**-0.5
        else:
            size = 1.0
        for table in self.source_embeddings:
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=size * config.fields_per_slot**-0.5)
        nn.init.normal_(self.target_embedding.weight, std=size)
        nn.init.normal_(self.output.weight, std=self.OUTPUT_STD)

    def forward(
        self,
        source: Int[Tensor, "batch source *field"],
        target: Int[Tensor, "batch position"],
        source_real: Bool[Tensor, "batch source"] | None = None,
        target_real: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position vocab"]:
        """Return the logits of the token after each position of the target.

        Arguments are those of :meth:`encode` and :meth:`decode`.
        """
        if source_real is None:
            source_real = self.real_source(source)
        return self.decode(target, self.encode(source, source_real), source_real, target_real)

    def real_source(
        self, source: Int[Tensor, "batch source *field"]
    ) -> Bool[Tensor, "batch source"]:
        """Return where a source is no padding: ``source != pad_id``, for a slot in any field."""
        real = source != self.config.pad_id
        if source.dim() == 2:
            return real
        return real.any(-1)

    def encode(
        self,
        source: Int[Tensor, "batch source *field"],
        source_real: Bool[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch source hidden_dim"]:
        """Return the memory: the encoder's residual stream after its last block and its final norm.

        Args:
            source: Tokens in [0, vocab_size): ``[batch, position]``, or ``[batch, slot, field]``
                with fields.
            source_real: True where a position is real; :meth:`real_source` when None. The memory at
                other positions is meaningless.
        """
        self._check_source(source, source_real)
        if source_real is None:
            source_real = self.real_source(source)
        x = self._embedded(self._sum_of_fields(source), self.source_positions, 0)
        key_padding = unless_all(source_real)
        return run_stack(self.encoder_layers, self.encoder_norm, x, key_padding=key_padding)

    def decode(
        self,
        target: Int[Tensor, "batch position"],
        memory: Float[Tensor, "batch source hidden_dim"],
        source_real: Bool[Tensor, "batch source"] | None = None,
        target_real: Bool[Tensor, "batch position"] | None = None,
        cache: DecodingCache | None = None,
    ) -> Float[Tensor, "batch position vocab"]:
        """Return the logits of the token after each position of the target.

        Args:
            target: Tokens in [0, target_vocab), which begin with a start token.
            memory: Result of :meth:`encode`.
            source_real: True where a position of the memory is real; **all are** when None. Pass
                the mask that :meth:`encode` got, or :meth:`real_source`.
            target_real: True where a token is real; ``target != pad_id`` when None.
            cache: Earlier positions of the same targets; these tokens continue them and are added
                to it.
        """
        config = self.config
        start = 0 if cache is None else cache.length
        check_tokens(
            target,
            config.max_target_len,
            start,
            name="target",
            limit="max_target_len",
            real=target_real,
            real_name="target_real",
        )
        self._check_memory(memory, source_real, target, cache)
        batch, length = target.shape
        if target_real is None:
            target_real = target != config.pad_id
        key_padding = unless_all(target_real)
        if source_real is None:
            memory_padding = None
        else:
            memory_padding = unless_all(source_real)
        rows = look_up(self.target_embedding, "target tokens", target)
        x = self._embedded(rows, self.target_positions, start)
        caches: Sequence[LayerCache] | None = None
        memories: Sequence[Tensor | KeysAndValues] = [memory] * len(self.decoder_layers)
        if cache is not None:
            caches = cache.own.layers
            memories = cache.read
        with nullcontext() if cache is None else cache.own.adding():
            if cache is not None:
                key_padding = cache.own.begin(batch, length, key_padding)
            x = run_stack(
                self.decoder_layers,
                self.decoder_norm,
                x,
                key_padding=key_padding,
                caches=caches,
                memories=memories,
                memory_padding=memory_padding,
            )
        return self.output(x)

    def new_cache(
        self, memory: Float[Tensor, "batch source hidden_dim"], max_target_len: int | None = None
    ) -> DecodingCache:
        """Return an empty cache for the targets of ``memory``, of up to ``max_target_len`` tokens.

        ``max_target_len`` is the model's when None. The memory's keys and values are computed here,
        once for all steps.
        """
        config = self.config
        if max_target_len is None:
            max_target_len = config.max_target_len
        if max_target_len > config.max_target_len:
            raise InputError(
                got=f"a cache of max_target_len = {max_target_len}",
                expected=f"at most the model's {config.max_target_len}",
                fix="Make the model with a larger max_target_len.",
            )
        layers: list[LayerCache] = []
        memory_keys_and_values: list[KeysAndValues] = []
        for block in self.decoder_layers:
            assert isinstance(block, Block)
            assert block.cross_attention is not None
            memory_keys_and_values.append(block.cross_attention.keys_and_values(memory))
            heads = block.self_attention.num_kv_heads
            head_dim = block.self_attention.head_dim
            sizes = (len(memory), heads, head_dim, max_target_len)
            layers.append(LayerCache(*sizes, dtype=memory.dtype, device=memory.device))
        return DecodingCache(memory, tuple(memory_keys_and_values), Cache(layers))

    def _sum_of_fields(self, source: Tensor) -> Tensor:
        """Return the sum of each position's embedded fields."""
        if self.config.fields_per_slot > 1:
            fields = source.unbind(-1)
        else:
            fields = (source,)
        total: Tensor | None = None
        for table, tokens in zip(self.source_embeddings, fields, strict=True):
            assert isinstance(table, nn.Embedding)
            rows = look_up(table, "source tokens", tokens)
            if total is None:
                total = rows
            else:
                total = total + rows
        assert total is not None  # there is a field
        return total

    def _embedded(self, x: Tensor, positions: nn.Module | None, start: int) -> Tensor:
        """Return embedded tokens with scale, positions and dropout."""
        if self.config.scale_embeddings:
            x = x * self.config.hidden_dim**0.5
        if isinstance(positions, nn.Embedding):
            x = x + positions(torch.arange(start, start + x.shape[1], device=x.device))
        elif positions is not None:
            x = positions(x, start)
        if self.training and self.config.dropout > 0:
            return F.dropout(x, self.config.dropout)
        return x

    def _check_source(self, source: Tensor, source_real: Tensor | None) -> None:
        fields = self.config.fields_per_slot
        if fields > 1 and not (source.dim() == 3 and source.shape[2] == fields):
            raise InputError(
                got=f"source of shape {list(source.shape)}",
                expected=f"[batch, slot, {fields}], as fields_per_slot = {fields}",
                fix="Give every slot all its fields, pad_id for missing ones.",
            )
        if fields > 1:
            source = source[..., 0]
        check_tokens(
            source,
            self.config.max_source_len,
            name="source",
            limit="max_source_len",
            real=source_real,
            real_name="source_real",
        )

    def _check_memory(
        self,
        memory: Tensor,
        source_real: Tensor | None,
        target: Tensor,
        cache: DecodingCache | None,
    ) -> None:
        width = self.config.hidden_dim
        if memory.dim() != 3 or memory.shape[0] != target.shape[0] or memory.shape[2] != width:
            raise InputError(
                got=(
                    f"memory of shape {list(memory.shape)} for a target of shape "
                    f"{list(target.shape)}"
                ),
                expected=f"[{target.shape[0]}, position, hidden_dim = {width}]",
                fix="Pass the result of encode() for as many sources as there are targets.",
            )
        if source_real is not None:
            check_real("source_real", source_real, memory[..., 0])
        if cache is not None and cache.memory is not memory:
            raise InputError(
                got="a cache that was made for another memory",
                expected="new_cache(memory) of this one",
                fix="Make a new cache for new sources.",
            )
