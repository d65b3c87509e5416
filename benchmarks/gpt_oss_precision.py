"""gpt-oss in bfloat16 beside float64: distance of each implementation's logits from exact ones.

    python benchmarks/gpt_oss_precision.py [--openai CHECKOUT]
                                           [--out benchmarks/gpt_oss_precision.json]

Random models of the true form with hidden 256, and, for texts past 4,096 positions, of hidden 64.
Exact is our model in float64. With ``--openai`` (a checkout of github.com/openai/gpt-oss) OpenAI's
torch reference takes part, and ``agree`` says how far it is from ours when both compute in float64.
For each contestant, over all seeds:

- ``rms``: of the difference of all logits. Most of it is of the few tokens that got another expert
  than in float64, because two scores were nearer than what was rounded before them;
- ``median``: of the root mean square of a position, which those few do not move;
- ``other``: how many choices of a token in a layer were of other experts.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from timing import keep
from torch import Tensor, nn
from tqdm import tqdm
from transformers import GptOssForCausalLM

from glassformer.layers.experts import Router
from glassformer.models import Decoder, DecoderConfig

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tools"))

from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss  # noqa: E402

WIDE = dataclasses.replace(GPT_OSS_TINY, hidden_dim=256, ff_dim=256)
# The form, the length of a text, and how many seeds.
CASES: dict[str, tuple[DecoderConfig, int, int]] = {
    "100 positions": (WIDE, 100, 32),
    "1,000 positions": (WIDE, 1000, 8),
    "4,300 positions": (GPT_OSS_TINY, 4300, 4),
}

Run = Callable[[Path, Tensor], tuple[Tensor, list[Tensor]]]
"""From directory and tokens to logits [position, token] and experts [position, top_k] by layer."""


def ours(dtype: torch.dtype, experts: str, pack: str | None = None) -> Run:
    def run(directory: Path, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        decoder = (
            Decoder.from_pretrained(directory / "openai", experts=experts, pack=pack)
            .to(dtype)
            .eval()
        )
        chosen: list[Tensor] = []
        for router in decoder.modules():
            if isinstance(router, Router):
                router.choose = noting(router.choose, chosen)
        return decoder(tokens[None])[0], chosen

    return run


def noting(
    choose: Callable[[Tensor], tuple[Tensor, ...]], chosen: list[Tensor]
) -> Callable[..., tuple[Tensor, ...]]:
    def call(x: Tensor) -> tuple[Tensor, ...]:
        choice = choose(x)
        chosen.append(choice[1].flatten(0, -2))
        return choice

    return call


def hugging_faces(directory: Path, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    model = GptOssForCausalLM.from_pretrained(
        directory / "huggingface", dtype=torch.bfloat16
    ).eval()
    chosen: list[Tensor] = []
    for layer in model.model.layers:
        layer.mlp.router.register_forward_hook(
            lambda _module, _given, outputs: chosen.append(outputs[2])
        )
    return model(tokens[None]).logits[0], chosen


def openais(model: ModuleType, dtype: torch.dtype) -> Run:
    def run(directory: Path, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        openai_model = model.Transformer.from_checkpoint(
            str(directory / "openai"), device="cpu"
        ).to(dtype)
        chosen: list[Tensor] = []

        def note(gate: nn.Module, _given: Any, scores: Tensor) -> None:
            chosen.append(scores.topk(GPT_OSS_TINY.top_k).indices)

        for block in openai_model.block:
            block.mlp.gate.register_forward_hook(note)
        if dtype != torch.float64:
            return openai_model(tokens), chosen
        with in_float64(model):
            return openai_model(tokens), chosen

    return run


@contextmanager
def in_float64(model: ModuleType) -> Iterator[None]:
    """Their norm asks for float32 by name."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.scale

    openai_norm = model.RMSNorm.forward
    model.RMSNorm.forward = forward
    try:
        yield
    finally:
        model.RMSNorm.forward = openai_norm


@torch.no_grad()
def compare(contestants: dict[str, Run], agree: Run | None, case: str) -> dict[str, Any]:
    config, length, seeds = CASES[case]
    rms: dict[str, list[float]] = {name: [] for name in contestants}
    middle: dict[str, list[float]] = {name: [] for name in contestants}
    other_choices = dict.fromkeys(contestants, 0)
    worst = 0.0
    for seed in tqdm(range(seeds), case):
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            for layout in ("openai", "huggingface"):
                write_random_gpt_oss(directory / layout, config, layout=layout, seed=seed)
            tokens = torch.randint(
                config.vocab_size, (length,), generator=torch.Generator().manual_seed(seed)
            )
            exact, experts = ours(torch.float64, "dense")(directory, tokens)
            if agree is not None:
                worst = max(worst, (agree(directory, tokens)[0] - exact).abs().max().item())
            for name, run in contestants.items():
                logits, chosen = run(directory, tokens)
                away = (logits.double() - exact).square().mean(-1)
                rms[name].append(away.mean().sqrt().item())
                middle[name].append(away.sqrt().median().item())
                pairs = zip(chosen, experts, strict=True)
                other_choices[name] += sum(
                    int((a.sort().values != b.sort().values).any(-1).sum()) for a, b in pairs
                )
    results: dict[str, Any] = {
        name: {
            "rms": statistics.fmean(error**2 for error in rms[name]) ** 0.5,
            "rms, least and most of a seed": [min(rms[name]), max(rms[name])],
            "median": statistics.fmean(middle[name]),
            "other": other_choices[name],
        }
        for name in contestants
    }
    choices = seeds * length * config.num_layers
    return (
        results | {"seeds": seeds, "choices": choices} | ({} if agree is None else {"agree": worst})
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openai", type=Path, help="a checkout of github.com/openai/gpt-oss")
    parser.add_argument("--out", type=Path, default=HERE / "gpt_oss_precision.json")
    flags = parser.parse_args()
    contestants: dict[str, Run] = {
        "glassformer, packed": ours(torch.bfloat16, "mxfp4"),
        "glassformer, dense": ours(torch.bfloat16, "dense"),
        "glassformer, packed, attention and output in Q8_0": ours(torch.bfloat16, "mxfp4", "Q8_0"),
        "transformers": hugging_faces,
    }
    agree = None
    if flags.openai is not None:
        sys.path.insert(0, str(flags.openai))
        model = importlib.import_module("gpt_oss.torch.model")
        contestants["OpenAI"] = openais(model, torch.bfloat16)
        agree = openais(model, torch.float64)
    results: dict[str, Any] = {}
    for case in CASES:
        results[case] = compare(contestants, agree, case)
        print(case, json.dumps(results[case], indent=1), flush=True)
    keep(results, flags.out)


if __name__ == "__main__":
    main()
