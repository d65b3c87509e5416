"""How a layer's cost grows with the length of the text: predicted, counted by torch, and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from glassformer.errors import require
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from glassformer.observe.complexity import ModelConfig, complexity, overtakes
from glassformer.observe.complexity_measured import (
    LENGTHS,
    Measurement,
    count_operations,
    fitted_exponent,
    measure_together,
)
from glassformer.observe.figures.complexity_curves import CostCurve

D_MODEL, HEADS, D_FF = 512, 8, 2048
"""The course's sizes."""

WINDOW = 128
TAIL = 3
"""How many of the longest lengths exponents are fitted to."""

_VOCAB = 1000


@dataclass(frozen=True)
class GrowthResult:
    """One layer of each of three models over growing lengths.

    Attributes:
        growths: An encoder on the fused kernel; the same one on the kernel that holds its weights; a decoder; the same
            one with a window of :data:`WINDOW`.
        counted: Whether torch's ``FlopCounterMode`` counted the predicted operations, of every model at every length.
        overtakes: The length from which scores and values take more operations than the feed-forward network.
        overtakes_with_projections: The same with the projections on attention's side.
        threads: That torch computed with.
    """

    growths: list[CostCurve]
    counted: bool
    overtakes: int
    overtakes_with_projections: int
    threads: int

    def exponents(self, growth: CostCurve) -> dict[str, float]:
        """Fitted to the last :data:`TAIL` lengths: of measured time and memory, and of what was predicted."""
        tail = min(TAIL, len(growth.lengths))
        values: dict[str, Sequence[float]] = {
            "seconds": growth.measured.seconds,
            "operations": growth.operations,
            "peak_bytes": growth.measured.peak_bytes,
            "predicted_bytes": growth.held,
        }
        return {name: fitted_exponent(growth.lengths, each, tail=tail) for name, each in values.items()}


def measure_growth(lengths: Sequence[int] = LENGTHS, rounds: int = 5) -> GrowthResult:
    """Run all four models at all ``lengths``, ``rounds`` times in turn; the times are medians.

    Raises:
        InputError: Fewer than two lengths, or ``rounds`` below 1.
    """
    require(len(lengths) >= 2, f"{len(lengths)} lengths", "at least two", "An exponent needs two points.")
    lengths = tuple(lengths)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder_config = EncoderConfig(_VOCAB, 1, D_MODEL, D_FF, HEADS, max(lengths), num_classes=2, dropout=0.0)
        decoder_config = DecoderConfig(
            _VOCAB, 1, D_MODEL, D_FF, HEADS, D_MODEL // HEADS, windowed_layers="all", max_seq_len=max(lengths)
        )
        windowed_config = replace(decoder_config, window=WINDOW)
        encoder, decoder, windowed = Encoder(encoder_config), Decoder(decoder_config), Decoder(windowed_config)
    models: list[tuple[str, nn.Module, ModelConfig, bool]] = [
        ("encoder", encoder, encoder_config, False),
        ("encoder, weights held", encoder, encoder_config, True),
        ("decoder", decoder, decoder_config, False),
        (f"decoder, window {WINDOW}", windowed, windowed_config, False),
    ]
    inference = [_forward(model, False, holds_weights) for _, model, _, holds_weights in models]
    training = [_forward(model, True, holds_weights) for _, model, _, holds_weights in models]
    timed, kept = measure_together(inference, lengths, rounds=rounds), measure_together(training, lengths, rounds=1)
    growths, counted = [], True
    for (name, _, config, holds_weights), forward, taken, held in zip(models, inference, timed, kept, strict=True):
        predicted = tuple(complexity(config, 1, length) for length in lengths)
        operations = [count_operations(forward(length)) for length in lengths]
        counted &= operations == [cost.operations.total for cost in predicted]
        measured = Measurement(lengths, taken.seconds, held.peak_bytes)
        growths.append(CostCurve(name, predicted, measured, 2 if holds_weights else 0))
    crossing, with_projections = overtakes(encoder_config), overtakes(encoder_config, with_projections=True)
    assert crossing is not None  # at d_ff + 1
    assert with_projections is not None
    return GrowthResult(growths, counted, crossing, with_projections, torch.get_num_threads())


def _forward(model: nn.Module, training: bool, holds_weights: bool) -> Callable[[int], Callable[[], object]]:
    """Builds the forward pass over a text of a length: in inference, or such that a backward pass could follow."""

    def of_length(length: int) -> Callable[[], object]:
        tokens = torch.randint(1, _VOCAB, (1, length), generator=torch.Generator().manual_seed(0))

        def call() -> object:
            kernel = sdpa_kernel(SDPBackend.MATH) if holds_weights else nullcontext()
            with torch.inference_mode(not training), kernel:
                return model(tokens)

        return call

    return of_length
