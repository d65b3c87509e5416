"""Training a head on a handcraft task: its sequences as batches, the course's loss, and what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from glassformer.errors import require
from glassformer.handcraft.circuits import values_at_places
from glassformer.handcraft.distances import attention_weights
from glassformer.handcraft.single_head import HeadWeights, SingleHead, run_head
from glassformer.handcraft.tasks import Task
from glassformer.labs.hand_designed.recipes import Batches, Recipe, Stage
from glassformer.training import Batch, TrainingResult, mix_seed, train

_DRAWN_AT_ONCE = 4096


@dataclass(frozen=True)
class Circuit:
    """How a head does unique.

    Attributes:
        cls_share: Of the positive parts ``weight · value`` of the outputs that are to be +1, the share that comes from
            CLS; 1 if no letter helps.
        self_shares: For each position of a letter, over the letters there that occur again: weight on itself, as a
            share of that and the mean weight on another occurrence. 0 leaves itself out, 1/2 makes no difference.
    """

    cls_share: float
    self_shares: tuple[float, ...]


@dataclass(frozen=True)
class Moment:
    """A head at some point of its training.

    Attributes:
        steps: Updates so far, by the recipe that failed.
        outputs_right: Share of the outputs that read as wanted.
        wrong: The sequences in which some output does not.
        mse: Mean squared error, sequences weighted as the course draws them.
        circuit: How it works.
    """

    steps: int
    outputs_right: float
    wrong: tuple[str, ...]
    mse: float
    circuit: Circuit


@dataclass(frozen=True)
class Minimum:
    """Where descending without noise leads to: a minimum, if the gradient vanishes and nothing curves down.

    Attributes:
        mse: The loss there.
        gradient_norm: Euclidean norm of its gradient.
        lowest_curvature: The smallest eigenvalue of the loss's second derivatives.
        highest_curvature: The largest.
    """

    mse: float
    gradient_norm: float
    lowest_curvature: float
    highest_curvature: float


class HeadTask:
    """A handcraft task as a task for :func:`glassformer.training.train`; models are called as ``model(seq, real)``.

        loss = mean over sequences of w_s · (mean over the judged outputs and their entries of (output - target)^2)

    with w_s = 1 for random batches. One random sequence a step is what the course trains on. The judged outputs are all
    but those of CLS and of the padding.

    Args:
        task: What is learned; it must have at most 20,000 sequences.
        seed: Seed of the random sequences.
        batches: "random": every batch is drawn anew, each length equally often, then each letter. "all": every batch is
            all the sequences, whatever size is asked for, with w_s so that the loss is the mean of the random ones.

    Raises:
        InputError: A negative seed, unknown ``batches``, or a task with more sequences.
    """

    metric = "mse"
    higher_is_better = False
    unit = "sequences"

    def __init__(self, task: Task, seed: int = 0, *, batches: Batches = "random") -> None:
        require(seed >= 0, f"seed = {seed}", "a whole number of at least 0", "Pass seed >= 0.")
        require(batches in ("random", "all"), f"batches = {batches!r}", "'random' or 'all'", "Choose one of them.")
        self.task, self.seed, self._batches = task, seed, batches
        cases = task.all_cases
        judged = torch.from_numpy(cases.counted)
        self._lengths = cases.block.real.sum(axis=1)
        self._chances = _chances(task, cases.counted.sum(axis=1))
        # The mean over a sequence's judged outputs as a sum with shares: one product, and padding falls away.
        shares = judged.float() / (judged.sum(dim=1, keepdim=True) * task.v_dim)
        self._tensors: Batch = {
            "seq": torch.from_numpy(task.space.one_hot(cases.block)).float(),
            "real": torch.from_numpy(cases.block.real),
            "target": torch.from_numpy(cases.target).float(),
            "share": shares,
        }
        self._whole = {
            **self._tensors,
            "share": shares * torch.from_numpy(self._chances * len(shares)).float()[:, None],
        }
        self._drawn: tuple[tuple[int, int], Any] | None = None

    def batch(self, step: int, size: int) -> Batch:
        """The sequences of update ``step``: ``seq`` [sequence, position, token], ``real`` and ``share`` [sequence,
        position], ``target`` [sequence, position, v_dim]; as long as the longest of them.

        ``share`` holds the w_s above, divided by the number of entries that are judged in the sequence.
        """
        if self._batches == "all":
            return self._whole
        rows = self._rows(step, size)
        longest = int(self._lengths[rows].max())
        index = torch.from_numpy(rows)
        return {name: tensor[index, :longest] for name, tensor in self._tensors.items()}

    def count(self, batch: Batch) -> int:
        """Sequences in ``batch``."""
        return len(batch["seq"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss above, in the square of the values' unit."""
        difference = model(batch["seq"], batch["real"]) - batch["target"]
        return (difference.square() * batch["share"][..., None]).sum() / len(difference)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Over every sequence of the task.

        "mse": the loss of ``batches="all"``. "outputs_right" and "sequences_right": the shares, in [0, 1], of outputs
        that read as wanted, and of sequences in which all do. "largest_error": of any entry of any output.
        """
        cases = self.task.all_cases
        output = self.outputs(model)
        error = np.where(cases.counted[..., None], np.abs(output - cases.target), 0.0)
        per_sequence = (error**2).mean(axis=2).sum(axis=1) / cases.counted.sum(axis=1)
        right = self.task.is_right(output, cases.target)
        return {
            "mse": float((per_sequence * self._chances).sum()),
            "outputs_right": float(right[cases.counted].mean()),
            "sequences_right": float((right | ~cases.counted).all(axis=1).mean()),
            "largest_error": float(error.max()),
        }

    def outputs(self, model: nn.Module) -> Float[np.ndarray, "sequence position v_dim"]:
        """The model's outputs for every sequence, in the order of ``task.all_cases``."""
        device = next(model.parameters()).device
        with torch.no_grad():
            output = model(self._tensors["seq"].to(device), self._tensors["real"].to(device))
        numbers: np.ndarray[Any, np.dtype[np.float64]] = output.double().cpu().numpy()
        return numbers

    def _rows(self, step: int, size: int) -> Int[np.ndarray, " sequence"]:
        """Which sequences update ``step`` meets: a function of (seed, step, size), drawn for many steps at once."""
        chunk, offset = divmod(step, _DRAWN_AT_ONCE)
        if self._drawn is None or self._drawn[0] != (chunk, size):
            rng = np.random.default_rng(mix_seed(self.seed, size, chunk))
            # Dividing by the last sum keeps rounding from leaving a gap at the end.
            ends = np.cumsum(self._chances)
            drawn = np.searchsorted(ends / ends[-1], rng.random((_DRAWN_AT_ONCE, size)), side="right")
            self._drawn = (chunk, size), drawn
        rows: np.ndarray[Any, np.dtype[np.int64]] = self._drawn[1][offset]
        return rows


def build_head(task: Task, recipe: Recipe, seed: int) -> SingleHead:
    """The head that ``recipe`` trains for ``task``, with PyTorch's initial weights for linear maps and embeddings.

    Entries of Km, Qm and Vm are uniform in ±1/sqrt(input_dim + pos_dim), those of pos standard normal.
    """
    space = task.space
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix_seed(seed))
        return SingleHead(space.num_tokens, recipe.qk_dim, task.v_dim, recipe.pos_dim, space.num_positions)


def train_head(task: Task, recipe: Recipe, seed: int) -> tuple[SingleHead, list[TrainingResult], float]:
    """Train a new head for ``task`` by ``recipe``; the seed decides initial weights and batches.

    Returns:
        The head, what each stage came to, and the seconds that all of it took.

    Raises:
        DivergedError: Loss or gradient became NaN or infinite.
        KeyboardInterrupt: Interrupted by Ctrl-C; nothing is kept.
    """
    begun = time.perf_counter()
    head = build_head(task, recipe, seed)
    results = [
        continue_training(head, task, stage, mix_seed(seed, number)) for number, stage in enumerate(recipe.stages)
    ]
    return head, results, time.perf_counter() - begun


def continue_training(head: SingleHead, task: Task, stage: Stage, seed: int) -> TrainingResult:
    """Train ``head`` on, in place, as ``stage`` says; the seed decides the batches.

    Raises:
        DivergedError: Loss or gradient became NaN or infinite.
        KeyboardInterrupt: Interrupted by Ctrl-C; nothing is kept.
    """
    result = train(head, HeadTask(task, seed, batches=stage.batches), stage.config, progress=False)
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    return result


def moment_of(head: SingleHead, task: Task, steps: int) -> Moment:
    """What ``head`` has come to on ``task``, which has CLS and outputs of one number, after ``steps`` updates."""
    run, (block, counted, target) = HeadTask(task), task.all_cases[:3]
    measured, right = run.evaluate(head), task.is_right(run.outputs(head), target) | ~counted
    wrong = tuple(
        task.space.decode(block.tokens[row][counted[row]]) for row in np.flatnonzero(~right.all(axis=1)).tolist()
    )
    return Moment(steps, measured["outputs_right"], wrong, measured["mse"], circuit_of(head.to_weights(), task))


def circuit_of(head: HeadWeights, task: Task) -> Circuit:
    """How ``head`` does ``task``, measured over every sequence; see :class:`Circuit`.

    Raises:
        InputError: ``task`` has no CLS or outputs of more than one number, or the head does not fit it.
    """
    require(
        task.space.has_cls and task.v_dim == 1,
        f"the task {task.name!r}",
        "one with CLS and with outputs of one number",
        "Pass unique().",
    )
    block, counted, target = task.all_cases[:3]
    weights = attention_weights(head, task.space, block)
    values = np.where(block.real, values_at_places(head, task.space)[task.space.place_of(block), 0], 0.0)
    positive = np.maximum(weights * values[:, None, :], 0.0)[counted & (target[..., 0] > 0)]
    tokens, itself = block.tokens, np.eye(block.tokens.shape[1], dtype=bool)
    other = (tokens[:, :, None] == tokens[:, None, :]) & counted[:, :, None] & counted[:, None, :] & ~itself
    again = other.any(axis=2)
    on_itself = np.einsum("sqq->sq", weights)
    on_other = (weights * other).sum(axis=2) / np.maximum(other.sum(axis=2), 1)
    share = np.divide(on_itself, on_itself + on_other, out=np.zeros_like(on_itself), where=on_itself + on_other > 0)
    return Circuit(
        cls_share=float(positive[:, 0].sum() / max(positive.sum(), np.finfo(float).tiny)),
        self_shares=tuple(float(share[again[:, i], i].mean()) for i in range(1, tokens.shape[1])),
    )


def curvature(head: SingleHead, task: Task) -> Minimum:
    """The loss over all sequences of ``task``, its gradient and its second derivatives at ``head``, in float64."""
    exact = head.to_weights()
    shapes = {name: matrix.shape for name, matrix in exact.matrices.items()}
    flat = torch.from_numpy(np.concatenate([matrix.ravel() for matrix in exact.matrices.values()]))
    batch = HeadTask(task, batches="all").batch(0, 1)
    seq, target, share = (batch[name].double() for name in ("seq", "target", "share"))

    def loss(point: Float[Tensor, " weight"]) -> Float[Tensor, ""]:
        parts = point.split([rows * columns for rows, columns in shapes.values()])
        matrices = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        output = run_head(seq, real=batch["real"], **matrices)
        return ((output - target).square() * share[..., None]).sum() / len(seq)

    # The other kernels have no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        gradient, value = torch.func.grad_and_value(loss)(flat)
        curvatures = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))
    return Minimum(value.item(), gradient.norm().item(), curvatures[0].item(), curvatures[-1].item())


def _chances(task: Task, letters: Int[np.ndarray, " sequence"]) -> Float[np.ndarray, " sequence"]:
    """How likely each sequence is to be drawn: every length alike, then every letter; of listed examples, all alike."""
    if task.examples is not None:
        return np.full(len(letters), 1 / len(letters))
    return 1 / (task.space.max_len * float(len(task.space.letters)) ** letters)
