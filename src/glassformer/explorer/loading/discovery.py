"""Find models on disk: training runs, checkpoints, and weights of hand-designed heads."""

import functools
import itertools
import os
import re
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path

from glassformer.checkpoints.decoders import require_kind
from glassformer.checkpoints.gguf_file import is_gguf
from glassformer.checkpoints.store import KNOWN
from glassformer.checkpoints.tensor_files import ADAPTER_FILE, CONFIG_FILE, read_json
from glassformer.errors import InputError
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.designed import (
    first_text,
    fitting_task,
    head_card,
    head_model,
    program_model,
)
from glassformer.explorer.loading.loaded_model import ModelEntry, entry_of
from glassformer.explorer.loading.stored_models import (
    Place,
    installed_models,
    language_model,
    stored_entry,
)
from glassformer.files import local_path
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.task_files import read_task
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import require_fits
from glassformer.handcraft.weight_files import read_head
from glassformer.programs.saved import is_program_file, load_program
from glassformer.text import known_name, one_line, shown

MOST_FOUND = 64
"""Largest number of models that are listed of a directory."""
_DEEPEST = 4
"""Largest number of directories below the one that is searched."""
_MOST_DIRECTORIES = 2000
_INSIDE = ("best", "checkpoints", "figures", "parts", "tensorboard")
"""Directories within a run that hold no other model."""
_HEAD_FILES = (".json", ".npz")
_GGUF = re.compile(r"(?i)\.gguf(\.part\d+)?$")
_ON_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*(:.+)?")


def list_models(named: Path | str | None = None) -> list[ModelEntry]:
    """List the named model, the bundled models, and language models of installed packages.

    Args:
        named: The name of a bundled model, which is then listed first, or an argument of
            :func:`entries_at`.
    """
    listed = bundled()
    taken = {entry.card.name for entry in listed}
    if named is not None and str(named) in taken:
        listed.sort(key=lambda entry: entry.card.name != str(named))
        named = None
    first = [] if named is None else entries_at(named, taken)
    taken |= {entry.card.name for entry in first}
    installed = [entry for entry in installed_models() if entry.card.name not in taken]
    return [*first, *listed, *installed]


def entries_at(path: Path | str, taken: Set[str] = frozenset()) -> list[ModelEntry]:
    """Return the models at ``path``.

    It is a run, a checkpoint, a GGUF file, the weights of a head, a compiled program, or a
    directory of several models. ``taken`` are names of other models.
    """
    path = local_path(path)
    exists = os.path.lexists(path)
    name = str(path)
    in_gguf = path.is_file() and (_GGUF.search(path.name) is not None or is_gguf(path))
    if name in KNOWN or in_gguf or (not exists and _ON_HUB.fullmatch(name)):
        return [language_model(name, _free(_slug(path.name), taken))]
    if not exists:
        fix = "Check the path."
        if "/" not in name:
            fix = known_name(name, [*KNOWN, *(entry.card.name for entry in bundled())])
        raise InputError(
            got=f"{shown(path)}, which does not exist",
            expected=(
                "a run, a checkpoint, a GGUF file, the weights of a head, or the name of a model"
            ),
            fix=fix,
        )
    title = path.resolve().name
    place = Place(path, _free(_slug(title), taken), title)
    if path.is_file():
        return [_head(place)]
    entry = stored_entry(place)
    if entry is not None:
        return [entry]
    inside = find_models(path, taken)
    if not inside and any((path / file).is_file() for file in (CONFIG_FILE, ADAPTER_FILE)):
        config = read_json(path / CONFIG_FILE)
        if "model_type" in config:
            require_kind(config, path)
    if not inside:
        raise InputError(
            got=f"{shown(path)}, which holds no model",
            expected=(
                "a run of a lab or of 'glassformer train', a model's directory, a head or a "
                "compiled program"
            ),
            fix=(
                "Correct the path, or name a GGUF file itself. In Python explore() also takes a "
                "model."
            ),
        )
    return inside


def find_models(
    directory: Path | str,
    taken: Set[str] = frozenset(),
    apart: Path | None = None,
    known: dict[Path, str] | None = None,
) -> list[ModelEntry]:
    """Return every model in a directory and its subdirectories, in the order of their paths.

    Heads are recognized by their file names: ``head.json`` and ``head.npz``; the name of a built-in
    task, as in ``unique.npz``; and a name that contains a task's, if the file holds a head.
    Compiled programs are recognized by the beginning of their files.

    Damaged models are skipped. Each skipped directory or file is reported on stderr.

    Args:
        directory: Where to look, a few levels deep; links are not followed.
        taken: Names of other models.
        apart: A directory or file to leave out, with all that it contains.
        known: Names of models by their paths, which they keep. Models that are found are added.
    """
    directory = local_path(directory)
    left_out = None if apart is None else apart.resolve()
    names = {} if known is None else known
    entries = []

    def place_of(path: Path, title: str, slug: str) -> Place:
        return Place(path, names.get(path) or _free(slug, {*taken, *names.values()}), title)

    for path in _directories(directory):
        if left_out is not None and path.resolve().is_relative_to(left_out):
            continue
        parts = path.relative_to(directory).parts
        short = Path(*(part for part in parts if part not in ("trainings", "encoder")))
        title = str(short) if short.parts else directory.name
        place = place_of(path, title, _slug(title))
        try:
            entry = stored_entry(place)
        except InputError as error:
            _warn(f"skipped {shown(path)}: {one_line(str(error))}")
            continue
        if entry is not None:
            names[path] = place.name
            entries.append(entry)
        for file in _head_files(path):
            if file.resolve() == left_out:
                continue
            slug = _slug(str(Path(title) / file.stem))
            place = place_of(file, str(Path(title) / file.name), slug)
            try:
                entries.append(_head(place))
                names[file] = place.name
            except InputError as error:
                # A file whose name only contains a task's, as unique-notes.json, may be of another
                # kind.
                if file.stem == "head" or file.stem in TASKS or is_program_file(file):
                    _warn(f"skipped {shown(file)}: {one_line(str(error))}")
        if len(entries) >= MOST_FOUND:
            _warn(f"more than {MOST_FOUND} models in {shown(directory)}: the rest is skipped")
            return entries[:MOST_FOUND]
    return entries


@functools.cache
def _warn(line: str) -> None:
    """Print a warning once, however often models are listed."""
    print(f"glassformer: warning: {line}", file=sys.stderr)


def _directories(top: Path) -> Iterator[Path]:
    """Yield a directory and its subdirectories that may hold models."""
    for num_directories, (directory, subdirectories, _) in enumerate(os.walk(top), start=1):
        path = Path(directory)
        depth = len(path.relative_to(top).parts)
        skipped: tuple[str, ...] = ()
        if (path / "config.json").is_file() or (path / "lab.json").is_file():
            skipped = _INSIDE
        subdirectories[:] = sorted(
            name
            for name in subdirectories
            if depth < _DEEPEST and not name.startswith(".") and name not in skipped
        )
        yield path
        if num_directories >= _MOST_DIRECTORIES:
            _warn(f"more than {_MOST_DIRECTORIES} directories in {shown(top)}: the rest is skipped")
            return


def _head_files(path: Path) -> list[Path]:
    """Return compiled programs, and files named like the weights of a head.

    Such files are called ``head.json``, or after a task, as ``unique.npz``.
    """
    with suppress(OSError):
        files = (file for file in path.iterdir() if file.suffix in _HEAD_FILES and file.is_file())
        return sorted(
            file
            for file in files
            if file.stem == "head" or _task_named(file.stem) is not None or is_program_file(file)
        )
    return []


def _head(place: Place) -> ModelEntry:
    if is_program_file(place.path):
        program = load_program(place.path)
        return entry_of(program_model(program, place.name, place.title, origin="run"))
    weights = read_head(place.path)
    task = _task_of(place.path, weights)
    about = f"A head with the weights in {place.path.name}. The task: {task.summary}."
    card = head_card(place.name, task, place.title, about, first_text(task), origin="run")
    return entry_of(head_model(card, task, weights))


def _task_of(path: Path, weights: HeadWeights) -> Task:
    """Return the task of weights.

    It is described by the file task.json in their directory, or named by their file. Otherwise it
    is a built-in task that the weights fit.
    """
    file = path.parent / "task.json"
    named = _task_named(path.stem)
    if file.is_file():
        task = read_task(file)
    elif named is not None:
        task = TASKS[named]()
    else:
        return fitting_task(weights)
    require_fits(weights, task)
    return task


def _task_named(stem: str) -> str | None:
    normalized = stem.lower().replace("-", "_")
    return next((name for name in sorted(TASKS, key=len, reverse=True) if name in normalized), None)


def _slug(text: str) -> str:
    """Return a name for requests: at most 72 letters, digits, dots, hyphens and underscores."""
    slug = re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-._")
    return (slug or "model")[-72:].strip("-._") or "model"


def _free(name: str, taken: Set[str]) -> str:
    """Return the name, with a number if it is taken."""
    if name not in taken:
        return name
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(candidate for candidate in numbered if candidate not in taken)
