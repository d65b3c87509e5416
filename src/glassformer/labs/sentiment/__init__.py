"""The course text "sentiment": an encoder that tells praise from blame, on its toy set and on real sentences."""

from pathlib import Path

from glassformer.errors import InputError
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
from glassformer.observe.exact_attention import attention_weights

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


def run(out: Path, quick: bool, seed: int, resume: bool, data: str | None = None) -> Path:
    """Run the lab: see :func:`glassformer.labs.sentiment.lab.run`.

    Raises:
        InputError: As there; or scikit-learn is missing, which classifying a text can do without.
    """
    try:
        from glassformer.labs.sentiment import lab
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("sklearn"):
            raise
        fix = "pip install 'glassformer[labs]'"
        raise InputError("the sentiment lab without scikit-learn", "its baselines' library", fix) from error
    return lab.run(out, quick, seed, resume, data)
