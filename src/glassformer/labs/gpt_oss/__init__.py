"""The course's GPT-OSS lab from end to end, under its own names: parts, model, training, generation, report."""

from glassformer.labs.gpt_oss.course import (
    GroupedQueryAttention,
    MixtureOfExperts,
    RotaryPositionalEmbedding,
    Router,
    SWAttention,
    SwiGLUFeedForward,
    Transformer,
    TransformerBlock,
    calculate_attention,
    calculate_sliding_attention,
)
from glassformer.labs.gpt_oss.course_training import (
    calc_per_token_acc,
    eval_acc,
    generate,
    get_dist_after_with_temp_and_topp,
    token_choice_adv,
    token_choice_greedy,
    train,
)
from glassformer.labs.gpt_oss.experiments import LAB

__all__ = [
    "LAB", "GroupedQueryAttention", "MixtureOfExperts", "RotaryPositionalEmbedding", "Router", "SWAttention",
    "SwiGLUFeedForward", "Transformer", "TransformerBlock", "calc_per_token_acc", "calculate_attention",
    "calculate_sliding_attention", "eval_acc", "generate", "get_dist_after_with_temp_and_topp", "token_choice_adv",
    "token_choice_greedy", "train",
]  # fmt: skip
