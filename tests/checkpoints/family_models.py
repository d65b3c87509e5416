"""Tiny random models of transformers for every family, and what it takes to compare with them in
float64.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

VOCAB = 40
LONGEST = 64
# Shorter than the texts of the tests, as are the windows.
ORIGINAL = 16

CLASSES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "mixtral": "Mixtral",
    "smollm3": "SmolLM3",
    "phi3": "Phi3",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3Text",
    "olmo2": "Olmo2",
    "olmo3": "Olmo3",
    "exaone4": "Exaone4",
    "gpt2": "GPT2",
    "gpt_neo": "GPTNeo",
    "gpt_neox": "GPTNeoX",
    "nanochat": "NanoChat",
}
FAMILIES = tuple(CLASSES)


def random_config(family: str, rng: random.Random) -> dict[str, Any]:
    """The arguments of a random tiny configuration; every part of the family occurs."""
    layers = rng.randint(1, 4)
    heads = rng.choice([2, 4])
    head_dim = rng.choice([8, 12, 16])
    config: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 16 if family.startswith("gemma") else 4 * rng.randint(3, 8),
        "intermediate_size": rng.randint(9, 40),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([each for each in (1, 2, 4) if heads % each == 0]),
        "head_dim": head_dim,
        "max_position_embeddings": LONGEST,
        "rms_norm_eps": rng.choice([1e-5, 1e-6]),
        "tie_word_embeddings": rng.random() < 0.5,
        "attention_bias": rng.random() < 0.5,
        "initializer_range": 0.2,
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    }
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": rng.choice([100.0, 10000.0, 500000.0]),
    }
    scaled = rope | rng.choice(
        [
            {},
            {"rope_type": "linear", "factor": 4.0},
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": ORIGINAL,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
        ]
    )
    config["rope_parameters"] = scaled
    window = rng.choice([3, 7])
    windowed = [rng.random() < 0.5 for _ in range(layers)]
    types = ["sliding_attention" if each else "full_attention" for each in windowed]
    if family in ("mistral", "mixtral", "qwen2", "phi3", "exaone4"):
        del config["attention_bias"]
    if family in ("llama", "smollm3"):
        config["mlp_bias"] = rng.random() < 0.5
    if family == "mixtral":
        config |= {
            "num_local_experts": 4,
            "num_experts_per_tok": rng.choice([1, 2]),
            "rope_parameters": rope,
        }
    if family in ("mistral", "mixtral", "phi3"):
        config["sliding_window"] = rng.choice([None, window])
    if family == "qwen3_moe":
        config |= {
            "num_experts": 4,
            "num_experts_per_tok": rng.choice([1, 2]),
            "norm_topk_prob": True,
        }
        config |= {
            "moe_intermediate_size": 12,
            "use_sliding_window": rng.random() < 0.5,
            "sliding_window": window,
        }
    if family in ("qwen2", "qwen3", "smollm3"):
        config["use_sliding_window"] = any(windowed)
        config["sliding_window"] = window
        if any(windowed) or family == "smollm3":
            config["layer_types"] = types
    if family in (
        "qwen2",
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "nanochat",
        "smollm3",
        "olmo2",
        "olmo3",
        "phi3",
    ):
        del config["head_dim"]
        config["hidden_size"] = heads * head_dim
    if family == "smollm3":
        config["no_rope_layers"] = [int(rng.random() < 0.6) for _ in range(layers)]
    if family == "phi3":
        fraction = rng.choice([1.0, 0.75, 0.5]) if head_dim != 12 else 1.0
        pairs = int(head_dim * fraction) // 2
        long = {
            "rope_type": "longrope",
            "short_factor": [rng.uniform(1, 2) for _ in range(pairs)],
            "long_factor": [rng.uniform(1, 8) for _ in range(pairs)],
        }
        config["rope_parameters"] = (
            rope | {"partial_rotary_factor": fraction} | rng.choice([{}, long])
        )
        config["original_max_position_embeddings"] = rng.choice([ORIGINAL, LONGEST])
    if family.startswith("gemma"):
        config |= {"sliding_window": window, "query_pre_attn_scalar": rng.choice([head_dim, 24])}
        config |= {"layer_types": types} if rng.random() < 0.7 else {}
        config |= {"final_logit_softcapping": rng.choice([None, 5.0])}
        config |= {"attn_logit_softcapping": rng.choice([None, 3.0])} if family == "gemma2" else {}
        config["hidden_size"] = 16
        config["num_attention_heads"] = 4
    if family in ("gemma3_text", "olmo3"):
        local = rope["rope_theta"] if family == "olmo3" else rng.choice([50.0, 10000.0])
        config["rope_parameters"] = {
            "full_attention": scaled,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
    if family == "olmo3":
        config |= {"sliding_window": window, "layer_types": types}
    if family == "exaone4" and rng.random() < 0.7:
        config |= {"sliding_window": window, "layer_types": types}
    elif family == "exaone4":
        config |= {"sliding_window": None, "layer_types": ["full_attention"] * layers}
    if family == "nanochat":
        config["rope_parameters"] = rope if scaled["rope_type"] == "yarn" else scaled
        config["final_logit_softcapping"] = rng.choice([None, 5.0])
    if family == "gpt_neox":
        config["rope_parameters"] = scaled | {"partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])}
        config["rope_parameters"] |= {"partial_rotary_factor": 0.5} if head_dim != 16 else {}
        config |= {"use_parallel_residual": rng.random() < 0.5, "layer_norm_eps": 1e-5}
        del config["num_key_value_heads"], config["rms_norm_eps"]
        if head_dim == 12:
            config["rope_parameters"]["partial_rotary_factor"] = 1.0
    if family == "gpt_neo":
        kinds = [[["local" if each else "global"], 1] for each in windowed]
        config = {
            **{
                "vocab_size": VOCAB,
                "hidden_size": config["hidden_size"],
                "num_layers": layers,
                "num_heads": heads,
            },
            **{"max_position_embeddings": LONGEST, "attention_types": kinds, "window_size": window},
            **{
                "intermediate_size": rng.choice([None, 24]),
                "tie_word_embeddings": config["tie_word_embeddings"],
            },
            **{"initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2},
        }
    if family == "gpt2":
        size = config["hidden_size"]
        config = {
            "vocab_size": VOCAB,
            "n_positions": LONGEST,
            **{
                "n_embd": size,
                "n_layer": layers,
                "n_head": heads,
                "n_inner": rng.choice([None, 24]),
            },
            "tie_word_embeddings": config["tie_word_embeddings"],
            **{"initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2},
        }
    return config


def random_model(family: str, seed: int) -> Any:
    """A model of transformers in evaluation mode, in float32, without zeros and ones among its
    weights.
    """
    rng = random.Random(f"{family} {seed}")
    config = getattr(transformers, f"{CLASSES[family]}Config")(**random_config(family, rng))
    torch.manual_seed(seed)
    attention = "eager" if family in ("gemma2", "gpt_neo") else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def stored_model(
    family: str, seed: int, directory: Path, dtype: torch.dtype = torch.float32
) -> Any:
    """The same, saved in a directory."""
    model = random_model(family, seed).to(dtype)
    model.save_pretrained(directory)
    return model


def as_float64(model: nn.Module) -> nn.Module:
    """Everything but the angles of the rotation, which are float32 on both sides; a scale of the
    embedding exactly.
    """
    model.double()
    for module in model.modules():
        if hasattr(module, "scalar_embed_scale"):  # Gemma's buffer is its float32 number
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
        for name, buffer in module.named_buffers(recurse=False):
            if "inv_freq" in name:
                setattr(module, name, buffer.float())
    return model


@contextmanager
def no_rounding() -> Iterator[None]:
    """Within it, transformers keeps float64 where it would compute norms and softmax in float32."""
    float_ = Tensor.float
    to = Tensor.to
    softmax = F.softmax

    def wide_float(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self if self.dtype == torch.float64 else float_(self, *args, **options)

    def wide_to(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return (
            self
            if self.dtype == torch.float64 and args[:1] == (torch.float32,)
            else to(self, *args, **options)
        )

    def wide_softmax(x: Tensor, *args: Any, dtype: Any = None, **options: Any) -> Tensor:
        return softmax(x, *args, dtype=None if x.dtype == torch.float64 else dtype, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", wide_float)
        patch.setattr(Tensor, "to", wide_to)
        patch.setattr(F, "softmax", wide_softmax)
        yield
