"""OpenAI's ``config.json`` of gpt-oss-20b, as it was released."""

from typing import Any

OPENAIS_20B: dict[str, Any] = {
    "num_hidden_layers": 24,
    "num_experts": 32,
    "experts_per_token": 4,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "swiglu_limit": 7.0,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "initial_context_length": 4096,
    "rope_theta": 150000,
    "rope_scaling_factor": 32.0,
    "rope_ntk_alpha": 1,
    "rope_ntk_beta": 32,
}
