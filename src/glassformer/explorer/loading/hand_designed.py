"""The hand-designed heads as loaded_models: for each matrix, why it is as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from glassformer.errors import InputError, require
from glassformer.explorer.loading.loaded_model import LoadedHead, ModelEntry
from glassformer.explorer.messages import ModelCard, Origin
from glassformer.handcraft.build import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verify import require_fits, verify

_LETTERS_AS_VALUES = "Each letter's value is its own one-hot vector, so the output is the letter that is read."
_ONE_HOT_POSITIONS = "Each position has a coordinate of its own, so that Km and Qm can name it."


@dataclass(frozen=True)
class _Told:
    title: str
    about: str
    text: str
    samples: tuple[str, ...]
    why: Mapping[str, str]


_TOLD = {
    "identity": _Told(
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
    "copy_first": _Told(
        "Copy the first letter",
        "A head whose weights were chosen by hand: every position outputs the first letter, by position alone. "
        "Every row of the attention matrix is the same: all weight on the first column.",
        "BACA",
        ("CAB", "AB", "CCCA"),
        {
            "Km": "One coordinate, which says: I stand first. The rows of the letters are 0, so content plays no part.",
            "Qm": "Every letter asks for that coordinate, wherever it stands.",
            "Vm": _LETTERS_AS_VALUES,
            "pos": _ONE_HOT_POSITIONS,
        },
    ),
    "unique": _Told(
        "Unique: does a letter occur once?",
        "A head whose weights were chosen by hand: +1 for a letter that occurs once, -1 for one that occurs again. "
        "It takes content and position at once: a letter looks for its like elsewhere, and falls back to CLS.",
        "ABCA",
        ("ABC", "AA", "BCBB"),
        {
            "Km": "A key tells its letter, its position, and in the last column whether it is CLS.",
            "Qm": "A query asks for its own letter, takes its own position away again by the negative entries, and "
            "asks half as strongly for CLS: another copy wins over CLS, and CLS over all that is left.",
            "Vm": "CLS is worth +1 and every letter -1: what a letter reads is already the answer.",
            "pos": _ONE_HOT_POSITIONS,
        },
    ),
    "previous_token": _Told(
        "Previous letter",
        "A head whose weights were chosen by hand: every position outputs the letter before it, the first its own. "
        "The weights stand on the line beside the diagonal.",
        "ABCB",
        ("CA", "BBAC", "CBA"),
        {
            "Km": "A key tells its position twice: in the first columns for its successor, in the last for itself.",
            "Qm": "Each position asks for the one before it, and half as strongly for itself, which decides where "
            "there is none before.",
            "Vm": _LETTERS_AS_VALUES,
            "pos": _ONE_HOT_POSITIONS,
        },
    ),
    "occurs_earlier": _Told(
        "Has it occurred before?",
        "A head whose weights were chosen by hand: +1 where the same letter stands somewhere earlier, -1 where it does "
        "not. There is no causal mask: the head finds out by itself what is earlier.",
        "ABCA",
        ("AAB", "ABAB", "CBA"),
        {
            "Km": "A key tells its letter, its position, and in the last column whether it is CLS.",
            "Qm": "A query asks for its own letter and as strongly for every earlier position: only a key with both "
            "beats CLS, for which it asks with the last column.",
            "Vm": "A letter is worth +1 and CLS -1: who finds nothing reads CLS.",
            "pos": _ONE_HOT_POSITIONS,
        },
    ),
}


def head_entries() -> list[ModelEntry]:
    """The designs of five built-in tasks, each made when it is asked for."""
    return [_entry(name) for name in _TOLD]


def head_card(
    name: str,
    task: Task,
    title: str,
    about: str,
    text: str,
    samples: tuple[str, ...] = (),
    origin: Origin = "shipped",
) -> ModelCard:
    """What is told of a head with a task."""
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
    """What a head of a task begins with where nobody says: each letter once, as far as there is room."""
    return "".join(task.space.letters)[: task.space.max_len]


def head_model(card: ModelCard, task: Task, weights: HeadWeights, why: Mapping[str, str] | None = None) -> LoadedHead:
    """A head with a task; reasons for matrices that it does not have are left out."""
    told = {name: reason for name, reason in (why or {}).items() if name in weights.matrices}
    return LoadedHead(card, task, weights, MappingProxyType(told))


def fitting_task(weights: HeadWeights) -> Task:
    """The built-in task that a head is proved to solve, or else the first whose letters and outputs it fits.

    Raises:
        InputError: It fits none.
    """
    fitting = [task for task in (make() for make in TASKS.values()) if task.description and _fits(weights, task)]
    require(
        len(fitting) > 0,
        f"weights for inputs of {weights.input_dim} and outputs of {weights.v_dim} numbers, which no built-in task has",
        f"weights for one of {', '.join(TASKS)} with the letters ABC, or a task of their own",
        "Pass the task, or write it to a file task.json beside the weights, as for 'glassformer verify'.",
    )
    return next((task for task in fitting if verify(weights, task).holds), fitting[0])


def _fits(weights: HeadWeights, task: Task) -> bool:
    try:
        require_fits(weights, task)
    except InputError:
        return False
    return True


def _entry(name: str) -> ModelEntry:
    told, task = _TOLD[name], TASKS[name]()
    card = head_card(name, task, told.title, told.about, told.text, told.samples)
    return ModelEntry(card, lambda: head_model(card, task, design(task).weights, told.why))
