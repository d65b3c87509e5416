"""Cost of each family of models in closed form: operations, parameters, memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

from glassformer.errors import require_positive
from glassformer.handcraft.single_head import HeadWeights
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_config import EncoderConfig
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one forward pass; a multiplication and an addition are two.

    Only matrix products count, as in torch's ``FlopCounterMode``: the rest (norms, softmax, activations, rotation,
    sums, embedding lookup) grows no faster than these products.
    """

    embedding: int = 0
    """0: a lookup is no product."""
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
    """As executed."""
    needed_attention: int
    """``operations.attention`` if only the pairs that the pattern allows were computed. A causal kernel may skip
    forbidden blocks, but torch's count and this one take the full square; a windowed layer computes blocks of queries
    with all keys that any of them sees."""
    parameters: int
    active_parameters: int
    """The parameters used by one token: fewer than all where experts are chosen."""
    activations: int
    """Bytes that the pass stores for a backward pass, without dropout and padding: inputs of products and activation
    functions, queries, keys, values and output of attention, statistics of norms and softmax. Omitted: index lists,
    masks, and the overlapping copies of keys and values of windowed layers."""
    attention_weights: int
    """Further bytes if the weights of every head, query and key were stored, as with attention dropout. The fused
    kernel stores none."""
    kv_cache: int = 0
    """Bytes of the keys and values kept for decoding, including those of an encoder-decoder's memory; 0 for models that
    do not decode."""


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of a one-head model, see :class:`~glassformer.handcraft.single_head.SingleHead`.

    Raises:
        InputError: A size that is not an integer of at least 1; only ``pos_dim`` may be 0.
    """

    input_dim: int
    """Length of an input vector, before its position is concatenated."""
    qk_dim: int
    """Length of keys and queries."""
    v_dim: int
    """Length of values and outputs."""
    pos_dim: int = 0
    """Length of a position's vector; 0 without positions."""
    max_seq_len: int = 1
    """Rows of the table of positions, if there is one."""

    def __post_init__(self) -> None:
        require_positive(input_dim=self.input_dim, qk_dim=self.qk_dim, v_dim=self.v_dim, max_seq_len=self.max_seq_len)
        if self.pos_dim:
            require_positive(pos_dim=self.pos_dim)

    @classmethod
    def of(cls, weights: HeadWeights) -> HeadSizes:
        """The sizes of these weights."""
        return cls(weights.input_dim, weights.qk_dim, weights.v_dim, weights.pos_dim, weights.max_seq_len or 1)


def allowed_pairs(queries: int, keys: int, causal: bool, window: int | None = None) -> int:
    """The number of query-key pairs that a pattern allows; the queries are the last positions of the keys.

    The query at position p sees ``min(p + 1, window)`` keys, or all of them if not ``causal``.
    """
    if not causal:
        return queries * keys
    window = keys if window is None else min(window, keys)
    first = keys - queries  # position of the first query
    growing = min(max(window - first, 0), queries)  # queries that see everything before them
    return growing * first + growing * (growing + 1) // 2 + (queries - growing) * window


_SHORTEST_BLOCK, _LONGEST_BLOCK = 32, 512


def executed_pairs(queries: int, keys: int, window: int | None = None) -> int:
    """The number of query-key pairs that :func:`~glassformer.layers.attention.attend` multiplies.

    Without a window that is every pair, causal or not. With one, queries are cut into blocks of half a window (32 to
    512 queries), each with ``window - 1 + block`` keys, after the queries whose window is cut off by the start and
    before those that fill no block.
    """
    if window is None or window >= keys:
        return queries * keys
    reach = min(keys, queries + window - 1)
    block = min(max(window // 2, _SHORTEST_BLOCK), _LONGEST_BLOCK)
    head = min(queries, window + queries - reach)
    tail = (queries - head) % block
    body = queries - head - tail
    if body < 2 * block:
        head, tail, body = (queries, 0, 0) if queries <= 2 * block else (head, queries - head, 0)
    before = head * min(reach - queries + head, head + window - 1)
    return before + body * (window - 1 + block) + tail * min(reach, tail + window - 1)


def of_decoder(config: DecoderConfig, batch: int, length: int, cached: int, itemsize: int) -> Complexity:
    """See :func:`glassformer.observe.complexity.complexity`."""
    hidden, heads, head_dim, ff = config.hidden_dim, config.num_heads, config.head_dim, config.ff_dim
    kv_heads = config.num_kv_heads or heads
    layers, tokens = config.num_layers, batch * length
    wide, narrow = heads * head_dim, kv_heads * head_dim
    windows = [config.layer_window(layer) for layer in range(layers)]
    # A windowed layer's cache returns only the keys that the new queries can see.
    keys = [length + (cached if window is None else min(cached, window - 1)) for window in windows]
    executed = sum(executed_pairs(length, seen, window) for seen, window in zip(keys, windows, strict=True))
    needed = sum(allowed_pairs(length, seen, True, window) for seen, window in zip(keys, windows, strict=True))
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
    shared = layers * (attention + per_head + router + 2 * hidden) + hidden
    shared += config.vocab_size * hidden * (1 if config.tied_output else 2)
    # Clamping stores gate and up from before it, gate, up + 1, the sigmoid and a product in addition.
    inside = ff * (3 if config.clamp is None else 7)
    feed_forward = inside if experts is None else passed * (2 * hidden + inside + 1)
    queries = 2 * wide if config.key_weights else wide
    per_token = layers * (4 * hidden + queries + 2 * narrow + wide + feed_forward) + 2 * hidden
    statistics = layers * (2 + heads) + 1
    return Complexity(
        operations,
        needed_attention=2 * product * needed,
        parameters=shared + layers * network * (experts or 1),
        active_parameters=shared + layers * network * (passed if experts else 1),
        activations=tokens * _bytes(per_token, statistics, itemsize),
        attention_weights=batch * heads * executed * itemsize,
        kv_cache=2
        * batch
        * narrow
        * itemsize
        * sum(min(window or cached + length, cached + length) for window in windows),
    )


def of_encoder(config: EncoderConfig, batch: int, length: int, itemsize: int) -> Complexity:
    """See :func:`glassformer.observe.complexity.complexity`."""
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
        needed_attention=operations.attention,
        parameters=parameters,
        active_parameters=parameters,
        activations=kept + batch * pooled * itemsize,
        attention_weights=layers * batch * config.num_heads * length**2 * itemsize,
    )


def of_encoder_decoder(
    config: EncoderDecoderConfig, batch: int, length: int, target_length: int, cached: int, itemsize: int
) -> Complexity:
    """See :func:`glassformer.observe.complexity.complexity`."""
    hidden, ff, heads = config.hidden_dim, config.ff_dim, config.num_heads
    above, below = config.num_decoder_layers, config.num_encoder_layers
    targets, seen = batch * target_length, cached + target_length
    # After the first step the source's keys and values are in the cache.
    sources = 0 if cached else batch * length
    pairs = below * sources * length + above * targets * (seen + length)
    needed = below * sources * length + above * (batch * allowed_pairs(target_length, seen, True) + targets * length)
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
        needed_attention=4 * hidden * needed,
        parameters=parameters,
        active_parameters=parameters,
        activations=kept,
        attention_weights=heads * pairs * itemsize,
        kv_cache=2 * above * batch * hidden * itemsize * (seen + length),
    )


def of_head(sizes: HeadSizes, batch: int, length: int, itemsize: int) -> Complexity:
    """See :func:`glassformer.observe.complexity.complexity`."""
    total, qk, v, tokens = sizes.input_dim + sizes.pos_dim, sizes.qk_dim, sizes.v_dim, batch * length
    operations = Operations(
        projections=2 * tokens * total * (2 * qk + v), scores=2 * tokens * length * qk, values=2 * tokens * length * v
    )
    parameters = total * (2 * qk + v) + sizes.max_seq_len * sizes.pos_dim
    per_token = total + 2 * qk + v
    weights = tokens * length * itemsize
    # The fused kernel takes only values as long as keys; otherwise the weights are stored, and the output is not.
    fused = tokens * _bytes(per_token + v, 1, itemsize)
    return Complexity(
        operations,
        needed_attention=operations.attention,
        parameters=parameters,
        active_parameters=parameters,
        activations=fused if qk == v else tokens * per_token * itemsize + weights,
        attention_weights=weights if qk == v else 0,
    )


def _bytes(numbers: int, statistics: int, itemsize: int) -> int:
    """Statistics of norms and softmax are in float32 or wider."""
    return numbers * itemsize + statistics * max(itemsize, 4)
