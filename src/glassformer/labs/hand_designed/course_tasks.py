"""The course's three tasks: random cases, batches for its training loop, and its submission log.

Random numbers come from the global generators of Python and NumPy, as in the course, so that
:func:`~glassformer.labs.hand_designed.course.set_random_seed` gives the course's own sequences.
"""

import inspect
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed.course import (
    NumpyTransformer,
    PytorchTransformer,
    hand_designed_weights,
    set_random_seed,
)

# Vectors of equal length. Not a precise type: a run-time type checker that samples items would draw
# from the same generators.
Tokens = Sequence[Any]
Case = tuple[Float[np.ndarray, "position token_dim"], Float[np.ndarray, "letter v_dim"]]

SHOWN = {"identity": "ABBCC", "copy_first": "ABB", "unique": "ABCC"}
"""Sequences of the course's tasks on which it compares the designed head with the trained one."""

_ONE_HOT: Tokens = list(np.eye(3))
_WITH_CLS: Tokens = list(np.eye(4)[:3])


def shown_sequence(task: str) -> tuple[Float[np.ndarray, "position token_dim"], list[str]]:
    """Return the sequence of :data:`SHOWN` as vectors, and names for its positions."""
    space = TASKS[task]().space
    text = SHOWN[task]
    vectors = space.one_hot(space.block([space.encode(text)]))[0]
    return vectors, ["CLS"] * space.has_cls + list(text)


def generate_test_cases_identity(tokens: Tokens, max_len: int = 7) -> Case:
    """Draw a sequence of 1 to ``max_len - 1`` random tokens, which is also the target."""
    sequence = _random_sequence(tokens, max_len)
    return sequence, sequence


def generate_test_cases_first(tokens: Tokens, max_len: int = 5) -> Case:
    """Draw a sequence of 1 to ``max_len - 1`` random tokens; the target repeats its first token."""
    sequence = _random_sequence(tokens, max_len)
    return sequence, np.repeat(sequence[:1], len(sequence), axis=0)


def generate_test_cases_unique(tokens: Tokens, max_len: int = 5) -> Case:
    """Draw CLS and 1 to ``max_len - 1`` random tokens.

    The target is +1 for each token that occurs once, and -1 for the others.
    """
    sequence = _random_sequence(tokens, max_len)
    same = (sequence[:, None] == sequence[None]).all(axis=2)
    target = np.where(same.sum(axis=1, keepdims=True) == 1, 1.0, -1.0)
    return np.concatenate([np.eye(sequence.shape[1])[-1:], sequence]), target


def make_batch_identity(tokens: Tokens = _ONE_HOT, max_len: int = 7) -> tuple[Tensor, Tensor]:
    """Draw a case of the identity task in float32."""
    return _tensors(generate_test_cases_identity(tokens, max_len))


def make_batch_first(tokens: Tokens = _ONE_HOT, max_len: int = 5) -> tuple[Tensor, Tensor]:
    """Draw a case of copying the first token in float32."""
    return _tensors(generate_test_cases_first(tokens, max_len))


def make_batch_unique(tokens: Tokens = _WITH_CLS, max_len: int = 5) -> tuple[Tensor, Tensor]:
    """Draw a case of finding unique tokens in float32, for a training with ``remove_cls``."""
    return _tensors(generate_test_cases_unique(tokens, max_len))


MAKE_BATCH = {
    "identity": make_batch_identity,
    "copy_first": make_batch_first,
    "unique": make_batch_unique,
}


def submission() -> dict[str, Any]:
    """Return the course's ``submission_log.json``, with matrices as flat lists, row by row.

    Reseeds the global random generators with the course's seeds, once for each part.
    """
    set_random_seed(1998)
    transformer = PytorchTransformer(7, 4, 3, 2, 9)
    with torch.no_grad():
        out = transformer(torch.randn(8, 7))
    log: dict[str, Any] = {
        "time": time.time(),
        "torch_transformer_shape": list(out.shape),
        "torch_transformer_value": out.flatten().tolist()[2:7],
        "torch_transformer_init": inspect.getsource(PytorchTransformer.__init__),
        "torch_transformer_forward": inspect.getsource(PytorchTransformer.forward),
    }
    for name, task, make, seed in (
        ("attention_by_content", "identity", generate_test_cases_identity, 1997),
        ("attention_by_position", "copy_first", generate_test_cases_first, 2017),
    ):
        weights = hand_designed_weights(task)
        set_random_seed(seed)
        sequence, _ = make(_ONE_HOT)
        log[name] = NumpyTransformer(**weights).forward(sequence).flatten().tolist()
        for key in ("pos", "Qm", "Km", "Vm"):
            if weights[key] is not None:
                log[f"{name}_{key.removesuffix('m')}"] = weights[key].flatten().tolist()
    return log


def _random_sequence(tokens: Tokens, max_len: int) -> Float[np.ndarray, "position token_dim"]:
    # The course draws from the global generator.
    length = np.random.randint(1, max_len)  # noqa: NPY002
    return np.stack(random.choices(tokens, k=length)).astype(np.float64)


def _tensors(case: Case) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(case[0]).float(), torch.from_numpy(case[1]).float()
