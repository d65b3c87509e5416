"""The course text "sentiment": an encoder that tells praise from blame, on its toy set and on real sentences."""

from glassformer.labs.sentiment.attention import MultiHeadAttention, scaled_dot_product_attention
from glassformer.labs.sentiment.attention_grid import draw_attention_grid, visualize_attention
from glassformer.labs.sentiment.exercises import analyze_complexity, train_transformer
from glassformer.labs.sentiment.lab import run
from glassformer.labs.sentiment.network import MiniTransformer, TransformerBlock
from glassformer.labs.sentiment.parts import (
    FeedForward,
    LayerNorm,
    PositionalEncoding,
    TokenEmbedding,
    TransformerEmbeddings,
)
from glassformer.labs.sentiment.text import SentimentDataset, SimpleTokenizer
from glassformer.layers.attention_weights import attention_weights

__all__ = [
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
    "run",
    "scaled_dot_product_attention",
    "train_transformer",
    "visualize_attention",
]
