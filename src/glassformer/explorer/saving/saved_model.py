"""Export a model into a saved page, whose engine (``web/src/engine``) runs it on other texts."""

import base64
import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedEncoder,
    LoadedEncoderDecoder,
    LoadedHead,
    LoadedModel,
    LoadedProgram,
)
from glassformer.explorer.saving.saved_program import saved_program
from glassformer.handcraft.tasks import KEPT_CASES
from glassformer.layers.positions import SinusoidalPositions
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder

MOST_MODEL_BYTES = 1_500_000
"""Largest size of the weights in a page, in bytes."""
_MOST_SCORES = 1 << 19
"""Largest number of sequences x positions x positions of a head's task.

The page runs all sequences while weights are typed.
"""
_NAMES = {
    "encoder_layers.": "encoder.layers.",
    "encoder_norm.": "encoder.final_norm.",
    "decoder_layers.": "decoder.layers.",
    "decoder_norm.": "decoder.final_norm.",
    "target_embedding.": "decoder.embedding.",
    "classifier.": "output.",
}
"""Prefixes of tensor names in an encoder-decoder, and the engine's prefixes."""


def saved_model(loaded: LoadedModel) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the model as the page's engine reads it, and sentences that say what the page lacks.

    The engine runs our decoders, classifiers and encoder-decoders in float32, single heads, and
    compiled programs. Return None and no sentence for any other model, and for:

    - texts that ``loaded.codec`` does not describe, and decoders of words;
    - scaled rotary embeddings, and packed experts;
    - modules that the model's class does not make, hooks, or another ``forward``;
    - tasks of too many sequences;
    - programs in another dtype, or with variables of too many values.
    """
    if isinstance(loaded, LoadedHead):
        exported = _head(loaded)
    elif isinstance(loaded, LoadedProgram):
        exported = saved_program(loaded)
    else:
        exported = _transformer(loaded)
    if exported is None:
        return None, []
    data, tensors = exported
    stored = save({name: _smallest(tensor.cpu()).contiguous() for name, tensor in tensors.items()})
    if len(stored) > MOST_MODEL_BYTES:
        size = f"{len(stored):,} bytes, more than {MOST_MODEL_BYTES:,}"
        return None, [f"The model is left out: its weights take {size}."]
    return data | {"weights": base64.b64encode(stored).decode(), "crc32": zlib.crc32(stored)}, []


def _head(loaded: LoadedHead) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Return a head's task as data, with the designed weights, all targets and the tiers of keys.

    Return None for a task that is not proved by running every sequence.
    """
    task = loaded.task
    space = loaded.task.space
    most_cases = min(KEPT_CASES, _MOST_SCORES // space.num_positions**2)
    if task.examples is not None or task.count > most_cases:
        return None
    cases = task.all_cases
    tensors = {name: torch.tensor(matrix) for name, matrix in loaded.weights.matrices.items()}
    tensors["targets"] = torch.from_numpy(cases.target[cases.counted])
    if task.description is not None:
        tensors["tiers"] = torch.from_numpy(task.description.table.tiers).double()
    data = {
        "letters": list(space.letters),
        "has_cls": space.has_cls,
        "max_len": space.max_len,
        "v_dim": task.v_dim,
        "readout": task.readout,
        "tolerance": task.tolerance,
        "decisive_error": task.decisive_error,
    }
    return {"kind": "head", "task": data}, tensors


def _transformer(
    loaded: LoadedDecoder | LoadedEncoder | LoadedEncoderDecoder,
) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Return a model's configuration and codec as data, with its weights."""
    model = loaded.model
    codec = loaded.codec
    if codec is None or type(model) not in (Decoder, Encoder, EncoderDecoder):
        return None
    if not _is_plain(model):
        return None
    classes: Sequence[str] = ()
    if isinstance(loaded, LoadedEncoder):
        classes = loaded.classes
        if not classes:
            return None
    elif codec["kind"] == "words":
        return None
    config = _config(model.config)
    if config is None:
        return None
    if "words" in codec and len(codec["words"]) != config["vocab_size"]:
        return None
    config["classes"] = classes
    return {"kind": "transformer", "config": config, "codec": dict(codec)}, _tensors(model)


def _is_plain(model: Any) -> bool:
    """Check that a model has the modules of its class, in float32, without hooks."""
    with torch.device("meta"):
        fresh = type(model)(model.config)
    modules = list(model.modules())
    if list(map(type, modules)) != list(map(type, fresh.modules())):
        return False
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return False
    return not any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
        for module in modules
    )


def _config(config: Any) -> dict[str, Any] | None:
    """Return the configuration of a decoder with the same blocks, and the model's stacks.

    Return None if the engine does not compute the model.
    """
    if isinstance(config, DecoderConfig):
        if config.rope_scaling is not None or config.expert_format != "dense":
            return None
        stacks = [{"part": "self", "prefix": "", "layers": config.num_layers, "causal": True}]
        return dataclasses.asdict(config) | {
            "kind": "decoder",
            "stacks": stacks,
            "pooling": None,
            "pad_id": None,
        }
    blocks = DecoderConfig(
        vocab_size=config.vocab_size,
        num_layers=1,
        hidden_dim=config.hidden_dim,
        ff_dim=config.ff_dim,
        num_heads=config.num_heads,
        head_dim=config.hidden_dim // config.num_heads,
        learned_positions=True,
        norm="layer",
        norm_eps=config.norm_eps,
        activation=config.activation,
        gated=False,
        embedding_scale=config.hidden_dim**0.5 if config.scale_embeddings else 1.0,
    )
    engine_config = dataclasses.asdict(blocks)
    engine_config |= {
        "norm_place": "before" if config.norm_first else "sum",
        "pad_id": config.pad_id,
        "pooling": None,
    }
    if isinstance(config, EncoderConfig):
        stacks = [{"part": "self", "prefix": "", "layers": config.num_layers, "causal": False}]
        return engine_config | {"kind": "encoder", "stacks": stacks, "pooling": config.pooling}
    layers = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    stacks = [
        {"part": part, "prefix": f"{part}.", "layers": layers[part], "causal": part == "decoder"}
        for part in layers
    ]
    return engine_config | {"kind": "encoder_decoder", "stacks": stacks}


def _tensors(model: Any) -> dict[str, Tensor]:
    """Return the weights by the engine's names.

    Segment embeddings are added to positions, and the tables of a slot's fields are concatenated.
    """
    tensors = {_renamed(name): tensor.detach() for name, tensor in model.named_parameters()}
    if isinstance(model, Encoder):
        segments = tensors.pop("token_types.weight", None)
        table = _table(model.positions)
        if segments is not None:
            if table is None:
                table = segments[:1].expand(model.config.max_seq_len, -1)
            else:
                table = table + segments[0]
        if table is not None:
            tensors["positions.weight"] = table
    if isinstance(model, EncoderDecoder):
        fields = range(model.config.fields_per_slot)
        tensors["encoder.embedding.weight"] = torch.cat(
            [tensors.pop(f"source_embeddings.{field}.weight") for field in fields]
        )
        for part, name in (("encoder", "source_positions"), ("decoder", "target_positions")):
            tensors.pop(f"{name}.weight", None)
            table = _table(getattr(model, name))
            if table is not None:
                tensors[f"{part}.positions.weight"] = table
    return tensors


def _renamed(name: str) -> str:
    for old, new in _NAMES.items():
        if name.startswith(old):
            return new + name.removeprefix(old).replace("self_attention", "attention")
    return name


def _table(positions: nn.Module | None) -> Tensor | None:
    """Return the vector that is added to the embedding of each position."""
    if positions is None:
        return None
    table = positions.table if isinstance(positions, SinusoidalPositions) else positions.weight
    assert isinstance(table, Tensor)
    return table.detach()


def _smallest(tensor: Tensor) -> Tensor:
    """Return the tensor in 16 bits if that changes no number, as in models stored in 16 bits."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        if torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
            return tensor.to(dtype)
    return tensor
