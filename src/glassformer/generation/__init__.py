"""From logits to text: sampling rules and generation."""

from glassformer.generation.decoding import GREEDY, generate, stream
from glassformer.generation.greedy import greedy_decode
from glassformer.generation.sampling import SamplingRule

__all__ = ["GREEDY", "SamplingRule", "generate", "greedy_decode", "stream"]
