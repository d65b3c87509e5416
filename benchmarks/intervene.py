"""Cost of sweeps, interventions and attribution, compared with TransformerLens on the same weights.

    pip install "transformer-lens>=4.3"          (the peer; in an environment of its own)
    python benchmarks/intervene.py [--rounds 3] [--threads 2] [--out benchmarks/intervene.json]

A random model of GPT-2 small's shape and 8 x 16 tokens. The candidates run in turns in one process.
TransformerLens receives a copy of the weights. In each turn it runs an eighth of the places, as
each place costs it one forward pass whatever the texts are, and ours sweeps all places; medians
count.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import statistics
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import pandas
import torch
from timing import in_turns, keep
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.cost import peak_bytes
from glassformer.observe.detectors import head_scores, repeated_tokens
from glassformer.observe.edits import Edit, add, forbid, mean, patch, put, scale, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.paths import Receiver, Sender, path_patch
from glassformer.observe.sweep import attribution_sweep, patch_sweep

HERE = Path(__file__).parent
MIB = 2**20
PEERS: dict[str, Any] = {
    "heads": (patching.get_act_patch_attn_head_out_all_pos, ("layer", "head"), 12),
    "residual_before": (patching.get_act_patch_resid_pre, ("layer", "pos"), 16),
}


def gpt2() -> Any:
    """A random GPT-2 small, whose weights are large enough for effects above rounding."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(initializer_range=0.05)).eval()


def decoder() -> Decoder:
    """Our decoder of the same sizes: rotary positions, RMS norms, SwiGLU of as many weights."""
    torch.manual_seed(0)
    return Decoder(DecoderConfig(50257, 12, 768, 2048, 12, 64, max_seq_len=64)).eval()


def texts(shared: int = 0) -> tuple[Tensor, Tensor]:
    """Two batches of 8 x 16 tokens, equal in the first ``shared`` positions."""
    clean, corrupted = torch.randint(1000, (2, 8, 16), generator=torch.Generator().manual_seed(1))
    corrupted[:, :shared] = clean[:, :shared]
    return clean, corrupted


def difference(logits: Tensor) -> Tensor:
    """The metric, for all: the mean difference of two logits at the last position."""
    return (logits[:, -1, 3] - logits[:, -1, 5]).mean()


def boot(model: Any) -> Any:
    """TransformerLens with the weights of ``model``."""
    # it insists on a tokenizer
    words = Tokenizer(WordLevel({"<|endoftext|>": 0, "a": 1}, unk_token="<|endoftext|>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|endoftext|>")
    return TransformerBridge.boot_transformers(
        "gpt2", hf_model=copy.deepcopy(model), tokenizer=tokenizer
    )


@torch.no_grad()
def sweeps(rounds: int) -> dict[str, Any]:
    """Both sweeps; ours on texts that differ at every position, and with equal first halves."""
    model = gpt2()
    our_model = decoder()
    peer = boot(model)
    clean, corrupted = texts()
    halves = texts(shared=8)
    _, cache = peer.run_with_cache(clean)
    results: dict[str, Any] = {}
    for site, (peers_sweep, axes, width) in PEERS.items():
        places = pandas.DataFrame(list(product(range(12), range(width))), columns=list(axes))
        sweep = functools.partial(patch_sweep, metric=difference, site=site)
        runs = {
            "transformers' GPT-2": functools.partial(sweep, model, clean, corrupted),
            "transformers' GPT-2, first halves equal": functools.partial(sweep, model, *halves),
            "Decoder": functools.partial(sweep, our_model, clean, corrupted),
        }
        spent: dict[str, list[float]] = {"TransformerLens": [], **{name: [] for name in runs}}
        differences = []
        effects = []
        for turn in range(rounds):
            rows = slice(turn, None, 8)
            start = time.perf_counter()
            expected = peers_sweep(
                peer,
                corrupted,
                cache,
                difference,
                index_axis_names=None,
                index_df=places.iloc[rows],
            )
            spent["TransformerLens"].append(
                (time.perf_counter() - start) * len(places) / len(expected)
            )
            for name, run in runs.items():
                start = time.perf_counter()
                result = run()
                spent[name].append(time.perf_counter() - start)
                if name == "transformers' GPT-2":
                    differences.append(
                        float((result.values.flatten()[rows] - expected).abs().max())
                    )
                    effects.append(float(result.effects.abs().max()))
        seconds = {name: statistics.median(turns) for name, turns in spent.items()}
        results[site] = {
            "places": len(places),
            "seconds": seconds,
            "speedup": {
                name: seconds["TransformerLens"] / value for name, value in seconds.items()
            },
            "turns": spent,
            "largest_difference": max(differences),
            "largest_effect": max(effects),
        }
        print(site, results[site], flush=True)
    return results


@torch.no_grad()
def memory() -> dict[str, float]:
    """Peak MiB of a sweep over the heads of one layer, by ``batch_size``."""
    model = gpt2()
    tokens = texts()
    sweep = functools.partial(patch_sweep, model, *tokens, difference, layers=5)
    return {
        str(size): peak_bytes(functools.partial(sweep, batch_size=size)) / MIB for size in (8, 96)
    }


def overhead(rounds: int) -> dict[str, Any]:
    """Cost of watching: seconds of a forward pass, and of entering and leaving a block."""
    model, (clean, corrupted) = gpt2(), texts()

    def forward() -> None:
        with torch.no_grad():
            model(clean)

    def empty() -> None:
        with intervene(model):
            pass

    def smallest() -> None:
        with capture(model, layers=-1, heads=0, queries=-1):
            pass

    def watched() -> None:
        with capture(model, layers=-1, heads=0, queries=-1):
            forward()

    def attributed() -> None:
        attribution_sweep(model, clean, corrupted, difference)

    runs = {"forward": forward, "forward in capture": watched, "attribution_sweep": attributed}
    seconds = {
        **in_turns(runs, rounds),
        **in_turns({"empty intervene": empty, "empty capture": smallest}, rounds, 20),
    }
    return {
        "seconds": seconds,
        "forwards": {name: value / seconds["forward"] for name, value in seconds.items()},
    }


@torch.no_grad()
def recipes(rounds: int) -> dict[str, float]:
    """What the recipes of docs/sweep.md cost on one batch, in forward passes with all logits."""
    model, (clean, corrupted) = gpt2(), texts()
    with capture(model, what=("residual", "heads")) as seen:
        model(clean)
    vector = torch.randn(768)
    edits = {
        "zero a head": zero("heads", layers=5, heads=3),
        "mean of all heads": mean("heads", seen),
        "patch the residual stream": patch("residual", seen, layers=5, queries=4),
        "steer": add("residual", vector, layers=6),
        "forbid an edge": forbid(queries=-1, keys=4),
        "change scores of a head": scale("scores", 2, layers=5, heads=3),
        "force the pattern of a head": put("weights", torch.eye(16), layers=5, heads=3),
    }

    def edited(edit: Edit) -> None:
        with intervene(model, edit):
            model(clean)

    path = functools.partial(
        path_patch, model, clean, corrupted, difference, Sender(0, 3), Receiver(2, 1, "k")
    )
    runs: dict[str, Any] = {
        "forward": lambda: model(clean),
        **{name: functools.partial(edited, edit) for name, edit in edits.items()},
        "path_patch": path,
        "logit_lens of the last position": lambda: logit_lens(model, clean, queries=-1),
        "direct_logits": lambda: direct_logits(model, clean, 3, 5),
        "head_scores": lambda: head_scores(model, repeated_tokens(50257, 8)),
    }
    seconds = in_turns(runs, rounds)
    return {name: value / seconds["forward"] for name, value in seconds.items()}


def main() -> None:
    """Measure everything, print it, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "intervene.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results: dict[str, Any] = {"sweeps": sweeps(args.rounds), "overhead": overhead(3 * args.rounds)}
    results["recipes"] = recipes(3 * args.rounds)
    results["peak_mib"] = memory()
    keep(results, args.out, transformer_lens=version("transformer-lens"))


if __name__ == "__main__":
    main()
