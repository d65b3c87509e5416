"""GGUF files of decoders, for llama.cpp and programs built on it.

Source: the specification in ggml's ``docs/gguf.md``; the keys that llama.cpp's loader reads.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from glassformer.checkpoints.families import FAMILIES, Family
from glassformer.checkpoints.families.files import decoder_in_memory, with_experts
from glassformer.checkpoints.families.gguf_metadata import (
    gguf_entries,
    llama3_factors,
    read_gguf_config,
)
from glassformer.checkpoints.families.table import CAPS, canonical, differences
from glassformer.checkpoints.families.tensor_names import Entry
from glassformer.checkpoints.lazy import LazyDecoder, in_numbers
from glassformer.errors import InputError
from glassformer.files import any_file, holds, local_path, new_file, require_replaceable
from glassformer.kernels.packed import encode, finite
from glassformer.layers.options import Linear, Llama3, LongRope, Yarn
from glassformer.models import Decoder, DecoderConfig

GgufKind = Literal["F32", "F16", "BF16", "Q8_0"]
"""Formats of matrices. Norms, biases, positions and routers are float32, as llama.cpp has them."""
_NUMBERS = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30}  # of a tensor's kind
_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Weights and bytes of a block.
_BYTES = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34)}
# Numbers and dtypes of arrays' values, by NumPy's kind.
_VALUES = {"f": (6, "<f4"), "i": (5, "<i4"), "u": (4, "<u4"), "b": (7, "?")}
_ALIGNMENT = 32
_WRITER = "glassformer.writer"
"""The first key, by which a file is recognised that may be replaced."""
# Parts that llama.cpp's code for these architectures has or needs, and for others not.
_WINDOWED = ("gemma2", "gemma3", "olmo2")
_PACKED = ("gpt2", "gptneox", "phi3")
_BIASED = ("gpt2", "gptneox", "llama")
_SQUARE = ("qwen2", "phi3", "olmo2", "gpt2", "gptneox")
_UNTIED = ("olmo2", "gptneox")
_CAPPED = ("gemma2", "gemma3")
_MIXTURES = ("llama", "qwen3moe")
_FACTORS = ("llama", "exaone4")


@torch.no_grad()
def write_gguf(
    decoder: Decoder | LazyDecoder,
    path: str | Path,
    *,
    kind: str = "F16",
    tokenizer: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    sampling: Mapping[str, int | float] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a file that llama.cpp runs and :func:`~glassformer.checkpoints.gguf.load_gguf` reads.

    The architecture is the family that the decoder came from, or else the first that has exactly
    its parts: Llama for a plain decoder. llama.cpp approximates the GELU of GPT-NeoX by tanh, and
    chooses between LongRoPE's short and long factors by the length of its context, not of the text.

    Args:
        decoder: A decoder on any device, or in files; packed weights are expanded. One tensor at a
            time is in memory.
        path: File to write. It is complete in the end or, whatever happens, as it was.
        kind: ``"Q8_0"`` rounds to 8 bits and a scale for 32 weights; rows that are no multiple of
            32 become float16.
        tokenizer: Values of the keys ``tokenizer.*`` and ``general.name``; other keys are left out.
            By the name llama.cpp knows that Phi-3's special tokens take white space. The values are
            those of ``read_gguf(...).metadata``, of
            :func:`~glassformer.data.gguf_tokenizer.gguf_vocabulary` for a tokenizer, or of
            :func:`~glassformer.data.gguf_tokenizer.byte_vocabulary` for bytes. None: the file has
            token ids only.
        chat_template: A template in Jinja's language, instead of the tokenizer's.
        sampling: Keys ``general.sampling.*`` of the model's sampling rule, if it has one.
        overwrite: Replace any file at ``path``; else, only one that this function wrote.

    Raises:
        InputError: A decoder with parts that no architecture of GGUF has. The error names those
            that the nearest architecture lacks.
    """
    if kind not in _NUMBERS:
        raise InputError(
            got=f"kind = {kind!r}",
            expected=f"one of {', '.join(get_args(GgufKind))}",
            fix="Use one of these.",
        )
    path = local_path(path)
    replaces = any_file if overwrite else _is_written
    require_replaceable(path, replaces)
    if isinstance(decoder, Decoder):
        stored = decoder_in_memory(decoder)
    else:
        stored = in_numbers(decoder)
    if stored.config.expert_format == "mxfp4":
        stored = with_experts(stored, "dense")
    family, config, metadata, factors = _described(stored.family, stored.config)
    metadata |= {"general.file_type": _FILE_TYPES[kind], "general.quantization_version": 2}
    metadata |= _vocabulary(tokenizer, chat_template, config.vocab_size)
    metadata |= dict(sampling or {})
    entries = _entries(family, config)
    shapes = {name: [len(values)] for name, values in factors.items()} | _shapes(entries)
    kinds = {name: _kind(name, shape, kind) for name, shape in shapes.items()}
    metadata = {_WRITER: "glassformer", **metadata}
    with new_file(path, replaces=replaces) as draft, draft.open("wb") as file:
        file.write(_header(metadata, shapes, kinds))
        for name, tensor in _tensors(stored, entries, factors):
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            file.write(_encoded(tensor, kinds[name], name))
        file.write(b"\0" * (-file.tell() % _ALIGNMENT))


def _is_written(file: Path) -> bool:
    return holds(file, b"GGUF", 4) and holds(file, _text(_WRITER) + _value("glassformer"), 256)


def _described(
    model_type: str | None, config: DecoderConfig
) -> tuple[Family, DecoderConfig, dict[str, Any], dict[str, list[float]]]:
    """Return family, configuration, metadata and factors from which the configuration is read.

    The family of ``model_type`` comes first.
    """
    config = replace(canonical(config), dropout=0.0)
    rows = [family for family in FAMILIES if family.gguf is not None]
    fewest_faults: tuple[bool, int, list[str]] | None = None
    for family in sorted(rows, key=lambda family: family.model_type != model_type):
        is_tied = config.tied_output and family.gguf not in _UNTIED
        family_config = replace(config, tied_output=is_tied)
        metadata = _metadata(family, family_config)
        factors = _factors(family, family_config)
        is_unreadable = False
        try:
            faults = _faults(family, family_config, metadata, factors)
        except InputError as error:
            is_unreadable = True
            faults = [error.got.removeprefix("a decoder with ")]
        if not faults:
            return family, family_config, metadata, factors
        rank = (is_unreadable, len(faults), faults)
        if fewest_faults is None or rank[:2] < fewest_faults[:2]:
            fewest_faults = rank
    assert fewest_faults is not None
    raise InputError(
        f"a decoder with {', '.join(fewest_faults[2])}",
        "an architecture that llama.cpp has",
        "Save it as safetensors.",
    )


def _faults(
    family: Family,
    config: DecoderConfig,
    metadata: Mapping[str, Any],
    factors: Mapping[str, list[float]],
) -> list[str]:
    """Return the parts of a decoder that are not read back from a file, or not run by llama.cpp."""
    shapes = _shapes(_entries(family, config))
    config_read = read_gguf_config(family, metadata, shapes, factors)
    # Factors stand for any change of frequencies.
    if factors:
        config_read = replace(config_read, rope_scaling=config.rope_scaling)
    return differences(config, config_read) + _not_run(str(family.gguf), config)


def _not_run(gguf: str, config: DecoderConfig) -> list[str]:
    """Return the parts that a file could hold but llama.cpp's architecture refuses."""
    bias = config.attention_bias
    is_refused_bias = bias is True and gguf not in _BIASED
    if gguf == "gptneox":
        is_refused_bias = bias is not True
    width = config.num_heads * config.head_dim
    is_refused_width = gguf in _SQUARE and width != config.hidden_dim
    has_experts = config.num_experts is not None
    refusals = {
        "ff_dim = 0": config.ff_dim == 0,
        f"attention_bias = {bias!r}": is_refused_bias,
        "ff_bias = True": config.ff_bias and gguf not in _BIASED,
        f"heads of {width} together, hidden_dim = {config.hidden_dim}": is_refused_width,
        "tied_output = False": gguf == "gemma2" and not config.tied_output,
        "attention_cap": gguf == "gemma3" and config.attention_cap is not None,
        "learned_positions": config.learned_positions and gguf != "gpt2",
        f"num_experts = {config.num_experts}": has_experts and gguf not in _MIXTURES,
        # llama.cpp knows by their number that the released model's layers have windows.
        "num_layers = 64": config.num_layers == 64 and gguf == "exaone4",
    }
    parts = [part for part, is_refused in refusals.items() if is_refused]
    if not has_experts and gguf == "qwen3moe":
        parts.append("num_experts = None")
    return parts


def _entries(family: Family, config: DecoderConfig) -> list[Entry]:
    names = []
    if family.gguf in _PACKED:
        names.append("blk.0.attn_qkv.weight")
    return gguf_entries(family, config, names)


def _shapes(entries: list[Entry]) -> dict[str, list[int]]:
    """Return the shapes of the file's tensors by name."""
    shapes: dict[str, list[int]] = {}
    for entry in entries:
        shapes |= entry.shapes()
    return shapes


def _metadata(family: Family, config: DecoderConfig) -> dict[str, Any]:
    """Return the metadata of a decoder without its vocabulary."""
    norm = "layer_norm_rms_epsilon" if config.norm == "rms" else "layer_norm_epsilon"
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "block_count": config.num_layers,
        "context_length": config.max_seq_len,
        "embedding_length": config.hidden_dim,
        "feed_forward_length": config.ff_dim,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        f"attention.{norm}": config.norm_eps,
    }
    if family.gguf in _CAPPED:
        values |= {key: getattr(config, name) for name, key in CAPS.items()}
    if family.gguf == "gptneox":
        values["use_parallel_residual"] = config.parallel
    if config.num_experts:
        values |= {"expert_count": config.num_experts, "expert_used_count": config.top_k}
        values["expert_feed_forward_length"] = config.ff_dim
    if family.rope is not None:
        values["rope.dimension_count"] = config.rotary_dim or config.head_dim
        values["rope.freq_base"] = config.rope_base
        if family.gguf in _WINDOWED:
            values["rope.freq_base_swa"] = config.local_rope_base
        values |= _scaling(config.rope_scaling)
    if family.gguf in _WINDOWED and config.window is not None:
        values["attention.sliding_window"] = config.window
        layers = range(config.num_layers)
        windowed = [config.layer_window(layer) is not None for layer in layers]
        if windowed != [layer % family.period < family.period - 1 for layer in layers]:
            values["attention.sliding_window_pattern"] = windowed
    metadata: dict[str, Any] = {
        "general.architecture": family.gguf,
        "general.alignment": _ALIGNMENT,
    }
    for name, value in values.items():
        if value is not None:
            metadata[f"{family.gguf}.{name}"] = value
    return metadata


def _scaling(scaling: object) -> dict[str, Any]:
    if isinstance(scaling, Linear):
        return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    if isinstance(scaling, Yarn):
        values = {
            "factor": scaling.factor,
            "original_context_length": scaling.original_max_seq_len,
            "type": "yarn",
        }
        values |= {"yarn_beta_fast": scaling.beta_fast, "yarn_beta_slow": scaling.beta_slow}
        return {f"rope.scaling.{name}": value for name, value in values.items()}
    if isinstance(scaling, LongRope) and scaling.short != scaling.long:
        values = {
            "original_context_length": scaling.original_max_seq_len,
            "attn_factor": scaling.concentration,
        }
        return {f"rope.scaling.{name}": value for name, value in values.items()}
    return {}


def _factors(family: Family, config: DecoderConfig) -> dict[str, list[float]]:
    """Return the tensors of factors by which single frequencies are divided."""
    scaling = config.rope_scaling
    if isinstance(scaling, Llama3) and family.gguf in _FACTORS:
        rotary_dim = config.rotary_dim or config.head_dim
        factors = llama3_factors(scaling, config.rope_base, rotary_dim)
        return {"rope_freqs.weight": factors.tolist()}
    if isinstance(scaling, LongRope):
        if scaling.short != scaling.long and family.gguf == "phi3":
            return {
                "rope_factors_long.weight": list(scaling.long),
                "rope_factors_short.weight": list(scaling.short),
            }
        if scaling.short == scaling.long and scaling.concentration == 1 and family.gguf == "llama":
            return {"rope_freqs.weight": list(scaling.short)}
    return {}


def _vocabulary(
    tokenizer: Mapping[str, Any] | None, chat_template: str | None, size: int
) -> dict[str, Any]:
    """Return the keys of a vocabulary of ``size`` tokens, and of the chat template."""
    vocabulary: dict[str, Any] = {"tokenizer.ggml.model": "none"}
    if tokenizer is not None:
        if not isinstance(tokenizer, Mapping):
            raise InputError(
                got=f"tokenizer = {tokenizer!r:.60}",
                expected="values of GGUF's keys",
                fix="Pass gguf_vocabulary(tokenizer, model.config.vocab_size).",
            )
        vocabulary = {
            key: value
            for key, value in tokenizer.items()
            if key.startswith(("tokenizer.", "general.name"))
        }
        count = len(vocabulary.get("tokenizer.ggml.tokens", ()))
        if count != size:
            raise InputError(
                got=f"a tokenizer of {count} tokens for a model of {size}",
                expected=f"{size} tokens",
                fix="Pass the metadata of the model's own tokenizer.",
            )
    if chat_template is not None:
        vocabulary["tokenizer.chat_template"] = chat_template
    return vocabulary


def _kind(name: str, shape: list[int], kind: str) -> str:
    if len(shape) == 1 or name.startswith("position_embd") or "ffn_gate_inp" in name:
        return "F32"
    if kind == "Q8_0" and shape[-1] % 32:
        return "F16"
    return kind


def _tensors(
    stored: LazyDecoder, entries: list[Entry], factors: Mapping[str, list[float]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of the file by name, each when it is asked for."""
    for name, values in factors.items():
        yield name, torch.tensor(values)
    for entry in entries:
        state = {name: stored.tensors[name].read() for name in entry.ours}
        yield from zip(entry.theirs, entry.write(state), strict=True)


def _encoded(tensor: Tensor, kind: str, name: str) -> memoryview:
    wide = tensor.cpu().float()
    if kind == "Q8_0":
        encoded = encode(kind, wide)
        is_finite = finite(kind, encoded)
    else:
        encoded = wide.to(_DTYPES[kind])
        is_finite = bool(encoded.isfinite().all())
    if not is_finite:
        raise InputError(
            got=f"{name} with weights beyond {kind}, or infinite or NaN",
            expected=f"finite weights of {kind}",
            fix="Use kind='F32' or 'BF16' for large weights.",
        )
    in_bytes = encoded.contiguous().view(-1).view(torch.uint8)
    return memoryview(in_bytes.numpy())  # type: ignore[arg-type]


def _header(
    metadata: Mapping[str, Any], shapes: Mapping[str, list[int]], kinds: Mapping[str, str]
) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(shapes), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for name, shape in shapes.items():
        kind = kinds[name]
        parts += [_text(name), struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))]
        parts.append(struct.pack("<IQ", _NUMBERS[kind], offset))
        weights, size = _BYTES[kind]
        offset += -(-(math.prod(shape) // weights * size) // _ALIGNMENT) * _ALIGNMENT
    return b"".join(parts)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        if 0 <= value < 2**32:
            return struct.pack("<II", 4, value)
        return struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if not len(value) or isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    items = np.asarray(value)
    number, dtype = _VALUES[items.dtype.kind]
    return struct.pack("<IIQ", 9, number, len(items)) + items.astype(dtype).tobytes()
