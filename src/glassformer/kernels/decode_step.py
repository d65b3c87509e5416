"""One decoding step of a whole decoder in one native call, and the structures that it reads.

The definition is the forward pass of :class:`~glassformer.models.decoder.Decoder` with a cache.
:mod:`glassformer.generation.native_step` fills the structures, and decides when they may be used.
"""

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from glassformer.kernels.native import Library, declare

FORMATS = {torch.float32: 0, torch.bfloat16: 1}
"""Formats of a :class:`Matrix` of numbers. Packed kinds have a number in the table of kinds."""
MXFP4_APART = 2
"""Format of MXFP4 whose codes and scales are apart."""


class Matrix(ctypes.Structure):
    """Rows of weights, one after the other."""

    _fields_ = (("data", c_void_p), ("scales", c_void_p), ("format", c_int64), ("width", c_int64))


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Norm(ctypes.Structure):
    """An RMSNorm, or a LayerNorm if it is centred, in bfloat16 or float32."""

    _fields_ = (
        *_fields(c_void_p, "weight bias"),
        *_fields(c_int64, "centred bfloat16"),
        ("eps", c_double),
    )


class Rotation(ctypes.Structure):
    """How many pairs of coordinates of a head rotate, and by how much."""

    _fields_ = (("frequencies", c_void_p), ("pairs", c_int64), ("concentration", c_double))


ACTIVATIONS = ("silu", "clamped", "gelu", "gelu_tanh", "relu", "relu2")
"""Activations by their number in a :class:`Layer`."""


class Layer(ctypes.Structure):
    """A block and its cache. Vectors have the decoder's dtype; missing parts are zero."""

    _fields_ = (
        *_fields(
            Norm, "attention_norm attention_post_norm ffn_norm ffn_post_norm query_norm key_norm"
        ),
        *_fields(Matrix, "query key value output"),
        *_fields(
            c_void_p, "query_bias key_bias value_bias output_bias key_weights sinks keys values"
        ),
        *_fields(Matrix, "router gate up down"),
        *_fields(c_void_p, "router_bias gate_bias up_bias down_bias"),
        *_fields(
            c_int64,
            "num_heads num_kv_heads slots ff_dim num_experts top_k activation gated parallel",
        ),
        *_fields(c_int64, "norm_of_all_heads rotation"),
        *_fields(c_double, "alpha limit scale cap"),
    )


class Decoder(ctypes.Structure):
    """A decoder, whose layers are an array of :class:`Layer`."""

    _fields_ = (
        *_fields(Matrix, "embedding positions output"),
        *_fields(Norm, "embedding_norm final_norm"),
        ("rotations", ctypes.POINTER(Rotation)),
        ("layers", ctypes.POINTER(Layer)),
        *_fields(
            c_int64, "num_rotations num_layers bfloat16 vocab_size hidden_dim head_dim interleaved"
        ),
        *_fields(c_double, "embedding_scale logit_cap"),
    )


def _sizes(
    _decoder: int, batch: int, position: int, vocab_size: int, padded: int, _threads: int
) -> Any:
    return batch, batch * (position + 1) if padded else 0, batch * vocab_size


declare("decode_step", "l?f", _sizes)
_UNKNOWN_TOKEN = 2  # a result in native.h


def decode_step(
    library: Library,
    decoder: Decoder,
    tokens: Int64[Tensor, " batch"],
    position: int,
    padding: Bool[Tensor, "batch seen"] | None,
    threads: int,
) -> Float[Tensor, "batch vocab"] | None:
    """Return the logits in float32 after the newest token of each text.

    Keys and values of these tokens are written into the cache. If a token is outside the
    vocabulary, nothing is written and the result is None.

    Args:
        library: The C++ library.
        decoder: Addresses of weights and cache, whose tensors must be alive.
        tokens: Newest token of each text, contiguous.
        position: Position of these tokens.
        padding: True where a position up to this one is real, contiguous; None: all are real.
        threads: Number of threads, on which no bit of the result depends.
    """
    batch = len(tokens)
    logits = torch.empty(batch, decoder.vocab_size, dtype=torch.float32, device="cpu")
    if padding is None:
        seen = logits.new_empty(0, dtype=torch.bool)
    else:
        seen = padding
    sizes = (batch, position, decoder.vocab_size, seen.numel(), threads)
    result = library.call("decode_step", tokens, seen, logits, ctypes.addressof(decoder), *sizes)
    return None if result == _UNKNOWN_TOKEN else logits
