"""SmolLM3 (Hugging Face 2025): Llama with layers that do not rotate (arXiv 2501.18795), every fourth by default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.llama import LLAMA, read_biases, write_biases
from glassformer.checkpoints.families.rotation import Rope
from glassformer.models import DecoderConfig


def _read(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    layers, every = range(found["num_layers"]), file.whole("no_rope_layer_interval", 4) or 4
    rotated = file.names("no_rope_layers", len(layers), (0, 1)) or [(n + 1) % every for n in layers]
    return read_biases(file, found) | {"unrotated_layers": tuple(n for n in layers if not rotated[n])}


def _write(config: DecoderConfig) -> dict[str, Any]:
    return write_biases(config) | {
        "no_rope_layers": [int(n not in config.unrotated_layers) for n in range(config.num_layers)]
    }


SMOLLM3 = replace(
    LLAMA,
    name="SmolLM3",
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768},
    tied=True,
    rope=Rope(base=2e6),
    windows="types",
    window_flag=True,
    read=_read,
    write=_write,
    gguf="smollm3",
    gguf_read=lambda _, found: {"unrotated_layers": tuple(range(3, found["num_layers"], 4))},
)
