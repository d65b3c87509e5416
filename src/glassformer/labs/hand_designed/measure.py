"""What the lab measures: certificates of the designs, refutations, and designed beside trained heads."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.handcraft.circuits import change_basis, change_position_basis, random_basis, values_at_places
from glassformer.handcraft.designs import design
from glassformer.handcraft.distances import attention_weights, head_distance
from glassformer.handcraft.sequences import LETTERS
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import verify
from glassformer.labs.hand_designed.cases import make_batch_first, make_batch_identity, make_batch_unique
from glassformer.labs.hand_designed.course_training import MakeBatch, TrainingConfig, train_loop
from glassformer.labs.hand_designed.results import Comparison, DesignResult, Matrices, Pair, Refutation

LARGEST_ERRORS = {"float64": 1e-9, "float32": 1e-6}
"""What a design's certificate asks of every output, by number format."""

Attention = Float[np.ndarray, "sequence query key"]

_MAKE_BATCH: dict[str, MakeBatch] = {
    "identity": make_batch_identity,
    "copy_first": make_batch_first,
    "unique": make_batch_unique,
}


def measure_design(name: str, large_len: int) -> DesignResult:
    """Design the head for the built-in task ``name`` and verify it, also for 26 letters and ``large_len`` of them."""
    task = TASKS[name]()
    made = design(task)
    large = TASKS[name](letters=LETTERS, max_len=large_len)
    return DesignResult(
        task=name,
        summary=task.summary,
        description=str(made.description),
        qk_dim=made.weights.qk_dim,
        pos_dim=made.weights.pos_dim,
        sharpness=made.sharpness,
        float64=verify(made.weights, task, tolerance=LARGEST_ERRORS["float64"]),
        float32=verify(made.weights, task, tolerance=LARGEST_ERRORS["float32"], dtype=torch.float32),
        large=verify(design(large).weights, large, tolerance=LARGEST_ERRORS["float64"]),
        large_len=large_len,
    )


def refute(name: str, num_random: int, steps: int, seed: int) -> Refutation:
    """Let random heads and a trained one try the task ``name``, which none can do."""
    task = TASKS[name]()
    rng = np.random.default_rng(seed)
    inputs, max_seq_len = task.space.num_tokens, task.space.num_positions
    refuted, longest = 0, 0
    for _ in range(num_random):
        scale = 4.0 ** rng.uniform(-1, 2)
        sizes = ((inputs + 4, 8), (inputs + 4, 8), (inputs + 4, task.v_dim), (max_seq_len, 4))
        certificate = verify(HeadWeights(*(scale * rng.standard_normal(size) for size in sizes)), task, tolerance=None)
        if certificate.counterexample is not None:
            refuted += 1
            longest = max(longest, len(certificate.counterexample.sequence))
    config = TrainingConfig(optimizer="adam")
    trained, _ = train_loop(
        random_batches(task, seed),
        inputs,
        8,
        task.v_dim,
        4,
        max_seq_len,
        num_epochs=steps,
        lr=1e-2,
        log_interval=steps,
        seed=seed,
        config=config,
    )
    return Refutation(name, num_random, refuted, longest, verify(trained.to_weights(), task, tolerance=None))


def random_batches(task: Task, seed: int) -> MakeBatch:
    """Random sequences of ``task`` one at a time, for the course's loop."""
    rng = np.random.default_rng(seed)
    cases = task.all_cases
    inputs = task.space.one_hot(cases.block)

    def make_batch() -> tuple[Tensor, Tensor]:
        row = int(rng.integers(len(inputs)))
        real, counted = cases.block.real[row], cases.counted[row]
        return torch.from_numpy(inputs[row, real]).float(), torch.from_numpy(cases.target[row, counted]).float()

    return make_batch


def compare(name: str, steps: int, seed: int) -> Comparison:
    """The designed head for the course's task ``name`` beside heads that the course's recipe trained."""
    task = TASKS[name]()
    hand = design(task).weights
    (learned, loss), (again, _) = (_train(name, hand, steps, each) for each in (seed, seed + 1))
    heads = {"hand": hand, "learned": learned}
    block, counted, target = task.all_cases.block, task.all_cases.counted, task.all_cases.target
    attention = {key: attention_weights(head, task.space, block) for key, head in heads.items()}
    values = {key: values_at_places(head, task.space) for key, head in heads.items()}
    places = task.space.place_of(block)
    return Comparison(
        task=name,
        steps=steps,
        seed=seed,
        final_loss=loss,
        hand=_lists(hand),
        learned=_lists(learned),
        certificate=verify(learned, task, tolerance=None),
        hand_learned=_pair(hand, learned, task),
        learned_again=_pair(learned, again, task),
        learned_moved=_pair(learned, _moved(learned, seed), task),
        spread={key: _spread(weights, task) for key, weights in attention.items()},
        on_wanted={key: _on_wanted(weights, task) for key, weights in attention.items()},
        value_gap=_by_position(np.abs(values["hand"] - values["learned"]).mean(axis=1), task),
        crossed={
            key: {
                other: float(np.abs(weights @ value[places] - target)[counted].mean())
                for other, value in values.items()
            }
            for key, weights in attention.items()
        },
    )


def _on_wanted(weights: Attention, task: Task) -> float:
    block, counted = task.all_cases.block, task.all_cases.counted
    assert task.description is not None
    return float((weights * task.description.wanted(block)).sum(axis=2)[counted].mean())


def _spread(weights: Attention, task: Task) -> dict[str, dict[str, float]]:
    """Mean weight on each kind of key, for each group of queries; see :class:`Comparison`."""
    block, counted, target = task.all_cases.block, task.all_cases.counted, task.all_cases.target
    own = np.eye(block.tokens.shape[1], dtype=bool)[None]
    same = (block.tokens[:, :, None] == block.tokens[:, None, :]) & ~own
    cls = np.zeros_like(same)
    cls[:, :, 0] = task.space.has_cls
    kinds = {"itself": own, "same letter": same, "other letters": ~own & ~same & ~cls, "CLS": cls}
    groups = {"all": counted}
    if task.readout == "sign":
        groups = {sign: counted & (np.sign(target[..., 0]) == float(sign)) for sign in ("+1", "-1")}
    return {
        group: {kind: float((weights * keys).sum(axis=2)[queries].mean()) for kind, keys in kinds.items()}
        for group, queries in groups.items()
    }


def _by_position(values: Float[np.ndarray, " place"], task: Task) -> list[float]:
    """The mean over the places at each position."""
    positions = task.space.places[1]
    return [float(values[positions == position].mean()) for position in range(task.space.num_positions)]


def _train(name: str, like: HeadWeights, steps: int, seed: int) -> tuple[HeadWeights, float]:
    """A head of the same shapes, trained by the course's recipe, and its last loss."""
    head, loss = train_loop(
        _MAKE_BATCH[name],
        like.input_dim,
        like.qk_dim,
        like.v_dim,
        like.pos_dim or None,
        like.max_seq_len,
        remove_cls=TASKS[name]().space.has_cls,
        num_epochs=steps,
        log_interval=max(1, steps // 2),
        seed=seed,
    )
    return head.to_weights(), loss


def _pair(first: HeadWeights, second: HeadWeights, task: Task) -> Pair:
    entries = {
        name: _cosine(matrix, second.matrices[name])
        for name, matrix in first.matrices.items()
        if name in second.matrices
    }
    return Pair(entries, head_distance(first, second, task.space))


def _moved(head: HeadWeights, seed: int) -> HeadWeights:
    """The same head in other bases of keys and, where there are positions, of position vectors."""
    moved = change_basis(head, random_basis(head.qk_dim, seed))
    return moved if head.pos is None else change_position_basis(moved, random_basis(head.pos_dim, seed + 1))


def _cosine(first: Float[np.ndarray, "row column"], second: Float[np.ndarray, "row column"]) -> float:
    return float((first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second)))


def _lists(head: HeadWeights) -> Matrices:
    return {name: matrix.tolist() for name, matrix in head.matrices.items()}
