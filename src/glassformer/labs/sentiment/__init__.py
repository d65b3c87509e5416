"""The course text "sentiment": an encoder that tells praise from blame, on its toy set and on real sentences."""

from glassformer.labs.sentiment.course import (
    FeedForward,
    LayerNorm,
    MiniTransformer,
    MultiHeadAttention,
    PositionalEncoding,
    TokenEmbedding,
    TransformerBlock,
    TransformerEmbeddings,
    scaled_dot_product_attention,
)
from glassformer.labs.sentiment.course_training import (
    SentimentDataset,
    SimpleTokenizer,
    analyze_complexity,
    draw_attention_grid,
    train_transformer,
    visualize_attention,
)
from glassformer.labs.sentiment.experiments import LAB
from glassformer.observe.exact_attention import attention_weights

__all__ = [
    "LAB",
    "FeedForward",
    "LayerNorm",
    "MiniTransformer",
    "MultiHeadAttention",
    "PositionalEncoding",
    "SentimentDataset",
    "SimpleTokenizer",
    "TokenEmbedding",
    "TransformerBlock",
    "TransformerEmbeddings",
    "analyze_complexity",
    "attention_weights",
    "draw_attention_grid",
    "scaled_dot_product_attention",
    "train_transformer",
    "visualize_attention",
]
