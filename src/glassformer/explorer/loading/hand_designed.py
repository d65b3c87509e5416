"""Hand-designed heads as loaded models, with the reason for the values of each matrix."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from glassformer.errors import InputError, require
from glassformer.explorer.loading.loaded_model import LoadedHead, ModelEntry
from glassformer.explorer.messages import ModelCard, Origin
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import require_fits, verify

_LETTERS_AS_VALUES = "Each letter's value is its own one-hot vector, so the output is the letter that is attended to."
_ONE_HOT_POSITIONS = "Each position has a coordinate of its own, so that Km and Qm can name it."


def head_entries() -> list[ModelEntry]:
    """The designs of five built-in tasks."""
    return [
        _entry(
            "identity",
            "Identity: say your own letter",
            "A head whose weights were chosen by hand: every position outputs its own letter, by content alone. "
            "Make a number of Qm smaller and watch the weights spread over other letters until the proof breaks.",
            "ABCA",
            ("A", "ABCABC", "CCBA"),
            {
                "Km": "A key is the one-hot vector of its letter.",
                "Qm": "A query asks for its own letter; the factor is so large that any other letter keeps less than a "
                "billionth of the weight.",
                "Vm": _LETTERS_AS_VALUES,
            },
        ),
        _entry(
            "copy_first",
            "Copy the first letter",
            "A head whose weights were chosen by hand: every position outputs the first letter, by position alone. "
            "Every row of the attention matrix is the same: all weight on the first column.",
            "BACA",
            ("CAB", "AB", "CCCA"),
            {
                "Km": "One coordinate marks the first position. The rows of the letters are 0: content is ignored.",
                "Qm": "Every letter asks for that coordinate, wherever it stands.",
                "Vm": _LETTERS_AS_VALUES,
                "pos": _ONE_HOT_POSITIONS,
            },
        ),
        _entry(
            "unique",
            "Unique: does a letter occur once?",
            "A head whose weights were chosen by hand: +1 for a letter that occurs once, -1 for one that occurs again. "
            "It uses content and position: a letter attends to its other occurrences, or else to CLS.",
            "ABCA",
            ("ABC", "AA", "BCBB"),
            {
                "Km": "A key holds its letter, its position, and in the last column whether it is CLS.",
                "Qm": "A query asks for its own letter, excludes its own position by the negative entries, and "
                "asks half as strongly for CLS: another copy wins over CLS, and CLS over all others.",
                "Vm": "CLS is worth +1 and every letter -1: the value that a letter attends to is the answer.",
                "pos": _ONE_HOT_POSITIONS,
            },
        ),
        _entry(
            "previous_token",
            "Previous letter",
            "A head whose weights were chosen by hand: every position outputs the letter before it, the first its own. "
            "The weights lie on the diagonal below the main one.",
            "ABCB",
            ("CA", "BBAC", "CBA"),
            {
                "Km": "A key holds its position twice: in the first columns for its successor, in the last for itself.",
                "Qm": "Each position asks for the one before it, and half as strongly for itself, which decides where "
                "there is none before it.",
                "Vm": _LETTERS_AS_VALUES,
                "pos": _ONE_HOT_POSITIONS,
            },
        ),
        _entry(
            "occurs_earlier",
            "Has it occurred before?",
            "A head whose weights were chosen by hand: +1 for a letter that has occurred before, -1 for a new one. "
            "There is no causal mask: the head itself works out what is earlier.",
            "ABCA",
            ("AAB", "ABAB", "CBA"),
            {
                "Km": "A key holds its letter, its position, and in the last column whether it is CLS.",
                "Qm": "A query asks for its own letter and as strongly for every earlier position: only a key with "
                "both beats CLS, which it asks for with the last column.",
                "Vm": "A letter is worth +1 and CLS -1: a query that finds nothing attends to CLS.",
                "pos": _ONE_HOT_POSITIONS,
            },
        ),
    ]


def head_card(
    name: str,
    task: Task,
    title: str,
    about: str,
    text: str,
    samples: tuple[str, ...] = (),
    origin: Origin = "shipped",
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
    """The built-in task that a head is proved to solve, or else the first whose letters and outputs it fits.

    Raises:
        InputError: It fits none.
    """
    fitting = [task for task in (make() for make in TASKS.values()) if task.description and _fits(weights, task)]
    require(
        len(fitting) > 0,
        f"weights for inputs of {weights.input_dim} and outputs of {weights.v_dim} numbers, which no built-in task has",
        f"weights for one of {', '.join(TASKS)} with the letters ABC, or a task of your own",
        "Pass the task, or write it to a file task.json in the directory of the weights, as for 'glassformer verify'.",
    )
    return next((task for task in fitting if verify(weights, task).holds), fitting[0])


def _fits(weights: HeadWeights, task: Task) -> bool:
    try:
        require_fits(weights, task)
    except InputError:
        return False
    return True


def _entry(
    name: str, title: str, about: str, text: str, samples: tuple[str, ...], why: Mapping[str, str]
) -> ModelEntry:
    task = TASKS[name]()
    card = head_card(name, task, title, about, text, samples)
    return ModelEntry(card, lambda: head_model(card, task, design(task).weights, why))
