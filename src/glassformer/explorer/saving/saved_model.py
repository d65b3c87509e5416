"""A model inside a saved page, which the page's engine (``web/src/engine``) runs on other texts."""

import base64
import dataclasses
import zlib
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
"""The largest weights that a page holds, in bytes."""
_MOST_SCORES = 1 << 19
"""Sequences x positions x positions of a head's task that are all run while weights are typed."""
_NAMES = {
    "encoder_layers.": "encoder.layers.",
    "encoder_norm.": "encoder.final_norm.",
    "decoder_layers.": "decoder.layers.",
    "decoder_norm.": "decoder.final_norm.",
    "target_embedding.": "decoder.embedding.",
    "classifier.": "output.",
}
"""How the names of tensors begin in a model, and for the engine, for which all stacks are alike."""


def saved_model(loaded: LoadedModel) -> tuple[dict[str, Any] | None, list[str]]:
    """The model as the page's engine reads it, and the sentences with which the page says what it
    lacks.

    None, and no sentence, for a model that the engine does not compute: others than our decoders,
    classifiers and encoder-decoders in float32, single heads and compiled programs; texts that
    ``loaded.codec`` does not describe, decoders of words, stretched rotations, packed experts,
    modules that the model's class does not make, hooks, another ``forward``; tasks of too many
    sequences; programs in another dtype or with values that are not listed.
    """
    if isinstance(loaded, LoadedHead):
        found = _head(loaded)
    elif not isinstance(loaded, LoadedProgram):
        found = _transformer(loaded)
    else:
        found = saved_program(loaded)
    if found is None:
        return None, []
    data, tensors = found
    stored = save({name: _smallest(tensor.cpu()).contiguous() for name, tensor in tensors.items()})
    if len(stored) > MOST_MODEL_BYTES:
        size = f"{len(stored):,} bytes, more than {MOST_MODEL_BYTES:,}"
        return None, [f"The model is left out: its weights take {size}."]
    return data | {"weights": base64.b64encode(stored).decode(), "crc32": zlib.crc32(stored)}, []


def _head(loaded: LoadedHead) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The task as data, and the weights of the design, the judged outputs of all sequences, and
    which keys are wanted.

    None for a task that is not proved by running every sequence.
    """
    task = loaded.task
    space = loaded.task.space
    if task.examples is not None or task.count > min(
        KEPT_CASES, _MOST_SCORES // space.num_positions**2
    ):
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
    model = loaded.model
    if (
        loaded.codec is None
        or type(model) not in (Decoder, Encoder, EncoderDecoder)
        or not _is_plain(model)
    ):
        return None
    if not (
        loaded.classes if isinstance(loaded, LoadedEncoder) else loaded.codec["kind"] != "words"
    ):
        return None
    config = _config(model.config)
    if (
        config is None
        or len(loaded.codec.get("words", range(config["vocab_size"]))) != config["vocab_size"]
    ):
        return None
    config |= {"classes": loaded.classes if isinstance(loaded, LoadedEncoder) else ()}
    return {"kind": "transformer", "config": config, "codec": dict(loaded.codec)}, _tensors(model)


def _is_plain(model: Any) -> bool:
    """Whether a model consists of the modules that its class makes, in float32, and nothing watches
    them.
    """
    with torch.device("meta"):
        plain = type(model)(model.config)
    modules = list(model.modules())
    return (
        [type(each) for each in modules] == [type(each) for each in plain.modules()]
        and all(each.dtype == torch.float32 for each in model.parameters())
        and not any(
            each._forward_hooks or each._forward_pre_hooks or "forward" in vars(each)
            for each in modules
        )
    )


def _config(config: Any) -> dict[str, Any] | None:
    """The configuration of a decoder with the same blocks, and how the model differs from a
    decoder.
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
    found = dataclasses.asdict(blocks)
    found |= {
        "norm_place": "before" if config.norm_first else "sum",
        "pad_id": config.pad_id,
        "pooling": None,
    }
    if isinstance(config, EncoderConfig):
        stacks = [{"part": "self", "prefix": "", "layers": config.num_layers, "causal": False}]
        return found | {"kind": "encoder", "stacks": stacks, "pooling": config.pooling}
    layers = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    stacks = [
        {"part": part, "prefix": f"{part}.", "layers": layers[part], "causal": part == "decoder"}
        for part in layers
    ]
    return found | {"kind": "encoder_decoder", "stacks": stacks}


def _tensors(model: Any) -> dict[str, Tensor]:
    """The weights by the engine's names. Segments are added to positions, and tables of fields are
    one.
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
            [tensors.pop(f"source_embeddings.{each}.weight") for each in fields]
        )
        for part, positions in (
            ("encoder", model.source_positions),
            ("decoder", model.target_positions),
        ):
            tensors.pop(f"{'source' if part == 'encoder' else 'target'}_positions.weight", None)
            table = _table(positions)
            if table is not None:
                tensors[f"{part}.positions.weight"] = table
    return tensors


def _renamed(name: str) -> str:
    for old, new in _NAMES.items():
        if name.startswith(old):
            return new + name.removeprefix(old).replace("self_attention", "attention")
    return name


def _table(positions: nn.Module | None) -> Tensor | None:
    """What is added to the embedding of each position."""
    if positions is None:
        return None
    found: Tensor | nn.Module
    if isinstance(positions, SinusoidalPositions):
        found = positions.table
    else:
        found = positions.weight
    assert isinstance(found, Tensor)
    return found.detach()


def _smallest(tensor: Tensor) -> Tensor:
    """The same numbers in 16 bits where they are exact there, as those of models that were stored
    so.
    """
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        if torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
            return tensor.to(dtype)
    return tensor
