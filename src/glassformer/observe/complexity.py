"""Predicted cost of a model from its sizes: operations, parameters, memory, and where attention dominates."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from glassformer.errors import InputError, require, require_positive
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_config import EncoderConfig
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig
from glassformer.observe.complexity_models import (
    Complexity,
    HeadSizes,
    Operations,
    allowed_pairs,
    executed_pairs,
    of_decoder,
    of_encoder,
    of_encoder_decoder,
    of_head,
)

__all__ = [
    "Complexity",
    "HeadSizes",
    "ModelConfig",
    "Operations",
    "allowed_pairs",
    "complexity",
    "executed_pairs",
    "overtakes",
]

ModelConfig: TypeAlias = DecoderConfig | EncoderConfig | EncoderDecoderConfig | HeadSizes
"""A description of a model whose cost can be predicted."""


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
        config: Of a decoder, an encoder or an encoder-decoder, or the sizes of a one-head model.
        batch: Number of texts.
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
    require(cached >= 0, f"cached = {cached}", "a whole number of at least 0", "Pass the number of cached tokens.")
    if isinstance(config, EncoderDecoderConfig):
        targets = length if target_length is None else target_length
        require_positive(target_length=targets)
        return of_encoder_decoder(config, batch, length, targets, cached, itemsize)
    require(
        target_length is None,
        f"target_length = {target_length} for {type(config).__name__}",
        "None: only encoder-decoders have targets",
        "Omit target_length.",
    )
    if isinstance(config, DecoderConfig):
        return of_decoder(config, batch, length, cached, itemsize)
    require(
        cached == 0,
        f"cached = {cached} for {type(config).__name__}",
        "0: only decoders keep keys and values",
        "Omit cached.",
    )
    if isinstance(config, EncoderConfig):
        return of_encoder(config, batch, length, itemsize)
    if isinstance(config, HeadSizes):
        return of_head(config, batch, length, itemsize)
    raise InputError(
        f"a {type(config).__name__}",
        "a DecoderConfig, an EncoderConfig, an EncoderDecoderConfig or HeadSizes",
        "Pass model.config; for a one-head model, HeadSizes.of(weights).",
    )


LONGEST = 1 << 17
"""The longest text that :func:`overtakes` considers: gpt-oss's 131,072 tokens."""


def overtakes(config: DecoderConfig | EncoderConfig, *, with_projections: bool = False) -> int | None:
    """The shortest text for which attention takes more operations than the feed-forward part of the blocks.

    Attention is scores and values, optionally with the projections; the feed-forward part is the feed-forward networks,
    or the router and the chosen experts. Without a window, for each token and layer::

        4 H d length  >  feed_forward     so      length = floor(feed_forward / (4 H d)) + 1

    which with the projections subtracted from ``feed_forward`` is at least 1. For a layer of an encoder, with H d = h
    and ``feed_forward = 4 h f``, that is ``f + 1``, and with projections ``f - 2 h + 1``. With windows, whose cost
    grows linearly and in blocks of queries, longer lengths are tried in turn.

    Returns:
        The length, or None if it is above :data:`LONGEST` tokens.

    Raises:
        InputError: A config of another kind: a one-head model has no feed-forward network, and the attention of an
            encoder-decoder depends on two lengths.
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
