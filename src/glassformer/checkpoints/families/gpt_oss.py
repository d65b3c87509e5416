"""gpt-oss in GGUF files; directories of it have readers of their own (:mod:`glassformer.checkpoints.gpt_oss`).

Its ``post_attention_norm`` is the norm before the experts. No key says that the borders of YaRN are not rounded.

Source: OpenAI 2025, gpt-oss model card; llama.cpp, ``conversion/gpt_oss.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from glassformer.checkpoints.families.gguf_names import GGUF_NAMES
from glassformer.checkpoints.families.table import Family
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn

_BIASES = {f"ffn.{part}_bias": f"ffn_{part}_exps.bias" for part in ("gate", "up", "down")}


def _read(keys: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    scaling = found.get("rope_scaling")
    return {"rope_scaling": replace(scaling, truncate=False)} if isinstance(scaling, Yarn) else {}


GPT_OSS = Family(
    name="gpt-oss",
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    parts={"sinks": True, "attention_bias": True, "ff_bias": True, "clamp": Clamp()},
    windows="types",
    period=2,
    gguf="gpt-oss",
    gguf_names=GGUF_NAMES | _BIASES | {"attention.sinks": "attn_sinks.weight", "ffn_norm": "post_attention_norm"},
    gguf_read=_read,
)


def packed_experts(raw: Mapping[str, UInt8[Tensor, "expert row bytes"]]) -> dict[str, UInt8[Tensor, "..."]]:
    """What a mixture packed in MXFP4 holds, from GGUF's blocks of its ``gate``, ``up`` and ``down``.

    A block is its exponent, and 16 bytes of a weight of the first half and one of the second; here a byte has two
    neighbours, and rows of gate and up are in turns.
    """
    turned = {}
    for name, blocks in raw.items():
        cut = blocks.unflatten(-1, (-1, 17))
        codes = torch.cat([cut[..., 1:] & 15, cut[..., 1:] >> 4], dim=-1)
        turned[name] = codes[..., 0::2] | codes[..., 1::2] << 4, cut[..., 0].contiguous()
    found = {}
    for index, part in enumerate(("blocks", "scales")):
        gate, up = turned["gate"][index], turned["up"][index]
        found[f"gate_up_{part}"] = torch.stack([gate, up], dim=2).flatten(1, 2)
        found[f"down_{part}"] = turned["down"][index]
    return found
