"""A decoder's configuration from the metadata of a GGUF file, for every family.

Source: llama.cpp's ``gguf-py/gguf/constants.py`` for the keys, its converter for their meaning.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from glassformer.checkpoints.families import tensor_names
from glassformer.checkpoints.families.config_json import Fields, alike
from glassformer.checkpoints.families.table import CAPS, Family, canonical, windowed
from glassformer.checkpoints.families.tensor_names import EXPERTS, GGUF_PREFIX, PACKED, Entry
from glassformer.errors import InputError
from glassformer.layers.options import Linear, Llama3, LongRope, RopeScaling, Yarn
from glassformer.layers.positions import frequencies
from glassformer.models import DecoderConfig

FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors of a GGUF file that are no weights: factors by which frequencies are divided."""
_INERT = """
attention.value_length attention.key_length_swa attention.value_length_swa rope.scaling.finetuned
rope.dimension_count_swa tensor_data_layout vocab_size expert_gating_func pooling_type
"""
_ALIASES = {
    "rope.scale_linear": "rope.scaling.factor",
    "attention.head_dim": "attention.key_length",
}
"""Names of keys until November 2023, and Ollama's."""
_FIX = "Convert the model again, or take its safetensors."


def read_gguf_config(
    family: Family,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    factors: Mapping[str, Sequence[float]],
) -> DecoderConfig:
    """Return the configuration of the decoder in a GGUF file of this family.

    Args:
        family: Family of ``metadata["general.architecture"]``.
        metadata: Keys and values of the file. Arrays may be any sequences.
        shapes: Shapes of all tensors, rows first, as in torch.
        factors: Values of the tensors in :data:`FACTORS` that the file has.
    """
    start = f"{metadata['general.architecture']}."
    content = {}
    for name, value in metadata.items():
        if name.startswith(start):
            # An array of NumPy is neither true nor false.
            plain = value.tolist() if hasattr(value, "tolist") else value
            content[name.removeprefix(start)] = plain
    keys = Fields(content, start, _ALIASES)
    for name in _INERT.split():
        keys.get(name)
    keys.only("attention.causal", True)
    for name in ("expert_weights_norm", "norm_top_k_prob"):  # the second is Ollama's
        keys.only(name, True)
    fields = _sizes(keys, shapes) | _windows(keys, family)
    has_bias = any(f"blk.0.{name}.bias" in shapes for name in ("attn_q", "attn_qkv"))
    fields["attention_bias"] = has_bias and ("blk.0.attn_output.bias" in shapes or "qkv")
    fields["ff_bias"] = "blk.0.ffn_down.bias" in shapes
    fields |= _rotation(keys, family, fields, factors)
    if "position_embd.weight" in shapes:
        fields["learned_positions"] = True
    for name, key in CAPS.items():
        fields[name] = keys.number(key, 0.0) or None
    if family.gguf == "gptneox":
        fields["parallel"] = keys.flag("use_parallel_residual")
    fields |= family.parts
    fields |= family.gguf_read(keys.content, fields)
    if fields.get("window") is None:
        fields.pop("local_rope_base", None)
    keys.require_known()
    return canonical(DecoderConfig(**fields))


def _rotation(
    keys: Fields, family: Family, fields: dict[str, Any], factors: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Return the fields of the rotation; none for a family that does not rotate."""
    head_dim = fields["head_dim"]
    rotary_dim = keys.whole("rope.dimension_count", head_dim)
    keys.get("rope.freq_base_swa")
    if family.rope is None:
        return {}
    if rotary_dim != head_dim and family.rope.fraction is None:
        raise InputError(
            got=f"{keys.place}rope.dimension_count = {rotary_dim}",
            expected=f"{head_dim}",
            fix=_FIX,
        )
    base = keys.number("rope.freq_base", 10000.0)
    rotation: dict[str, Any] = {
        "rotary_dim": None if rotary_dim == head_dim else rotary_dim,
        "rope_base": base,
        "rope_scaling": _scaling(keys, rotary_dim, base, fields["max_seq_len"], factors),
    }
    if family.rope.local_base is not None:
        default = 10000.0 if family.rope.local_base_key else base
        rotation["local_rope_base"] = keys.number("rope.freq_base_swa", default)
    return rotation


def gguf_entries(family: Family, config: DecoderConfig, names: Collection[str]) -> list[Entry]:
    """Return the tensors of a GGUF file of this family.

    ``names`` are those of the file, or empty for a file to be written. Only rows are moved, so that
    an entry's tensors may be floats or packed rows of bytes.
    """
    table = dict(family.gguf_names)
    if config.num_experts:
        table |= EXPERTS
    for packed in PACKED:
        [packed_name] = set(packed.values())
        name = f"{GGUF_PREFIX.format(0)}{packed_name}"
        if name in names or f"{name}.weight" in names:
            # Packed pieces must stand one after the other.
            table = {module: name for module, name in table.items() if module not in packed}
            table |= packed
    return tensor_names.entries(config, table, GGUF_PREFIX, family.gguf_forms)


def _sizes(keys: Fields, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return the sizes of the decoder."""

    def size(name: str, default: int | None = None) -> int:
        value = keys.get(name, default)
        if not isinstance(value, int | str | float | None):  # one for each layer
            values = set(value[: 2**16])
            if len(values) != 1:
                raise InputError(
                    got=f"{keys.place}{name} = {value}",
                    expected="the same in all layers",
                    fix=_FIX,
                )
            return Fields({name: values.pop()}, keys.place).whole(name)
        return keys.whole(name, default)

    if "token_embd.weight" not in shapes:
        raise InputError(
            got="no token_embd.weight",
            expected="an embedding",
            fix=_FIX,
        )
    heads = size("attention.head_count")
    hidden = size("embedding_length")
    if heads < 1:
        raise InputError(
            got=f"{keys.place}attention.head_count = 0",
            expected="1 or more heads",
            fix=_FIX,
        )
    experts = size("expert_count", 0)
    eps = "attention.layer_norm_rms_epsilon"
    if eps not in keys.content and "attention.layer_norm_epsilon" in keys.content:
        eps = "attention.layer_norm_epsilon"
    sizes: dict[str, Any] = {
        "vocab_size": int(shapes["token_embd.weight"][0]),
        "num_layers": size("block_count"),
        "hidden_dim": hidden,
        "num_heads": heads,
        "num_kv_heads": size("attention.head_count_kv", heads),
        "head_dim": size("attention.key_length", hidden // heads),
        "max_seq_len": size("context_length", 2048),
        "norm_eps": keys.number(eps),
        "tied_output": "output.weight" not in shapes,
    }
    value_dim = keys.whole("attention.value_length", sizes["head_dim"])
    if value_dim != sizes["head_dim"]:
        raise InputError(
            got=f"{keys.place}attention.value_length = {value_dim}",
            expected=f"{sizes['head_dim']}",
            fix=_FIX,
        )
    ff_dim = size("feed_forward_length", 0)
    if experts:
        sizes |= {"num_experts": experts, "top_k": size("expert_used_count")}
        keys.only("expert_gating_func", 1)
        down_shape = shapes.get("blk.0.ffn_down_exps.weight", [ff_dim])
        ff_dim = size("expert_feed_forward_length", down_shape[-1])
    keys.get("expert_used_count")
    keys.get("expert_feed_forward_length")
    return sizes | {"ff_dim": ff_dim}


def _windows(keys: Fields, family: Family) -> dict[str, Any]:
    """Return the fields of the windows; none for a family without."""
    # A file without the key: as in llama.cpp, 4096 for Gemma 2, an error for gpt-oss.
    defaults = {"gemma2": family.window, "gpt-oss": None}
    window = keys.whole("attention.sliding_window", defaults.get(str(family.gguf), 0))
    layers = keys.whole("block_count")
    pattern = keys.get("attention.sliding_window_pattern", family.period)
    if layers >= 2**16:
        raise InputError(
            got=f"{keys.place}block_count = {layers}",
            expected="fewer layers",
            fix=_FIX,
        )
    if not isinstance(pattern, int | list):
        raise InputError(
            got=f"{keys.place}attention.sliding_window_pattern = {pattern!r}",
            expected="a number or one for each layer",
            fix=_FIX,
        )
    if isinstance(pattern, int):
        # A pattern of n: one of n layers sees everything. 0: none does.
        has_window = [pattern == 0 or layer % pattern < pattern - 1 for layer in range(layers)]
    else:
        has_window = [bool(item) for item in pattern[: 2**16]]
    if family.windows == "all":
        has_window = [True] * layers
    if family.windows == "none" or window == 0:
        if window != 0:
            raise InputError(
                got=f"{keys.place}attention.sliding_window = {window}",
                expected="no window",
                fix=_FIX,
            )
        return {}
    if len(has_window) != layers:
        raise InputError(
            got=f"{keys.place}attention.sliding_window_pattern of {len(has_window)}",
            expected=f"{layers}",
            fix=_FIX,
        )
    return windowed(has_window, window)


_SCALING_KEYS = (
    "factor",
    "attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_attn_factor",
    "yarn_ext_factor",
)


def _scaling(
    keys: Fields,
    width: int,
    base: float,
    max_seq_len: int,
    factors: Mapping[str, Sequence[float]],
) -> RopeScaling | None:
    """Return the rescaling of ``width`` coordinates' frequencies, from keys or from factors."""
    original = keys.whole("rope.scaling.original_context_length", max_seq_len)
    # Without its type, a factor is llama.cpp's "linear", unless the file has factors as tensors.
    default = "none"
    if "rope.scaling.factor" in keys.content and not factors:
        default = "linear"
    kind = keys.get("rope.scaling.type", default)
    for name in _SCALING_KEYS:
        keys.get(f"rope.scaling.{name}")
    if factors:
        return _scaling_by_factors(keys, kind, width, base, original, factors)
    keys.only("rope.scaling.attn_factor", 1.0)
    mixed = keys.get("rope.scaling.yarn_ext_factor", 1.0)
    if mixed not in (1.0, -1.0):
        raise InputError(
            got=f"{keys.place}rope.scaling.yarn_ext_factor = {mixed}",
            expected="1, or -1 for 'as usual'",
            fix=_FIX,
        )
    factor = keys.number("rope.scaling.factor", 1.0)
    if kind == "none" or factor == 1:
        return None
    if kind == "linear":
        return Linear(factor)
    if kind == "yarn":
        return _yarn(keys, factor, original)
    raise InputError(
        got=f"{keys.place}rope.scaling.type = {kind!r}",
        expected="'none', 'linear' or 'yarn'",
        fix=_FIX,
    )


def _yarn(keys: Fields, factor: float, original: int) -> Yarn:
    fast = keys.number("rope.scaling.yarn_beta_fast", 32.0)
    slow = keys.number("rope.scaling.yarn_beta_slow", 1.0)
    yarn = Yarn(factor, original, fast, slow, truncate=True)
    # Converters since 2025 write transformers' attention_factor, which llama.cpp ignores. In other
    # files, 1 is "as usual".
    attention_factor: float | None = keys.number("rope.scaling.yarn_attn_factor", 1.0)
    if attention_factor == 1:
        attention_factor = None
    name = f"{keys.place}rope.scaling.yarn_attn_factor"
    alike({name: attention_factor, "YaRN's": yarn.concentration})
    return yarn


def _scaling_by_factors(
    keys: Fields,
    kind: Any,
    width: int,
    base: float,
    original: int,
    factors: Mapping[str, Sequence[float]],
) -> RopeScaling | None:
    """Return the rescaling of a file with factors as tensors: Llama 3's, or LongRoPE."""
    llama3 = factors.get("rope_freqs.weight")
    if llama3 is not None:
        if kind != "none":
            raise InputError(
                got=f"{keys.place}rope.scaling.type = {kind!r} with rope_freqs",
                expected="'none'",
                fix=_FIX,
            )
        return _by_factors(tuple(map(float, llama3)), base, width)
    if len(factors) != 2:
        raise InputError(
            got=f"{next(iter(factors))} alone",
            expected="rope_factors_long and rope_factors_short",
            fix=_FIX,
        )
    if kind not in ("none", "longrope"):
        raise InputError(
            got=f"{keys.place}rope.scaling.type = {kind!r} with rope_factors_short",
            expected="'longrope'",
            fix=_FIX,
        )
    short = tuple(map(float, factors["rope_factors_short.weight"]))
    long = tuple(map(float, factors["rope_factors_long.weight"]))
    return LongRope(short, long, original, keys.number("rope.scaling.attn_factor", 1.0))


def _by_factors(factors: tuple[float, ...], base: float, width: int) -> RopeScaling | None:
    """Return the rescaling by these factors.

    It is Llama 3's if the factors are those of a released model, since a file holds no more of it.
    """
    if len(factors) != width // 2:
        raise InputError(
            got=f"{len(factors)} factors in rope_freqs",
            expected=f"{width // 2}",
            fix=_FIX,
        )
    largest = max(factors)
    if largest == 1 == min(factors):
        return None
    if largest > 1:
        released = Llama3(largest, 8192)
        released_factors = llama3_factors(released, base, width)
        actual_factors = torch.tensor(factors, dtype=torch.float64)
        if torch.allclose(actual_factors, released_factors, rtol=1e-5, atol=0):
            return released
    return LongRope(factors, factors, 2**30)


def llama3_factors(scaling: Llama3, base: float, width: int) -> Float64[Tensor, " pair"]:
    """Return the factors by which Llama 3 divides the frequencies of ``width`` coordinates."""
    powers = base ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return 1 / (powers * frequencies(powers, scaling, base))
