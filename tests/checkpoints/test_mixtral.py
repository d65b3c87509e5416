import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM

from glassformer.checkpoints.families.files import decoder_in_memory, in_family
from glassformer.checkpoints.families.llama import MIXTRAL
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

# The form of the real thing, small: grouped heads, eight experts of which two are chosen.
TINY = DecoderConfig(
    vocab_size=32,
    num_layers=2,
    hidden_dim=16,
    ff_dim=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_experts=8,
    top_k=2,
    max_seq_len=256,
    windowed_layers="all",
)


def mixtral_from_decoder(decoder: Decoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    written, planned = in_family(MIXTRAL, decoder_in_memory(decoder))
    return written, {name: each.make() for name, each in planned.items()}


def decoder_from_mixtral(config: dict[str, Any], tensors: dict[str, Tensor]) -> Decoder:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "config.json").write_text(json.dumps({"model_type": "mixtral", **config}))
        save_file({name: each.contiguous().clone() for name, each in tensors.items()}, directory / "model.safetensors")
        return Decoder.from_pretrained(directory)


@pytest.mark.parametrize("windowed", [(), (0,), (1, 2), (0, 3)])
def test_layer_types_are_ignored_as_by_hugging_face(windowed: tuple[int, ...], tmp_path: Path) -> None:
    """Its MixtralForCausalLM gives every layer the window, whatever ``layer_types`` says."""
    kinds = ["sliding_attention" if layer in windowed else "full_attention" for layer in range(4)]
    hf_config, _ = mixtral_from_decoder(Decoder(dataclasses.replace(TINY, num_layers=4, window=4)))
    hf_config |= {"layer_types": kinds, "initializer_range": 0.3, "attn_implementation": "sdpa"}
    model = MixtralForCausalLM(MixtralConfig(**hf_config)).eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["layer_types"] == kinds
    decoder = Decoder.from_pretrained(tmp_path).eval()
    tokens = torch.randint(32, (2, 20))
    with torch.no_grad():
        assert (decoder(tokens) - model(tokens).logits).abs().max() <= 1e-5
    assert (decoder.config.window, decoder.config.windowed_layers) == (4, "all")


def test_defaults_are_hugging_faces() -> None:
    """A config.json without the fields that have their default is read as Hugging Face reads it."""
    hf_config, tensors = mixtral_from_decoder(Decoder(dataclasses.replace(TINY, num_kv_heads=4)))
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    short = {name: hf_config[name] for name in needed} | {"num_key_value_heads": 4, "head_dim": 8}
    read, theirs = decoder_from_mixtral(short, tensors).config, MixtralConfig(**short)
    assert read.max_seq_len == theirs.max_position_embeddings
    assert read.norm_eps == theirs.rms_norm_eps
    assert read.rope_base == theirs.rope_parameters["rope_theta"]
    assert (read.num_experts, read.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (read.window, read.dropout, read.tied_output) == (None, theirs.attention_dropout, theirs.tie_word_embeddings)
    without_heads = {name: value for name, value in short.items() if name != "head_dim"}
    with refused(r"q_proj.weight of shape \[32, 16\] instead of \[16, 16\]"):
        decoder_from_mixtral(without_heads, tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_format": "mxfp4", "hidden_dim": 32}, "expert_format = 'mxfp4'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"rope_scaling": Yarn()}, "rope_type = 'yarn'"),
        ({"window": 4, "windowed_layers": "odd"}, "windowed_layers = 'odd'"),
        ({"ff_dim": 0, "num_experts": None}, "num_local_experts = None"),
        ({"sinks": True, "ff_bias": True, "clamp": Clamp()}, "sinks = True, ff_bias = True, clamp = Clamp"),
    ],
)
def test_decoders_that_mixtral_cannot_express_are_refused(change: dict[str, Any], message: str) -> None:
    with refused(message):
        mixtral_from_decoder(Decoder(dataclasses.replace(TINY, **change)))
