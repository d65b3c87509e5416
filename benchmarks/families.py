"""Decoders of other families at their real shapes, with random weights, beside transformers.

    python benchmarks/families.py [--only qwen3,float32,1] [--rounds 5] [--threads 2]
                                  [--out benchmarks/families.json]

Each model is saved by transformers and read by us, so that both have the same weights. On a machine
that does other things compare with one thread and ``--processor-time``: seconds of the processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import each_turn, keep

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from contestants import Contestant, ours, theirs
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen3Config,
)

from glassformer.checkpoints.decoders import load_decoder

HERE = Path(__file__).parent
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
SHAPES: dict[str, PretrainedConfig] = {
    "gpt2": GPT2Config(),
    "qwen3": Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    ),
    "llama": LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=131072,
        rope_parameters={
            **_LLAMA3_ROPE,
            "original_max_position_embeddings": 8192,
            "rope_theta": 5e5,
        },
    ),
}
"""GPT-2 small, Qwen3-0.6B and Llama-3.2-1B."""
PROMPT = 512
NEW = 32
"""Tokens of all prompts together, and new ones of each text."""


def pair(name: str, dtype: torch.dtype) -> tuple[Contestant, Contestant]:
    """Ours and theirs, with the same weights, in shared memory where they have the same form."""
    torch.manual_seed(0)
    peer = AutoModelForCausalLM.from_config(
        SHAPES[name], dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    with tempfile.TemporaryDirectory() as directory:
        peer.save_pretrained(directory)
        decoder = load_decoder(directory, dtype=dtype).eval()
    by_shape: dict[torch.Size, list[torch.Tensor]] = {}
    for weight in decoder.parameters():
        by_shape.setdefault(weight.shape, []).append(weight.detach())
    for parameter in peer.parameters():
        wide = parameter.to(dtype)
        parameter.data = next(
            (
                candidate
                for candidate in by_shape.get(wide.shape, ())
                if torch.equal(candidate, wide)
            ),
            wide,
        )
    peer.config.dtype = dtype
    return ours("glassformer", decoder), theirs("transformers", peer)


def measure(
    name: str,
    dtype: torch.dtype,
    batch: int,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, Any]]:
    """Seconds of reading a prompt and of generating, and the ratio of the medians."""
    contestants = pair(name, dtype)
    prompt = torch.randint(
        SHAPES[name].vocab_size,
        (batch, PROMPT // batch),
        generator=torch.Generator().manual_seed(0),
    )
    rows = []
    for what in ("prefill", "decode"):

        def call(contestant: Contestant, what: str = what) -> object:
            with torch.inference_mode():
                return (
                    contestant.prefill(prompt)
                    if what == "prefill"
                    else contestant.decode(prompt[:, :16], NEW)
                )

        times = each_turn(
            {
                contestant.name: lambda contestant=contestant: call(contestant)
                for contestant in contestants
            },
            rounds,
            clock=clock,
        )
        medians = [statistics.median(seconds) for seconds in times.values()]
        row = {
            "model": name,
            "dtype": str(dtype).removeprefix("torch."),
            "batch": batch,
            "what": what,
        }
        rows.append({**row, "seconds": times, "ratio": medians[1] / medians[0]})
        print(
            {**row, "ours": medians[0], "theirs": medians[1], "ratio": round(rows[-1]["ratio"], 2)},
            flush=True,
        )
    return rows


def main() -> None:
    """Measure all, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="model, dtype and batch, or the first of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "families.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.processor_time else time.perf_counter
    rows = [
        row
        for name in SHAPES
        for dtype in (torch.float32, torch.bfloat16)
        for batch in (1, 8)
        if f"{name},{str(dtype).removeprefix('torch.')},{batch}".startswith(arguments.only)
        for row in measure(name, dtype, batch, arguments.rounds, clock)
    ]
    keep({"rows": rows, "processor time": arguments.processor_time}, arguments.out)


if __name__ == "__main__":
    main()
