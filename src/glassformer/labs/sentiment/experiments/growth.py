"""How a layer's cost grows with the length of the text: operations that torch counts, and peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from glassformer.figures.style import in_style, line, new_figure
from glassformer.kernels import plain
from glassformer.labs.sentiment.course_training import overtakes
from glassformer.labs.sentiment.experiments.mini_transformer import COURSE_MODEL
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.modes import seeded
from glassformer.observe.cost import count_by_module, peak_bytes

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""In tokens."""
D_MODEL, HEADS, D_FF = 512, 8, 2048
"""The sizes of the course's section on cost; the model that it trains is smaller."""
WINDOW, VOCAB = 128, 1000


@dataclass(frozen=True)
class Growth:
    """The cost of one model, a number for each length."""

    name: str
    attention: list[int]  # operations of scores and weighted values
    projections: list[int]
    feed_forward: list[int]
    operations: list[int]  # these and the head
    peak_bytes: list[int]  # of a forward pass that a backward pass could follow


@dataclass(frozen=True)
class GrowthResult:
    """One layer of each of four models over growing lengths.

    The models: an encoder on the fused kernel; the same one by the definition, which holds its weights; a decoder; the
    same one with a window. ``overtakes`` is the length from which an encoder layer's scores and values take more
    operations than its feed-forward network, ``overtakes_with_projections`` the same with the projections on
    attention's side, and ``course_overtakes`` the first of these for the model that the course trains.
    """

    d_model: int
    d_ff: int
    window: int
    lengths: list[int]  # in tokens
    growths: list[Growth]
    overtakes: int
    overtakes_with_projections: int
    course_overtakes: int
    tail: int  # how many of the longest lengths exponents are fitted to

    def exponents(self, growth: Growth) -> dict[str, float]:
        """Of operations and of peak memory."""
        return {name: self.exponent(getattr(growth, name)) for name in ("operations", "peak_bytes")}

    def exponent(self, values: Sequence[int]) -> float:
        """The b of ``values = a * lengths ** b`` that fits the last lengths best, by least squares on logarithms.

        For a sum of a linear and a quadratic part it lies between 1 and 2, closer to 2 for longer lengths.
        """
        return float(np.polyfit(np.log(self.lengths[-self.tail :]), np.log(values[-self.tail :]), 1)[0])


def measure_growth(lengths: tuple[int, ...]) -> GrowthResult:
    """Count operations and measure peak memory at all ``lengths``, at least two.

    Times are not measured: they would be those of a machine that may do other work too.
    """
    longest = max(lengths)
    with seeded(0):
        encoder = Encoder(EncoderConfig(VOCAB, 1, D_MODEL, D_FF, HEADS, longest, num_classes=2, dropout=0.0))
        sizes = DecoderConfig(VOCAB, 1, D_MODEL, D_FF, HEADS, D_MODEL // HEADS, windowed_layers="all")
        decoder = Decoder(replace(sizes, max_seq_len=longest))
        windowed = Decoder(replace(sizes, max_seq_len=longest, window=WINDOW))
    texts = [torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(0)) for length in lengths]
    growths = [
        _growth(name, [partial(_forward, model, text, holds_weights) for text in texts])
        for name, model, holds_weights in (
            ("encoder", encoder, False),
            ("encoder, weights held", encoder, True),
            ("decoder", decoder, False),
            (f"decoder, window {WINDOW}", windowed, False),
        )
    ]
    course = overtakes(COURSE_MODEL["d_model"], COURSE_MODEL["d_ff"])
    crossings = overtakes(D_MODEL, D_FF), overtakes(D_MODEL, D_FF, with_projections=True), course
    return GrowthResult(D_MODEL, D_FF, WINDOW, list(lengths), growths, *crossings, min(3, len(lengths)))


def _growth(name: str, calls: Sequence[partial[Tensor]]) -> Growth:
    counts = [count_by_module(call) for call in calls]

    def of(*suffixes: str) -> list[int]:
        return [sum(count for name, count in each.items() if name.endswith(suffixes)) for each in counts]

    projections = of(".attention.query", ".attention.key", ".attention.value", ".attention.output")
    attention = [both - some for both, some in zip(of(".layers.0.attention"), projections, strict=True)]
    peaks = [peak_bytes(call) for call in calls]
    return Growth(name, attention, projections, of(".ffn"), of("Global"), peaks)


def _forward(model: nn.Module, tokens: Tensor, holds_weights: bool) -> Tensor:
    """The forward pass over a text, such that a backward pass could follow."""
    with plain() if holds_weights else nullcontext():
        return model(tokens)


@in_style
def draw_growth(found: GrowthResult) -> Figure:
    """Operations of the encoder by part, with the length at which attention overtakes the feed-forward network, and the
    memory of all models, with fitted exponents; axes are logarithmic, so that a power of the length is a straight line.
    """
    figure, (parts, memory) = new_figure(9.5, 4.6, columns=2)
    first, count = found.growths[0], len(found.lengths)
    shown = {"scores and values": first.attention, "projections": first.projections}
    shown |= {"feed-forward": first.feed_forward, "all": first.operations}
    for series, (name, values) in enumerate(shown.items()):
        label = f"{name}, exponent {found.exponent(values):.2f}"
        parts.plot(found.lengths, np.divide(values, 1e9), **line(series, count), label=label)
    if found.lengths[0] <= found.overtakes <= found.lengths[-1]:
        parts.axvline(found.overtakes, color="black", linewidth=0.8, linestyle=":")
        text = f"attention overtakes\nfeed-forward: {found.overtakes:,}"
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        parts.annotate(text, (found.overtakes, 0), (-4, 6), **place, ha="right", fontsize=8)
    for series, each in enumerate(found.growths):
        label = f"{each.name}, exponent {found.exponent(each.peak_bytes):.2f}"
        memory.plot(found.lengths, np.divide(each.peak_bytes, 1 << 20), **line(series, count), label=label)
    parts.set(title=f"Operations: {first.name}", ylabel="operations, $10^9$")
    memory.set(title="Peak memory of a forward pass in training", ylabel="MiB")
    for axes in (parts, memory):
        axes.set_xlabel("tokens")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(found.lengths, [f"{length:,}" for length in found.lengths], rotation=45)
        axes.legend(fontsize=8)
    return figure
