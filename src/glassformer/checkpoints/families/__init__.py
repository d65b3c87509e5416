"""Families of decoders: one row of a table each, in the file of the family that it resembles most."""

from collections.abc import Mapping
from typing import Any

from glassformer.checkpoints.families.gemma import GEMMA2, GEMMA3
from glassformer.checkpoints.families.gpt2 import GPT2, GPT_NEO, GPT_NEOX, NANOCHAT
from glassformer.checkpoints.families.gpt_oss import GPT_OSS, OPENAI
from glassformer.checkpoints.families.llama import (
    EXAONE4,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    OLMO2,
    OLMO3,
    PHI3,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    SMOLLM3,
)
from glassformer.checkpoints.families.table import Family

FAMILIES = (
    *(LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, MIXTRAL, SMOLLM3, PHI3, GEMMA2, GEMMA3),
    *(OLMO2, OLMO3, EXAONE4, GPT2, GPT_NEO, GPT_NEOX, NANOCHAT, GPT_OSS, OPENAI),
)
"""All rows; of those that can hold a decoder the first is taken to write it."""


def family_of(model_type: object) -> Family | None:
    """The family of this ``model_type``; None for another."""
    return next(
        (
            each
            for each in FAMILIES
            if model_type and model_type in (each.model_type, each.multimodal)
        ),
        None,
    )


def family_in(config: Mapping[str, Any]) -> Family | None:
    """The family of the content of a ``config.json``; None for another."""
    if "model_type" in config:
        return family_of(config["model_type"])
    if {"num_experts", "experts_per_token", "num_hidden_layers"} <= config.keys():
        return OPENAI
    return None


def family_of_gguf(metadata: Mapping[str, Any]) -> Family | None:
    """The family of a GGUF file with this ``general.architecture``; None for another."""
    name = metadata.get("general.architecture")
    return next(
        (family for family in FAMILIES if isinstance(name, str) and family.gguf == name), None
    )
