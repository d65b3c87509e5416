"""A small model and task that the tests and the worker processes train."""

import os
import signal
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from glassformer.training import Batch, EpochBatches

VOCAB_SIZE = 11
HIDDEN_DIM = 8
LENGTH = 6


class ToyModel(nn.Module):
    """Predicts the next token from the mean of the tokens so far."""

    def __init__(self, *, seed: int = 0, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(VOCAB_SIZE, HIDDEN_DIM)
            self.blocks = nn.ModuleList(nn.Linear(HIDDEN_DIM, HIDDEN_DIM) for _ in range(2))
            self.dropout = nn.Dropout(dropout)
            self.norm = nn.LayerNorm(HIDDEN_DIM)
            self.head = nn.Linear(HIDDEN_DIM, VOCAB_SIZE, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        hidden = (
            hidden.cumsum(1) / torch.arange(1, tokens.shape[1] + 1, device=tokens.device)[:, None]
        )
        for block in self.blocks:
            hidden = hidden + self.dropout(torch.tanh(block(hidden)))
        return self.head(self.norm(hidden))


@dataclass
class ToyTask:
    """Sequences that count upwards, of different lengths; 0 pads and is not learned."""

    examples: int = 50
    seed: int = 0
    metric: str = "loss"
    higher_is_better: bool = False
    unit: str = "tokens"
    batches: EpochBatches = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        start = torch.randint(0, VOCAB_SIZE - 1, (self.examples, 1), generator=generator)
        tokens = (start + torch.arange(LENGTH)) % (VOCAB_SIZE - 1) + 1
        lengths = torch.randint(2, LENGTH + 1, (self.examples, 1), generator=generator)
        self.batches = EpochBatches(
            {"tokens": tokens * (torch.arange(LENGTH) < lengths)}, seed=self.seed
        )

    def batch(self, step: int, size: int) -> Batch:
        return self.batches(step, size)

    def count(self, batch: Batch) -> int:
        return int((batch["tokens"][:, 1:] != 0).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["tokens"][:, :-1])
        return cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten(), ignore_index=0)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        batch = {name: tensor.to(device) for name, tensor in self.batches.tensors.items()}
        return {"loss": float(self.loss(model, batch)), "examples": float(self.examples)}


@dataclass
class InterruptedTask(ToyTask):
    """A task whose process gets a signal when update ``at`` asks for its batch; ``pause`` is
    seconds an update.
    """

    at: int = -1
    number: int = signal.SIGINT
    pause: float = 0.0

    def batch(self, step: int, size: int) -> Batch:
        time.sleep(self.pause)
        if step == self.at:
            os.kill(os.getpid(), self.number)
        return super().batch(step, size)
