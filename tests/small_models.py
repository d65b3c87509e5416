"""One small model of each kind."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.training import TrainingConfig
from glassformer.training.checkpoint import save_weights

Model: TypeAlias = Encoder | Decoder | EncoderDecoder


def encoder(**changes: Any) -> Encoder:
    sizes = {
        "vocab_size": 50,
        "num_layers": 3,
        "hidden_dim": 8,
        "ff_dim": 20,
        "num_heads": 2,
        "max_seq_len": 16,
    }
    return Encoder(EncoderConfig(**{**sizes, "num_classes": 2, **changes}))


def decoder(**changes: Any) -> Decoder:
    sizes = {
        "vocab_size": 50,
        "num_layers": 4,
        "hidden_dim": 8,
        "ff_dim": 20,
        "num_heads": 4,
        "head_dim": 6,
    }
    return Decoder(DecoderConfig(**{**sizes, "max_seq_len": 64, **changes}))


def learned(**changes: Any) -> Decoder:
    """A decoder whose key weights and sinks are no longer at their start."""
    model = decoder(**changes).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "sinks" in name or "key_weights" in name:
                weight.uniform_(0.5, 1.5)
    return model


def encoder_decoder(**changes: Any) -> EncoderDecoder:
    sizes = {
        "vocab_size": 50,
        "hidden_dim": 8,
        "ff_dim": 20,
        "num_heads": 2,
        "max_source_len": 10,
        "max_target_len": 6,
    }
    return EncoderDecoder(
        EncoderDecoderConfig(
            **{**sizes, "num_encoder_layers": 2, "num_decoder_layers": 3, "dropout": 0.0, **changes}
        )
    )


BERT: dict[str, Any] = {
    "final_norm": False,
    "positions": "learned",
    "scale_embeddings": False,
    "embedding_norm": True,
    "token_types": 2,
    "num_classes": None,
}
EXPERTS: dict[str, Any] = {
    "num_kv_heads": 2,
    "window": 9,
    "num_experts": 4,
    "sinks": True,
    "key_weights": True,
    "attention_bias": True,
    "ff_bias": True,
    "clamp": Clamp(),
    "tied_output": True,
    "rope_scaling": Yarn(8.0),
}
SLOTS: dict[str, Any] = {
    "fields_per_slot": 2,
    "norm_first": True,
    "final_norm": True,
    "target_vocab_size": 30,
}
MODELS: dict[str, Callable[[], Model]] = {
    "course": encoder,
    "one block": lambda: encoder(num_layers=1, activation="relu", positions="none"),
    "pre-norm": lambda: encoder(norm_first=True, pooling="cls"),
    "BERT": lambda: encoder(**BERT),
    "dense decoder": decoder,
    "attention only": lambda: decoder(ff_dim=0),
    "experts": lambda: decoder(**EXPERTS),
    "two stacks": lambda: encoder_decoder(source_positions="learned"),
    "slots": lambda: encoder_decoder(**SLOTS),
}


def run(model: Model, batch: int, length: int) -> None:
    """One forward pass over ``batch`` texts of ``length`` tokens; targets are one token shorter
    than sources.
    """
    tokens = torch.ones(batch, length, dtype=torch.int64)
    model.eval()
    if isinstance(model, EncoderDecoder):
        fields = model.config.fields_per_slot
        model(tokens if fields == 1 else tokens[..., None].repeat(1, 1, fields), tokens[:, 1:])
    elif isinstance(model, Encoder) and model.classifier is None:
        model.hidden(tokens)
    else:
        model(tokens)


def write_run(
    directory: Path, model: nn.Module, where: str = "best", /, **description: Any
) -> Path:
    """A run directory as training leaves it."""
    (directory / where).mkdir(parents=True, exist_ok=True)
    save_weights(model, directory / where)
    content = {"training": asdict(TrainingConfig()), "description": description}
    (directory / "config.json").write_text(json.dumps(content))
    return directory
