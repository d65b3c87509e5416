"""The course's sentiment lab: an encoder that tells positive from negative sentences."""

from glassformer.labs.sentiment.course import FeedForward as FeedForward
from glassformer.labs.sentiment.course import LayerNorm as LayerNorm
from glassformer.labs.sentiment.course import MiniTransformer as MiniTransformer
from glassformer.labs.sentiment.course import MultiHeadAttention as MultiHeadAttention
from glassformer.labs.sentiment.course import PositionalEncoding as PositionalEncoding
from glassformer.labs.sentiment.course import TokenEmbedding as TokenEmbedding
from glassformer.labs.sentiment.course import TransformerBlock as TransformerBlock
from glassformer.labs.sentiment.course import TransformerEmbeddings as TransformerEmbeddings
from glassformer.labs.sentiment.course import (
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from glassformer.labs.sentiment.course_training import SentimentDataset as SentimentDataset
from glassformer.labs.sentiment.course_training import SimpleTokenizer as SimpleTokenizer
from glassformer.labs.sentiment.course_training import analyze_complexity as analyze_complexity
from glassformer.labs.sentiment.course_training import draw_attention_grid as draw_attention_grid
from glassformer.labs.sentiment.course_training import train_transformer as train_transformer
from glassformer.labs.sentiment.course_training import visualize_attention as visualize_attention
from glassformer.labs.sentiment.experiments import LAB as LAB
from glassformer.observe.exact_attention import attention_weights as attention_weights
