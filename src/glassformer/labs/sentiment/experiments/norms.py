"""How far the course's LayerNorm is from torch's: by width, and for inputs that hardly vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import nn

from glassformer.labs.sentiment.course import LayerNorm
from glassformer.observe.figures.style import BLACK, LINES, in_style, new_figure

WIDTHS = (8, 16, 32, 64, 128, 256, 384, 512, 768, 1024)
DEVIATIONS = tuple(10.0**power for power in range(-8, 2))
MEAN, DEVIATION = 10.0, 5.0
"""Of the course's test input."""


@dataclass(frozen=True)
class WidthDifference:
    """Both norms on one random sample of one width, with the course's mean and deviation."""

    width: int
    largest: float  # absolute difference of two outputs in this sample
    ratio: float  # the course's output over torch's, fitted by least squares

    @property
    def predicted_ratio(self) -> float:
        """Of any input whose deviation is far above both eps."""
        return ((self.width - 1) / self.width) ** 0.5

    @property
    def bound(self) -> float:
        """What no difference exceeds for any such input: no number of torch's output exceeds ``sqrt(width - 1)``."""
        return (1 - self.predicted_ratio) * (self.width - 1) ** 0.5


@dataclass(frozen=True)
class ScaleDifference:
    """The root mean square of both outputs for positions of one deviation."""

    deviation: float
    course: float
    torch: float


@dataclass(frozen=True)
class NormsResult:
    """Where the two norms differ; ``sample`` has numbers before and after each of them."""

    hidden_dim: int
    widths: list[WidthDifference]
    scales: list[ScaleDifference]
    sample: dict[str, list[float]]

    def width(self, width: int) -> WidthDifference:
        """At one width."""
        return next(each for each in self.widths if each.width == width)

    def scale(self, deviation: float) -> ScaleDifference:
        """At one deviation."""
        return next(each for each in self.scales if each.deviation == deviation)


@torch.no_grad()
def measure_norms(
    hidden_dim: int = 64,
    widths: Sequence[int] = WIDTHS,
    deviations: Sequence[float] = DEVIATIONS,
    positions: int = 1000,
    seed: int = 0,
) -> NormsResult:
    """Compare ``(x - mean) / (std + eps)``, std unbiased, with ``(x - mean) / sqrt(var + eps)``, var biased.

    In float64, so that nothing is measured but the formulas, each with its default eps: 1e-6 and 1e-5.
    """
    generator = torch.Generator().manual_seed(seed)
    by_width, by_scale = [], []
    for width in widths:
        x = MEAN + DEVIATION * torch.randn(positions, width, generator=generator, dtype=torch.float64)
        course, plain = LayerNorm(width).double()(x), nn.LayerNorm(width).double()(x)
        ratio = float((course * plain).sum() / plain.square().sum())
        by_width.append(WidthDifference(width, float((course - plain).abs().max()), ratio))
    norms = {"The course's LayerNorm": LayerNorm(hidden_dim).double(), "torch's LayerNorm": nn.LayerNorm(hidden_dim)}
    x = torch.randn(positions, hidden_dim, generator=generator, dtype=torch.float64)
    # Each position exactly of deviation 1, so that the formulas hold for each and not on average.
    x = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    for deviation in deviations:
        sizes = (float(norm.double()(deviation * x).square().mean().sqrt()) for norm in norms.values())
        by_scale.append(ScaleDifference(deviation, *sizes))
    x = MEAN + DEVIATION * torch.randn(20, hidden_dim, generator=generator, dtype=torch.float64)
    sample = {"Before": x, **{name: norm(x) for name, norm in norms.items()}}
    rounded = {name: values.numpy().ravel().round(4).tolist() for name, values in sample.items()}
    return NormsResult(hidden_dim, by_width, by_scale, rounded)


@in_style
def draw_norms(norms: NormsResult) -> Figure:
    """Numbers before and after each norm, and the size of outputs by the deviation of inputs."""
    figure, axes = new_figure(13, 3.6, columns=4)
    for ax, (name, values), look in zip(axes, norms.sample.items(), LINES, strict=False):
        ax.hist(values, bins=50, color=look["color"])
        ax.axvline(0, color=BLACK, lw=0.8, ls=":")
        mean, std = torch.tensor(values).mean(), torch.tensor(values).std(correction=0)
        ax.set_title(f"{name}\nmean {round(float(mean), 3) + 0.0:.3f}, std {std:.4f}")
        ax.set_xlabel("value")
    axes[0].set_ylabel("numbers")
    deviations = [each.deviation for each in norms.scales]
    for look, name in zip(LINES[1:], ("course", "torch"), strict=False):
        axes[3].plot(deviations, [getattr(each, name) for each in norms.scales], **look, label=f"{name}'s")
    axes[3].set(xscale="log", xlabel="standard deviation of the input", ylabel="root mean square of the output")
    axes[3].set_title("Inputs that hardly vary:\nsize of the output")
    axes[3].legend(loc="center right")
    return figure
