"""Formats of weights: MXFP4 and experts stored in it, 8-bit integers, and bfloat16 in 12 bits."""

from typing import Literal

DenseFormat = Literal["int8", "lossless"]
"""What attention's projections and the output of a gpt-oss may be converted to when they are loaded."""
