"""Layers that hold packed weights; :mod:`glassformer.kernels.packed` has the table of kinds."""

from typing import Literal

Pack = Literal["Q8_0"]
"""Kinds in which linear layers may be packed when they are loaded."""
