"""gpt-oss at its true size on this machine: loading, a prompt of 128 tokens, generation.

    python benchmarks/gpt_oss_20b.py [--directory /tmp/gpt-oss-20b] [--threads 2]
                                     [--out benchmarks/gpt_oss_20b.json]
    python benchmarks/gpt_oss_20b.py --llama build/bin/llama-bench --gguf gpt-oss-20b.gguf

Makes a checkpoint of random weights where there is none (13.8 GB, some minutes; the disk is asked
first), and leaves it there unless ``--remove``; one that was there stays. ``--size eighth`` tries
the script out.

Loading and generating have a process of their own each, which the system stops beyond ``--limit``
GiB of data (RLIMIT_DATA: what a program writes to, and not the files it maps). Peaks are the
kernel's VmHWM, counted anew for each stage, and ``ru_maxrss`` for the whole process. Both count
resident pages, those of mapped files too: ``anonymous`` and ``file`` (RssAnon, RssFile) tell them
apart. Weights are read into memory of the process and not mapped; the system's own copies of the
files belong to nobody and are given up when memory is short, so after a load on a machine with
little more memory than the model, the disk is not warm any more: ``cached`` tells what is left.

With ``--llama``, the named llama-bench and we take turns, ``--rounds`` of them, with the same
threads and tokens; each is a process that loads its weights. ``--gguf`` is the same checkpoint in
the format of llama.cpp.

A prompt is read, and then a text is generated from one token, as llama-bench does. Bandwidth is
what all threads together read when they add up the numbers of a tensor of 256 MiB, which lies in
huge pages as weights do: the best of some turns before the generation and of some after it, and the
mean of the two, since it changes within seconds on shared machines. The bytes of a token are those
of the weights that it passes, and of the keys and values that it sees.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch

from glassformer.checkpoints.description import describe
from glassformer.generation.decoding import generate as run
from glassformer.kernels import native
from glassformer.kernels.huge_pages import empty_in_huge_pages
from glassformer.kernels.packed import KINDS
from glassformer.layers.quantized import Pack
from glassformer.models import Decoder

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tools"))

from random_gpt_oss import SIZES, write_random_gpt_oss  # noqa: E402

GIB = 2**30


def status() -> dict[str, int]:
    """Of /proc/self/status, the sizes in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return {
        line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")
    }


def cached() -> int:
    """How much memory the system uses for copies of files, of all programs."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Cached:"))


def measured(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What ``work`` returns, its seconds, and the peak while it ran."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM counts from here
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    now = status()
    return result, {
        "seconds": seconds,
        "peak_gib": now["VmHWM"] / GIB,
        "now_gib": now["VmRSS"] / GIB,
        "anonymous_gib": now["RssAnon"] / GIB,
        "file_gib": now["RssFile"] / GIB,
    }


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Write the checkpoint."""
    size, usage = measured(
        lambda: write_random_gpt_oss(options.directory, SIZES[options.size], layout=options.layout)
    )
    return {**usage, "bytes": size, "bytes_per_second": size / usage["seconds"]}


def loaded(options: argparse.Namespace) -> Decoder:
    """The model."""
    return Decoder.from_pretrained(options.directory, device=options.device, pack=options.pack)


def load(options: argparse.Namespace) -> dict[str, Any]:
    """Load it, and nothing else."""
    native.library()  # built once in a machine's life
    return measured(lambda: loaded(options))[1]


def generate(options: argparse.Namespace) -> dict[str, Any]:
    """Load it, read a prompt, and generate a text."""
    native.library()
    model, loading = measured(lambda: loaded(options).eval())
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(model.config.vocab_size, (1, options.prompt), generator=generator).to(
        options.device
    )
    results: dict[str, Any] = {"load": loading}
    # A first short one, so that what happens once is not counted: threads start, tables are made.
    run(model, prompt[:, :2], 2)
    _, results["prefill"] = measured(lambda: run(model, prompt, 1))
    results["prefill"]["tokens_per_second"] = options.prompt / results["prefill"]["seconds"]
    before = bandwidth(options)
    [tokens], results["generation"] = measured(lambda: run(model, prompt[:, :1], options.tokens))
    results["generation"]["tokens_per_second"] = options.tokens / results["generation"]["seconds"]
    results["generation"]["bandwidth"] = (before + bandwidth(options)) / 2
    results["tokens"] = tokens
    if options.device != "cpu":
        results["device_peak_gib"] = torch.cuda.max_memory_allocated() / GIB
    return results


def bandwidth(options: argparse.Namespace) -> float:
    """Bytes that all threads read in a second."""
    numbers = empty_in_huge_pages((GIB // 16,), torch.float32, options.device).fill_(1)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        numbers.sum().item()
        best = min(best, time.perf_counter() - start)
    return numbers.nbytes / best


def llama(options: argparse.Namespace) -> dict[str, float]:
    """Tokens a second of llama.cpp: of the prompt, and generated; and the bandwidth after it."""
    sizes = {
        "-t": options.threads,
        "-p": options.prompt,
        "-n": options.tokens,
        "-r": 1,
        "-ngl": 0,
        "-lm": "none",
        "-o": "json",
    }
    flags = [str(word) for pair in sizes.items() for word in pair]
    command = [options.llama, "-m", options.gguf, *flags]
    tests = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    )
    speeds = {"prefill" if test["n_gen"] == 0 else "generation": test["avg_ts"] for test in tests}
    return speeds | {"bandwidth": bandwidth(options)}


def compared(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Tokens a second of ours and llama.cpp with their ratio, and bandwidths by round."""
    result: dict[str, Any] = {}
    for work in ("prefill", "generation"):
        speeds = {name: [round_speeds[name][work] for round_speeds in rounds] for name in rounds[0]}
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        result[work] = {
            "tokens_per_second": speeds,
            "ratio": medians["ours"] / medians["llama.cpp"],
        }
        summary = (
            f"{name} {medians[name]:.2f} ({min(values):.2f} to {max(values):.2f})"
            for name, values in speeds.items()
        )
        print(f"{work:<12}{'   '.join(summary)}   ratio {result[work]['ratio']:.2f}", flush=True)
    result["bandwidth"] = {
        name: [round_speeds[name]["bandwidth"] for round_speeds in rounds] for name in rounds[0]
    }
    return result


STAGES = {"make": make, "load": load, "generate": generate}


NOT_FOR_STAGES = ("out", "remove", "limit", "stage", "llama", "gguf", "rounds")


def in_process(
    stage: str, options: argparse.Namespace, limit: float | None = None
) -> dict[str, Any]:
    """Run a stage in a process of its own, under a limit in GiB."""
    stage_options = {
        name: value for name, value in vars(options).items() if name not in NOT_FOR_STAGES
    }
    flags = [f"--{name}={value}" for name, value in stage_options.items() if value is not None]
    command = [
        sys.executable,
        __file__,
        *flags,
        f"--stage={stage}",
        *([f"--limit={limit}"] if limit else []),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return {"failed": done.returncode, "limit_gib": limit}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result | {"limit_gib": limit}


def run_stage(options: argparse.Namespace) -> None:
    """What a process of :func:`in_process` does."""
    torch.set_num_threads(options.threads)
    if options.limit:
        most = int(options.limit * GIB)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    result = STAGES[options.stage](options)
    result["ru_maxrss_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    print(json.dumps(result))


def bytes_of_a_token(directory: Path, context: int, pack: Pack | None) -> dict[str, int]:
    """What one token reads, by what it is."""
    description = describe(directory)
    config = description.config
    stored = description.stored_bytes
    share = 1.0
    if pack is not None:
        kind = KINDS[pack]
        share = kind.nbytes / (2 * kind.block)  # of bfloat16
    return {
        "experts": stored["experts"] * config.top_k // config.num_experts,
        "attention": int(stored["attention"] * share),
        "output": int(stored["output"] * share),
        "router and norms": stored["router"] + stored["norms"],
        "keys and values": description.cache(context),
    }


def share_of_bandwidth(generated: dict[str, Any], read: int) -> float:
    """How much of the bandwidth a generation reached that reads so many bytes for a token."""
    speed = generated["generation"]
    return float(read * speed["tokens_per_second"] / speed["bandwidth"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--size", choices=sorted(SIZES), default="20b")
    parser.add_argument("--layout", choices=("huggingface", "openai"), default="huggingface")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--pack", choices=get_args(Pack), help="kind in which attention and output are packed"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=20, help="tokens to generate")
    parser.add_argument(
        "--limit", type=float, help="GiB of data; 16 for loading and 17 for generation at 20b"
    )
    parser.add_argument(
        "--llama", type=Path, metavar="LLAMA_BENCH", help="compare with this program of llama.cpp"
    )
    parser.add_argument(
        "--gguf", type=Path, help="for --llama: the same checkpoint in llama.cpp's format"
    )
    parser.add_argument("--rounds", type=int, default=3, help="for --llama: turns")
    parser.add_argument(
        "--remove",
        action="store_true",
        help="remove the checkpoint at the end, if this run made it",
    )
    parser.add_argument("--out", type=Path, default=HERE / "gpt_oss_20b.json")
    parser.add_argument("--stage", choices=sorted(STAGES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.llama is None) != (options.gguf is None):
        parser.error("--llama and --gguf belong together")
    for path in (options.llama, options.gguf):
        if path is not None and not path.is_file():
            parser.error(f"no file {path}")
    options.directory = options.directory or Path(f"/tmp/gpt-oss-{options.size}-random")
    return options


def main() -> None:
    """Measure everything, print it, write the JSON file."""
    options = arguments()
    if options.stage:
        run_stage(options)
        return
    torch.set_num_threads(options.threads)
    results: dict[str, Any] = {
        "size": options.size,
        "layout": options.layout,
        "device": options.device,
        "pack": options.pack,
    }
    if not options.directory.exists():
        results["make"] = show("make", in_process("make", options))
        if "failed" in results["make"]:
            sys.exit(1)
    for stage, limit in (("load", 16.0), ("generate", 17.0)):
        warm(options.directory)
        before = cached()
        results[stage] = in_process(
            stage, options, options.limit or (limit if options.device == "cpu" else None)
        )
        results[stage]["cached_gib_before_and_after"] = [before / GIB, cached() / GIB]
        show(stage, results[stage])
    if "generation" in results["generate"]:
        # In the middle of what is generated.
        read = bytes_of_a_token(options.directory, options.tokens // 2, options.pack)
        results["reading"] = {
            "bytes_per_token": {"total": sum(read.values()), **read},
            "share_of_bandwidth": share_of_bandwidth(results["generate"], sum(read.values())),
        }
        show("reading", results["reading"])
    if options.llama and "generation" in results["generate"]:
        rounds = []
        shares = []
        for _ in range(options.rounds):
            result = in_process("generate", options)
            speeds = {work: result[work]["tokens_per_second"] for work in ("prefill", "generation")}
            speeds["bandwidth"] = result["generation"]["bandwidth"]
            rounds.append({"ours": speeds, "llama.cpp": llama(options)})
            shares.append(share_of_bandwidth(result, sum(read.values())))
        results["llama.cpp"] = compared(rounds) | {"share_of_bandwidth": shares}
        print(
            f"share of bandwidth {statistics.median(shares):.2f} ({min(shares):.2f} to "
            f"{max(shares):.2f})"
        )
    kernel = native.library()
    results["machine"] = {
        "threads": options.threads,
        "kernel": None if kernel is None else native.LEVELS[kernel.level],
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")
    if options.remove and "make" in results:
        shutil.rmtree(options.directory)


def warm(directory: Path) -> None:
    """Read all files once, so that what the system can keep of them is in memory."""
    for file in sorted(directory.glob("*.safetensors")):
        with file.open("rb", buffering=0) as opened:
            while opened.read(2**24):
                pass


def show(name: str, result: dict[str, Any]) -> dict[str, Any]:
    print(name, json.dumps(result, indent=2), flush=True)
    return result


if __name__ == "__main__":
    main()
