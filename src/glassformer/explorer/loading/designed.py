"""Make loaded models of hand-designed heads and compiled programs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from glassformer.errors import InputError
from glassformer.explorer.loading.loaded_model import LoadedHead, LoadedProgram, ModelEntry
from glassformer.explorer.messages import ModelCard, Origin
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import require_fits, verify
from glassformer.programs.compiler import compile_program
from glassformer.programs.domains import Domains
from glassformer.programs.library import PROGRAMS
from glassformer.programs.model import CompiledProgram
from glassformer.programs.source import program_source
from glassformer.text import one_line

_LONGEST_TITLE = 60
_LONGEST_TEXT = 12


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
    """Return the card of a head with a task."""
    letters = task.space.letters
    listed = letters[0]
    if len(letters) > 1:
        listed = f"{', '.join(letters[:-1])} and {letters[-1]}"
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
    """Return the default text of a task: each letter once, up to the longest sequence."""
    return "".join(task.space.letters)[: task.space.max_len]


def head_model(
    card: ModelCard, task: Task, weights: HeadWeights, why: Mapping[str, str] | None = None
) -> LoadedHead:
    """Return a head with a task; drop reasons for matrices that it does not have."""
    reasons = {name: reason for name, reason in (why or {}).items() if name in weights.matrices}
    return LoadedHead(card, task, weights, MappingProxyType(reasons))


def fitting_task(weights: HeadWeights) -> Task:
    """Return the built-in task that a head is proved to solve.

    If there is none, return the first task whose letters and outputs the head fits.
    """
    fitting = []
    for task in (make() for make in TASKS.values()):
        with suppress(InputError):
            require_fits(weights, task)
            if task.description:
                fitting.append(task)
    if not fitting:
        raise InputError(
            got=(
                f"weights for inputs of {weights.input_dim} and outputs of {weights.v_dim} "
                "numbers, which no built-in task has"
            ),
            expected=(
                f"weights for one of {', '.join(TASKS)} with the letters ABC, or a task of your own"
            ),
            fix=(
                "Write the task to a file task.json in the directory of the weights, as for "
                "'glassformer verify'."
            ),
        )
    return next((task for task in fitting if verify(weights, task).holds), fitting[0])


def library_entry(name: str, texts: Mapping[str, Any]) -> ModelEntry:
    """Return a program of the library, which is compiled when it is opened.

    ``texts`` are fields of its card.
    """
    example = PROGRAMS[name]
    title = name.replace("-", " ").capitalize()
    about = (
        f"{one_line(example.about).capitalize()}: a program compiled into a transformer. "
        "No weight was trained."
    )
    domains = Domains(example.vocabulary, example.max_len, example.causal)
    code = program_source(name)
    card = _program_card(
        f"program-{name}", domains, title, about, origin="shipped", code=code, **texts
    )

    def opened() -> LoadedProgram:
        model = compile_program(
            example.program, example.vocabulary, example.max_len, causal=example.causal
        )
        return LoadedProgram(card, model)

    return ModelEntry(card, opened)


def program_model(
    model: CompiledProgram, name: str, title: str, *, origin: Origin, text: str | None = None
) -> LoadedProgram:
    """Return a compiled program that is in memory, or was read from a file without definition."""
    short_title = one_line(title, _LONGEST_TITLE)
    about = f"A program compiled into a transformer: {one_line(model.name, _LONGEST_TITLE)}."
    card = _program_card(name, model.domains, short_title, about, origin=origin, text=text)
    return LoadedProgram(card, model)


def _program_card(
    name: str,
    domains: Domains,
    title: str,
    about: str,
    *,
    origin: Origin,
    text: str | None = None,
    samples: Sequence[str] = (),
    blank: str = "",
    code: str = "",
) -> ModelCard:
    """Return a program's card. The default text is the vocabulary's tokens in their order."""
    words = [str(token) for token in domains.vocabulary]
    single_letters = all(len(word) == 1 for word in words)
    if text is None:
        separator = "" if single_letters else " "
        text = separator.join((words * _LONGEST_TEXT)[: min(domains.max_len, _LONGEST_TEXT)])
    listed = ", ".join(words)
    if len(words) > 20:
        listed = f"{', '.join(words[:10])} ... {words[-1]}"
    input_help = f"1 to {domains.max_len} of the tokens {listed}"
    if not single_letters:
        input_help += ", between spaces"
    return ModelCard(
        name=name,
        title=title,
        kind="program",
        about=about,
        views=["program"],
        text=text,
        samples=list(samples),
        input_help=input_help,
        words=words,
        blank=blank,
        code=code,
        origin=origin,
    )
