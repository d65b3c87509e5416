"""A model inside a saved page, which the page's engine (``web/src/engine``) runs on other texts."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedModel
from glassformer.models.decoder import Decoder

MOST_MODEL_BYTES = 1_500_000
"""The largest weights that a page holds, in bytes."""


def saved_model(loaded: LoadedModel) -> tuple[dict[str, Any] | None, list[str]]:
    """The model as the page's engine reads it, and the sentences with which the page says what it lacks.

    None, and no sentence, for a model that the engine does not compute: other kinds than our decoders in float32, a
    tokenizer that :attr:`~LoadedDecoder.codec` does not describe, stretched rotations, packed experts, modules that
    :class:`Decoder` does not make, hooks.
    """
    if not isinstance(loaded, LoadedDecoder) or loaded.codec is None or type(loaded.model) is not Decoder:
        return None, []
    config, tensors = loaded.model.config, dict(loaded.model.named_parameters())
    in_float32 = all(each.dtype == torch.float32 for each in tensors.values())
    if not in_float32 or config.rope_scaling is not None or config.expert_format != "dense":
        return None, []
    with torch.device("meta"):
        plain = Decoder(config)
    modules = list(loaded.model.modules())
    if [type(each) for each in modules] != [type(each) for each in plain.modules()]:
        return None, []
    if any(each._forward_hooks or each._forward_pre_hooks for each in modules):
        return None, []
    stored = save({name: _smallest(tensor.detach().cpu()).contiguous() for name, tensor in tensors.items()})
    if len(stored) > MOST_MODEL_BYTES:
        size = f"{len(stored):,} bytes, more than {MOST_MODEL_BYTES:,}"
        return None, [f"The model is left out: its weights take {size}."]
    model = {
        "config": dataclasses.asdict(config),
        "codec": dict(loaded.codec),
        "weights": base64.b64encode(stored).decode(),
        "sha256": hashlib.sha256(stored).hexdigest(),
    }
    return model, []


def _smallest(tensor: Tensor) -> Tensor:
    """The same numbers in 16 bits where they are exact there, as those of models that were stored so."""
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(tensor.to(dtype).float(), tensor):
            return tensor.to(dtype)
    return tensor
