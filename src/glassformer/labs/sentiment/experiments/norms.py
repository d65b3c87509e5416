"""How far the course's LayerNorm is from torch's: by width, and for inputs that hardly vary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from glassformer.figures.style import BLACK, LINES, in_style, new_figure
from glassformer.labs.sentiment.course import LayerNorm

WIDTH = 64
DEVIATIONS = tuple(10.0**power for power in range(-8, 2))


@dataclass(frozen=True)
class Size:
    """The root mean square of both outputs for positions of one standard deviation."""

    deviation: float
    course: float
    torch: float


@dataclass(frozen=True)
class NormsResult:
    """Where the two norms differ, for inputs of one width."""

    width: int
    ratio: float  # the course's output over torch's, fitted by least squares to a random sample
    largest: float  # absolute difference of two outputs in this sample
    sizes: list[Size]
    sample: dict[str, list[float]]  # numbers before and after each norm

    @property
    def predicted_ratio(self) -> float:
        """Of any input whose deviation is far above both eps."""
        return ((self.width - 1) / self.width) ** 0.5

    @property
    def bound(self) -> float:
        """What no difference exceeds for any such input: no number of torch's output exceeds ``sqrt(width - 1)``."""
        return (1 - self.predicted_ratio) * (self.width - 1) ** 0.5


@torch.no_grad()
def measure_norms() -> NormsResult:
    """Compare ``(x - mean) / (std + eps)``, std unbiased, with ``(x - mean) / sqrt(var + eps)``, var biased.

    In float64, so that nothing is measured but the formulas, each with its default eps: 1e-6 and 1e-5. The sample has
    the mean and the deviation of the course's test input, 10 and 5.
    """
    course, plain = LayerNorm(WIDTH).double(), nn.LayerNorm(WIDTH).double()
    x = 10 + 5 * torch.randn(1000, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before_and_after = {"Before": x, "The course's LayerNorm": course(x), "torch's LayerNorm": plain(x)}
    _, first, second = before_and_after.values()
    # Each position exactly of deviation 1, so that the formulas hold for each and not on average.
    unit = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    return NormsResult(
        width=WIDTH,
        ratio=float((first * second).sum() / second.square().sum()),
        largest=float((first - second).abs().max()),
        sizes=[Size(each, _size(course(each * unit)), _size(plain(each * unit))) for each in DEVIATIONS],
        sample={name: rows[:20].numpy().ravel().round(4).tolist() for name, rows in before_and_after.items()},
    )


def _size(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


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
    deviations = [each.deviation for each in norms.sizes]
    for look, name in zip(LINES[1:], ("course", "torch"), strict=False):
        axes[3].plot(deviations, [getattr(each, name) for each in norms.sizes], **look, label=f"{name}'s")
    axes[3].set(xscale="log", xlabel="standard deviation of the input", ylabel="root mean square of the output")
    axes[3].set_title("Inputs that hardly vary:\nsize of the output")
    axes[3].legend(loc="center right")
    return figure
