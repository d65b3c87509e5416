"""Predicted and measured cost over the length of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.errors import require
from glassformer.figures.style import in_style, line, new_figure
from glassformer.observe.complexity import Complexity
from glassformer.observe.complexity_measured import Measurement, fitted_exponent

_BYTES = 1 << 20
_GIGA = 1e9


@dataclass(frozen=True)
class CostCurve:
    """Predicted and measured cost of one model at increasing lengths.

    Raises:
        InputError: Fewer than two lengths, or not one prediction for each.
    """

    name: str
    """Its label in the figure."""
    predicted: tuple[Complexity, ...]
    """The prediction for each length."""
    measured: Measurement
    """The time of a forward pass, if it was measured, and the peak memory of one that stores activations for a backward
    pass."""
    weights_held: int = 0
    """Copies of the attention weights in the measured pass: 0 in the fused kernel; 3 in the definition with a single
    layer, whose peak memory has the scores, these without forbidden pairs, and their softmax."""

    def __post_init__(self) -> None:
        lengths = len(self.measured.lengths)
        require(
            lengths == len(self.predicted) and lengths >= 2,
            f"{len(self.predicted)} predictions for {lengths} lengths",
            "one each for two lengths or more",
            "Predict at the measured lengths.",
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        """In tokens."""
        return self.measured.lengths

    @property
    def operations(self) -> tuple[int, ...]:
        """Predicted operations."""
        return tuple(cost.operations.total for cost in self.predicted)

    @property
    def held(self) -> tuple[int, ...]:
        """Predicted bytes: activations for a backward pass, and the copies of the attention weights."""
        return tuple(cost.activations + self.weights_held * cost.attention_weights for cost in self.predicted)

    def seconds_at_the_longest_texts_rate(self) -> tuple[float, ...]:
        """Predicted operations divided by the rate, in operations per second, measured at the longest text."""
        rate = self.operations[-1] / self.measured.seconds[-1]
        return tuple(operations / rate for operations in self.operations)


@in_style
def draw_complexity(curves: Sequence[CostCurve], *, overtakes: int | None = None, tail: int = 3) -> Figure:
    """Panels over the length, all axes logarithmic, so that a power of the length is a straight line.

    - Operations of the first of ``curves`` by part, with the length at which attention overtakes the feed-forward part.
    - Time of a forward pass, if measured, with markers; thin, the predicted operations at the rate of the longest
      text.
    - Memory: measured peak with markers; thin, the predicted bytes.

    Legends give the exponents fitted to the last ``tail`` lengths, the measured one first. The length ``overtakes``,
    see :func:`glassformer.observe.complexity.overtakes`, is marked unless it is None or out of range.

    Raises:
        InputError: No curves, or a tail that is not from 2 to the number of lengths.
    """
    require(len(curves) > 0, "no curves", "at least one", "Measure a model.")
    timed = all(curve.measured.seconds for curve in curves)
    figure, panels = new_figure(13.5 if timed else 9.5, 4.6, columns=3 if timed else 2)
    parts, memory = panels[0], panels[-1]
    _draw_parts(parts, curves[0], overtakes, tail)
    for series, curve in enumerate(curves):
        peaks = curve.measured.peak_bytes, curve.held
        _draw_pair(memory, series, curve, np.divide(peaks, _BYTES), tail)
        if timed:
            times = curve.measured.seconds, curve.seconds_at_the_longest_texts_rate()
            _draw_pair(panels[1], series, curve, np.multiply(1e3, times), tail)
    parts.set(title=f"Operations: {curves[0].name}", ylabel="operations, $10^9$")
    memory.set(title="Memory of a forward pass in training", ylabel="MiB")
    if timed:
        panels[1].set(title="Time of a forward pass", ylabel="milliseconds")
    for axes in panels:
        lengths = curves[0].lengths
        axes.set_xlabel("tokens")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45)
        axes.legend(fontsize=8)
    for axes in panels[1:]:
        thin = "predicted" if axes is memory else "operations, scaled to the longest text"
        axes.plot([], [], **_THIN, color="grey", label=f"thin: {thin}")
        axes.legend(fontsize=8, title="exponent measured / predicted", title_fontsize=8, alignment="left")
    return figure


_THIN: dict[str, Any] = {"linewidth": 0.9, "alpha": 0.8}


def _draw_parts(axes: Axes, curve: CostCurve, overtakes: int | None, tail: int) -> None:
    names = "scores and values", "projections", "feed-forward", "all"
    parts = "attention", "projections", "after_attention", "total"
    for series, (name, part) in enumerate(zip(names, parts, strict=True)):
        values = [getattr(cost.operations, part) for cost in curve.predicted]
        exponent = fitted_exponent(curve.lengths, values, tail=tail)
        label = f"{name}, exponent {exponent:.2f}"
        axes.plot(curve.lengths, np.divide(values, _GIGA), **line(series, len(values)), label=label)
    if overtakes is not None and curve.lengths[0] <= overtakes <= curve.lengths[-1]:
        axes.axvline(overtakes, color="black", linewidth=0.8, linestyle=":")
        text = f"attention overtakes\nfeed-forward: {overtakes:,}"
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(text, (overtakes, 0), (-4, 6), **place, ha="right", fontsize=8)


def _draw_pair(axes: Axes, series: int, curve: CostCurve, values: np.ndarray, tail: int) -> None:
    """Measured values with markers and a label, predicted ones thin in the same colour and dashes."""
    measured, predicted = (fitted_exponent(curve.lengths, each.tolist(), tail=tail) for each in values)
    drawn = line(series, len(curve.lengths))
    label = f"{curve.name}: {measured:.2f} / {predicted:.2f}"
    axes.plot(curve.lengths, values[0], **drawn, label=label)
    axes.plot(curve.lengths, values[1], **{**drawn, "marker": None}, **_THIN)
