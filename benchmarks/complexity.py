"""Operations, time and memory over the length of the text, predicted and measured, at the course's sizes.

    python benchmarks/complexity.py [--rounds 7] [--longest 4096] [--threads 2] [--out benchmarks/complexity]

One layer of each: an encoder on the fused kernel, the same encoder on the kernel that holds its weights, and a decoder
whose window is 128. Writes complexity.json, complexity.png and complexity.svg.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from glassformer.observe.complexity import ModelConfig, complexity, course_count, overtakes
from glassformer.observe.complexity_figures import Growth, draw_complexity
from glassformer.observe.complexity_measured import LENGTHS, Measurement, count_operations, fitted_exponent, measure
from glassformer.observe.style import save_figure

D_MODEL, HEADS, D_FF, VOCAB, WINDOW = 512, 8, 2048, 1000, 128
TAIL = 3


def _forward(model: nn.Module, training: bool, holds_weights: bool) -> Callable[[int], Callable[[], object]]:
    """Builds the forward pass over a text of a length: in inference, or such that a backward pass could follow."""

    def of_length(length: int) -> Callable[[], object]:
        tokens = torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(0))

        def call() -> object:
            kernel = sdpa_kernel(SDPBackend.MATH) if holds_weights else nullcontext()
            with torch.inference_mode(not training), kernel:
                return model(tokens)

        return call

    return of_length


def _grow(
    name: str, model: nn.Module, config: ModelConfig, lengths: tuple[int, ...], rounds: int, holds_weights: bool = False
) -> Growth:
    timed = measure(_forward(model, False, holds_weights), lengths, rounds=rounds)
    kept = measure(_forward(model, True, holds_weights), lengths, rounds=1)
    predicted = tuple(complexity(config, 1, length) for length in lengths)
    counted = [count_operations(_forward(model, False, holds_weights)(length)) for length in lengths]
    assert counted == [cost.operations.total for cost in predicted], f"{name}: torch counts {counted}"
    return Growth(name, predicted, Measurement(lengths, timed.seconds, kept.peak_bytes), 2 if holds_weights else 0)


def _row(growth: Growth) -> dict[str, Any]:
    measured = growth.measured

    def exponent(values: tuple[float, ...] | tuple[int, ...]) -> float:
        return fitted_exponent(measured.lengths, values, tail=min(TAIL, len(values)))

    exponents = {
        "seconds": exponent(measured.seconds),
        "operations": exponent(growth.operations),
        "peak_bytes": exponent(measured.peak_bytes),
        "predicted_bytes": exponent(growth.held),
    }
    print(
        f"{growth.name}: exponents of the last {TAIL} lengths "
        + "  ".join(f"{k} {v:.2f}" for k, v in exponents.items())
    )
    for length, seconds, peak, cost, held in zip(
        measured.lengths, measured.seconds, measured.peak_bytes, growth.predicted, growth.held, strict=True
    ):
        operations = cost.operations.total
        print(
            f"  {length:>6} tokens {1e3 * seconds:9.2f} ms {operations / 1e9:9.3f} GFLOP "
            f"{operations / seconds / 1e9:6.1f} GFLOP/s; peak {peak / 2**20:8.1f} MiB, predicted {held / 2**20:8.1f}"
        )
    return {
        "name": growth.name,
        "exponents": exponents,
        "measured": asdict(measured),
        "predicted": [asdict(cost) | {"total": cost.operations.total} for cost in growth.predicted],
    }


def main() -> None:
    """Measure everything, print the table, write the JSON file and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "complexity")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    lengths = tuple(length for length in LENGTHS if length <= arguments.longest)
    encoder_config = EncoderConfig(VOCAB, 1, D_MODEL, D_FF, HEADS, max(lengths), num_classes=2, dropout=0.0)
    window: dict[str, Any] = {"window": WINDOW, "windowed_layers": "all", "max_seq_len": max(lengths)}
    decoder_config = DecoderConfig(VOCAB, 1, D_MODEL, D_FF, HEADS, D_MODEL // HEADS, **window)
    encoder, decoder = Encoder(encoder_config), Decoder(decoder_config)
    growths = [
        _grow("encoder", encoder, encoder_config, lengths, arguments.rounds),
        _grow("encoder, weights held", encoder, encoder_config, lengths, arguments.rounds, holds_weights=True),
        _grow(f"decoder, window {WINDOW}", decoder, decoder_config, lengths, arguments.rounds),
    ]
    results = {
        "rows": [_row(growth) for growth in growths],
        "overtakes": {
            "scores_and_values": overtakes(encoder_config),
            "with_projections": overtakes(encoder_config, with_projections=True),
        },
        "course_count": {str(length): course_count(D_MODEL, length, D_FF) for length in lengths},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        },
    }
    print(f"attention overtakes the feed-forward network at {results['overtakes']}")
    figure = draw_complexity(growths, overtakes=overtakes(encoder_config), tail=min(TAIL, len(lengths)))
    paths = save_figure(figure, arguments.out, "complexity")
    path = arguments.out / "complexity.json"
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path} and {', '.join(str(each) for each in paths)}")


if __name__ == "__main__":
    main()
