import fcntl
import os
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from safetensors.numpy import save_file

from glassformer import files as module
from glassformer.files import (
    Written,
    lies_inside,
    new_directory,
    new_file,
    recover,
    remove_directory,
    remove_leftovers,
    standing,
    write_text,
)
from processes import printed
from refusals import refused


class Killed(BaseException):
    """Stands for a process that ends here: nothing after it runs but what Python itself unwinds."""


TOY = Written("a toy", ("file", "part-*"), lambda directory: (directory / "file").is_file())


def fill(path: Path, text: str, *, replace: bool = False) -> None:
    with new_directory(path, replaces=TOY if replace else None) as draft:
        (draft / "file").write_text(text)


def content(path: Path) -> str:
    return (path / "file").read_text()


def read_only(draft: Path, *, directory: bool) -> NoReturn:
    raise PermissionError(13, "Permission denied", str(draft))


def test_appears_complete_and_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with new_directory(target) as draft:
        (draft / "file").write_text("x")
        assert not target.exists()
        assert draft.parent == target.parent, "a rename is atomic only within one file system"
    assert (target / "file").read_text() == "x"
    assert [entry.name for entry in target.parent.iterdir()] == ["target"]


def test_an_error_in_the_block_leaves_everything_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "target"
    fill(target, "old")
    with pytest.raises(FileNotFoundError), new_directory(target, replaces=TOY) as draft:
        (draft / "no such directory" / "file").write_text("new")
    assert content(target) == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["target"]


def test_an_existing_directory_is_replaced_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    fill(target, "old")
    with refused("exists already"):
        fill(target, "new")
    assert content(target) == "old"
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", Path()):
        with refused("exists already"):
            fill(path, "new", replace=True)
    with monkeypatch.context() as patch, refused("exists already"):
        patch.setattr(module, "_locked_draft", read_only)
        fill(target, "new")
    (tmp_path / "link").symlink_to(target)
    for name in ("target", "link", "link"):
        fill(tmp_path / name, name, replace=True)
        assert content(target) == name
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "link", "target"]


@pytest.mark.parametrize("renames_before_death", [0, 1, 2])
def test_death_leaves_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames_before_death: int
) -> None:
    target = tmp_path / "target"
    fill(target, "old")
    renames = []

    def rename(source: Path, destination: Path) -> None:
        if len(renames) == renames_before_death:
            raise Killed
        renames.append(destination)
        os.rename(source, destination)

    monkeypatch.setattr(module.os, "replace", rename)
    if renames_before_death == 2:
        # Dies after the renames, before the old directory is cleared away.
        monkeypatch.setattr(
            module,
            "_flush",
            lambda path: (_ for _ in ()).throw(Killed) if len(renames) == 2 else None,
        )
    with pytest.raises(Killed):
        fill(target, "new", replace=True)
    monkeypatch.undo()

    assert content(standing(target)) == ("new" if renames_before_death == 2 else "old")
    recover(target)
    assert content(target) == ("new" if renames_before_death == 2 else "old")
    fill(target, "newer", replace=True)
    remove_leftovers(tmp_path)
    assert content(target) == "newer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["target"]


def test_a_reader_between_the_two_renames_waits_for_the_new_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    fill(target, "old")
    found = []

    def rename(source: Path, destination: Path) -> None:
        os.rename(source, destination)
        if source == target:
            with monkeypatch.context() as patched:
                draft = tmp_path / ".target.glassformer-partial"
                patched.setattr(module.time, "sleep", lambda seconds: os.rename(draft, target))
                found.append(content(standing(target)))
            os.rename(target, draft)

    monkeypatch.setattr(module.os, "replace", rename)
    fill(target, "new", replace=True)
    assert found == ["new"]
    assert standing(tmp_path / "missing") == tmp_path / "missing"


def test_a_leftover_draft_does_not_leak_into_the_next_one(tmp_path: Path) -> None:
    leftover = tmp_path / ".target.glassformer-partial"
    leftover.mkdir()
    (leftover / "stale").write_text("x")
    fill(tmp_path / "target", "new")
    assert not (tmp_path / "target" / "stale").exists()


def test_removal_never_shows_a_half_emptied_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    fill(target, "old")

    def die(path: Path, **options: bool) -> None:
        if path.exists():
            raise Killed

    monkeypatch.setattr(module.shutil, "rmtree", die)
    with pytest.raises(Killed):
        remove_directory(target)
    assert not target.exists()
    monkeypatch.undo()
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())
    remove_directory(target)


def test_text_is_old_or_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    write_text(path, "old ö")
    monkeypatch.setattr(
        module.os, "replace", lambda source, destination: (_ for _ in ()).throw(Killed)
    )
    with pytest.raises(Killed):
        write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text(encoding="utf-8") == "old ö"
    remove_leftovers(path.parent)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_file_is_flushed_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "file"
    told: list[str] = []
    flush = module._flush
    rename = os.replace

    monkeypatch.setattr(
        module, "_flush", lambda place: told.append(f"flush {place.name}") or flush(place)
    )
    monkeypatch.setattr(
        module.os, "replace", lambda *places: told.append("replace") or rename(*places)
    )
    with new_file(path) as draft:
        draft.write_bytes(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert told == ["flush .file.glassformer-partial", "replace", "flush deep"]
    with pytest.raises(FileNotFoundError), new_file(path) as draft:
        draft.write_bytes((tmp_path / "no such file").read_bytes())
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_files_are_readable_as_the_umask_says(umask: int, tmp_path: Path) -> None:
    tensors = {"a": np.zeros(2)}
    before = os.umask(umask)
    try:
        with new_directory(tmp_path / "target") as draft:
            save_file(tensors, draft / "file")
        with new_file(tmp_path / "file") as draft:
            save_file(tensors, draft)
    finally:
        os.umask(before)
    modes = {
        path.stat().st_mode & 0o777 for path in (tmp_path / "file", tmp_path / "target" / "file")
    }
    assert modes == {0o666 & ~umask}


def test_a_text_that_cannot_take_its_place_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_text(tmp_path / "taken", "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_what_lies_inside(tmp_path: Path) -> None:
    inside = tmp_path / "models--a--b" / "snapshots" / "abc"
    for directory in (
        inside / "1_Pooling",
        tmp_path / "models--a--b" / "blobs",
        tmp_path / "elsewhere",
    ):
        directory.mkdir(parents=True)
    for name, target in (
        ("blob", tmp_path / "models--a--b" / "blobs" / "1"),
        ("1_Pooling/blob", tmp_path / "models--a--b" / "blobs" / "1"),
        ("near", inside / "own"),
        ("far", tmp_path / "elsewhere" / "1"),
    ):
        (inside / name).symlink_to(target)
    names = ("own", "near", "blob", "1_Pooling/blob", "far")
    assert [name for name in names if lies_inside(inside / name)] == [
        "own",
        "near",
        "blob",
        "1_Pooling/blob",
    ]


WRITER = """
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NoReturn
from glassformer.files import Written, new_directory, write_text

TOY = Written("a toy", ("x", "y", "z"), lambda directory: True)

def write(letter):
    for _ in range(100):
        write_text(Path("file"), letter * 100_000)
        with new_directory(Path("directory"), replaces=TOY) as draft:
            for name in "xyz":
                (draft / name).write_text(letter)

if __name__ == "__main__":
    with ProcessPoolExecutor(3) as pool:
        done = [pool.submit(write, letter) for letter in "abc"]
        while not all(each.done() for each in done):
            text = Path("file").read_text() if Path("file").exists() else ""
            assert len(set(text)) <= 1 and len(text) in (0, 100_000), len(text)
        [each.result() for each in done]
    assert len({each.read_text() for each in Path("directory").iterdir()}) == 1
    print(sorted(each.name for each in Path().iterdir()))
"""


def test_processes_that_write_one_place_wait_for_their_turn(tmp_path: Path) -> None:
    assert printed(WRITER, cwd=tmp_path).strip() == "['directory', 'file']"


def test_a_long_wait_for_another_process_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_SILENT", 3)
    draft = tmp_path / ".file.glassformer-partial"
    draft.touch()
    handle = os.open(draft, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            os.close(handle)

    monkeypatch.setattr(module.time, "sleep", pause)
    write_text(tmp_path / "file", "text")
    assert len(pauses) == 5
    assert (
        capsys.readouterr().err
        == f"glassformer: waiting for another process, which writes {draft}\n"
    )


def test_a_draft_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (tmp_path / ".target.glassformer-partial").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="partial"):
        fill(tmp_path / "target", "new")
    assert (tmp_path / "precious" / "file").read_text() == "mine"


def test_where_files_cannot_be_locked_and_not_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""

    def refuse(handle: int) -> None:
        raise OSError(handle)

    monkeypatch.setattr(module, "fcntl", None)
    monkeypatch.setattr(module.os, "fsync", refuse)
    for text in ("old", "new"):
        write_text(tmp_path / "file", text)
        fill(tmp_path / "directory", text, replace=True)
        assert (tmp_path / "file").read_text() == content(tmp_path / "directory") == text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["directory", "file"]
