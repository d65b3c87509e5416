import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from released_20b import OPENAIS_20B
from transformers import GptOssConfig

from glassformer.checkpoints.assembly import config_errors
from glassformer.checkpoints.families import family_in
from glassformer.checkpoints.families.gpt_oss import GPT_OSS, OPENAI
from glassformer.errors import CheckpointError
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import DecoderConfig
from refusals import refused

FILE = Path("there/config.json")
# The 20b as it was released.
RELEASED = DecoderConfig(
    vocab_size=201088,
    num_layers=24,
    hidden_dim=2880,
    ff_dim=2880,
    num_heads=64,
    head_dim=64,
    num_kv_heads=8,
    window=128,
    windowed_layers="even",
    num_experts=32,
    top_k=4,
    sinks=True,
    attention_bias=True,
    ff_bias=True,
    clamp=Clamp(1.702, 7.0),
    max_seq_len=131072,
    rope_base=150000.0,
    rope_scaling=Yarn(32.0, 4096, 32.0, 1.0, truncate=False),
)
HUGGINGFACE = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


def read(config: dict[str, Any]) -> DecoderConfig:
    family = family_in(config)
    with config_errors(FILE):
        return family.read_config(config)


@pytest.mark.parametrize("config", [HUGGINGFACE, OPENAIS_20B])
def test_the_released_configurations(config: dict[str, Any]) -> None:
    assert read(config) == RELEASED


def test_whose_configuration_it_is() -> None:
    assert family_in(HUGGINGFACE) is GPT_OSS
    assert family_in(OPENAIS_20B) is OPENAI
    for other in (
        {},
        {"model_type": "gpt"},
        {"model_type": None, **OPENAIS_20B},
        {"num_hidden_layers": 2},
    ):
        assert family_in(other) is None


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"num_hidden_layers": 24, "num_local_experts": 32},
        {"rope_theta": 5000.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
            }
        },
        {"rope_scaling": None},
        {"rope_parameters": None},
        {"rope_parameters": {}},
        {"rope_scaling": {}},
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
            },
            "rope_parameters": {"rope_type": "default"},
        },
        {"num_experts": 8, "sliding_window": 16},
    ],
)
def test_defaults_are_hugging_faces(given: dict[str, Any]) -> None:
    ours = read({"model_type": "gpt_oss", **given})
    theirs = GptOssConfig(**given)
    rope = theirs.rope_parameters
    assert (ours.num_layers, ours.num_experts, ours.top_k) == (
        theirs.num_hidden_layers,
        theirs.num_local_experts,
        theirs.num_experts_per_tok,
    )
    assert (ours.num_kv_heads or ours.num_heads, ours.window) == (
        theirs.num_key_value_heads,
        theirs.sliding_window,
    )
    assert (ours.rope_base, ours.norm_eps, ours.max_seq_len) == (
        rope["rope_theta"],
        theirs.rms_norm_eps,
        theirs.max_position_embeddings,
    )
    assert (ours.rope_scaling is None) == (rope["rope_type"] == "default")
    if ours.rope_scaling is not None:
        assert ours.rope_scaling.factor == rope["factor"]
        assert ours.rope_scaling.original_max_seq_len == rope["original_max_position_embeddings"]
        assert ours.rope_scaling.truncate == rope.get("truncate", True)
    for layer, kind in enumerate(theirs.layer_types):
        assert (ours.layer_window(layer) is None) == (kind == "full_attention")


def test_openais_without_stretch_and_without_window() -> None:
    config = read(OPENAIS_20B | {"rope_scaling_factor": 1.0, "sliding_window": 0})
    assert (config.rope_scaling, config.window, config.max_seq_len) == (None, None, 4096)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "2880"}, "hidden_size = '2880'"),
        ({"hidden_size": -1}, "hidden_size = -1"),
        ({"hidden_size": 10**400}, "hidden_size = 1000"),
        ({"hidden_size": 0}, "hidden_dim = 0"),
        ({"vocab_size": True}, "vocab_size = True"),
        ({"num_experts_per_tok": 33}, "experts_per_token = 4 and num_experts_per_tok = 33"),
        ({"num_local_experts": 3}, "top_k = 4 with num_experts = 3"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps = inf"),
        ({"swiglu_limit": [7]}, r"swiglu_limit = \[7\]"),
        ({"swiglu_limit": 0}, "limit = 0"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method = 'gptq'"),
        ({"quantization_config": "fp8"}, "quantization_config = 'fp8'"),
        ({"layer_types": ["full_attention"]}, "layer_types = "),
        ({"sliding_window": None}, "sliding_window = None with"),
        ({"sliding_window": 0}, "window = 0"),
        ({"rope_scaling": "yarn"}, "rope_scaling = 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type = 'llama3'"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"rope_type = \['yarn'\]"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "no rope_scaling.factor"),
        ({"rope_scaling": {**HUGGINGFACE["rope_scaling"], "factor": 0.5}}, "factor = 0.5"),
        ({"rope_scaling": {**HUGGINGFACE["rope_scaling"], "mscale": 1.0}}, "mscale = 1.0"),
        ({"rope_scaling": {**HUGGINGFACE["rope_scaling"], "truncate": "no"}}, "truncate = 'no'"),
        (
            {"rope_scaling": {**HUGGINGFACE["rope_scaling"], "partial_rotary_factor": 0.5}},
            "partial_rotary_factor = 0.5",
        ),
        (
            {
                "rope_scaling": {
                    **HUGGINGFACE["rope_scaling"],
                    "original_max_position_embeddings": 0,
                }
            },
            "original_max_seq_len = 0",
        ),
        ({"rope_theta": "1e5"}, "rope_theta = '1e5'"),
        ({"rope_theta": 1}, "rope_base = 1.0"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, Any], message: str) -> None:
    with refused(message, error=CheckpointError) as caught:
        read(HUGGINGFACE | change)
    assert str(FILE) in caught.value.got


def test_what_openais_program_would_refuse_is_refused() -> None:
    with refused("num_groups", error=CheckpointError):
        read(OPENAIS_20B | {"num_groups": 2})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rope_scaling": None},
        {"windowed_layers": "odd"},
        {"windowed_layers": "all"},
        {"windowed_layers": (0, 1, 5, 23)},
        {"windowed_layers": (12,)},
        {"num_kv_heads": 64, "dropout": 0.25, "norm_eps": 1e-6},
        {"clamp": Clamp(1.0, 32.0)},
    ],
)
def test_what_is_written_is_read_again_by_both(change: dict[str, Any]) -> None:
    config = dataclasses.replace(RELEASED, **change)
    written = GPT_OSS.write_config(config, torch.bfloat16)
    assert read(written) == config
    theirs = GptOssConfig(**written)
    assert read(theirs.to_dict()) == config
    assert theirs.dtype == torch.bfloat16


def test_what_was_released_is_written_as_it_was() -> None:
    written = GPT_OSS.write_config(
        dataclasses.replace(RELEASED, expert_format="mxfp4"), torch.bfloat16
    )
    for name, value in HUGGINGFACE.items():
        if name not in ("eos_token_id", "quantization_config"):
            assert written[name] == value, name
    assert written["quantization_config"]["quant_method"] == "mxfp4"
