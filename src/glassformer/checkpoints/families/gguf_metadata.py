"""A decoder's configuration from the metadata of a GGUF file, for every family. No file is read
here.

Source: llama.cpp's ``gguf-py/gguf/constants.py`` for the keys, its converter for what they mean.
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
"""Names until November 2023, and Ollama's."""
_FIX = "Convert the model again, or take its safetensors."


def read_gguf_config(
    family: Family,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    factors: Mapping[str, Sequence[float]],
) -> DecoderConfig:
    """The configuration of the decoder for a GGUF file of this family.

    Args:
        family: That of ``metadata["general.architecture"]``.
        metadata: All keys and values. Arrays may be any sequences.
        shapes: Of all tensors, rows first, as in torch.
        factors: The values of those of :data:`FACTORS` that the file has.
    """
    start = f"{metadata['general.architecture']}."
    own = {
        name.removeprefix(start): each for name, each in metadata.items() if name.startswith(start)
    }
    # An array of NumPy is neither true nor false.
    plain = {name: each.tolist() if hasattr(each, "tolist") else each for name, each in own.items()}
    keys = Fields(plain, start, _ALIASES)
    for name in _INERT.split():
        keys.get(name)
    keys.only("attention.causal", True)
    for name in ("expert_weights_norm", "norm_top_k_prob"):  # the second is Ollama's
        keys.only(name, True)
    found = _sizes(keys, shapes) | _windows(keys, family)
    biased = any(f"blk.0.{name}.bias" in shapes for name in ("attn_q", "attn_qkv"))
    found["attention_bias"] = biased and ("blk.0.attn_output.bias" in shapes or "qkv")
    found["ff_bias"] = "blk.0.ffn_down.bias" in shapes
    heads = found["head_dim"]
    rotary = keys.whole("rope.dimension_count", heads)
    whole = family.rope is None or family.rope.fraction is None
    if family.rope is not None:
        if rotary != heads and whole:
            raise InputError(
                got=f"{start}rope.dimension_count = {rotary}",
                expected=f"{heads}",
                fix=_FIX,
            )
        found["rotary_dim"] = None if rotary == heads else rotary
        found["rope_base"] = keys.number("rope.freq_base", 10000.0)
        found["rope_scaling"] = _scaling(keys, rotary, found, factors)
    if family.rope is not None and family.rope.local_base is not None:
        if family.rope.local_base_key:
            default = 10000.0
        else:
            default = found["rope_base"]
        found["local_rope_base"] = keys.number("rope.freq_base_swa", default)
    keys.get("rope.freq_base_swa")
    found |= {"learned_positions": True} if "position_embd.weight" in shapes else {}
    found |= {ours: keys.number(key, 0.0) or None for ours, key in CAPS.items()}
    if family.gguf == "gptneox":
        found["parallel"] = keys.flag("use_parallel_residual")
    found |= family.parts
    found |= family.gguf_read(keys.content, found)
    if found.get("window") is None:
        found.pop("local_rope_base", None)
    keys.require_known()
    return canonical(DecoderConfig(**found))


def gguf_entries(family: Family, config: DecoderConfig, names: Collection[str]) -> list[Entry]:
    """The tensors of a GGUF file of this family; ``names`` are those that it has, or empty for one
    to be written.

    Only rows are moved, so that an entry's tensors may be floats or packed rows of bytes.
    """
    table = dict(family.gguf_names) | (EXPERTS if config.num_experts else {})
    for packed in PACKED:
        theirs = f"{GGUF_PREFIX.format(0)}{next(iter(packed.values()))}"
        if theirs in names or f"{theirs}.weight" in names:
            # Packed pieces must stand one after the other.
            table = {ours: each for ours, each in table.items() if ours not in packed} | packed
    return tensor_names.entries(config, table, GGUF_PREFIX, family.gguf_forms)


def _sizes(keys: Fields, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
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
    if not heads > 0:
        raise InputError(
            got=f"{keys.place}attention.head_count = 0",
            expected="1 or more heads",
            fix=_FIX,
        )
    experts = size("expert_count", 0)
    eps = "attention.layer_norm_rms_epsilon"
    if eps not in keys.content and "attention.layer_norm_epsilon" in keys.content:
        eps = "attention.layer_norm_epsilon"
    found: dict[str, Any] = {
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
    width = keys.whole("attention.value_length", found["head_dim"])
    if width != found["head_dim"]:
        raise InputError(
            got=f"{keys.place}attention.value_length = {width}",
            expected=f"{found['head_dim']}",
            fix=_FIX,
        )
    ff_dim = size("feed_forward_length", 0)
    if experts:
        found |= {"num_experts": experts, "top_k": size("expert_used_count")}
        keys.only("expert_gating_func", 1)
        ff_dim = size(
            "expert_feed_forward_length", shapes.get("blk.0.ffn_down_exps.weight", [ff_dim])[-1]
        )
    keys.get("expert_used_count")
    keys.get("expert_feed_forward_length")
    return found | {"ff_dim": ff_dim}


def _windows(keys: Fields, family: Family) -> dict[str, Any]:
    missing = {
        "gemma2": family.window,
        "gpt-oss": None,
    }  # as in llama.cpp: 4096 for one, an error for the other
    window = keys.whole("attention.sliding_window", missing.get(str(family.gguf), 0))
    layers = keys.whole("block_count")
    pattern = keys.get("attention.sliding_window_pattern", family.period)
    if not layers < 2**16:
        raise InputError(
            got=f"{keys.place}block_count = {layers}",
            expected="fewer layers",
            fix=_FIX,
        )
    known = isinstance(pattern, int | list)
    if not known:
        raise InputError(
            got=f"{keys.place}attention.sliding_window_pattern = {pattern!r}",
            expected="a number or one for each layer",
            fix=_FIX,
        )
    if isinstance(pattern, int):
        # A pattern of n: one of n layers sees everything. 0: none does.
        which = [pattern == 0 or layer % pattern < pattern - 1 for layer in range(layers)]
    else:
        which = [bool(each) for each in pattern[: 2**16]]
    if family.windows == "all":
        which = [True] * layers
    if family.windows == "none" or window == 0:
        if window != 0:
            raise InputError(
                got=f"{keys.place}attention.sliding_window = {window}",
                expected="no window",
                fix=_FIX,
            )
        return {}
    if len(which) != layers:
        raise InputError(
            got=f"{keys.place}attention.sliding_window_pattern of {len(which)}",
            expected=f"{layers}",
            fix=_FIX,
        )
    return windowed(which, window)


def _scaling(
    keys: Fields, width: int, found: Mapping[str, Any], factors: Mapping[str, Sequence[float]]
) -> RopeScaling | None:
    original = keys.whole("rope.scaling.original_context_length", found["max_seq_len"])
    # Without its type a factor is llama.cpp's "linear", but where the file has factors of its own.
    kind = keys.get(
        "rope.scaling.type",
        "none" if factors or "rope.scaling.factor" not in keys.content else "linear",
    )
    for name in (
        "factor",
        "attn_factor",
        "yarn_beta_fast",
        "yarn_beta_slow",
        "yarn_attn_factor",
        "yarn_ext_factor",
    ):
        keys.get(f"rope.scaling.{name}")
    every = factors.get("rope_freqs.weight")
    if every is not None:
        if kind != "none":
            raise InputError(
                got=f"{keys.place}rope.scaling.type = {kind!r} with rope_freqs",
                expected="'none'",
                fix=_FIX,
            )
        return _by_factors(tuple(map(float, every)), found["rope_base"], width)
    if factors:
        if len(factors) != 2:
            raise InputError(
                got=f"{next(iter(factors))} alone",
                expected="rope_factors_long and rope_factors_short",
                fix=_FIX,
            )
        known = kind in ("none", "longrope")
        if not known:
            raise InputError(
                got=f"{keys.place}rope.scaling.type = {kind!r} with rope_factors_short",
                expected="'longrope'",
                fix=_FIX,
            )
        short, long = (
            tuple(map(float, factors[f"rope_factors_{name}.weight"])) for name in ("short", "long")
        )
        return LongRope(short, long, original, keys.number("rope.scaling.attn_factor", 1.0))
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
    if kind != "yarn":
        raise InputError(
            got=f"{keys.place}rope.scaling.type = {kind!r}",
            expected="'none', 'linear' or 'yarn'",
            fix=_FIX,
        )
    fast = keys.number("rope.scaling.yarn_beta_fast", 32.0)
    slow = keys.number("rope.scaling.yarn_beta_slow", 1.0)
    yarn = Yarn(factor, original, fast, slow, truncate=True)
    # Converters since 2025 write transformers' attention_factor, which llama.cpp ignores; of others
    # 1 is "as usual".
    given = keys.number("rope.scaling.yarn_attn_factor", 1.0)
    alike(
        {
            f"{keys.place}rope.scaling.yarn_attn_factor": None if given == 1 else given,
            "YaRN's": yarn.concentration,
        }
    )
    return yarn


def _by_factors(factors: tuple[float, ...], base: float, width: int) -> RopeScaling | None:
    """Llama 3's rescaling, of which a file holds only the factors: recognised with the released
    models' numbers.
    """
    if len(factors) != width // 2:
        raise InputError(
            got=f"{len(factors)} factors in rope_freqs",
            expected=f"{width // 2}",
            fix=_FIX,
        )
    largest = max(factors)
    given = torch.tensor(factors, dtype=torch.float64)
    if largest == 1 == min(factors):
        return None
    if largest > 1:
        released = Llama3(largest, 8192)
        if torch.allclose(given, llama3_factors(released, base, width), rtol=1e-5, atol=0):
            return released
    return LongRope(factors, factors, 2**30)


def llama3_factors(scaling: Llama3, base: float, width: int) -> Float64[Tensor, " pair"]:
    """The factors by which it divides the frequencies of ``width`` coordinates."""
    powers = base ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return 1 / (powers * frequencies(powers, scaling, base))
