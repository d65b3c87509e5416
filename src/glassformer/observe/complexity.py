"""Predicted cost of a model from its sizes: operations, parameters, memory, and where attention dominates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TypeAlias

from glassformer.errors import InputError, require, require_positive
from glassformer.kernels.attention import window_split
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoderConfig

ModelConfig: TypeAlias = DecoderConfig | EncoderConfig | EncoderDecoderConfig
"""The configuration of a model whose cost can be predicted."""


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one forward pass; a multiplication and an addition are two.

    Only matrix products count, as in torch's ``FlopCounterMode``: the rest (norms, softmax, activations, rotation,
    sums, embedding lookup) grows no faster than these products.
    """

    projections: int = 0
    """Queries, keys, values and the output of attention."""
    scores: int = 0
    """Queries times keys."""
    values: int = 0
    """Weights times values."""
    feed_forward: int = 0
    """Dense feed-forward networks."""
    experts: int = 0
    """The chosen experts."""
    router: int = 0
    """Scores of all experts."""
    pooling: int = 0
    """The mean of an encoder's positions; max and cls pooling take no product."""
    head: int = 0
    """Hidden states to logits."""

    @property
    def attention(self) -> int:
        """Scores and values: the part that is quadratic in the length, without the projections."""
        return self.scores + self.values

    @property
    def after_attention(self) -> int:
        """The feed-forward part of the blocks: feed-forward networks, or routers and experts."""
        return self.feed_forward + self.experts + self.router

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True)
class Complexity:
    """Predicted cost of one forward pass."""

    operations: Operations
    """As torch's operators execute it. A causal kernel may skip forbidden blocks, but torch's count and this one take
    the full square; a windowed layer computes blocks of queries with all keys that any of them sees. The C++ library's
    attention skips tiles of keys that no query sees."""
    parameters: int
    active_parameters: int
    """The parameters used by one token: fewer than all where experts are chosen."""
    activations: int
    """Bytes that the pass stores for a backward pass on the CPU, without dropout and padding: inputs of products and
    activation functions (of experts those of the activation alone), queries, keys, values and output of attention,
    statistics of norms and softmax. Omitted: index lists, masks, and the rotation's cosines and sines; the overlapping
    copies of keys and values that windowed layers store where the C++ library does not run their attention; and what
    bfloat16 mixtures store in float32: the router's input, weights and softmax and, on processors without bfloat16
    products, the inputs of the experts' activation. Other devices also store what enters and leaves each expert, and
    what enters its last product."""
    attention_weights: int
    """Further bytes if the weights of every head, query and key were stored, as with attention dropout. The fused
    kernel stores none."""
    kv_cache: int = 0
    """Bytes of the keys and values kept for decoding, including those of an encoder-decoder's memory; 0 for models that
    do not decode."""


def complexity(
    config: ModelConfig,
    batch: int,
    length: int,
    *,
    target_length: int | None = None,
    cached: int = 0,
    itemsize: int = 4,
) -> Complexity:
    """The cost of one forward pass of a model over ``batch`` texts of ``length`` tokens.

    With T = batch * length tokens, h = hidden_dim, f = ff_dim, H query heads and G key-value heads of width d,
    and P executed pairs of query and key (``length ** 2`` without window and cache), a layer takes::

        projections   2 T h (2 H d + 2 G d)         queries and output, keys and values
        scores        2 batch H d P
        values        2 batch H d P
        feed-forward  4 T h f                       6 T h f with a gate
        experts       6 T h f top_k                 and the router 2 T h num_experts

    and the head 2 T h vocab_size for a decoder, 2 batch h num_classes for an encoder, plus 2 T h for the mean of its
    positions. The factor 2 is one multiplication and one addition. ``length`` may exceed the model's ``max_seq_len``:
    nothing is run.

    An encoder-decoder reads a source of S = ``length`` positions and a target of U = ``target_length`` tokens. The
    formulas above hold for its encoder's layers with P = S ** 2, and for its decoder's with T = batch * U and
    P = U ** 2; cross-attention adds ``4 batch U h ** 2 + 4 batch S h ** 2`` for projections (queries and output; keys
    and values of the memory) and P = U S pairs. A pass after ``cached`` target tokens runs neither the encoder nor the
    projections of the memory.

    The numbers equal those of :func:`glassformer.observe.complexity_measured.count_operations` for exact attention on
    the CPU without dropout. On other devices a sink is one more key for each query. A step of fixed shapes
    (``Decoder.step``) computes every slot of its cache, empty or not: its cost is that of a cache with all slots but
    one filled.

    Args:
        length: Tokens of each text that pass through the model; for an encoder-decoder the source's tokens or slots.
        target_length: Tokens of an encoder-decoder's target; as many as ``length`` when None.
        cached: Earlier tokens of each text (or target) whose keys and values are in a cache.
        itemsize: Bytes of a number: 4 in float32, 2 in bfloat16.

    Raises:
        InputError: A size below 1, ``cached`` below 0 or for a model without a cache, a ``target_length`` for a model
            without targets, or a config of no known family.

    Source: Kaplan et al. 2020, arXiv 2001.08361, table 1 (the parts); Korthikanti et al. 2022, arXiv 2205.05198,
    section 4 (activations).
    """
    require_positive(batch=batch, length=length, itemsize=itemsize)
    require(cached >= 0, f"cached = {cached}", "an integer of at least 0", "Pass the number of cached tokens.")
    if isinstance(config, EncoderDecoderConfig):
        targets = length if target_length is None else target_length
        require_positive(target_length=targets)
        return _encoder_decoder_cost(config, batch, length, targets, cached, itemsize)
    name = type(config).__name__
    require(target_length is None, f"target_length = {target_length} for {name}", "None", "Omit target_length.")
    if isinstance(config, DecoderConfig):
        found = ", ".join(config.extensions())
        require(not found, f"a decoder with {found}", "the parts of gpt-oss or Mixtral", "Use count_operations().")
        return _decoder_cost(config, batch, length, cached, itemsize)
    require(cached == 0, f"cached = {cached} for {name}", "0: the model has no cache", "Omit cached.")
    if isinstance(config, EncoderConfig):
        return _encoder_cost(config, batch, length, itemsize)
    raise InputError(f"a {name}", "a DecoderConfig, an EncoderConfig or an EncoderDecoderConfig", "Pass model.config.")


LONGEST = 1 << 17
"""The longest text that :func:`overtakes` considers: gpt-oss's 131,072 tokens."""


def overtakes(config: DecoderConfig | EncoderConfig, *, with_projections: bool = False) -> int | None:
    """The shortest text for which attention takes more operations than the feed-forward part of the blocks.

    Attention is scores and values, optionally with the projections; the feed-forward part is the feed-forward networks,
    or the router and the chosen experts. Without a window, for each token and layer::

        4 H d length  >  feed_forward     so      length = floor(feed_forward / (4 H d)) + 1

    which with the projections subtracted from ``feed_forward`` is at least 1. For a layer of an encoder, with H d = h
    and ``feed_forward = 4 h f``, that is ``f + 1``, and with projections ``f - 2 h + 1``. With windows, whose cost
    grows linearly and in blocks of queries, longer lengths are tried in turn; None above :data:`LONGEST` tokens.

    Raises:
        InputError: A config of another kind, such as of an encoder-decoder, whose attention depends on two lengths.
    """
    require(
        isinstance(config, DecoderConfig | EncoderConfig),
        f"a {type(config).__name__}",
        "a DecoderConfig or an EncoderConfig",
        "For an encoder-decoder, compare the operations of complexity().",
    )
    one = complexity(config, 1, 1).operations  # of one token, with one pair in each layer
    feed_forward = one.after_attention - (one.projections if with_projections else 0)
    earliest = max(feed_forward // one.attention + 1, 1)
    windows = map(config.layer_window, range(config.num_layers)) if isinstance(config, DecoderConfig) else [None]
    layers = Counter(windows)
    if set(layers) == {None}:
        return earliest
    for length in range(earliest, LONGEST + 1):
        pairs = sum(count * executed_pairs(length, length, window) for window, count in layers.items())
        if one.attention * pairs > feed_forward * length * config.num_layers:
            return length
    return None


def executed_pairs(queries: int, keys: int, window: int | None = None) -> int:
    """The number of query-key pairs that :func:`~glassformer.layers.attention.attend` multiplies.

    Without a window that is every pair, causal or not. With one, queries are cut into blocks, see
    :func:`~glassformer.kernels.attention.window_split`, each with ``window - 1 + block`` keys.
    """
    if window is None or window >= keys:
        return queries * keys
    reach = min(keys, queries + window - 1)
    head, body, tail, block = window_split(queries, keys, window)
    before = head * min(reach - queries + head, head + window - 1)
    return before + body * (window - 1 + block) + tail * min(reach, tail + window - 1)


def _decoder_cost(config: DecoderConfig, batch: int, length: int, cached: int, itemsize: int) -> Complexity:
    hidden, heads, head_dim, ff = config.hidden_dim, config.num_heads, config.head_dim, config.ff_dim
    kv_heads = config.num_kv_heads or heads
    layers, tokens = config.num_layers, batch * length
    wide, narrow = heads * head_dim, kv_heads * head_dim
    windows = [config.layer_window(layer) for layer in range(layers)]
    # A windowed layer's cache returns only the keys that the new queries can see.
    keys = [length + (cached if window is None else min(cached, window - 1)) for window in windows]
    executed = sum(executed_pairs(length, seen, window) for seen, window in zip(keys, windows, strict=True))
    product = 2 * batch * wide  # of one pair, in all heads
    experts, passed = config.num_experts, config.top_k
    operations = Operations(
        projections=layers * 2 * tokens * hidden * (2 * wide + 2 * narrow),
        scores=product * executed,
        values=product * executed,
        feed_forward=0 if experts else layers * 6 * tokens * hidden * ff,
        experts=layers * 6 * tokens * passed * hidden * ff if experts else 0,
        router=layers * 2 * tokens * hidden * experts if experts else 0,
        head=2 * tokens * hidden * config.vocab_size,
    )
    network = 3 * hidden * ff + (2 * ff + hidden if config.ff_bias else 0)
    router = 0 if experts is None else experts * (hidden + int(config.ff_bias))
    per_head = heads * (int(config.key_weights) + int(config.sinks))
    attention = hidden * (2 * wide + 2 * narrow) + (wide + 2 * narrow + hidden if config.attention_bias else 0)
    norms = 1 + (ff > 0)  # in each layer
    shared = layers * (attention + per_head + router + norms * hidden) + hidden
    shared += config.vocab_size * hidden * (1 if config.tied_output else 2)
    # Gate and up, and what enters the last product, which experts compute again.
    feed_forward = 3 * ff if experts is None else passed * (2 * ff + 1)
    queries = 2 * wide if config.key_weights else wide
    per_token = layers * (2 * norms * hidden + queries + 2 * narrow + wide + feed_forward) + 2 * hidden
    statistics = layers * (norms + heads) + 1
    cached_keys = sum(min(window or cached + length, cached + length) for window in windows)
    return Complexity(
        operations,
        parameters=shared + layers * network * (experts or 1),
        active_parameters=shared + layers * network * (passed if experts else 1),
        activations=tokens * _bytes(per_token, statistics, itemsize),
        attention_weights=batch * heads * executed * itemsize,
        kv_cache=2 * batch * narrow * itemsize * cached_keys,
    )


def _encoder_cost(config: EncoderConfig, batch: int, length: int, itemsize: int) -> Complexity:
    hidden, ff, layers, tokens = config.hidden_dim, config.ff_dim, config.num_layers, batch * length
    classes = config.num_classes or 0
    product = 2 * batch * hidden * layers * length**2
    operations = Operations(
        projections=layers * 8 * tokens * hidden**2,
        scores=product,
        values=product,
        feed_forward=layers * 4 * tokens * hidden * ff,
        # For one position the mean is no matrix product but one multiplication per number, which does not count.
        pooling=2 * tokens * hidden if config.pooling == "mean" and classes and length > 1 else 0,
        head=2 * batch * hidden * classes,
    )
    norms = 2 * layers + int(config.final_norm) + int(config.embedding_norm)
    tables = config.vocab_size + config.token_types + (config.max_seq_len if config.positions == "learned" else 0)
    block = 4 * hidden * (hidden + 1) + 2 * hidden * ff + ff + hidden
    parameters = tables * hidden + layers * block + norms * 2 * hidden + classes * (hidden + 1)
    # Pre-norm stores the input of the norm and the next product's; post-norm the sum and the next product's: twice the
    # width for each half of a block in both cases.
    per_token = layers * (8 * hidden + ff * (2 if config.activation == "gelu" else 1))
    per_token += hidden * (int(config.final_norm) + int(config.embedding_norm))
    if classes:
        # The mean stores each position's share, the others all positions; the head stores the pooled vector.
        per_token += 1 if config.pooling == "mean" else hidden
    pooled = {"mean": 1, "max": 2, "cls": 0}[config.pooling] * hidden if classes else 0
    kept = tokens * _bytes(per_token, 2 * norms + layers * config.num_heads, itemsize)
    return Complexity(
        operations,
        parameters=parameters,
        active_parameters=parameters,
        activations=kept + batch * pooled * itemsize,
        attention_weights=layers * batch * config.num_heads * length**2 * itemsize,
    )


def _encoder_decoder_cost(
    config: EncoderDecoderConfig, batch: int, length: int, target_length: int, cached: int, itemsize: int
) -> Complexity:
    hidden, ff, heads = config.hidden_dim, config.ff_dim, config.num_heads
    above, below = config.num_decoder_layers, config.num_encoder_layers
    targets, seen = batch * target_length, cached + target_length
    # After the first step the source's keys and values are in the cache.
    sources = 0 if cached else batch * length
    pairs = below * sources * length + above * targets * (seen + length)
    operations = Operations(
        projections=below * 8 * sources * hidden**2 + above * (12 * targets + 4 * sources) * hidden**2,
        scores=2 * hidden * pairs,
        values=2 * hidden * pairs,
        feed_forward=4 * hidden * ff * (below * sources + above * targets),
        head=2 * targets * hidden * config.target_vocab,
    )
    tables = config.fields_per_slot * config.vocab_size + config.target_vocab
    tables += config.max_source_len if config.source_positions == "learned" else 0
    tables += config.max_target_len if config.target_positions == "learned" else 0
    attention, network, norm = 4 * hidden * (hidden + 1), 2 * hidden * ff + ff + hidden, 2 * hidden
    parameters = (
        tables * hidden + below * (attention + network + 2 * norm) + above * (2 * attention + network + 3 * norm)
    )
    parameters += 2 * norm * int(config.final_norm) + (hidden + 1) * config.target_vocab
    # As in an encoder's block; a cross-attention stores a query, an output, a sum, and the source's keys and values.
    inside = ff * (2 if config.activation == "gelu" else 1)
    last = int(config.final_norm)
    source = below * (8 * hidden + inside) + (1 + last + 2 * above) * hidden  # 1: the memory itself
    target = above * (12 * hidden + inside) + (1 + last) * hidden
    source_statistics = below * (2 * 2 + heads) + 2 * last
    target_statistics = above * (3 * 2 + 2 * heads) + 2 * last
    kept = sources * _bytes(source, source_statistics, itemsize) + targets * _bytes(target, target_statistics, itemsize)
    return Complexity(
        operations,
        parameters=parameters,
        active_parameters=parameters,
        activations=kept,
        attention_weights=heads * pairs * itemsize,
        kv_cache=2 * above * batch * hidden * itemsize * (seen + length),
    )


def _bytes(numbers: int, statistics: int, itemsize: int) -> int:
    """Statistics of norms and softmax are in float32 or wider."""
    return numbers * itemsize + statistics * max(itemsize, 4)
