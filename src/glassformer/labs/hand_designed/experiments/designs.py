"""Designed heads with their certificates, and parity, which no single head can compute."""

from dataclasses import dataclass

import numpy as np
import torch

from glassformer.handcraft.designs import design
from glassformer.handcraft.sequences import LETTERS
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task, parity
from glassformer.handcraft.verification import Certificate, verify
from glassformer.labs.hand_designed.course import TrainingConfig, train_loop


@dataclass(frozen=True)
class DesignResult:
    """A designed head and its certificates."""

    task: str
    description: str
    qk_dim: int
    pos_dim: int
    """Dimensions for positions; 0 for a head without positions."""
    sharpness: float
    float64: Certificate
    float32: Certificate
    large: Certificate
    """Certificate of the same design for 26 letters and up to ``large_len`` positions."""
    large_len: int


@dataclass(frozen=True)
class Refutation:
    """Results of heads on parity, which no single head can compute."""

    num_random: int
    num_refuted: int
    longest: int
    """Number of letters in the longest counterexample to a random head."""
    steps: int
    trained: Certificate
    constant: float
    """Share of the outputs that the better constant sign gets right."""


def measure_design(name: str, large_len: int) -> DesignResult:
    """Design the head for the built-in task ``name`` and verify it."""
    task = TASKS[name]()
    large = TASKS[name](letters=LETTERS, max_len=large_len)
    designed = design(task)
    weights = designed.weights
    return DesignResult(
        task=name,
        description=str(designed.description),
        qk_dim=weights.qk_dim,
        pos_dim=weights.pos_dim,
        sharpness=designed.sharpness,
        float64=verify(weights, task, tolerance=1e-9),
        float32=verify(weights, task, tolerance=1e-6, dtype=torch.float32),
        large=verify(design(large).weights, large, tolerance=1e-9),
        large_len=large_len,
    )


def refute(num_random: int, steps: int, seed: int) -> Refutation:
    """Verify random heads and a trained one on parity."""
    task = parity()
    rng = np.random.default_rng(seed)
    pos_dim = 4
    input_dim = task.space.num_tokens + pos_dim
    sizes = (
        (input_dim, 8),
        (input_dim, 8),
        (input_dim, task.v_dim),
        (task.space.num_positions, pos_dim),
    )
    lengths = []
    for _ in range(num_random):
        scale = 4.0 ** rng.uniform(-1, 2)
        head = HeadWeights(*(scale * rng.standard_normal(size) for size in sizes))
        certificate = verify(head, task, tolerance=None)
        if certificate.counterexample is not None:
            lengths.append(len(certificate.counterexample.sequence))
    positive = float((task.all_cases.target[task.all_cases.counted] > 0).mean())
    return Refutation(
        num_random=num_random,
        num_refuted=len(lengths),
        longest=max(lengths, default=0),
        steps=steps,
        trained=verify(_train(task, steps, seed), task, tolerance=None),
        constant=max(positive, 1 - positive),
    )


def _train(task: Task, steps: int, seed: int) -> HeadWeights:
    """Train a head with the course's loop, but with Adam; every length is equally likely."""
    space = task.space
    rng = np.random.default_rng(seed)

    def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
        length = int(rng.integers(1, space.max_len + 1))
        letters = rng.integers(len(space.letters), size=length)
        sequence = space.one_hot(space.block([letters]))[0]
        target = task.target(letters[None])[0]
        return torch.from_numpy(sequence).float(), torch.from_numpy(target).float()

    head, _ = train_loop(
        make_batch,
        input_dim=space.num_tokens,
        qk_dim=8,
        v_dim=task.v_dim,
        pos_dim=4,
        max_seq_len=space.num_positions,
        num_epochs=steps,
        lr=0.01,
        log_interval=max(1, steps // 2),
        seed=seed,
        config=TrainingConfig(optimizer="adam"),
    )
    return head.to_weights()
