"""The models that lie about: runs of the labs and of ``glassformer train``, checkpoints, and weights of heads."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from glassformer.errors import InputError, require
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.hand_designed import first_text, fitting_task, head_card, head_model
from glassformer.explorer.loading.loaded_model import ModelEntry
from glassformer.explorer.loading.stored_models import Place, stored_entry
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.task_files import read_task
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verify import require_fits
from glassformer.handcraft.weight_files import read_head
from glassformer.text import one_line, shown

MOST_FOUND = 64
"""Most models that are taken from a directory of runs."""
_DEEPEST = 4
_MOST_DIRECTORIES = 2000
_INSIDE = ("best", "checkpoints", "figures", "parts", "tensorboard")
"""Directories within a run in which no other model lies."""
_HEAD_FILES = (".json", ".npz")


def to_stderr(line: str) -> None:
    """Tell people of what was passed over."""
    print(line, file=sys.stderr)


def list_models(
    named: Path | str | None = None, runs: Path | str | None = "runs", warn: Callable[[str], None] = to_stderr
) -> list[ModelEntry]:
    """Everything that can be looked into: what is named, what comes along, and what lies in a directory of runs.

    Args:
        named: The name of a model that comes along, which is then listed first; or a run, a checkpoint, or the weights
            of a head: a file, or a directory that may hold several models.
        runs: Where runs lie; nothing where there is no such directory. None: nowhere.
        warn: Is told in a line of each directory that was passed over, and why.

    Raises:
        InputError: What is named is not there, is broken, or is nothing that can be looked into.
    """
    come = bundled()
    taken = {entry.card.name for entry in come}
    if named is not None and str(named) in taken:
        come.sort(key=lambda entry: entry.card.name != str(named))
        named = None
    first = [] if named is None else entries_at(Path(named), warn, taken)
    taken |= {entry.card.name for entry in first}
    found = [] if runs is None else find_models(Path(runs), taken, warn, None if named is None else Path(named))
    return [*first, *come, *found]


def entries_at(path: Path, warn: Callable[[str], None] = to_stderr, taken: set[str] | None = None) -> list[ModelEntry]:
    """The model in ``path``, or those in the directories within it.

    Args:
        path: What is named.
        warn: Is told in a line of each directory within that was passed over, and why.
        taken: Names that others have.

    Raises:
        InputError: Nothing there, something broken, or nothing that can be looked into.
    """
    require(
        os.path.lexists(path),
        f"{shown(path)}, which is not there",
        "a run, a checkpoint, the weights of a head, or the name of a model that comes along",
        f"Mend the path, or choose among {', '.join(entry.card.name for entry in bundled())}.",
    )
    title = path.resolve().name
    place = Place(path, _free(_slug(title), taken or set()), title)
    if path.is_file() or (path / "Km.csv").exists():
        return [_head(place)]
    entry = stored_entry(place)
    if entry is not None:
        return [entry]
    inside = find_models(path, taken, warn)
    require(
        len(inside) > 0,
        f"{shown(path)}, in which there is nothing to look into",
        "a run of a lab or of 'glassformer train', a checkpoint of a BERT, Mixtral or glassformer encoder, or a head",
        "Mend the path.",
    )
    return inside


def find_models(
    directory: Path,
    taken: set[str] | None = None,
    warn: Callable[[str], None] = to_stderr,
    apart: Path | None = None,
) -> list[ModelEntry]:
    """Every model in a directory and those within it, in the order of their paths; what is broken is warned of.

    Heads are found by their names: directories with a ``Km.csv``; ``head.json`` and ``head.npz``; files of a built-in
    task's name, as ``unique.npz``; and, as far as they hold a head, files whose name holds a task's.

    Args:
        directory: Where to look, a few levels deep; links are not followed.
        taken: Names that others have.
        warn: Is told in a line of each directory that was passed over, and why.
        apart: A directory or file that is left out with all that lies in it.
    """
    left_out = None if apart is None else apart.resolve()
    names, found = set(taken or ()), []
    for path in _directories(directory, warn):
        if left_out is not None and path.resolve().is_relative_to(left_out):
            continue
        relative = path.relative_to(directory)
        short = Path(*(part for part in relative.parts if part not in ("trainings", "encoder"))) or relative
        title = str(short) if short.parts else directory.name
        place = Place(path, _free(_slug(title), names), title)
        try:
            entry = stored_entry(place)
            if entry is None and (path / "Km.csv").is_file():
                entry = _head(place)
        except InputError as error:
            warn(_passed_over(path, error))
            continue
        if entry is not None:
            names.add(place.name)
            found.append(entry)
        for file in (file for file in _head_files(path) if file.resolve() != left_out):
            place = Place(file, _free(_slug(str(Path(title) / file.stem)), names), str(Path(title) / file.name))
            try:
                found.append(_head(place))
                names.add(place.name)
            except InputError as error:
                # A name that only holds a task's, as unique-notes.json, may be that of a file of another kind.
                if file.stem == "head" or file.stem in TASKS:
                    warn(_passed_over(file, error))
        if len(found) >= MOST_FOUND:
            warn(f"more than {MOST_FOUND} models in {shown(directory)}: the rest is passed over")
            return found[:MOST_FOUND]
    return found


def _passed_over(path: Path, error: InputError) -> str:
    return f"passed over {shown(path)}: {one_line(str(error))}"


def _directories(top: Path, warn: Callable[[str], None]) -> Iterator[Path]:
    for seen, (here, inside, _) in enumerate(os.walk(top), start=1):
        path = Path(here)
        depth = len(path.relative_to(top).parts)
        skipped = _INSIDE if (path / "config.json").is_file() or (path / "lab.json").is_file() else ()
        inside[:] = sorted(
            name for name in inside if depth < _DEEPEST and not name.startswith(".") and name not in skipped
        )
        yield path
        if seen >= _MOST_DIRECTORIES:
            warn(f"more than {_MOST_DIRECTORIES} directories in {shown(top)}: the rest is passed over")
            return


def _head_files(path: Path) -> list[Path]:
    """Files that are named like a head's weights: ``head.json``, or by a built-in task as ``unique.npz``."""
    with suppress(OSError):
        files = (file for file in path.iterdir() if file.suffix in _HEAD_FILES and file.is_file())
        return sorted(file for file in files if file.stem == "head" or _task_named(file.stem) is not None)
    return []


def _head(place: Place) -> ModelEntry:
    weights = read_head(place.path)
    task = _task_of(place.path, weights)
    about = f"A head whose weights lie in {place.path.name}. The task: {task.summary}."
    card = head_card(place.name, task, place.title, about, first_text(task), origin="run")
    loaded = head_model(card, task, weights)
    return ModelEntry(card, lambda: loaded)


def _task_of(path: Path, weights: HeadWeights) -> Task:
    """The task that weights are for: of a file task.json beside them, of their name, or the only one that they fit."""
    beside = path.parent / "task.json"
    if beside.is_file():
        task = read_task(beside)
        require_fits(weights, task)
        return task
    named = _task_named(path.stem)
    if named is not None:
        task = TASKS[named]()
        require_fits(weights, task)
        return task
    return fitting_task(weights)


def _task_named(stem: str) -> str | None:
    plain = stem.lower().replace("-", "_")
    return next((name for name in sorted(TASKS, key=len, reverse=True) if name in plain), None)


def _slug(text: str) -> str:
    """A name for requests: at most 72 letters, digits, dots and lines."""
    slug = re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-._")
    return (slug or "model")[-72:].strip("-._") or "model"


def _free(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    return next(f"{name}-{number}" for number in range(2, len(taken) + 3) if f"{name}-{number}" not in taken)
