"""Hand-designed heads as loaded models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from glassformer.errors import InputError, require
from glassformer.explorer.loading.loaded_model import LoadedHead
from glassformer.explorer.messages import ModelCard, Origin
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import require_fits, verify


def head_card(
    name: str,
    task: Task,
    title: str,
    about: str,
    text: str,
    samples: Sequence[str] = (),
    *,
    origin: Origin,
) -> ModelCard:
    """The card of a head with a task."""
    letters = task.space.letters
    listed = letters[0] if len(letters) == 1 else f"{', '.join(letters[:-1])} and {letters[-1]}"
    return ModelCard(
        name=name,
        title=title,
        kind="head",
        about=about,
        views=["design", "attention"],
        text=text,
        samples=list(samples),
        input_help=f"1 to {task.space.max_len} of the letters {listed}",
        words=list(letters),
        origin=origin,
    )


def first_text(task: Task) -> str:
    """The default text of a task: each letter once, up to the longest sequence."""
    return "".join(task.space.letters)[: task.space.max_len]


def head_model(card: ModelCard, task: Task, weights: HeadWeights, why: Mapping[str, str] | None = None) -> LoadedHead:
    """A head with a task; reasons for matrices that it does not have are dropped."""
    reasons = {name: reason for name, reason in (why or {}).items() if name in weights.matrices}
    return LoadedHead(card, task, weights, MappingProxyType(reasons))


def fitting_task(weights: HeadWeights) -> Task:
    """The built-in task that a head is proved to solve, or else the first whose letters and outputs it fits."""
    fitting = []
    for task in (make() for make in TASKS.values()):
        with suppress(InputError):
            require_fits(weights, task)
            if task.description:
                fitting.append(task)
    require(
        len(fitting) > 0,
        f"weights for inputs of {weights.input_dim} and outputs of {weights.v_dim} numbers, which no built-in task has",
        f"weights for one of {', '.join(TASKS)} with the letters ABC, or a task of your own",
        "Pass the task, or write it to a file task.json in the directory of the weights, as for 'glassformer verify'.",
    )
    return next((task for task in fitting if verify(weights, task).holds), fitting[0])
