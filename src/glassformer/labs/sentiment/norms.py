"""How far the course's LayerNorm is from torch's: by width, and for inputs that hardly vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.labs.sentiment.course import LayerNorm

WIDTHS = (8, 16, 32, 64, 128, 256, 384, 512, 768, 1024)
DEVIATIONS = tuple(10.0**power for power in range(-8, 2))
MEAN, DEVIATION = 10.0, 5.0
"""Of the course's test input."""


@dataclass(frozen=True)
class WidthDifference:
    """Both norms on normal inputs of one width.

    Attributes:
        width: Numbers in a position.
        largest: Of the absolute differences of two outputs; the outputs are of size 1.
        mean: Of the absolute differences.
        ratio: The course's output over torch's, fitted by least squares.
        predicted_ratio: ``sqrt((width - 1) / width)``.
    """

    width: int
    largest: float
    mean: float
    ratio: float
    predicted_ratio: float


@dataclass(frozen=True)
class ScaleDifference:
    """Both norms on inputs that vary by one amount.

    Attributes:
        deviation: The standard deviation of each position (root of the mean square deviation).
        course: The size of the course's output: the root of its mean square.
        torch: That of torch's.
        predicted_course: ``deviation / (deviation * sqrt(width / (width - 1)) + eps)``.
        predicted_torch: ``deviation / sqrt(deviation ** 2 + eps)``.
    """

    deviation: float
    course: float
    torch: float
    predicted_course: float
    predicted_torch: float


@dataclass(frozen=True)
class NormResult:
    """Where the two norms differ.

    Attributes:
        hidden_dim: The width of ``scales``.
        course_eps: Added to the deviation.
        torch_eps: Added to the variance.
        course_half: The deviation at which the course's output has half its size: where it equals eps, but for the
            factor of the unbiased deviation.
        torch_half: That of torch's: ``sqrt(eps / 3)``.
        widths: For inputs of the course's size.
        scales: For inputs of smaller and smaller deviation.
    """

    hidden_dim: int
    course_eps: float
    torch_eps: float
    course_half: float
    torch_half: float
    widths: list[WidthDifference]
    scales: list[ScaleDifference]


def measure_norms(
    hidden_dim: int = 64,
    widths: Sequence[int] = WIDTHS,
    deviations: Sequence[float] = DEVIATIONS,
    positions: int = 1000,
    seed: int = 0,
) -> NormResult:
    """Compare ``(x - mean) / (std + eps)``, std unbiased, with ``(x - mean) / sqrt(var + eps)``, var biased.

    In float64, so that nothing is measured but the formulas. Both have their own default eps: 1e-6 and 1e-5.

    Args:
        hidden_dim: The width at which the size of inputs is varied.
        widths: Those at which inputs of the course's size (mean 10, deviation 5) are compared.
        deviations: Standard deviations of inputs with mean 0.
        positions: Inputs, drawn from a normal distribution.
        seed: Seed of the inputs.

    Raises:
        InputError: A width below 2, no positions, or a deviation that is not above 0.
    """
    require_positive(positions=positions)
    least = min(deviations, default=1.0)
    require(least > 0, f"the deviation {least}", "numbers above 0", "At 0 both give 0.")
    generator = torch.Generator().manual_seed(seed)

    def draw(width: int) -> Float[Tensor, "position width"]:
        return torch.randn(positions, width, generator=generator, dtype=torch.float64)

    course, plain = _norms(hidden_dim)
    x = draw(hidden_dim)
    # Each position exactly of deviation 1, so that the predictions hold for each and not on average.
    x = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    unbiased = (hidden_dim / (hidden_dim - 1)) ** 0.5
    return NormResult(
        hidden_dim=hidden_dim,
        course_eps=course.eps,
        torch_eps=plain.eps,
        # d / (d * unbiased + eps) is half of 1 / unbiased, its size for large d.
        course_half=course.eps / unbiased,
        torch_half=(plain.eps / 3) ** 0.5,
        widths=[_compare(width, MEAN + DEVIATION * draw(width)) for width in widths],
        scales=[
            ScaleDifference(
                deviation=deviation,
                course=_size(course(deviation * x)),
                torch=_size(plain(deviation * x)),
                predicted_course=deviation / (deviation * unbiased + course.eps),
                predicted_torch=deviation / (deviation**2 + plain.eps) ** 0.5,
            )
            for deviation in deviations
        ],
    )


def _norms(width: int) -> tuple[LayerNorm, nn.LayerNorm]:
    return LayerNorm(width).double(), nn.LayerNorm(width).double()


@torch.no_grad()
def _compare(width: int, x: Float[Tensor, "position width"]) -> WidthDifference:
    course, plain = (norm(x) for norm in _norms(width))
    difference = (course - plain).abs()
    return WidthDifference(
        width=width,
        largest=float(difference.max()),
        mean=float(difference.mean()),
        ratio=float((course * plain).sum() / plain.square().sum()),
        predicted_ratio=((width - 1) / width) ** 0.5,
    )


def _size(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())
