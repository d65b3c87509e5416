"""The course's GPT-OSS lab from end to end, under its own names: parts, model, training, generation, report."""

from glassformer.labs.gpt_oss.exercises import (
    calc_per_token_acc,
    eval_acc,
    generate,
    get_dist_after_with_temp_and_topp,
    token_choice_adv,
    token_choice_greedy,
    train,
)
from glassformer.labs.gpt_oss.lab import run
from glassformer.labs.gpt_oss.network import Transformer, TransformerBlock
from glassformer.labs.gpt_oss.parts import (
    GroupedQueryAttention,
    MixtureOfExperts,
    RotaryPositionalEmbedding,
    Router,
    SWAttention,
    SwiGLUFeedForward,
    calculate_attention,
    calculate_sliding_attention,
)

__all__ = [
    "GroupedQueryAttention",
    "MixtureOfExperts",
    "RotaryPositionalEmbedding",
    "Router",
    "SWAttention",
    "SwiGLUFeedForward",
    "Transformer",
    "TransformerBlock",
    "calc_per_token_acc",
    "calculate_attention",
    "calculate_sliding_attention",
    "eval_acc",
    "generate",
    "get_dist_after_with_temp_and_topp",
    "run",
    "token_choice_adv",
    "token_choice_greedy",
    "train",
]
