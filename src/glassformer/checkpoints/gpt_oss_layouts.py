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
from glassformer.checkpoints.tensor_files import FLOATS, Wanted
from glassformer.models import DecoderConfig

GptOssLayout = Literal["huggingface", "openai"]
Matrix = Literal["gate_up", "down"]
MATRICES: tuple[Matrix, Matrix] = ("gate_up", "down")


def matrix_sizes(config: DecoderConfig, matrix: Matrix) -> tuple[int, int]:
    """Rows and width of a matrix of an expert, ``[out, in]``."""
    return (2 * config.ff_dim, config.hidden_dim) if matrix == "gate_up" else (config.hidden_dim, config.ff_dim)


# Our names, Hugging Face's, and OpenAI's. Those of a layer follow a prefix.
_PREFIXES = "layers.{}.", "model.layers.{}.", "block.{}."
_OUTSIDE = (
    ("embedding.weight", "model.embed_tokens.weight", "embedding.weight"),
    ("final_norm.weight", "model.norm.weight", "norm.scale"),
    ("output.weight", "lm_head.weight", "unembedding.weight"),
)
_VECTORS = (
    ("attention_norm.weight", "input_layernorm.weight", "attn.norm.scale"),
    ("attention.sinks", "self_attn.sinks", "attn.sinks"),
    ("ffn_norm.weight", "post_attention_layernorm.weight", "mlp.norm.scale"),
)
# Modules with a weight and, in gpt-oss, a bias.
_PROJECTIONS = (
    ("attention.query", "self_attn.q_proj", "attn.qkv"),
    ("attention.key", "self_attn.k_proj", "attn.qkv"),
    ("attention.value", "self_attn.v_proj", "attn.qkv"),
    ("attention.output", "self_attn.o_proj", "attn.out"),
    ("ffn.router.score", "mlp.router", "mlp.gate"),
)


@dataclass(frozen=True)
class Source:
    """The rows of a tensor in the files that are one of our tensors."""

    name: str
    start: int = 0
    stop: int | None = None


def expert_names(layout: GptOssLayout, layer: int, matrix: Matrix, *, packed: bool) -> tuple[list[str], str]:
    """The names of a matrix of a layer's experts, which are two (codes, exponents) if it is packed; and of its bias."""
    if layout == "openai":
        name = f"block.{layer}.mlp.mlp{1 + MATRICES.index(matrix)}"
        weights, mark = f"{name}_weight", "."
    else:
        name = weights = f"model.layers.{layer}.mlp.experts.{matrix}_proj"
        mark = "_"
    return [f"{weights}{mark}blocks", f"{weights}{mark}scales"] if packed else [weights], f"{name}_bias"


def are_packed(names: Iterable[str]) -> bool:
    """Whether tensors of these names hold the experts in MXFP4."""
    return any(name.endswith("blocks") for name in names)


def sources(config: DecoderConfig, layout: GptOssLayout) -> dict[str, Source]:
    """The source of each of our tensors except the experts (see :func:`expert_names`)."""
    query = config.num_heads * config.head_dim
    kv = (config.num_kv_heads or config.num_heads) * config.head_dim
    fused = {
        "attention.query": (0, query),
        "attention.key": (query, query + kv),
        "attention.value": (query + kv, query + 2 * kv),
    }
    column = 1 if layout == "huggingface" else 2
    found = {names[0]: Source(names[column]) for names in _OUTSIDE}
    if config.tied_output:
        del found["output.weight"]
    for layer in range(config.num_layers):
        ours, theirs = _PREFIXES[0].format(layer), _PREFIXES[column].format(layer)
        found |= {ours + names[0]: Source(theirs + names[column]) for names in _VECTORS}
        if not config.sinks:
            del found[f"{ours}attention.sinks"]
        for names in _PROJECTIONS:
            name, their_name = names[0], names[column]
            rows = fused.get(name, ()) if layout == "openai" else ()
            found[f"{ours}{name}.weight"] = Source(f"{theirs}{their_name}.weight", *rows)
            if config.attention_bias if name.startswith("attention") else config.ff_bias:
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
    experts, kinds = config.num_experts or 0, ("U8",) if packed else tuple(FLOATS)
    for matrix in MATRICES:
        out, into = matrix_sizes(config, matrix)
        of_each = [[into, out] if layout == "huggingface" else [out, into]]
        if packed:
            of_each = [[out, into // 32, 16], [out, into // 32]]
        for layer in range(config.num_layers):
            names, bias = expert_names(layout, layer, matrix, packed=packed)
            found |= {name: Wanted([experts, *shape], kinds) for name, shape in zip(names, of_each, strict=True)}
            found[bias] = Wanted([experts, out])
    return found
