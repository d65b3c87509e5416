"""Designed heads with their certificates, and a task that no single head can do."""

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
    """One design; ``large`` certifies the same description for 26 letters and sequences of up to
    ``large_len``.
    """

    task: str
    description: str
    qk_dim: int
    pos_dim: int  # 0 without positions
    sharpness: float
    float64: Certificate
    float32: Certificate
    large: Certificate
    large_len: int


@dataclass(frozen=True)
class Refutation:
    """Heads on parity, which no single head can compute."""

    num_random: int
    num_refuted: int
    longest: int  # letters of the longest counterexample to a random head
    steps: int
    trained: Certificate
    constant: float  # share of the outputs that the better constant sign gets right


def measure_design(name: str, large_len: int) -> DesignResult:
    """Design the head for the built-in task ``name`` and verify it."""
    task = TASKS[name]()
    large = TASKS[name](letters=LETTERS, max_len=large_len)
    made = design(task)
    return DesignResult(
        task=name,
        description=str(made.description),
        qk_dim=made.weights.qk_dim,
        pos_dim=made.weights.pos_dim,
        sharpness=made.sharpness,
        float64=verify(made.weights, task, tolerance=1e-9),
        float32=verify(made.weights, task, tolerance=1e-6, dtype=torch.float32),
        large=verify(design(large).weights, large, tolerance=1e-9),
        large_len=large_len,
    )


def refute(num_random: int, steps: int, seed: int) -> Refutation:
    """Verify random heads and a trained one on parity."""
    task = parity()
    rng = np.random.default_rng(seed)
    inputs = task.space.num_tokens
    max_seq_len = task.space.num_positions
    found = []
    for _ in range(num_random):
        scale = 4.0 ** rng.uniform(-1, 2)
        sizes = ((inputs + 4, 8), (inputs + 4, 8), (inputs + 4, task.v_dim), (max_seq_len, 4))
        certificate = verify(
            HeadWeights(*(scale * rng.standard_normal(size) for size in sizes)),
            task,
            tolerance=None,
        )
        if certificate.counterexample is not None:
            found.append(len(certificate.counterexample.sequence))
    certificate = verify(_train(task, steps, seed), task, tolerance=None)
    positive = float((task.all_cases.target[task.all_cases.counted] > 0).mean())
    return Refutation(
        num_random,
        len(found),
        max(found, default=0),
        steps,
        certificate,
        max(positive, 1 - positive),
    )


def _train(task: Task, steps: int, seed: int) -> HeadWeights:
    """A head trained by the course's loop, but with Adam; every length is equally likely."""
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
