"""The two layouts of gpt-oss's files, Hugging Face's and OpenAI's: names and shapes.

Both hold the same network. OpenAI's fuses query, key and value; Hugging Face's keeps the three apart. In both an
expert's gate and up rows alternate, gate first. Experts in MXFP4 are two tensors of bytes, ``[expert, row, group, 16]``
codes and ``[expert, row, group]`` exponents; dense ones are ``[expert, in, out]`` in Hugging Face's layout and
``[expert, out, in]`` in OpenAI's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from glassformer.checkpoints.assembly import empty_decoder
from glassformer.checkpoints.tensor_files import Wanted
from glassformer.models import DecoderConfig

GptOssLayout = Literal["huggingface", "openai"]
Matrix = Literal["gate_up", "down"]
MATRICES: tuple[Matrix, Matrix] = ("gate_up", "down")


def matrix_sizes(config: DecoderConfig, matrix: Matrix) -> tuple[int, int]:
    """Rows and width of a matrix of an expert, ``[out, in]``."""
    return (2 * config.ff_dim, config.hidden_dim) if matrix == "gate_up" else (config.hidden_dim, config.ff_dim)


_OUTSIDE = {
    "huggingface": {
        "embedding.weight": "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    },
    "openai": {
        "embedding.weight": "embedding.weight",
        "final_norm.weight": "norm.scale",
        "output.weight": "unembedding.weight",
    },
}
_PREFIX = {"huggingface": "model.layers.{}.", "openai": "block.{}."}
_VECTORS = {
    "huggingface": {
        "attention_norm.weight": "input_layernorm.weight",
        "attention.sinks": "self_attn.sinks",
        "ffn_norm.weight": "post_attention_layernorm.weight",
    },
    "openai": {
        "attention_norm.weight": "attn.norm.scale",
        "attention.sinks": "attn.sinks",
        "ffn_norm.weight": "mlp.norm.scale",
    },
}
_MATRICES = {
    "huggingface": {
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "ffn.router.score": "mlp.router",
    },
    "openai": {
        "attention.query": "attn.qkv",
        "attention.key": "attn.qkv",
        "attention.value": "attn.qkv",
        "attention.output": "attn.out",
        "ffn.router.score": "mlp.gate",
    },
}
"""Modules with a weight and, in gpt-oss, a bias."""
_ATTENTION = ("attention.query", "attention.key", "attention.value", "attention.output")


@dataclass(frozen=True)
class Source:
    """The rows of a tensor in the files that are one of our tensors."""

    name: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class ExpertNames:
    """The names of one layer's experts."""

    gate_up: str
    gate_up_bias: str
    down: str
    down_bias: str
    mark: str
    """Separator between a name and ``blocks`` or ``scales``."""

    def dense(self, matrix: Matrix) -> str:
        """The name of the dense weights."""
        return self.gate_up if matrix == "gate_up" else self.down

    def packed(self, matrix: Matrix) -> tuple[str, str]:
        """The names of the codes and of the exponents."""
        name = self.dense(matrix)
        return f"{name}{self.mark}blocks", f"{name}{self.mark}scales"


def expert_names(layout: GptOssLayout, layer: int) -> ExpertNames:
    """The names of the experts of layer ``layer``, counted from 0."""
    if layout == "openai":
        mlp = f"block.{layer}.mlp."
        return ExpertNames(f"{mlp}mlp1_weight", f"{mlp}mlp1_bias", f"{mlp}mlp2_weight", f"{mlp}mlp2_bias", ".")
    moe = f"model.layers.{layer}.mlp.experts."
    gate_up, down = f"{moe}gate_up_proj", f"{moe}down_proj"
    return ExpertNames(gate_up, f"{gate_up}_bias", down, f"{down}_bias", "_")


def are_packed(layout: GptOssLayout, names: Iterable[str]) -> bool:
    """Whether tensors of these names hold the experts in MXFP4."""
    end = f"{expert_names(layout, 0).mark}blocks"
    return any(name.endswith(end) for name in names)


def sources(config: DecoderConfig, layout: GptOssLayout) -> dict[str, Source]:
    """The source of each of our tensors except the experts (see :func:`expert_names`)."""
    query, kv = _attention_rows(config)
    fused = {
        "attention.query": (0, query),
        "attention.key": (query, query + kv),
        "attention.value": (query + kv, query + 2 * kv),
    }
    found = {ours: Source(theirs) for ours, theirs in _OUTSIDE[layout].items()}
    if config.tied_output:
        del found["output.weight"]
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", _PREFIX[layout].format(layer)
        found |= {ours + name: Source(theirs + their_name) for name, their_name in _VECTORS[layout].items()}
        for name, their_name in _MATRICES[layout].items():
            rows = fused.get(name, ()) if layout == "openai" else ()
            found[f"{ours}{name}.weight"] = Source(f"{theirs}{their_name}.weight", *rows)
            if config.attention_bias or name not in _ATTENTION:
                found[f"{ours}{name}.bias"] = Source(f"{theirs}{their_name}.bias", *rows)
    return found


def wanted(config: DecoderConfig, layout: GptOssLayout, *, packed: bool) -> dict[str, Wanted]:
    """Every tensor of such a model, by its name in the file, with its shape and the kinds of its numbers."""
    # All layers have the shapes of the first, and files may claim thousands.
    shapes = empty_decoder(replace(config, num_layers=1, windowed_layers="all")).state_dict()
    found: dict[str, Wanted] = {}
    for ours, source in sources(config, layout).items():
        rows, *others = shapes[re.sub(r"^layers\.\d+", "layers.0", ours)].shape
        before = found[source.name].shape[0] if source.name in found else 0
        found[source.name] = Wanted([before + rows, *others])
    for layer in range(config.num_layers):
        found |= _wanted_experts(config, layout, layer, packed)
    return found


def _attention_rows(config: DecoderConfig) -> tuple[int, int]:
    return config.num_heads * config.head_dim, (config.num_kv_heads or config.num_heads) * config.head_dim


def _wanted_experts(config: DecoderConfig, layout: GptOssLayout, layer: int, packed: bool) -> dict[str, Wanted]:
    names, experts = expert_names(layout, layer), config.num_experts or 0
    hidden, ff = config.hidden_dim, config.ff_dim
    found = {names.gate_up_bias: Wanted([experts, 2 * ff]), names.down_bias: Wanted([experts, hidden])}
    if packed:
        for matrix in MATRICES:
            out, into = matrix_sizes(config, matrix)
            blocks, scales = names.packed(matrix)
            found[blocks] = Wanted([experts, out, into // 32, 16], ("U8",))
            found[scales] = Wanted([experts, out, into // 32], ("U8",))
        return found
    transposed = layout == "huggingface"
    found[names.gate_up] = Wanted([experts, hidden, 2 * ff] if transposed else [experts, 2 * ff, hidden])
    found[names.down] = Wanted([experts, ff, hidden] if transposed else [experts, hidden, ff])
    return found
