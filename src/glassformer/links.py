"""Links in directories that come from strangers."""

from __future__ import annotations

from pathlib import Path


def lies_inside(file: Path) -> bool:
    """Whether ``file`` lies in its directory, or where the hub's cache keeps it, and is no link to elsewhere."""
    directory = file.parent.resolve()
    places = [directory]
    if directory.parent.name == "snapshots":  # snapshots/<revision>/<name> links to blobs/<hash>
        places.append(directory.parent.parent / "blobs")
    return any(file.resolve().is_relative_to(place) for place in places)
