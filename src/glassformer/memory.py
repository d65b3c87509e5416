"""Memory that this process may take: limits of the machine, its control groups and itself."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_NO_LIMIT = 1 << 60
"""Smallest value that means no limit in control groups of version 1."""
_FILE_CACHE = ("inactive_file", "active_file", "slab_reclaimable")
_FILE_CACHE_V1 = ("total_inactive_file", "total_active_file")


@dataclass(frozen=True)
class Memory:
    """Memory in bytes; None where the system does not report it.

    Attributes:
        total: Minimum of the machine's memory and of all limits on this process.
        free: Part of ``total`` that is free now, without swapping. The file cache counts as free.
        with_swap: ``free`` and the free swap space. A process that takes more is ended, or gets an
            error.
    """

    total: int | None
    free: int | None
    with_swap: int | None


def process_memory(root: Path = Path("/")) -> Memory:
    """Return the memory that this process may take: the minimum of all limits.

    - the machine: its memory, and the available memory in ``/proc/meminfo``;
    - the control group and all groups above it, of version 1 and 2: ``memory.max`` and
      ``memory.high``, or ``memory.limit_in_bytes``, less the group's use;
    - ``RLIMIT_AS`` and ``RLIMIT_DATA``, less the size of this process.

    Args:
        root: Directory of ``proc`` and ``sys``.
    """
    parts = [_machine(root), *_version_2(root), *_version_1(root), *_resource_limits(root)]
    return Memory(
        _least(part.total for part in parts),
        _least(part.free for part in parts),
        _least(part.with_swap for part in parts),
    )


def _least(sizes: Iterator[int | None]) -> int | None:
    return min((max(0, size) for size in sizes if size is not None), default=None)


def _machine(root: Path) -> Memory:
    total = None
    if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= getattr(os, "sysconf_names", {}).keys():
        pages = os.sysconf("SC_PHYS_PAGES")
        if pages > 0:
            total = pages * os.sysconf("SC_PAGE_SIZE")
    sizes = _kilobytes(root / "proc" / "meminfo")
    free = sizes.get("MemAvailable")
    with_swap = None if free is None else free + sizes.get("SwapFree", 0)
    return Memory(total, free, with_swap)


def _version_2(root: Path) -> Iterator[Memory]:
    for mount in (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"):
        for group in _groups(mount, _own_group(root, "")):
            limits = [_number(group / name) for name in ("memory.max", "memory.high")]
            statistics = _statistics(group)
            file_cache = sum(statistics.get(name, 0) for name in _FILE_CACHE)
            used = (_number(group / "memory.current") or 0) - file_cache
            swap_limit = _number(group / "memory.swap.max")
            swap = _swap(root, swap_limit, _number(group / "memory.swap.current") or 0)
            yield _limited(_least(iter(limits)), used, swap)


def _version_1(root: Path) -> Iterator[Memory]:
    for group in _groups(root / "sys/fs/cgroup/memory", _own_group(root, "memory")):
        statistics = _statistics(group)
        # The second is the limit of the groups above, which a container may not see.
        limits = [
            _number(group / "memory.limit_in_bytes"),
            statistics.get("hierarchical_memory_limit"),
        ]
        file_cache = sum(statistics.get(name, 0) for name in _FILE_CACHE_V1)
        used = (_number(group / "memory.usage_in_bytes") or 0) - file_cache
        limit = _least(size for size in limits if size is not None and size < _NO_LIMIT)
        limit_with_swap = _number(group / "memory.memsw.limit_in_bytes")
        swap_limit = None
        if limit is not None and limit_with_swap is not None:
            swap_limit = limit_with_swap - limit
        yield _limited(limit, used, _swap(root, swap_limit, 0))


def _resource_limits(root: Path) -> Iterator[Memory]:
    if resource is None:
        return
    sizes = _kilobytes(root / "proc" / "self" / "status")
    for name, size in (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")):
        limit, _ = resource.getrlimit(getattr(resource, name))
        yield _limited(None if limit == resource.RLIM_INFINITY else limit, sizes.get(size, 0), 0)


def _limited(limit: int | None, used: int, swap: int) -> Memory:
    if limit is None:
        return Memory(None, None, None)
    free = limit - max(0, used)
    return Memory(limit, free, free + swap)


def _swap(root: Path, limit: int | None, used: int) -> int:
    """Return the free swap space of a group with this limit."""
    free = _kilobytes(root / "proc" / "meminfo").get("SwapFree", 0)
    if limit is None:
        return free
    return max(0, min(free, limit - used))


def _own_group(root: Path, controller: str) -> PurePosixPath | None:
    """Return the path of this process's control group; version 2 has the controller ""."""
    for line in _lines(root / "proc" / "self" / "cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            return PurePosixPath(path)
    return None


def _groups(mount: Path, path: PurePosixPath | None) -> Iterator[Path]:
    """Yield the directories of a group and of all groups above it that this process sees."""
    if path is not None:
        for group in (path, *path.parents):
            yield mount.joinpath(*(part for part in group.parts if part not in ("/", "..")))


def _statistics(group: Path) -> dict[str, int]:
    pairs = (line.split() for line in _lines(group / "memory.stat"))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _kilobytes(file: Path) -> dict[str, int]:
    """Return the sizes in a file of lines such as ``MemFree: 12 kB``, in bytes."""
    words = (line.split() for line in _lines(file))
    return {
        line[0].rstrip(":"): int(line[1]) * 1024
        for line in words
        if len(line) == 3 and line[2] == "kB"
    }


def _number(file: Path) -> int | None:
    """Return the number in a file; None without one, such as for ``max``."""
    lines = _lines(file)
    if lines and lines[0].strip().isdecimal():
        return int(lines[0])
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
