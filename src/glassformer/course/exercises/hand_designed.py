"""Exercises of the lesson on hand-designed attention, and the tasks of its variants."""

import math
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.course.checking import Case, Exercise, Judgement, ModuleRun, ValuesAlone, Verdict
from glassformer.course.exercises.inputs import LARGE
from glassformer.errors import InputError
from glassformer.figures.heat_maps import rescaled
from glassformer.handcraft.circuits import change_basis
from glassformer.handcraft.description import (
    Description,
    Selector,
    earlier,
    itself,
    later,
    same_token,
    token,
)
from glassformer.handcraft.sequences import CLS, SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead, SingleHead
from glassformer.handcraft.tasks import Task, copy_first, identity, unique
from glassformer.handcraft.verification import Certificate, verify

MOST_NUMBERS = 5_000
"""Maximum number of entries in each matrix of a head that is judged."""


@lru_cache(maxsize=64)  # a task holds its sequences, which are large
def tasks(seed: int = 0) -> dict[str, Task]:
    """Return the lesson's tasks by the names of their exercises.

    Seed 0 gives the lesson's own tasks; other seeds have other alphabets and outputs. Instead of
    copying letters, their tasks replace letters by a permutation of the alphabet. Instead of all
    letters that occur again, they ask for some letters that occur elsewhere, earlier or later.
    """
    if seed == 0:
        return {
            "content-design": identity(),
            "position-design": copy_first(),
            "both-design": unique(),
        }
    rng = np.random.default_rng(seed)

    def space(has_cls: bool = False) -> SequenceSpace:
        letters = sorted(rng.permutation(list(string.ascii_uppercase))[: int(rng.integers(3, 6))])
        return SequenceSpace(tuple(letters), int(rng.integers(4, 6)), has_cls)

    first = space()
    second = space()
    return {
        "content-design": _replaced(identity("".join(first.letters), first.max_len), rng),
        "position-design": _replaced(copy_first("".join(second.letters), second.max_len), rng),
        "both-design": _signs(space(has_cls=True), rng),
    }


def _replaced(task: Task, rng: np.random.Generator) -> Task:
    """Return the task with its output letters replaced by a random permutation."""
    assert task.description is not None
    letters = np.array(task.space.letters)
    target = task.target
    order = np.arange(len(letters))
    while (order == np.arange(len(letters))).all():
        order = rng.permutation(len(letters))
    replacements = ", ".join(
        f"{letter} by {new}" for letter, new in zip(letters, letters[order], strict=True)
    )
    rows = np.eye(len(letters))[order]
    values = dict(zip(task.space.letters, rows, strict=True))
    return replace(
        task,
        summary=f"{task.summary}, each replaced: {replacements}",
        target=lambda x: target(x) @ rows,
        description=replace(task.description, values=values),
    )


_SIDES: dict[str, tuple[Selector, Callable[[np.ndarray], np.ndarray]]] = {
    "elsewhere": (
        same_token().but_not(itself()),
        lambda same: np.triu(same, 1) | np.tril(same, -1),
    ),
    "earlier": (same_token() & earlier(), lambda same: np.tril(same, -1)),
    "later": (same_token() & later(), lambda same: np.triu(same, 1)),
}


def _signs(space: SequenceSpace, rng: np.random.Generator) -> Task:
    """Return a task with one sign for some letters that occur again, another sign elsewhere."""
    side = rng.choice(list(_SIDES))
    sign = int(rng.choice([-1, 1]))
    order = rng.permutation(len(space.letters))
    indices = sorted(order[: int(rng.integers(2, len(space.letters)))].tolist())
    letters = [space.letters[index] for index in indices]
    attend, on_side = _SIDES[side]

    def target(x: np.ndarray) -> np.ndarray:
        occurs_again = on_side(x[:, :, None] == x[:, None, :]).any(axis=2)
        return np.where(occurs_again & np.isin(x, indices), sign, -sign)[..., None]

    values = {CLS: -sign}
    for letter in space.letters:
        values[letter] = sign if letter in letters else -sign
    summary = (
        f"{sign:+d} for {' and '.join(letters)} where the same letter stands {side} too, "
        f"{-sign:+d} everywhere else"
    )
    description = Description(space, attend.otherwise(token(CLS)), values)
    return Task("signs", summary, space, 1, target, "sign", None, 1.0, description)


def variant_solution(name: str) -> str | None:
    """Return a solution of an exercise in every variant; None if the lesson's own is one."""
    if name not in tasks():
        return None
    weights = f'design(task["{name}"]).weights'
    return f"from glassformer.handcraft import design\n\nreturn tuple({weights}.matrices.values())"


def judge_head(task: Task, data: Any) -> Judgement:
    """Judge whether a head solves a task; ``data`` holds its matrices as lists of rows."""
    if not isinstance(data, list) or len(data) not in (3, 4):
        return Judgement(
            False, "expected the matrices Km, Qm, Vm and, where the head has positions, pos"
        )
    try:
        sizes = [np.asarray(matrix, dtype=float).size for matrix in data]
        if max(sizes) > MOST_NUMBERS:
            return Judgement(
                False, f"a matrix of {max(sizes):,} numbers; at most {MOST_NUMBERS:,} are judged"
            )
        certificate = verify(HeadWeights(*data), task)
    except InputError as error:
        return Judgement(False, f"found {error.got}; expected {error.expected}. {error.fix}")
    except (TypeError, ValueError, OverflowError):
        return Judgement(False, "expected matrices of numbers, each a list of rows of equal length")
    return _judgement(task, certificate)


def _judgement(task: Task, certificate: Certificate) -> Judgement:
    """Describe the result of a certificate."""
    criterion = certificate.criterion
    outputs = f"{certificate.num_outputs:,} outputs"
    if certificate.holds:
        sequences = f"{certificate.num_checked:,} sequences"
        return Judgement(True, f"right for every sequence ({sequences}, {outputs}; {criterion})")
    failure = certificate.counterexample
    if failure is None:
        assert certificate.undecided is not None, "all sequences are run"
        message = (
            f"undecided; at {certificate.undecided} rounding decides: another order of sums may "
            f"differ by {certificate.rounding:.2g} ({criterion} is asked for)"
        )
        return Judgement(False, message, certificate.undecided.sequence)
    if task.tolerance is None:
        num_wrong = certificate.num_outputs - certificate.num_right
        extent = f"{num_wrong:,} of {outputs} are misread"
    else:
        extent = f"the largest error of {outputs} is {certificate.largest_error:.4g}"
    expected = " ".join(f"{value:.4g}" for value in failure.target)
    actual = " ".join(f"{value:.4g}" for value in failure.output)
    place = f"letter {failure.position + 1} of {failure.sequence}"
    lines = [
        f"wrong; {extent} ({criterion} is asked for)",
        f"  shortest sequence that fails: {failure.sequence}",
        f"  output at {place}: expected [{expected}], found [{actual}]",
    ]
    return Judgement(False, "\n".join(lines), failure.sequence)


def _softmax_cases(generator: torch.Generator) -> Iterator[Case]:
    yield (np.array([0.0, 0.0]),)
    yield (np.array([0.0, math.log(3)]),)
    yield (np.array([[9.0, 0.0, 0.0], [-3.0, 5.0, -5.0]]),)
    for shape in ((5,), (3, 3), (2, 4), (2, 3, 5)):
        yield (torch.randn(shape, generator=generator, dtype=torch.float64).numpy(),)
    yield (np.array([1000.0, 999.0, -1000.0]),)
    yield (np.array([[1000.0, 999.0], [-1000.0, -1001.0]]),)
    yield (np.full((2, 3), -1000.0),)
    yield (np.array([1000.0, -1000.0, -1000.0]),)


def _attention_cases(generator: torch.Generator) -> Iterator[Case]:
    def normal(*shape: int) -> np.ndarray:
        return torch.randn(shape, generator=generator, dtype=torch.float64).numpy()

    # The example that the lesson computes by hand.
    yield (
        np.eye(2),
        np.array([[0.0], [math.log(3)]]),
        np.array([[1.0], [2.0]]),
        np.array([[20.0], [0.0]]),
    )
    for length, input_dim, qk_dim, v_dim in (
        (1, 2, 1, 1),
        (2, 2, 4, 1),
        (3, 3, 3, 3),
        (5, 3, 2, 4),
        (7, 4, 8, 2),
    ):
        yield (
            normal(length, input_dim),
            normal(input_dim, qk_dim),
            normal(input_dim, qk_dim),
            normal(input_dim, v_dim),
        )
        rows = input_dim + 2
        pos = normal(length + 2, 2)
        yield (
            normal(length, input_dim),
            normal(rows, qk_dim),
            normal(rows, qk_dim),
            normal(rows, v_dim),
            pos,
        )
    # Scores whose exponentials overflow, and vanish.
    yield np.eye(3), 30 * np.eye(3), 100 * np.eye(3), np.eye(3)
    keys = np.full((2, 1), 30.0)
    queries = np.full((2, 1), -100.0)
    yield np.eye(2), keys, queries, np.array([[1.0], [3.0]])
    # Equal scores.
    yield np.zeros((3, 2)), normal(2, 2), normal(2, 2), normal(2, 1)


def _transformer_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        for length, input_dim, qk_dim, v_dim in (
            (1, 2, 1, 1),
            (2, 3, 4, 2),
            (4, 3, 1, 3),
            (6, 4, 5, 2),
        ):
            for size in (length, length + 3):
                seq = torch.randn(size, input_dim, generator=generator, dtype=dtype)
                yield (input_dim, qk_dim, v_dim), seq
                yield (input_dim, qk_dim, v_dim, 2, length + 3), seq
            yield ValuesAlone([(input_dim, qk_dim, v_dim), LARGE * seq])


def _rescale_cases(generator: torch.Generator) -> Iterator[Case]:
    yield (np.array([[3.0, 5.0], [7.0, 4.0]]),)
    yield (np.array([[-2.0, 0.0, 2.0]]),)
    yield (np.array([[7.0]]),)
    yield (np.zeros((2, 3)),)
    yield (np.array([[1e-6, 3e-6]]),)  # an eps added to this small difference shows
    for shape in ((3, 4), (1, 5), (6, 1)):
        yield (torch.randn(shape, generator=generator, dtype=torch.float64).numpy() - 3,)


def _training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    seq: Tensor,
    target: Tensor,
    remove_cls: bool = False,
) -> float:
    optimizer.zero_grad()
    loss = (model(seq)[int(remove_cls) :] - target).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def _train(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    """Return the losses of a few training steps, and the weights after them."""
    seqs = case["seq of each step"]
    targets = case["target of each step"]
    remove_cls = case["remove_cls"]
    model = SingleHead(seqs[0].shape[1], 2, targets[0].shape[1], 2, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [
        answer(model, optimizer, seq, target, remove_cls)
        for seq, target in zip(seqs, targets, strict=True)
    ]
    return {
        "losses": losses,
        "weights": {name: weight.detach() for name, weight in model.named_parameters()},
    }


def _training_cases(generator: torch.Generator) -> Iterator[Case]:
    for lengths in ((2,), (1, 3), (4, 2, 5)):
        for cls in (False, True):
            seqs = [torch.randn(length + cls, 3, generator=generator) for length in lengths]
            targets = [torch.randn(length, 2, generator=generator) for length in lengths]
            yield {"seq of each step": seqs, "target of each step": targets, "remove_cls": cls}


def _change_of_basis(
    Km: np.ndarray, Qm: np.ndarray, M: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    changed = change_basis(HeadWeights(Km, Qm, Km), M)
    return changed.Km, changed.Qm


def _basis_cases(generator: torch.Generator) -> Iterator[Case]:
    def normal(*shape: int) -> np.ndarray:
        return torch.randn(shape, generator=generator, dtype=torch.float64).numpy()

    yield np.array([[1.0], [0.0]]), np.array([[1.0], [2.0]]), np.array([[2.0]])
    yield np.eye(2), np.eye(2), np.array([[1.0, 1.0], [0.0, 1.0]])
    for rows, size in ((3, 3), (5, 2), (9, 4)):
        yield normal(rows, size), normal(rows, size), normal(size, size) + 3 * np.eye(size)


def _sharpness(num_keys: int, error: float) -> int:
    """Return the smallest integer factor that leaves other keys at most ``error`` weight."""
    return next(factor for factor in count(1) if (num_keys - 1) * math.exp(-factor) <= error)


def _sharpness_cases(generator: torch.Generator) -> Iterator[Case]:
    for num_keys in (2, 1, 3, 6, 64, 1000):
        for error in (1.0, 0.5, 1e-3, 3e-6, 1e-9):
            yield num_keys, error


EXERCISES: tuple[Exercise | Verdict, ...] = (
    Exercise(
        "softmax",
        lambda scores: torch.softmax(torch.from_numpy(scores), dim=-1).numpy(),
        _softmax_cases,
    ),
    Exercise(
        "attention", lambda x, *matrices: NumpyHead(HeadWeights(*matrices))(x), _attention_cases
    ),
    Exercise(
        "transformer",
        SingleHead,
        _transformer_cases,
        ModuleRun(initial=("Qm.weight", "Km.weight", "Vm.weight")),
    ),
    Exercise("rescale", rescaled, _rescale_cases),
    Exercise("sharpness", _sharpness, _sharpness_cases),
    Verdict("content-design", lambda data, seed: judge_head(tasks(seed)["content-design"], data)),
    Exercise(
        "training-step",
        _training_step,
        _training_cases,
        run=_train,
        gradients=False,
        same_dtype=True,
    ),
    Exercise("change-of-basis", _change_of_basis, _basis_cases),
    Verdict("position-design", lambda data, seed: judge_head(tasks(seed)["position-design"], data)),
    Verdict("both-design", lambda data, seed: judge_head(tasks(seed)["both-design"], data)),
)
