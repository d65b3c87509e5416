"""Paths that users name, and directories and files that are complete or absent, whenever the
process or machine dies.

:func:`local_path` gives the meaning of a path everywhere. What the library did not write is never
removed: a place that is taken is written only where :class:`Written` or a function recognises what
stands there.

What is new is written beside its place under a hidden name, flushed to the disk, and then renamed:
a rename is atomic, so a reader sees the old state or the new one. A directory that replaces another
needs two renames: readers find it by
:func:`standing`, and :func:`recover` finishes the pair if the process died between them. Of several
processes that write one place each waits for its turn, but not on Windows.
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
"""How often, and how many seconds apart, it is looked whether a directory that is being replaced is
there.
"""
_SILENT = 500
"""How often, as far apart, it is looked whether another process has written, before a line says so.
"""


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
        # "./~name" is a name here: without its dot it would become a home directory the next time
        # it is read.
        if path.parts[:1] and path.parts[0].startswith("~"):
            return path.absolute()
        return path
    try:
        return path.expanduser()
    except RuntimeError as error:
        fix = f"Check the name. A file of this name here is './{shown(Path(text))}'."
        raise InputError(
            f"{shown(Path(text))}, of no user of this machine", "~ or ~user of a user", fix
        ) from error


@dataclass(frozen=True)
class Written:
    """A kind of directory that the library writes, and by which it recognises one.

    Attributes:
        kind: A noun with its article, for messages: ``"a classifier"``.
        names: Patterns of the names of all its files. It has no directories and no links.
        recognises: Whether a directory with such names is one.
    """

    kind: str
    names: tuple[str, ...]
    recognises: Callable[[Path], bool]

    def foreign_entries(self, directory: Path) -> list[str]:
        """Return the sorted names of what stands in ``directory`` and is no file of this kind of
        directory.
        """
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if not self._names_file(entry))

    def _names_file(self, entry: os.DirEntry[str]) -> bool:
        return entry.is_file(follow_symlinks=False) and any(
            fnmatchcase(entry.name, name) for name in self.names
        )


@contextmanager
def new_directory(path: Path, *, replaces: Written | None = None) -> Iterator[Path]:
    """Write a directory so that ``path`` is complete or absent: ``with new_directory(path) as
    draft: ...``.

    The block fills ``draft``, an empty directory beside ``path``. When the block ends, everything
    in it is flushed to the disk and ``draft`` becomes ``path``. When the block raises, ``draft`` is
    removed and ``path`` stays as it was.

    Args:
        path: The directory to make, or a link to it. Its parents are made where missing.
        replaces: The kind of directory that ``path`` may be already; it is then replaced as a
            whole. So is an empty
            one. None: nothing may be there.

    Raises:
        InputError: If ``path`` is taken by anything else, even by a directory of the right kind
            with one more file in it, or if it holds the working directory.
    """
    path = path.resolve()
    draft = _beside(path, _PARTIAL)
    try:
        turn = _turn(draft, directory=True)
    except (
        OSError
    ):  # a parent that may not be written; what stands at ``path`` is the first thing to change
        require_replaceable_directory(path, replaces)
        raise
    with turn:
        try:
            require_replaceable_directory(path, replaces)
            recover(path)
            for left in draft.iterdir():
                _remove(left)
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
    """Check that :func:`new_directory` may write ``path``: it is free, empty, or of the kind
    ``replaces``.
    """
    if not os.path.lexists(path):
        return
    fix = "Choose another path, or remove the old one."
    if replaces is None or not path.is_dir() or Path.cwd().is_relative_to(path):
        raise InputError(
            f"{shown(path)}, which exists already", "a directory that is not there yet", fix
        )
    expected = f"a new directory, or {replaces.kind} to replace"
    if foreign := replaces.foreign_entries(path):
        names = ", ".join(shown(Path(name)) for name in foreign[:3])
        if len(foreign) > 3:
            more = f" and {len(foreign) - 3} more"
        else:
            more = ""
        got = f"{shown(path)}, which exists already and holds {names}{more}"
        raise InputError(got, expected, "Choose another path, or move these files away.")
    if any(path.iterdir()) and not replaces.recognises(path):
        raise InputError(
            f"{shown(path)}, which exists already and is not {replaces.kind}", expected, fix
        )


def _turn(draft: Path, *, directory: bool) -> ExitStack:
    """Make ``draft``, or take what a killed process left; until what is returned is closed, no
    other process does.
    """
    while True:
        draft.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            draft.mkdir() if directory else draft.touch()
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
    for waited in count():
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if waited == _SILENT:
                print(
                    f"glassformer: waiting for another process, which writes {shown(draft)}",
                    file=sys.stderr,
                )
            time.sleep(_PAUSE)


def remove_directory(path: Path) -> None:
    """Remove ``path`` so that no half-emptied directory ever stands under its name. A missing
    ``path`` is no error.
    """
    if path.exists():
        doomed = _beside(path, _PARTIAL)
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(path, doomed)
        shutil.rmtree(doomed)


def set_aside(path: Path) -> Path:
    """Rename ``path`` to ``path-1``, or to the first such name that is free, and return that."""
    aside = next(
        each for number in count(1) if not os.path.lexists(each := Path(f"{path}-{number}"))
    )
    os.replace(path, aside)
    return aside


def recover(path: Path) -> None:
    """Bring back the old ``path`` if a process died after moving it away and before moving the new
    one in.
    """
    replaced = _beside(path, _REPLACED)
    if replaced.exists():
        if path.exists():
            shutil.rmtree(
                replaced, ignore_errors=True
            )  # which the process that replaced it may be doing too
        else:
            os.replace(replaced, path)


def standing(path: Path) -> Path:
    """``path``; or the old one beside it where a process died between moving it away and moving the
    new one in.

    Where a process is only just between the two, this waits until the new one is there.
    """
    replaced = _beside(path, _REPLACED)
    for _ in range(_TRIES):
        if path.exists() or not replaced.exists():
            return path
        time.sleep(_PAUSE)
    return replaced


def remove_leftovers(parent: Path) -> None:
    """Remove the drafts that killed processes left in ``parent``. Call it only while no process
    writes there.
    """
    for draft in parent.glob(f".*{_PARTIAL}"):
        _remove(draft)


def _remove(path: Path) -> None:
    folder = path.is_dir() and not path.is_symlink()
    shutil.rmtree(path, ignore_errors=True) if folder else path.unlink(missing_ok=True)


@contextmanager
def new_file(path: Path, *, replaces: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Write a file so that ``path`` is the old or the whole new one: ``with new_file(path) as
    draft: ...``.

    The block writes the file ``draft`` beside ``path``. When the block ends, it is flushed to the
    disk and becomes ``path``. When the block raises, ``draft`` is removed and ``path`` stays as it
    was.

    Args:
        path: The file to make or to replace. Its parents are made where missing.
        replaces: Whether a file that stands there may be replaced, for a path that a user names; a
            link is then
            followed. None: it may, for a path in a directory that the library itself made.

    Raises:
        InputError: If something stands there that may not be replaced.
    """
    if replaces is not None:
        path = Path(os.path.realpath(path))
        require_replaceable(path, replaces)
    draft = _beside(path, _PARTIAL)
    with _turn(draft, directory=False):
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
    """Check that nothing stands at ``path``, or a regular file for which ``replaces`` is true."""
    if not os.path.lexists(path):
        return
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "not a regular file"
        raise InputError(f"{shown(path)}, which is {kind}", "a file", "Choose another name.")
    if not replaces(path):
        got = f"{shown(path)}, which exists already and was not written by this function"
        expected = "a new name, or a file that it wrote before"
        raise InputError(got, expected, "Choose another name, or remove the file.")


def any_file(path: Path) -> bool:
    """Return True: the user has asked for any file at ``path`` to be replaced."""
    return True


def no_file(path: Path) -> bool:
    """Return False: nothing may be at ``path``."""
    return False


def holds(path: Path, mark: bytes, size: int) -> bool:
    """Whether ``mark`` stands in the first ``size`` bytes of a file, or in the last ``-size``
    bytes.
    """
    try:
        with path.open("rb") as file:
            if size < 0:
                file.seek(max(0, path.stat().st_size + size))
            return mark in file.read(abs(size))
    except OSError:
        return False


def require_absent(path: Path, overwrite: bool = False) -> None:
    """Check that ``path`` may be written: nothing is there, or with ``overwrite`` a regular file or
    a directory.
    """
    if overwrite:
        fix = "Choose another one."
    else:
        fix = "Choose another one, or pass --overwrite."
    free = not os.path.lexists(path) or (overwrite and (path.is_file() or path.is_dir()))
    if not free:
        raise InputError(
            got=f"{shown(path)}, which is there already",
            expected="a new name",
            fix=fix,
        )


def write_text(path: Path, text: str, *, replaces: Callable[[Path], bool] | None = None) -> None:
    """Write ``text`` (UTF-8) to the file ``path`` so that it holds the old text or the whole new
    one, never a part.

    ``replaces`` is that of :func:`new_file`.
    """
    with new_file(path, replaces=replaces) as draft:
        draft.write_text(text, encoding="utf-8")


def _beside(path: Path, suffix: str) -> Path:
    return path.parent / f".{path.name}{suffix}"


def _flush(path: Path) -> None:
    """Wait until the file or the directory listing ``path`` is on the disk, not only in the
    system's memory.
    """
    if fcntl is None:  # Windows opens no directory, and flushes no file that is open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _share(path: Path, mode: int) -> None:
    """Let those read and write ``path`` who may by ``mode``: safetensors makes files that are their
    user's alone.
    """
    now = path.stat().st_mode
    if mode & 0o666 & ~now:
        path.chmod(now | mode & 0o666)


_TRUSTED = {Path(__file__).parent}
"""Directories of installed packages. An installer may make links of their files: uv, Nix, Bazel,
``cp -rs``.
"""


def trust(directory: Path) -> None:
    """Trust the files of a directory that an installed package holds, wherever links among them
    lead.
    """
    _TRUSTED.add(directory)


def lies_inside(file: Path) -> bool:
    """Whether ``file`` may be read as a part of the directory that it is in, wherever that comes
    from.

    It may if it is no link, or a link to a file of the same directory or to a file of the Hugging
    Face hub's cache, ``models--OWNER--NAME/blobs/HASH``, which holds nothing but downloads. In an
    installed package any link may.
    """
    place = Path(os.path.abspath(file))
    if any(place.is_relative_to(directory) for directory in _TRUSTED):
        return True
    target = Path(os.path.realpath(file))
    in_cache = target.parent.name == "blobs" and target.parent.parent.name.startswith("models--")
    return in_cache or target.is_relative_to(os.path.realpath(file.parent))
