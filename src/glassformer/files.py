"""Directories and files that are complete or absent, whatever moment the process or the machine dies at.

What is new is written beside its place under a hidden name, flushed to the disk, and then renamed: a rename is atomic,
so a reader sees the old state or the new one. A directory that replaces another needs two renames: readers find it by
:func:`standing`, and :func:`recover` finishes the pair if the process died between them. Of several processes that
write one place each waits for its turn, but not on Windows.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from glassformer.errors import require
from glassformer.text import shown

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PARTIAL = ".partial"
_REPLACED = ".replaced"
_TRIES, _PAUSE = 20, 0.01
"""How often, and how many seconds apart, it is looked whether a directory that is being replaced is there."""
_SILENT = 500
"""How often, as far apart, it is looked whether another process has written, before a line says so."""


@contextmanager
def new_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Write a directory so that ``path`` is complete or absent: ``with new_directory(path) as draft: ...``.

    The block fills ``draft``, an empty directory beside ``path``. When the block ends, everything in it is flushed to
    the disk and ``draft`` becomes ``path``. When the block raises, ``draft`` is removed and ``path`` stays as it was.

    Args:
        path: The directory to make, or a link to it. Its parents are made where missing.
        replace: Whether the directory may exist already; it is then replaced as a whole.

    Raises:
        InputError: If ``path`` exists and ``replace`` is false, or it is a file or holds the working directory.
    """
    path = path.resolve()
    _require_free(path, replace)
    draft = _beside(path, _PARTIAL)
    with _turn(draft, directory=True):
        try:
            _require_free(path, replace)  # another process may have written it meanwhile
            recover(path)
            for left in draft.iterdir():
                _remove(left)
            yield draft
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        for entry in (*draft.rglob("*"), draft):
            _share(entry, draft.stat().st_mode)
            _flush(entry)
        if path.exists():
            os.replace(path, _beside(path, _REPLACED))
        os.replace(draft, path)
        _flush(path.parent)
        shutil.rmtree(_beside(path, _REPLACED), ignore_errors=True)


def _require_free(path: Path, replace: bool) -> None:
    free = not path.exists() or (replace and path.is_dir() and not Path.cwd().is_relative_to(path))
    fix = "Choose another path, or remove the old one."
    require(free, f"{path}, which exists already", "a directory that is not there yet", fix)


def _turn(draft: Path, *, directory: bool) -> ExitStack:
    """Make ``draft``, or take what a killed process left; until what is returned is closed, no other process does."""
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
                print(f"glassformer: waiting for another process, which writes {shown(draft)}", file=sys.stderr)
            time.sleep(_PAUSE)


def remove_directory(path: Path) -> None:
    """Remove ``path`` so that no half-emptied directory ever stands under its name. A missing ``path`` is no error."""
    if path.exists():
        doomed = _beside(path, _PARTIAL)
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(path, doomed)
        shutil.rmtree(doomed)


def recover(path: Path) -> None:
    """Bring back the old ``path`` if a process died after moving it away and before moving the new one in."""
    replaced = _beside(path, _REPLACED)
    if replaced.exists():
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)  # which the process that replaced it may be doing too
        else:
            os.replace(replaced, path)


def standing(path: Path) -> Path:
    """``path``; or the old one beside it where a process died between moving it away and moving the new one in.

    Where a process is only just between the two, this waits until the new one is there.
    """
    replaced = _beside(path, _REPLACED)
    for _ in range(_TRIES):
        if path.exists() or not replaced.exists():
            return path
        time.sleep(_PAUSE)
    return replaced


def remove_leftovers(parent: Path) -> None:
    """Remove the drafts that killed processes left in ``parent``. Call it only while no process writes there."""
    for draft in parent.glob(f".*{_PARTIAL}"):
        _remove(draft)


def _remove(path: Path) -> None:
    folder = path.is_dir() and not path.is_symlink()
    shutil.rmtree(path, ignore_errors=True) if folder else path.unlink(missing_ok=True)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Write a file so that ``path`` is the old or the whole new one: ``with new_file(path) as draft: ...``.

    The block writes the file ``draft`` beside ``path``. When the block ends, it is flushed to the disk and becomes
    ``path``. When the block raises, ``draft`` is removed and ``path`` stays as it was.

    Args:
        path: The file to make or to replace. Its parents are made where missing.
    """
    draft = _beside(path, _PARTIAL)
    with _turn(draft, directory=False):
        mode = draft.stat().st_mode
        try:
            yield draft
            _share(draft, mode)
            _flush(draft)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    _flush(path.parent)


def require_absent(path: Path, overwrite: bool = False) -> None:
    """Check that ``path`` may be written: nothing is there, or with ``overwrite`` a regular file or a directory."""
    fix = "Choose another one." if overwrite else "Choose another one, or pass --overwrite."
    free = not os.path.lexists(path) or (overwrite and (path.is_file() or path.is_dir()))
    require(free, f"{shown(path)}, which is there already", "a new name", fix)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to the file ``path`` so that it holds the old text or the whole new one, never a part."""
    with new_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _beside(path: Path, suffix: str) -> Path:
    return path.parent / f".{path.name}{suffix}"


def _flush(path: Path) -> None:
    """Wait until the file or the directory listing ``path`` is on the disk, not only in the system's memory."""
    if fcntl is None:  # Windows opens no directory, and flushes no file that is open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _share(path: Path, mode: int) -> None:
    """Let those read and write ``path`` who may by ``mode``: safetensors makes files that are their user's alone."""
    now = path.stat().st_mode
    if mode & 0o666 & ~now:
        path.chmod(now | mode & 0o666)


def lies_inside(file: Path) -> bool:
    """Whether ``file`` lies in its directory, or where the hub's cache keeps it, and is no link to elsewhere."""
    directory = file.parent.resolve()
    # snapshots/<revision>/<name> and snapshots/<revision>/<folder>/<name> link to blobs/<hash>.
    caches = [parent.parent / "blobs" for parent in directory.parents[:2] if parent.name == "snapshots"]
    return any(file.resolve().is_relative_to(place) for place in (directory, *caches))
