"""What a model costs, predicted from its sizes: operations, parameters, memory, and where attention overtakes."""

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
    "course_count",
    "executed_pairs",
    "overtakes",
]

ModelConfig: TypeAlias = DecoderConfig | EncoderConfig | EncoderDecoderConfig | HeadSizes
"""What describes a model whose cost can be told."""


def complexity(
    config: ModelConfig,
    batch: int,
    length: int,
    *,
    target_length: int | None = None,
    cached: int = 0,
    itemsize: int = 4,
) -> Complexity:
    """What one forward pass of a model over ``batch`` texts of ``length`` tokens costs.

    With T = batch * length tokens, h = hidden_dim, f = ff_dim, H query heads and G key-value heads of width d,
    and P executed pairs of query and key (``length ** 2`` without window and cache), a layer takes::

        projections   2 T h (2 H d + 2 G d)         queries and output, keys and values
        scores        2 batch H d P
        values        2 batch H d P
        feed-forward  4 T h f                       6 T h f with a gate
        experts       6 T h f top_k                 and the router 2 T h num_experts

    and the head 2 T h vocab_size for a decoder, 2 batch h num_classes for an encoder, which spends 2 T h on the mean
    of its positions besides. The factor 2 is one multiplication and one addition. ``length`` may exceed the model's
    ``max_seq_len``: nothing is run.

    An encoder-decoder reads a source of S = ``length`` positions and a target of U = ``target_length`` tokens. Its
    encoder's layers take what is said above with P = S ** 2, its decoder's with T = batch * U and P = U ** 2; their
    cross-attention adds ``4 batch U h ** 2 + 4 batch S h ** 2`` for projections (queries and output; keys and values of
    the memory) and P = U S pairs. A pass behind ``cached`` target tokens runs neither the encoder nor the projection of
    the memory: their results are there.

    These are the numbers of torch's ``FlopCounterMode`` once it knows every operator, see
    :func:`glassformer.observe.complexity_measured.count_operations`, for exact attention on the CPU without dropout.
    Elsewhere a sink is one more key for each query. A step of fixed shapes (``Decoder.step``) looks at every slot
    of its cache, the empty ones too: it costs as much as with all slots but one filled.

    Args:
        config: Of a decoder, an encoder or an encoder-decoder, or the sizes of a one-head model.
        batch: Texts.
        length: Tokens of each that pass through the model; of an encoder-decoder the source's tokens or slots.
        target_length: Tokens of an encoder-decoder's target that pass through it; None: as many as ``length``.
        cached: Tokens of each (of an encoder-decoder: of each target) whose keys and values lie in a cache already.
        itemsize: Bytes of a number: 4 in float32, 2 in bfloat16.

    Raises:
        InputError: A size below 1, ``cached`` below 0 or for a model without a cache, a ``target_length`` for a model
            without targets, or a config of no known family.

    Source: Kaplan et al. 2020, arXiv 2001.08361, table 1 (the parts); Korthikanti et al. 2022, arXiv 2205.05198,
    section 4 (activations).
    """
    require_positive(batch=batch, length=length, itemsize=itemsize)
    require(cached >= 0, f"cached = {cached}", "a whole number of at least 0", "Pass how many tokens were read before.")
    if isinstance(config, EncoderDecoderConfig):
        targets = length if target_length is None else target_length
        require_positive(target_length=targets)
        return of_encoder_decoder(config, batch, length, targets, cached, itemsize)
    require(
        target_length is None,
        f"target_length = {target_length} for {type(config).__name__}",
        "None: just encoder-decoders have targets",
        "Leave target_length away.",
    )
    if isinstance(config, DecoderConfig):
        return of_decoder(config, batch, length, cached, itemsize)
    require(
        cached == 0,
        f"cached = {cached} for {type(config).__name__}",
        "0: just decoders keep keys and values",
        "Leave cached away.",
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


def course_count(d_model: int, sequence_length: int, d_ff: int) -> dict[str, int]:
    """The course text's own count for one layer (its ``analyze_complexity``)::

        attention    sequence_length ** 2 * d_model
        feedforward  sequence_length * d_model * d_ff

    Beside :func:`complexity` it leaves out

    - the factor 2 for a multiplication with its addition,
    - the second of each pair of products: scores *and* values, up *and* down,
    - the four projections, ``8 sequence_length d_model ** 2`` operations,

    so attention and feed-forward are a quarter each of what is executed, and the length at which one overtakes the
    other, d_ff, comes out right. Its memory, ``sequence_length ** 2 * num_heads`` numbers, is that of the attention
    weights of one layer, which nobody has to keep: see :attr:`Complexity.attention_weights`.

    Raises:
        InputError: A size below 1.
    """
    require_positive(d_model=d_model, sequence_length=sequence_length, d_ff=d_ff)
    attention = sequence_length**2 * d_model
    feedforward = sequence_length * d_model * d_ff
    return {"attention": attention, "feedforward": feedforward, "total": attention + feedforward}


LONGEST = 1 << 17
"""The longest text that :func:`overtakes` considers: gpt-oss's 131,072 tokens."""


def overtakes(config: DecoderConfig | EncoderConfig, *, with_projections: bool = False) -> int | None:
    """The shortest text for which attention takes more operations than what stands behind it in the blocks.

    Attention are the scores and values, by choice with the projections; behind it stand the feed-forward networks, or
    the router and the experts a token passes through. Without a window, for each token and layer::

        4 H d length  >  behind     so      length = floor(behind / (4 H d)) + 1

    which with the projections' operations subtracted from ``behind`` is at least 1. A layer of an encoder, with
    H d = h and ``behind = 4 h f``, gets there at ``f + 1``, and with projections at ``f - 2 h + 1``. A window stops the
    growth, and blocks of queries round it: there the lengths from that one on are tried in turn.

    Returns:
        The length, or None where no text of up to :data:`LONGEST` tokens is long enough.

    Raises:
        InputError: A config of another kind, such as that of a one-head model, which has no feed-forward network, or of
            an encoder-decoder, whose attention depends on two lengths.
    """
    require(
        isinstance(config, DecoderConfig | EncoderConfig),
        f"a {type(config).__name__}",
        "a DecoderConfig or an EncoderConfig",
        "Pass the config of a model with feed-forward networks and one length; compare the operations of complexity() "
        "for an encoder-decoder.",
    )
    one = complexity(config, 1, 1).operations  # of one token, with one pair in each layer
    behind = one.after_attention - (one.projections if with_projections else 0)
    earliest = max(behind // one.attention + 1, 1)
    layers = Counter(_windows(config))
    if set(layers) == {None}:
        return earliest
    for length in range(earliest, LONGEST + 1):
        pairs = sum(count * executed_pairs(length, length, window) for window, count in layers.items())
        if one.attention * pairs > behind * length * config.num_layers:
            return length
    return None


def _windows(config: DecoderConfig | EncoderConfig) -> list[int | None]:
    if isinstance(config, DecoderConfig):
        return [config.layer_window(layer) for layer in range(config.num_layers)]
    return [None] * config.num_layers
