"""Decoders of GGUF files beside llama.cpp: tokens per second, and memory.

    python benchmarks/gguf.py model.gguf [...] [--llama-bench PATH] [--rounds 5] [--threads 2]
                              [--out FILE]

llama-bench is that of ``--llama-bench`` or of ``$LLAMA_BENCH``; without it there are our numbers
alone. On a machine that does other things compare with one thread and ``--processor-time``: tokens
per second of the processor's time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from timing import keep

from glassformer.allocator import keep_freed_memory
from glassformer.checkpoints.gguf import load_gguf
from glassformer.generation.native_step import DecodingStep
from glassformer.models import Decoder

HERE = Path(__file__).parent
PROMPT = 512
NEW = 64


def read_prompt(model: Decoder) -> None:
    """The last logits of a prompt."""
    with torch.inference_mode():
        model.logits(model.hidden(torch.randint(1000, (1, PROMPT)), last=1))


def generate(model: Decoder) -> None:
    """The likeliest tokens after one."""
    step = DecodingStep(model, model.new_cache(1, NEW + 1), constant=True)
    tokens = torch.tensor([[1]])
    for _ in range(NEW):
        tokens = step(tokens).argmax(-1, keepdim=True)


def ours(model: Decoder, what: str, processor_time: bool) -> float:
    """Tokens per second."""
    clock = time.process_time if processor_time else time.perf_counter
    start = clock()
    (read_prompt if what == "prompt" else generate)(model)
    return (PROMPT if what == "prompt" else NEW) / (clock() - start)


def theirs(bench: str, file: str, what: str, threads: int, processor_time: bool) -> float:
    """Tokens per second; of the processor's time by what a second repetition adds."""
    count = PROMPT if what == "prompt" else NEW
    sizes = ["-p", str(count), "-n", "0"] if what == "prompt" else ["-p", "0", "-n", str(count)]

    def run(repetitions: int) -> tuple[float, float]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [
            bench,
            "-m",
            file,
            "-t",
            str(threads),
            *sizes,
            "-r",
            str(repetitions),
            "-o",
            "json",
        ]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return json.loads(output)[0]["avg_ts"], spent

    return count / (run(2)[1] - run(1)[1]) if processor_time else run(1)[0]


def measure(file: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Medians and all rounds."""
    before = resident()
    model = load_gguf(file).eval()
    print(
        file,
        f"{os.path.getsize(file) >> 20} MiB, in memory {(resident() - before) >> 20} MiB",
        flush=True,
    )
    rows = []
    for what in ("prompt", "generation"):
        rounds: dict[str, list[float]] = {"glassformer": []}
        ours(model, what, arguments.processor_time)
        for _ in range(arguments.rounds):
            rounds["glassformer"].append(ours(model, what, arguments.processor_time))
            if arguments.llama_bench:
                measured = theirs(
                    arguments.llama_bench, file, what, arguments.threads, arguments.processor_time
                )
                rounds.setdefault("llama.cpp", []).append(measured)
        medians = {name: statistics.median(speeds) for name, speeds in rounds.items()}
        rows.append(
            {"file": Path(file).name, "what": what, "tokens per second": rounds, "medians": medians}
        )
        print(what, {name: round(speed, 1) for name, speed in medians.items()}, flush=True)
    return rows


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure all files, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--llama-bench", default=os.environ.get("LLAMA_BENCH"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "gguf.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as our commands do
    rows = [row for file in arguments.files for row in measure(file, arguments)]
    keep({"rows": rows, "processor time": arguments.processor_time}, arguments.out)


if __name__ == "__main__":
    main()
