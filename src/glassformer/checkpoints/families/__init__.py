"""Families of decoders: each is one row of a table, in the file of the family it resembles most."""

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
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    MIXTRAL,
    SMOLLM3,
    PHI3,
    GEMMA2,
    GEMMA3,
    OLMO2,
    OLMO3,
    EXAONE4,
    GPT2,
    GPT_NEO,
    GPT_NEOX,
    NANOCHAT,
    GPT_OSS,
    OPENAI,
)
"""Rows of the table. A decoder is written as the first family that can hold it."""


def family_of(model_type: object) -> Family | None:
    """Return the family of this ``model_type``; None if it is unknown."""
    if not model_type:
        return None
    for family in FAMILIES:
        if model_type in (family.model_type, family.multimodal):
            return family
    return None


def family_in(config: Mapping[str, Any]) -> Family | None:
    """Return the family of the content of a ``config.json``; None if it is unknown."""
    if "model_type" in config:
        return family_of(config["model_type"])
    if {"num_experts", "experts_per_token", "num_hidden_layers"} <= config.keys():
        return OPENAI
    return None


def family_of_gguf(metadata: Mapping[str, Any]) -> Family | None:
    """Return the family of a GGUF file by ``general.architecture``; None if it is unknown."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        return None
    for family in FAMILIES:
        if family.gguf == architecture:
            return family
    return None
