"""One small model of each family of transformers, and what sweeps measure of it and of ours."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.layers.quantized.packed_experts import PackedMixture
from small_models import decoder

transformers = pytest.importorskip("transformers")

EXPERTS = {
    "num_kv_heads": 2,
    "window": 3,
    "num_experts": 4,
    "top_k": 2,
    "sinks": True,
    "key_weights": True,
}
"""Options of a decoder of ours."""


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 1] - logits[:, -1, 0]


def pair(rows: int = 2, length: int = 6) -> tuple[Tensor, Tensor]:
    """Texts that differ at one position."""
    clean = torch.randint(2, 20, (rows, length))
    corrupted = clean.clone()
    corrupted[:, 2] = 1
    return clean, corrupted


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """The logits [batch, position, class]; a classifier's have one position."""
    out: Any = model(tokens)
    out = out if isinstance(out, Tensor) else out[0]
    return out if out.dim() == 3 else out[:, None]


WIDTHS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def gpt2(**changes: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, **changes
    )
    return transformers.GPT2LMHeadModel(config).eval()


def llama(**changes: Any) -> nn.Module:
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, **WIDTHS, **changes)
    return transformers.LlamaForCausalLM(config).eval()


def mixtral(**changes: Any) -> nn.Module:
    config = transformers.MixtralConfig(
        vocab_size=50, num_key_value_heads=2, num_local_experts=4, **WIDTHS, **changes
    )
    return transformers.MixtralForCausalLM(config).eval()


def qwen3_moe(**changes: Any) -> nn.Module:
    sizes = {
        **WIDTHS,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    }
    config = transformers.Qwen3MoeConfig(vocab_size=50, num_key_value_heads=2, **sizes, **changes)
    return transformers.Qwen3MoeForCausalLM(config).eval()


def bert(**changes: Any) -> nn.Module:
    config = transformers.BertConfig(vocab_size=50, **WIDTHS, **changes)
    return transformers.BertModel(config).eval()


def bert_classifier() -> nn.Module:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=50, **WIDTHS)
    ).eval()


FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "gpt2": gpt2,
    "llama": llama,
    "mixtral": mixtral,
    "bert": bert,
}


def mistral() -> nn.Module:
    config = transformers.MistralConfig(
        vocab_size=50, num_key_value_heads=2, sliding_window=4, **WIDTHS
    )
    return transformers.MistralForCausalLM(config).eval()


def qwen2() -> nn.Module:
    config = transformers.Qwen2Config(vocab_size=50, num_key_value_heads=2, **WIDTHS)
    return transformers.Qwen2ForCausalLM(config).eval()


def roberta() -> nn.Module:
    return transformers.RobertaModel(
        transformers.RobertaConfig(vocab_size=50, pad_token_id=0, **WIDTHS)
    ).eval()


RELATIVES: dict[str, Callable[..., nn.Module]] = {
    "mistral": mistral,
    "qwen2": qwen2,
    "roberta": roberta,
}


def gpt_oss(**changes: Any) -> nn.Module:
    """With sinks that matter and windows in every second layer."""
    sizes = {
        **WIDTHS,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "pad_token_id": 0,
    }
    config = transformers.GptOssConfig(
        vocab_size=50, num_key_value_heads=2, sliding_window=4, **sizes, **changes
    )
    model = transformers.GptOssForCausalLM(config).eval()
    for layer in model.model.layers:
        nn.init.normal_(layer.self_attn.sinks)
    return model


THEIRS: dict[str, Callable[..., nn.Module]] = {**FAMILIES, **RELATIVES, "gpt-oss": gpt_oss}
NARROW = ("packed", "mixtral", "gpt-oss")
"""Whose experts have no kernel for float64."""


def packed(**options: Any) -> nn.Module:
    """A decoder of ours whose experts are packed."""
    model = decoder(hidden_dim=32, ff_dim=32, num_experts=4, **options)
    for block in model.layers:
        if block.ffn.down_bias is not None:
            nn.init.normal_(block.ffn.down_bias)
        block.ffn = PackedMixture.pack(block.ffn)
    return model.eval()


def exact(model: Any) -> None:
    """Let a model in float64 compute its RMS norms and its experts in float64 too, which
    transformers does not.
    """
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = nn.RMSNorm(
                module.weight.shape, module.variance_epsilon, dtype=module.weight.dtype
            )
            norm.weight = module.weight
            model.set_submodule(name, norm)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
