"""Training throughput of our EncoderDecoder beside torch.nn.Transformer of the same sizes.

    python benchmarks/lookup.py [--rounds 15] [--out benchmarks/lookup.json]

A step is forward, loss, backward and AdamW (torch's fused one, for both). The peer is
torch.nn.Transformer between an nn.Embedding for each side and an nn.Linear, with the masks it needs
for the same result; both get the same weights, so that the losses before the first step can be
compared. Dropout is 0 for both: torch drops attention weights too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import in_turns, keep
from torch import Tensor, nn

from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.models import EncoderDecoder, EncoderDecoderConfig

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Workload:
    """Sizes of a model and of its batches."""

    name: str
    hidden_dim: int
    ff_dim: int
    batch: int
    source_len: int
    target_len: int
    num_layers: int = 1
    vocab_size: int = 128
    padded: bool = False
    repeats: int = 1


WORKLOADS = (
    Workload("course: width 64, 32 x (5 + 2)", 64, 128, 32, 5, 2, vocab_size=14, repeats=20),
    Workload("course, padded sources", 64, 128, 32, 10, 2, vocab_size=14, padded=True, repeats=20),
    Workload("width 128, 64 x (64 + 16)", 128, 512, 64, 64, 16),
    Workload("width 128, 64 x (64 + 16), padded", 128, 512, 64, 64, 16, padded=True),
)


class Peer(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoidal target positions and an output map."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        config = model.config
        width = config.hidden_dim
        self.source_embedding = nn.Embedding(config.vocab_size, width)
        self.target_embedding = nn.Embedding(config.target_vocab, width)
        self.transformer = nn.Transformer(
            width,
            config.num_heads,
            config.num_encoder_layers,
            config.num_decoder_layers,
            config.ff_dim,
            dropout=0.0,
            batch_first=True,
        )
        self.output = nn.Linear(width, config.target_vocab)
        self.scale = width**0.5
        assert model.target_positions is not None
        table = model.target_positions.table
        assert isinstance(table, Tensor)
        self.positions = nn.Buffer(table)
        self.future = nn.Buffer(
            nn.Transformer.generate_square_subsequent_mask(config.max_target_len)
        )
        self.copy(model)

    @torch.no_grad()
    def copy(self, model: Any) -> None:
        """Take the weights of ours."""
        transformer: Any = self.transformer

        def attention(torch_part: nn.MultiheadAttention, our_part: GroupedQueryAttention) -> None:
            thirds = (our_part.query, our_part.key, our_part.value)
            torch_part.in_proj_weight.copy_(torch.cat([linear.weight for linear in thirds]))
            torch_part.in_proj_bias.copy_(torch.cat([linear.bias for linear in thirds]))
            torch_part.out_proj.load_state_dict(our_part.output.state_dict())

        pairs = [
            (self.source_embedding, model.source_embeddings[0]),
            (self.target_embedding, model.target_embedding),
            (self.output, model.output),
            (transformer.encoder.norm, model.encoder_norm),
            (transformer.decoder.norm, model.decoder_norm),
        ]
        for torch_part, our_part in zip(
            transformer.encoder.layers, model.encoder_layers, strict=True
        ):
            attention(torch_part.self_attn, our_part.attention)
            pairs += [
                (torch_part.norm1, our_part.attention_norm),
                (torch_part.norm2, our_part.ffn_norm),
            ]
            pairs += [
                (torch_part.linear1, our_part.ffn.up),
                (torch_part.linear2, our_part.ffn.down),
            ]
        for torch_part, our_part in zip(
            transformer.decoder.layers, model.decoder_layers, strict=True
        ):
            attention(torch_part.self_attn, our_part.self_attention)
            attention(torch_part.multihead_attn, our_part.cross_attention)
            pairs += [
                (torch_part.norm1, our_part.self_attention_norm),
                (torch_part.norm2, our_part.cross_attention_norm),
            ]
            pairs += [
                (torch_part.norm3, our_part.ffn_norm),
                (torch_part.linear1, our_part.ffn.up),
                (torch_part.linear2, our_part.ffn.down),
            ]
        for torch_part, our_part in pairs:
            torch_part.load_state_dict(our_part.state_dict())

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == 0
        x = self.source_embedding(source) * self.scale
        y = self.target_embedding(target) * self.scale + self.positions[: target.shape[1]]
        hidden = self.transformer(
            x,
            y,
            tgt_mask=self.future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.output(hidden)


class UnmaskedPeer(Peer):
    """As :class:`Peer`, told that nothing is padding: its fastest call where that is so."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.source_embedding(source) * self.scale
        y = self.target_embedding(target) * self.scale + self.positions[: target.shape[1]]
        return self.output(self.transformer(x, y, tgt_mask=self.future, tgt_is_causal=True))


def step(model: nn.Module, source: Tensor, target: Tensor) -> Callable[[], Tensor]:
    """Forward, loss, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model.train()

    def run() -> Tensor:
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run


def compare(rounds: int, only: str | None) -> list[dict[str, Any]]:
    """A row for each workload: examples a second, speedup, difference of the first loss."""
    rows = []
    for load in WORKLOADS:
        if only is not None and only not in load.name:
            continue
        torch.manual_seed(0)
        layers = load.num_layers
        config = EncoderDecoderConfig(
            load.vocab_size,
            load.hidden_dim,
            load.ff_dim,
            4,
            layers,
            layers,
            load.source_len,
            load.target_len,
            final_norm=True,
            dropout=0.0,
        )
        model = EncoderDecoder(config)
        peer = Peer(model) if load.padded else UnmaskedPeer(model)
        source = torch.randint(1, load.vocab_size, (load.batch, load.source_len))
        if load.padded:
            lengths = torch.randint(1, load.source_len, (load.batch, 1))
            source = source.where(torch.arange(load.source_len) < lengths, 0)
        target = torch.randint(1, load.vocab_size, (load.batch, load.target_len + 1))
        runs = {
            "glassformer": step(model, source, target),
            "torch.nn.Transformer": step(peer, source, target),
        }
        losses = [float(run()) for run in runs.values()]
        seconds = in_turns(runs, rounds, load.repeats)
        row: dict[str, Any] = {
            "what": load.name,
            "examples_a_second": {who: load.batch / time for who, time in seconds.items()},
            "times_as_fast": seconds["torch.nn.Transformer"] / seconds["glassformer"],
            "difference_of_first_loss": abs(losses[0] - losses[1]),
        }
        shown = "  ".join(
            f"{who} {value:8.0f}/s" for who, value in row["examples_a_second"].items()
        )
        difference = row["difference_of_first_loss"]
        print(
            f"{load.name:<36}{shown}   ->  {row['times_as_fast']:.2f}x   {difference:.1e}",
            flush=True,
        )
        rows.append(row)
    return rows


def main() -> None:
    """Measure everything, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help="a part of the name of a row")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "lookup.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep({"rows": compare(arguments.rounds, arguments.only)}, arguments.out)


if __name__ == "__main__":
    main()
