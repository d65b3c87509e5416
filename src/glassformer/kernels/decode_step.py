"""One decoding step of a whole decoder in one native call: the structures that it reads, and the call.

The definition is the forward pass of :class:`~glassformer.models.decoder.Decoder` with a cache.
:mod:`glassformer.generation.native_step` fills the structures, and decides when they may be used.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from glassformer.kernels.native import Library

_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 3, torch.uint8: 4}
_LOSSLESS = 2


class Matrix(ctypes.Structure):
    """Rows of weights, one after the other."""

    _fields_ = (("data", c_void_p), ("scales", c_void_p), ("format", c_int64), ("width", c_int64))

    @classmethod
    def of(cls, weight: Tensor, scales: Tensor | None = None) -> Matrix:
        """Of ``weight [..., out, in]``, or of 8-bit weights or MXFP4's blocks and their scales."""
        if scales is None:
            return cls(weight.data_ptr(), None, _FORMATS[weight.dtype], weight.shape[-1])
        return cls(weight.data_ptr(), scales.data_ptr(), _FORMATS[weight.dtype], 32 * scales.shape[-1])

    @classmethod
    def lossless(cls, packed: Tensor, index: Tensor, width: int) -> Matrix:
        """Of what :func:`~glassformer.quantized.lossless.encode` made of rows of ``width`` numbers."""
        return cls(packed.data_ptr(), index.data_ptr(), _LOSSLESS, width)


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Norm(ctypes.Structure):
    """An RMSNorm, or a LayerNorm if it is centred."""

    _fields_ = (*_fields(c_void_p, "weight bias"), ("centred", c_int64), ("eps", c_double))


class Rotation(ctypes.Structure):
    """How many pairs of coordinates of a head rotate, and by how much."""

    _fields_ = (("frequencies", c_void_p), ("pairs", c_int64), ("concentration", c_double))


ACTIVATIONS = ("silu", "clamped", "gelu", "gelu_tanh", "relu", "relu2")
"""Activations by their number in a :class:`Layer`."""


class Layer(ctypes.Structure):
    """A block and its cache. Vectors are in the decoder's dtype; what a layer lacks is zero."""

    _fields_ = (
        *_fields(Norm, "attention_norm attention_post_norm ffn_norm ffn_post_norm query_norm key_norm"),
        *_fields(Matrix, "query key value output"),
        *_fields(c_void_p, "query_bias key_bias value_bias output_bias key_weights sinks keys values"),
        *_fields(Matrix, "router gate up down"),
        *_fields(c_void_p, "router_bias gate_bias up_bias down_bias"),
        *_fields(c_int64, "num_heads num_kv_heads slots ff_dim num_experts top_k activation gated parallel"),
        *_fields(c_int64, "norm_of_all_heads rotation"),
        *_fields(c_double, "alpha limit scale cap"),
    )


class Decoder(ctypes.Structure):
    """A decoder, whose layers are an array of :class:`Layer`."""

    _fields_ = (
        *_fields(c_void_p, "embedding positions"),
        *_fields(Norm, "embedding_norm final_norm"),
        ("output", Matrix),
        ("rotations", ctypes.POINTER(Rotation)),
        ("layers", ctypes.POINTER(Layer)),
        *_fields(c_int64, "num_rotations num_layers bfloat16 vocab_size hidden_dim head_dim interleaved"),
        *_fields(c_double, "embedding_scale logit_cap"),
    )


def decode_step(
    library: Library,
    decoder: Decoder,
    tokens: Int64[Tensor, "batch new"],
    start: int,
    padding: Bool[Tensor, "batch position"] | None,
    threads: int,
) -> Float[Tensor, "batch new vocab"] | None:
    """Logits in float32 after each new token, whose keys and values are written into the cache.

    Nothing is checked but the tokens: None, and nothing written, if one is outside the vocabulary.

    Args:
        library: The C++ library.
        decoder: Weights and cache, all alive.
        tokens: The texts' next tokens, contiguous.
        start: Position of the first of them.
        padding: True where a position up to the last new one is real, contiguous; None: all are.
        threads: Number of threads. The result has the same bits with any.
    """
    batch, new = tokens.shape
    logits = torch.empty(batch, new, decoder.vocab_size, dtype=torch.float32, device="cpu")
    valid = c_int64(1)
    function = getattr(library.code, f"glassformer_decode_step_{library.level}")
    function.restype = None
    function(
        ctypes.byref(decoder),
        c_void_p(tokens.data_ptr()),
        None if padding is None else c_void_p(padding.data_ptr()),
        c_void_p(logits.data_ptr()),
        ctypes.byref(valid),
        *map(c_int64, (batch, new, start, threads)),
    )
    return logits if valid.value else None
