"""Packed weights: layers that hold them, of every kind of the table in
:mod:`glassformer.kernels.packed`.
"""

from typing import Literal

Pack = Literal["Q8_0"]
"""Kinds in which linear layers may be packed when they are loaded."""
