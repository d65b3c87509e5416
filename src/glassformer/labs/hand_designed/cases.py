"""The course's three tasks as it states them: tokens as vectors, random cases, batches for its training loop.

Random numbers come from Python's and NumPy's global generators, as in the course, so that
:func:`~glassformer.labs.hand_designed.exercises.set_random_seed` gives the course's own sequences.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError, require
from glassformer.handcraft.tasks import TASKS, Task

COURSE_TASKS = ("identity", "copy_first", "unique")
"""By content, by position, and by both; the names of their tasks in :mod:`glassformer.handcraft.tasks`."""

SHOWN = {"identity": "ABBCC", "copy_first": "ABB", "unique": "ABCC"}
"""The sequence on which the course compares the hand-designed with the trained head."""

# Vectors of one length. A run-time checker of types that looks into them would draw from the same generators.
Tokens = Sequence[Any]
LETTERS: dict[str, Tokens] = {
    "identity": list(np.eye(3)),
    "copy_first": list(np.eye(3)),
    "unique": list(np.eye(4)[:3]),
}
"""The vectors of A, B and C in each task, one-hot; with CLS, which is the last entry, they are one longer."""

Case = tuple[Float[np.ndarray, "position token_dim"], Float[np.ndarray, "letter v_dim"]]


def shown_sequence(task: str) -> tuple[Float[np.ndarray, "position token_dim"], list[str]]:
    """The course's sequence for comparing two heads, as vectors, and what to call its positions.

    Raises:
        InputError: ``task`` is none of the course's.
    """
    space, text = _task(task).space, SHOWN[task]
    names = ["CLS", *text] if space.has_cls else list(text)
    return space.one_hot(space.block([space.encode(text)]))[0], names


def generate_test_cases_identity(tokens: Tokens, max_len: int = 7) -> Case:
    """A sequence of 1 to ``max_len - 1`` random tokens, and itself as what is wanted.

    Raises:
        InputError: No tokens, or ``max_len`` below 2.
    """
    sequence = _random_sequence(tokens, max_len)
    return sequence, sequence


def generate_test_cases_first(tokens: Tokens, max_len: int = 5) -> Case:
    """A sequence of 1 to ``max_len - 1`` random tokens, and its first token repeated.

    Raises:
        InputError: No tokens, or ``max_len`` below 2.
    """
    sequence = _random_sequence(tokens, max_len)
    return sequence, np.repeat(sequence[:1], len(sequence), axis=0)


def generate_test_cases_unique(tokens: Tokens, max_len: int = 5) -> Case:
    """CLS and 1 to ``max_len - 1`` random tokens; +1 for each of these that occurs once, -1 for the others.

    Raises:
        InputError: No tokens, or ``max_len`` below 2.
    """
    sequence = _random_sequence(tokens, max_len)
    same = (sequence[:, None] == sequence[None]).all(axis=2)
    target = np.where(same.sum(axis=1, keepdims=True) == 1, 1.0, -1.0)
    cls = np.eye(sequence.shape[1])[-1:]
    return np.concatenate([cls, sequence]), target


def make_batch_identity(
    tokens: Tokens | None = None, max_len: int = 7
) -> tuple[Float[Tensor, "position token_dim"], Float[Tensor, "letter v_dim"]]:
    """One case of the identity task in float32, for the course's training loop."""
    return _tensors(generate_test_cases_identity(tokens or LETTERS["identity"], max_len))


def make_batch_first(
    tokens: Tokens | None = None, max_len: int = 5
) -> tuple[Float[Tensor, "position token_dim"], Float[Tensor, "letter v_dim"]]:
    """One case of copying the first token in float32, for the course's training loop."""
    return _tensors(generate_test_cases_first(tokens or LETTERS["copy_first"], max_len))


def make_batch_unique(
    tokens: Tokens | None = None, max_len: int = 5
) -> tuple[Float[Tensor, "position token_dim"], Float[Tensor, "letter v_dim"]]:
    """One case of finding unique tokens in float32, for the course's training loop with ``remove_cls``."""
    return _tensors(generate_test_cases_unique(tokens or LETTERS["unique"], max_len))


def _random_sequence(tokens: Tokens, max_len: int) -> Float[np.ndarray, "position token_dim"]:
    require(len(tokens) > 0, "no tokens", "at least one vector", "Pass [A, B, C].")
    require(
        max_len >= 2,
        f"max_len = {max_len}",
        "at least 2: sequences are shorter than that",
        "Pass max_len = longest length + 1.",
    )
    length = np.random.randint(1, max_len)  # noqa: NPY002 - the course draws from the global generator
    return np.stack(random.choices(tokens, k=length)).astype(np.float64)


def _tensors(case: Case) -> tuple[Tensor, Tensor]:
    sequence, target = (torch.from_numpy(array).float() for array in case)
    return sequence, target


def _task(name: str) -> Task:
    if name not in COURSE_TASKS:
        raise InputError(f"the task {name!r}", f"one of {', '.join(COURSE_TASKS)}", "Name one of the course's tasks.")
    return TASKS[name]()
