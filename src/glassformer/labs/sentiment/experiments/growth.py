"""How a layer's cost grows with the length of the text: operations and memory, predicted, counted and measured."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from glassformer.kernels import plain
from glassformer.labs.sentiment.complexity_curves import CostCurve
from glassformer.labs.sentiment.experiments.mini_transformer import COURSE_MODEL
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.modes import seeded
from glassformer.observe.complexity import complexity, overtakes
from glassformer.observe.complexity_measured import Measurement, count_operations, fitted_exponent, peak_bytes

D_MODEL, HEADS, D_FF = 512, 8, 2048
"""The sizes of the course's section on cost; the model that it trains is smaller."""
WINDOW, VOCAB = 128, 1000


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
    growths: list[CostCurve]
    counted: bool  # torch's FlopCounterMode counted the predicted operations, of every model at every length
    overtakes: int
    overtakes_with_projections: int
    course_overtakes: int
    tail: int  # how many of the longest lengths exponents are fitted to

    def exponents(self, curve: CostCurve) -> dict[str, float]:
        """Of operations, and of memory as measured and as predicted."""
        costs = {"operations": curve.operations, "peak_bytes": curve.measured.peak_bytes, "predicted_bytes": curve.held}
        return {name: fitted_exponent(curve.lengths, each, tail=self.tail) for name, each in costs.items()}


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
    growths, counted = [], True
    for name, model, holds_weights in (
        ("encoder", encoder, False),
        ("encoder, weights held", encoder, True),
        ("decoder", decoder, False),
        (f"decoder, window {WINDOW}", windowed, False),
    ):
        predicted = tuple(complexity(model.config, 1, length) for length in lengths)
        calls = [partial(_forward, model, text, holds_weights) for text in texts]
        counted &= [count_operations(call) for call in calls] == [cost.operations.total for cost in predicted]
        measured = Measurement(lengths, (), tuple(peak_bytes(call) for call in calls))
        growths.append(CostCurve(name, predicted, measured, 3 if holds_weights else 0))
    course = replace(encoder.config, hidden_dim=COURSE_MODEL["d_model"], ff_dim=COURSE_MODEL["d_ff"])
    found = overtakes(encoder.config), overtakes(encoder.config, with_projections=True), overtakes(course)
    of_layer, with_projections, of_course = (length or 0 for length in found)
    crossings = of_layer, with_projections, of_course
    return GrowthResult(D_MODEL, D_FF, WINDOW, growths, counted, *crossings, min(3, len(lengths)))


def _forward(model: nn.Module, tokens: Tensor, holds_weights: bool) -> Tensor:
    """The forward pass over a text, such that a backward pass could follow."""
    with plain() if holds_weights else nullcontext():
        return model(tokens)
