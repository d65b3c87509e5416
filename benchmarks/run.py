"""Speed of our decoder beside Hugging Face's Mixtral and GptOss, with the same weights.

    python benchmarks/run.py [--rounds 5] [--out benchmarks/results.json]

Every row gives medians in milliseconds, how many times as fast we are as each peer, and in brackets
the least and the most of any round. The floor of every row is 1. All run under the allocator's
settings of our commands.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contestants import VOCAB, Contestant, in_windows, mixtral_pair, windowed_pair
from timing import each_turn, keep

from glassformer.allocator import keep_freed_memory

HERE = Path(__file__).parent
AIMS = {
    "training step": (1.35, 2.0),
    "prefill, every second layer windowed": (1.6, 1.8),
    "prefill, gpt-oss form": (8.0, 10.0),
    "prefill": (1.4, 1.5),
    "decode, batch 1": (3.0, 3.0),
    "decode, batch 8": (2.0, 2.0),
}
"""How many times as fast as the faster peer we want to be, in float32 and in bfloat16."""
WINDOW_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)


def _training_step(contestant: Contestant, batches: torch.Tensor) -> Callable[[], None]:
    """Forward, loss, backward, with new tokens in each step; torch's optimizer is left out."""
    following = itertools.cycle(batches)

    def step() -> None:
        tokens = next(following)
        contestant.model.train()
        logits = contestant.logits(tokens[:, :-1])
        contestant.loss(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        contestant.model.zero_grad()

    return step


def _inference(call: Callable[[], object], contestant: Contestant) -> Callable[[], None]:
    def run() -> None:
        contestant.model.eval()
        with torch.inference_mode():
            call()

    return run


def _row(what: str, dtype: str, seconds: dict[str, list[float]], per: int = 1) -> dict[str, Any]:
    (mine,) = (name for name in seconds if name.startswith("glassformer"))
    aim = next(aims[dtype == "bfloat16"] for kind, aims in AIMS.items() if what.startswith(kind))
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    rounds = {
        name: [time / our_time for time, our_time in zip(turns, seconds[mine], strict=True)]
        for name, turns in seconds.items()
        if name != mine
    }
    row = {
        "what": what,
        "dtype": dtype,
        "milliseconds": {name: 1e3 * time / per for name, time in medians.items()},
        "times_as_fast": {name: medians[name] / medians[mine] for name in rounds},
        "least_and_most": {name: [min(factors), max(factors)] for name, factors in rounds.items()},
        "floor": 1.0,
        "aim": aim,
    }
    shown = "  ".join(f"{name} {value:.2f}" for name, value in row["milliseconds"].items())
    ratios = "  ".join(
        f"{name} {value:.2f}x ({min(rounds[name]):.2f}-{max(rounds[name]):.2f})"
        for name, value in row["times_as_fast"].items()
    )
    below = "" if min(row["times_as_fast"].values()) >= 1 else "   BELOW 1"
    print(f"{what:<38}{dtype:<10}{shown}   ->  {ratios}   aim {aim}{below}", flush=True)
    return row


def compare(rounds: int) -> dict[str, Any]:
    """All rows with both peers, and how far apart the logits of same-weight models are."""
    mixtral = mixtral_pair()
    windowed = windowed_pair()
    with_windows = in_windows(mixtral[0])
    everyone = [*mixtral, *windowed, with_windows]
    us = mixtral[0]
    peers = (mixtral[1], windowed[1])
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(3, VOCAB, shape, generator=generator)

    train_tokens = draw(64, 8, 257)
    long = draw(1, 2048)
    rows = []
    tokens = draw(2, 512)
    with torch.no_grad():
        difference = {
            f"{mine.name} - {peer.name}": float(
                (mine.logits(tokens) - peer.logits(tokens)).abs().max()
            )
            for mine, peer in (mixtral, windowed)
        }
    for name, value in difference.items():
        print(f"largest difference of logits, float32, {name}: {value:.1e}")
    peer_training: dict[str, list[float]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for contestant in everyone:
            contestant.model.to(dtype)
        steps = {entry.name: _training_step(entry, train_tokens) for entry in (us, *peers)}
        seconds = each_turn(steps, rounds)
        peer_training = {
            peer.name: min(
                seconds[peer.name],
                peer_training.get(peer.name, seconds[peer.name]),
                key=statistics.median,
            )
            for peer in peers
        }
        rows.append(_row("training step, 8 x 256", name, seconds | peer_training))
        prefill = {
            entry.name: _inference(lambda e=entry: e.prefill(long), entry) for entry in everyone
        }
        seconds = each_turn(prefill, rounds)
        rows.append(
            _row("prefill of 2,048", name, {n: seconds[n] for n in (us.name, mixtral[1].name)})
        )
        rows.append(
            _row(
                "prefill, every second layer windowed",
                name,
                {n: seconds[n] for n in (with_windows.name, mixtral[1].name)},
            )
        )
        rows.append(
            _row(
                "prefill, gpt-oss form",
                name,
                {entry.name: seconds[entry.name] for entry in windowed},
            )
        )
        for batch in (1, 8):
            prompt = draw(batch, 64)
            decode = {
                entry.name: _inference(lambda e=entry, p=prompt: e.decode(p, 128), entry)
                for entry in (us, *peers)
            }
            rows.append(
                _row(f"decode, batch {batch}, a token", name, each_turn(decode, rounds), per=128)
            )
    return {"rows": rows, "largest_difference_of_logits": difference}


def window_growth(runs: int = 2) -> list[dict[str, float]]:
    """A windowed layer at growing lengths, each in its own process; the fastest run counts."""
    table = []
    for length in WINDOW_LENGTHS:
        command = [sys.executable, str(HERE / "window.py"), str(length)]
        measured = [
            json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            for _ in range(runs)
        ]
        row = {"length": length} | {key: min(run[key] for run in measured) for key in measured[0]}
        if table:
            row |= {
                f"{key}_growth": row[key] / table[-1][key] for key in ("milliseconds", "peak_mib")
            }
        growth = "".join(f"  {row[key]:.2f}x" for key in row if key.endswith("growth"))
        print(
            f"windowed layer, {length:>6} tokens: {row['milliseconds']:8.1f} ms "
            f"{row['peak_mib']:8.1f} MiB{growth}"
        )
        table.append(row)
    return table


def main() -> None:
    """Measure everything, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    keep_freed_memory()
    results = compare(arguments.rounds)
    results["windowed_layer"] = window_growth()
    keep(results, arguments.out)


if __name__ == "__main__":
    main()
