"""Paths that users name; files and directories that are always complete or absent.

:func:`local_path` reads every path that a user names. The library never removes files that it did
not write: it replaces existing ones only if :class:`Written` or a function recognises them.

New files are written beside their place under a hidden name, flushed to the disk, and then renamed.
A rename is atomic, so a reader sees the old state or the new one, even if the process or machine
dies. A directory that replaces another needs two renames: :func:`standing` finds it in between, and
:func:`recover` finishes if the process died there. Several processes that write one place take
turns, but not on Windows.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path

from glassformer.errors import InputError
from glassformer.text import shown

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PARTIAL = ".glassformer-partial"
_REPLACED = ".glassformer-replaced"
_TRIES = 20
_PAUSE = 0.01
"""Number of looks, and seconds between them, for a directory that is being replaced."""
_SILENT = 500
"""Number of such looks for another process's lock before a message is printed."""


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the path that a user names. ``~`` and ``~user`` are home directories, as for a shell.

    Every public function and command that takes a path reads it by this function.

    Raises:
        InputError: If ``path`` is empty, or ``~user`` is no user of this machine.
    """
    text = os.fspath(path)
    if not text:
        raise InputError(
            "an empty path",
            "the path of a file or directory",
            "Name it; '.' is the working directory.",
        )
    path = Path(text)
    if not text.startswith("~"):
        # Path drops the dot of "./~name": read again, it would become a home directory.
        if path.parts[:1] and path.parts[0].startswith("~"):
            return path.absolute()
        return path
    try:
        return path.expanduser()
    except RuntimeError as error:
        name = shown(Path(text))
        raise InputError(
            got=f"{name}, of no user of this machine",
            expected="~ or ~user of a user",
            fix=f"Check the name. A file of this name here is './{name}'.",
        ) from error


@dataclass(frozen=True)
class Written:
    """A kind of directory that the library writes and recognises.

    Attributes:
        kind: A noun with its article, for messages: ``"a classifier"``.
        names: Patterns of the names of all files in it. It has no directories and no links.
        recognises: Function that returns whether a directory with such names is of this kind.
    """

    kind: str
    names: tuple[str, ...]
    recognises: Callable[[Path], bool]

    def foreign_entries(self, directory: Path) -> list[str]:
        """Return the sorted names of entries of ``directory`` that are not files of this kind."""
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if not self._names_file(entry))

    def _names_file(self, entry: os.DirEntry[str]) -> bool:
        return entry.is_file(follow_symlinks=False) and any(
            fnmatchcase(entry.name, name) for name in self.names
        )


@contextmanager
def new_directory(path: Path, *, replaces: Written | None = None) -> Iterator[Path]:
    """Write a directory so that ``path`` is complete or absent.

    Use it as ``with new_directory(path) as draft: ...``. The block fills ``draft``, an empty
    directory beside ``path``. When the block ends, everything in it is flushed to the disk and
    ``draft`` becomes ``path``. When the block raises, ``draft`` is removed and ``path`` is
    unchanged.

    Args:
        path: Directory to make, or a link to it. Missing parents are made.
        replaces: Kind of directory that is replaced as a whole if ``path`` is one; so is an empty
            directory. None: nothing may be there.

    Raises:
        InputError: If ``path`` is anything else, even a directory of the right kind with one more
            file in it, or if it has the working directory in it.
    """
    path = path.resolve()
    draft = _beside(path, _PARTIAL)
    try:
        lock = _locked_draft(draft, directory=True)
    except OSError:  # the parent may not be written; but first report what is at ``path``
        require_replaceable_directory(path, replaces)
        raise
    with lock:
        try:
            require_replaceable_directory(path, replaces)
            recover(path)
            for leftover in draft.iterdir():
                _remove(leftover)
            yield draft
            for entry in (*draft.rglob("*"), draft):
                _share(entry, draft.stat().st_mode)
                _flush(entry)
            require_replaceable_directory(path, replaces)  # writing may have taken long
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        try:
            if path.exists():
                os.replace(path, _beside(path, _REPLACED))
            os.replace(draft, path)
        except OSError:  # the root of a mounted file system, for example
            shutil.rmtree(draft, ignore_errors=True)
            recover(path)
            raise
        _flush(path.parent)
        shutil.rmtree(_beside(path, _REPLACED), ignore_errors=True)


def require_replaceable_directory(path: Path, replaces: Written | None) -> None:
    """Check that :func:`new_directory` may write ``path``: it is free, empty or replaceable."""
    if not os.path.lexists(path):
        return
    if replaces is None or not path.is_dir() or Path.cwd().is_relative_to(path):
        raise InputError(
            got=f"{shown(path)}, which exists already",
            expected="a directory that is not there yet",
            fix="Choose another path, or remove the old one.",
        )
    if foreign := replaces.foreign_entries(path):
        names = ", ".join(shown(Path(name)) for name in foreign[:3])
        if len(foreign) > 3:
            names += f" and {len(foreign) - 3} more"
        raise InputError(
            got=f"{shown(path)}, which exists already and holds {names}",
            expected=f"a new directory, or {replaces.kind} to replace",
            fix="Choose another path, or move these files away.",
        )
    if any(path.iterdir()) and not replaces.recognises(path):
        raise InputError(
            got=f"{shown(path)}, which exists already and is not {replaces.kind}",
            expected=f"a new directory, or {replaces.kind} to replace",
            fix="Choose another path, or remove the old one.",
        )


def _locked_draft(draft: Path, *, directory: bool) -> ExitStack:
    """Make ``draft``, or take it over from a killed process, and lock it.

    The lock lasts until the returned stack is closed.
    """
    while True:
        draft.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            if directory:
                draft.mkdir()
            else:
                draft.touch()
        if fcntl is None:
            return ExitStack()
        with suppress(FileNotFoundError), ExitStack() as opened:  # renamed meanwhile
            handle = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW)
            opened.callback(os.close, handle)
            with suppress(OSError):  # a file system without locks
                _lock(handle, draft)
            if os.path.samestat(draft.stat(), os.fstat(handle)):
                return opened.pop_all()


def _lock(handle: int, draft: Path) -> None:
    for attempt in count():
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt == _SILENT:
                print(
                    f"glassformer: waiting for another process, which writes {shown(draft)}",
                    file=sys.stderr,
                )
            time.sleep(_PAUSE)


def remove_directory(path: Path) -> None:
    """Remove ``path`` so that a half-emptied directory never has its name; it may be missing."""
    if path.exists():
        doomed = _beside(path, _PARTIAL)
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(path, doomed)
        shutil.rmtree(doomed)


def set_aside(path: Path) -> Path:
    """Rename ``path`` to ``path-1``, or to the first such name that is free, and return that."""
    number = 1
    while os.path.lexists(f"{path}-{number}"):
        number += 1
    aside = Path(f"{path}-{number}")
    os.replace(path, aside)
    return aside


def recover(path: Path) -> None:
    """Bring back the old ``path`` if a process died between the two renames."""
    replaced = _beside(path, _REPLACED)
    if not replaced.exists():
        return
    if path.exists():
        # The process that replaced it may remove it at the same time.
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        os.replace(replaced, path)


def standing(path: Path) -> Path:
    """Return ``path``, or the old one beside it if a process died between the two renames.

    If another process is between the two renames, this waits until the new one is there.
    """
    replaced = _beside(path, _REPLACED)
    for _ in range(_TRIES):
        if path.exists() or not replaced.exists():
            return path
        time.sleep(_PAUSE)
    return replaced


def remove_leftovers(parent: Path) -> None:
    """Remove the drafts that killed processes left in ``parent``, while no process writes there."""
    for draft in parent.glob(f".*{_PARTIAL}"):
        _remove(draft)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def new_file(path: Path, *, replaces: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Write a file so that ``path`` is the old or the whole new one.

    Use it as ``with new_file(path) as draft: ...``. The block writes the file ``draft`` beside
    ``path``. When the block ends, it is flushed to the disk and becomes ``path``. When the block
    raises, ``draft`` is removed and ``path`` is unchanged.

    Args:
        path: File to make or to replace. Missing parents are made.
        replaces: Function that returns whether an existing file may be replaced, for paths that a
            user names; links are then followed. None: any file may be replaced, for paths in a
            directory that the library made.

    Raises:
        InputError: If something is there that may not be replaced.
    """
    if replaces is not None:
        path = Path(os.path.realpath(path))
        require_replaceable(path, replaces)
    draft = _beside(path, _PARTIAL)
    with _locked_draft(draft, directory=False):
        mode = draft.stat().st_mode
        try:
            yield draft
            _share(draft, mode)
            _flush(draft)
            if replaces is not None:
                require_replaceable(path, replaces)  # writing may have taken long
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    _flush(path.parent)


def require_replaceable(path: Path, replaces: Callable[[Path], bool]) -> None:
    """Check that ``path`` is free, or a regular file for which ``replaces`` is true."""
    if not os.path.lexists(path):
        return
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "not a regular file"
        raise InputError(f"{shown(path)}, which is {kind}", "a file", "Choose another name.")
    if not replaces(path):
        raise InputError(
            got=f"{shown(path)}, which exists already and was not written by this function",
            expected="a new name, or a file that it wrote before",
            fix="Choose another name, or remove the file.",
        )


def any_file(path: Path) -> bool:
    """Return True: any file at ``path`` may be replaced."""
    return True


def no_file(path: Path) -> bool:
    """Return False: nothing may be at ``path``."""
    return False


def holds(path: Path, mark: bytes, size: int) -> bool:
    """Return whether ``mark`` is in the first ``size`` bytes of a file, or the last ``-size``."""
    try:
        with path.open("rb") as file:
            if size < 0:
                file.seek(max(0, path.stat().st_size + size))
            return mark in file.read(abs(size))
    except OSError:
        return False


def require_absent(path: Path, overwrite: bool = False) -> None:
    """Check that ``path`` may be written: nothing is there, or ``overwrite`` was passed."""
    if not os.path.lexists(path):
        return
    if overwrite and (path.is_file() or path.is_dir()):
        return
    raise InputError(
        got=f"{shown(path)}, which is there already",
        expected="a new name",
        fix="Choose another one." if overwrite else "Choose another one, or pass --overwrite.",
    )


def write_text(path: Path, text: str, *, replaces: Callable[[Path], bool] | None = None) -> None:
    """Write ``text`` (UTF-8) to the file ``path``, which never has a part of it only.

    For ``replaces`` see :func:`new_file`.
    """
    with new_file(path, replaces=replaces) as draft:
        draft.write_text(text, encoding="utf-8")


def _beside(path: Path, suffix: str) -> Path:
    return path.parent / f".{path.name}{suffix}"


def _flush(path: Path) -> None:
    """Wait until the file or the directory listing ``path`` is on the disk."""
    if fcntl is None:  # Windows opens no directory, and flushes no file that is open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _share(path: Path, mode: int) -> None:
    """Give ``path`` the permissions of ``mode``: safetensors makes files for the user only."""
    current = path.stat().st_mode
    if mode & 0o666 & ~current:
        path.chmod(current | mode & 0o666)


_TRUSTED = {Path(__file__).parent}
"""Directories of installed packages; installers such as uv and Nix may link their files."""


def trust(directory: Path) -> None:
    """Trust the files in an installed package's directory, and all links among them."""
    _TRUSTED.add(directory)


def lies_inside(file: Path) -> bool:
    """Return whether ``file`` may be read as a part of its directory, also if that is untrusted.

    It may if it is no link, a link to a file of the same directory, or a link to a file of the
    Hugging Face hub's cache, ``models--OWNER--NAME/blobs/HASH``, which has nothing but downloads.
    In an installed package any link is allowed.
    """
    place = Path(os.path.abspath(file))
    if any(place.is_relative_to(directory) for directory in _TRUSTED):
        return True
    target = Path(os.path.realpath(file))
    in_cache = target.parent.name == "blobs" and target.parent.parent.name.startswith("models--")
    return in_cache or target.is_relative_to(os.path.realpath(file.parent))
