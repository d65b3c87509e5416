"""Small models in every form."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import (
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
)

Base = DecoderConfig | EncoderConfig | EncoderDecoderConfig
Forms = dict[str, dict[str, Any]]

DECODER = DecoderConfig(
    vocab_size=32, num_layers=4, hidden_dim=32, ff_dim=48, num_heads=4, head_dim=8, max_seq_len=64
)
GPT_OSS = {
    "num_kv_heads": 2,
    "window": 6,
    "windowed_layers": "even",
    "num_experts": 6,
    "top_k": 3,
    "sinks": True,
    "attention_bias": True,
    "ff_bias": True,
    "clamp": Clamp(),
    "rope_scaling": Yarn(factor=4.0, original_max_seq_len=16),
}
DECODERS: Forms = {
    "dense": {},
    "attention only": {"ff_dim": 0},
    "grouped": {"num_kv_heads": 2},
    "windowed": {"window": 5},
    "windowed everywhere": {"window": 1, "windowed_layers": "all", "num_kv_heads": 1},
    "experts": {"num_experts": 8},
    "sinks": {"sinks": True, "num_kv_heads": 2, "window": 7},
    "key weights": {"key_weights": True, "num_kv_heads": 2},
    "tied": {"tied_output": True},
    "interleaved": {"rope_layout": "interleaved"},
    "gpt-oss": GPT_OSS,
}
ENCODER = EncoderConfig(
    vocab_size=40,
    num_layers=2,
    hidden_dim=24,
    ff_dim=40,
    num_heads=4,
    max_seq_len=64,
    num_classes=3,
    dropout=0.0,
)
BERT = {
    "final_norm": False,
    "positions": "learned",
    "scale_embeddings": False,
    "embedding_norm": True,
    "token_types": 2,
    "norm_eps": 1e-12,
}
ENCODERS: Forms = {
    "course": {"activation": "relu"},
    "pre-norm, max": {"norm_first": True, "pooling": "max"},
    "bert": BERT,
    "bert, cls": {**BERT, "pooling": "cls"},
    "no positions": {"positions": "none", "scale_embeddings": False, "pad_id": 7},
}
BOTH = EncoderDecoderConfig(
    vocab_size=20,
    hidden_dim=24,
    ff_dim=40,
    num_heads=4,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_source_len=12,
    max_target_len=10,
    dropout=0.0,
)
BOTHS: Forms = {
    "course": {},
    "one layer": {"num_encoder_layers": 1, "num_decoder_layers": 1, "final_norm": True},
    "pre-norm": {"norm_first": True, "final_norm": True, "activation": "gelu"},
    "slots": {"fields_per_slot": 2, "target_vocab_size": 30, "num_encoder_layers": 1},
    "positions": {
        "source_positions": "sinusoidal",
        "target_positions": "learned",
        "scale_embeddings": False,
    },
    "no positions": {"target_positions": "none", "pad_id": 7, "num_decoder_layers": 3},
}
every_form = pytest.mark.parametrize(
    ("base", "form"),
    [
        pytest.param(base, form, id=f"{type(base).__name__}-{name}")
        for base, forms in ((DECODER, DECODERS), (ENCODER, ENCODERS), (BOTH, BOTHS))
        for name, form in forms.items()
    ],
)


def new(base: Base, **changes: Any) -> Any:
    """The model of a configuration, as it starts."""
    kinds = {DecoderConfig: Decoder, EncoderConfig: Encoder, EncoderDecoderConfig: EncoderDecoder}
    return kinds[type(base)](dataclasses.replace(base, **changes))


def make(base: Base, **changes: Any) -> Any:
    """With norms, biases, sinks and key weights that are not neutral, and a head that tells tokens
    or classes apart.
    """
    model = new(base, **changes).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) / 4)
        if isinstance(model, EncoderDecoder):
            model.output.weight.mul_(10)
        elif isinstance(model, Encoder) and model.classifier is not None:
            model.classifier.weight.mul_(3)
    return model


def draw(
    model: Any, batch: int, length: int, target_length: int | None = None
) -> tuple[Tensor, ...]:
    """A text without padding, or a source and a target."""
    config = model.config

    def tokens(vocab_size: int, *shape: int) -> Tensor:
        found = torch.randint(vocab_size - 1, shape)
        return found + (found >= getattr(config, "pad_id", vocab_size))

    if isinstance(model, EncoderDecoder):
        fields = () if config.fields_per_slot == 1 else (config.fields_per_slot,)
        target = tokens(config.target_vocab, batch, target_length or length)
        return tokens(config.vocab_size, batch, length, *fields), target
    return (tokens(config.vocab_size, batch, length),)
