"""How colours look to colour-blind people and in a print in grey, and how far apart they are then."""

from collections.abc import Sequence
from itertools import combinations
from typing import TypeAlias

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.colors import to_rgba_array

Colours: TypeAlias = Float[np.ndarray, "colour 3"]
"""Red, green and blue in sRGB, each in [0, 1]."""

DEFICIENCIES: dict[str, Float[np.ndarray, "3 3"]] = {
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
"""What takes linear red, green and blue to those that look the same to people without one kind of
cone, severity 1.0.

Source: Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color
vision deficiency".
"""

VISIONS = ("normal", *DEFICIENCIES)

_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
"""From linear sRGB to CIE XYZ. Source: IEC 61966-2-1."""


def rgb(colours: Sequence[str]) -> Colours:
    return to_rgba_array(colours)[:, :3]


def colormap(name: str, steps: int = 256) -> Colours:
    return matplotlib.colormaps[name](np.linspace(0, 1, steps))[:, :3]


def linear(colours: Colours) -> Colours:
    return np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def lab(colours: Colours, vision: str = "normal") -> Colours:
    """CIE L*a*b* of colours as seen with this vision: L* from 0, black, to 100, white."""
    light = linear(colours)
    if vision != "normal":
        light = np.clip(light @ DEFICIENCIES[vision].T, 0, 1)
    share = light @ _XYZ.T / _XYZ.sum(axis=1)
    f = np.where(share > (6 / 29) ** 3, np.cbrt(share), share / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1
    )


def distance(first: str, second: str, vision: str = "normal") -> float:
    """How far apart two colours are: the CIE 1976 Delta E, of which about 2.3 can just be noticed."""
    one, other = lab(rgb([first, second]), vision)
    return float(np.linalg.norm(one - other))


def nearest_two(colours: Sequence[str]) -> float:
    """The least distance of any two colours, over all visions."""
    return min(
        distance(one, other, vision)
        for vision in VISIONS
        for one, other in combinations(colours, 2)
    )


def smallest_step(colours: Colours, vision: str = "normal") -> float:
    """The least change of lightness from one colour to the next, above 0 where they all become
    darker.
    """
    return float((-np.diff(lab(colours, vision)[:, 0])).min())
