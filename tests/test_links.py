from __future__ import annotations

from pathlib import Path

from glassformer.links import lies_inside


def test_what_lies_inside(tmp_path: Path) -> None:
    inside = tmp_path / "cache" / "snapshots" / "abc"
    for directory in (inside, tmp_path / "cache" / "blobs", tmp_path / "elsewhere"):
        directory.mkdir(parents=True)
    for name, target in (
        ("blob", tmp_path / "cache" / "blobs" / "1"),
        ("near", inside / "own"),
        ("far", tmp_path / "elsewhere" / "1"),
    ):
        (inside / name).symlink_to(target)
    found = [name for name in ("own", "near", "blob", "far") if lies_inside(inside / name)]
    assert found == ["own", "near", "blob"]
