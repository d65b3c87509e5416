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
"""Formats of matrices; norms, biases, positions and routers are float32, as in files of llama.cpp's
converter.
"""
_NUMBERS = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30}  # of a tensor's kind
_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BYTES = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
}  # weights and bytes of a block
_VALUES = {
    "f": (6, "<f4"),
    "i": (5, "<i4"),
    "u": (4, "<u4"),
    "b": (7, "?"),
}  # of arrays, by NumPy's kind
_ALIGNMENT = 32
_WRITER = "glassformer.writer"
"""The first key, by which a file is recognised that may be replaced."""
# What llama.cpp's code of these architectures has, or needs; the others' has not, or does not.
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
        decoder: On any device, or in files; packed weights are expanded. Memory holds one tensor of
            it at a time.
        path: Where to: complete or, whatever happens, as it was before.
        kind: ``"Q8_0"`` rounds to 8 bits and a scale for 32 weights; rows that are no multiple of
            32 become float16.
        tokenizer: Values of keys ``tokenizer.*`` and ``general.name``, by which llama.cpp knows
            that Phi-3's special tokens take white space; others are left out. None: the file has
            token ids only. From ``read_gguf(...).metadata``, of a tokenizer
            :func:`~glassformer.data.gguf_tokenizer.gguf_vocabulary`, or of bytes
            :func:`~glassformer.data.gguf_tokenizer.byte_vocabulary`.
        chat_template: A template in Jinja's language, instead of the tokenizer's.
        sampling: Keys ``general.sampling.*`` of the rule by which the model is sampled; None: it
            has none.
        overwrite: Whether any file may be at ``path`` already. Otherwise one that this function
            wrote may.

    A decoder with parts that no architecture of GGUF has is refused: those that the nearest lacks
    are named.
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
    described = {name: [len(each)] for name, each in factors.items()}
    described |= {name: shape for entry in entries for name, shape in entry.shapes().items()}
    kinds = {name: _kind(name, shape, kind) for name, shape in described.items()}
    metadata = {_WRITER: "glassformer", **metadata}
    with new_file(path, replaces=replaces) as draft, draft.open("wb") as file:
        file.write(_header(metadata, described, kinds))
        for name, tensor in _tensors(stored, entries, factors):
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            file.write(_encoded(tensor, kinds[name], name))
        file.write(b"\0" * (-file.tell() % _ALIGNMENT))


def _is_written(file: Path) -> bool:
    return holds(file, b"GGUF", 4) and holds(file, _text(_WRITER) + _value("glassformer"), 256)


def _described(
    came_from: str | None, plain: DecoderConfig
) -> tuple[Family, DecoderConfig, dict[str, Any], dict[str, list[float]]]:
    """Family, and metadata and factors from which the same configuration is read."""
    plain = replace(canonical(plain), dropout=0.0)
    rows = [family for family in FAMILIES if family.gguf is not None]
    lacking: list[tuple[bool, list[str]]] = []
    for family in sorted(rows, key=lambda family: family.model_type != came_from):
        config = replace(plain, tied_output=plain.tied_output and family.gguf not in _UNTIED)
        metadata = _metadata(family, config)
        factors = _factors(family, config)
        try:
            shapes = {
                name: shape
                for entry in _entries(family, config)
                for name, shape in entry.shapes().items()
            }
            found = read_gguf_config(family, metadata, shapes, factors)
            # Factors stand for any change of frequencies.
            if factors:
                found = replace(found, rope_scaling=config.rope_scaling)
            else:
                found = found
            faults = differences(config, found) + _not_run(str(family.gguf), config)
            lacking.append((False, faults))
        except InputError as error:
            lacking.append((True, faults := [error.got.removeprefix("a decoder with ")]))
        if not faults:
            return family, config, metadata, factors
    nearest = ", ".join(min(lacking, key=lambda each: (each[0], len(each[1])))[1])
    raise InputError(
        f"a decoder with {nearest}", "an architecture that llama.cpp has", "Save it as safetensors."
    )


def _not_run(gguf: str, config: DecoderConfig) -> list[str]:
    """Parts that a file could hold, and llama.cpp's code for the architecture refuses."""
    bias = config.attention_bias
    width = config.num_heads * config.head_dim
    found = {
        "ff_dim = 0": config.ff_dim == 0,
        f"attention_bias = {bias!r}": bias is not True
        if gguf == "gptneox"
        else bias is True and gguf not in _BIASED,
        "ff_bias = True": config.ff_bias and gguf not in _BIASED,
        f"heads of {width} together, hidden_dim = {config.hidden_dim}": gguf in _SQUARE
        and width != config.hidden_dim,
        "tied_output = False": gguf == "gemma2" and not config.tied_output,
        "attention_cap": gguf == "gemma3" and config.attention_cap is not None,
        "learned_positions": config.learned_positions and gguf != "gpt2",
        f"num_experts = {config.num_experts}": config.num_experts is not None
        and gguf not in _MIXTURES,
        "num_experts = None": config.num_experts is None and gguf == "qwen3moe",
        # llama.cpp knows by their number that the released model's layers have windows.
        "num_layers = 64": config.num_layers == 64 and gguf == "exaone4",
    }
    return [name for name, refused in found.items() if refused]


def _entries(family: Family, config: DecoderConfig) -> list[Entry]:
    return gguf_entries(family, config, {"blk.0.attn_qkv.weight"} if family.gguf in _PACKED else ())


def _metadata(family: Family, config: DecoderConfig) -> dict[str, Any]:
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
        f"attention.layer_norm_{'rms_' if config.norm == 'rms' else ''}epsilon": config.norm_eps,
    }
    if family.gguf in _CAPPED:
        values |= {theirs: getattr(config, ours) for ours, theirs in CAPS.items()}
    if family.gguf == "gptneox":
        values["use_parallel_residual"] = config.parallel
    if config.num_experts:
        values |= {"expert_count": config.num_experts, "expert_used_count": config.top_k}
        values["expert_feed_forward_length"] = config.ff_dim
    if family.rope is not None:
        values["rope.dimension_count"] = config.rotary_dim or config.head_dim
        values["rope.freq_base"] = config.rope_base
        values["rope.freq_base_swa"] = config.local_rope_base if family.gguf in _WINDOWED else None
        values |= _scaling(config.rope_scaling)
    if family.gguf in _WINDOWED and config.window is not None:
        values["attention.sliding_window"] = config.window
        layers = range(config.num_layers)
        windowed = [config.layer_window(layer) is not None for layer in layers]
        if windowed != [layer % family.period < family.period - 1 for layer in layers]:
            values["attention.sliding_window_pattern"] = windowed
    found = {f"{family.gguf}.{name}": value for name, value in values.items() if value is not None}
    return {"general.architecture": family.gguf, "general.alignment": _ALIGNMENT} | found


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
    """Factors by which single frequencies are divided."""
    scaling = config.rope_scaling
    if isinstance(scaling, Llama3) and family.gguf in _FACTORS:
        found = llama3_factors(scaling, config.rope_base, config.rotary_dim or config.head_dim)
        return {"rope_freqs.weight": found.tolist()}
    if isinstance(scaling, LongRope):
        if scaling.short != scaling.long and family.gguf == "phi3":
            return {
                f"rope_factors_{name}.weight": list(getattr(scaling, name))
                for name in ("long", "short")
            }
        if scaling.short == scaling.long and scaling.concentration == 1 and family.gguf == "llama":
            return {"rope_freqs.weight": list(scaling.short)}
    return {}


def _vocabulary(
    tokenizer: Mapping[str, Any] | None, chat_template: str | None, size: int
) -> dict[str, Any]:
    if tokenizer is None:
        found: dict[str, Any] = {"tokenizer.ggml.model": "none"}
    else:
        got = f"tokenizer = {tokenizer!r:.60}"
        fix = "Pass gguf_vocabulary(tokenizer, model.config.vocab_size)."
        if not isinstance(tokenizer, Mapping):
            raise InputError(
                got=got,
                expected="values of GGUF's keys",
                fix=fix,
            )
        found = {
            key: value
            for key, value in tokenizer.items()
            if key.startswith(("tokenizer.", "general.name"))
        }
        count = len(found.get("tokenizer.ggml.tokens", ()))
        fix = "Pass the metadata of the model's own tokenizer."
        if count != size:
            raise InputError(
                got=f"a tokenizer of {count} tokens for a model of {size}",
                expected=f"{size} tokens",
                fix=fix,
            )
    if chat_template is None:
        return found
    return found | {"tokenizer.chat_template": chat_template}


def _kind(name: str, shape: list[int], kind: str) -> str:
    if len(shape) == 1 or name.startswith("position_embd") or "ffn_gate_inp" in name:
        return "F32"
    return "F16" if kind == "Q8_0" and shape[-1] % 32 else kind


def _tensors(
    stored: LazyDecoder, entries: list[Entry], factors: Mapping[str, list[float]]
) -> Iterator[tuple[str, Tensor]]:
    for name, each in factors.items():
        yield name, torch.tensor(each)
    for entry in entries:
        ours = {name: stored.tensors[name].read() for name in entry.ours}
        yield from zip(entry.theirs, entry.write(ours), strict=True)


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
    return memoryview(encoded.contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _header(
    metadata: Mapping[str, Any], described: Mapping[str, list[int]], kinds: Mapping[str, str]
) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(described), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for name, shape in described.items():
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
