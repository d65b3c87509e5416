"""Readable sizes."""

from __future__ import annotations


def on_disk(number: int) -> str:
    """Bytes in powers of ten, as disks and downloads are sold: ``13.76 GB``."""
    return _scaled(number, ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))) or f"{number} B"


def in_memory(number: int) -> str:
    """Bytes in powers of two, as memory is: ``12.82 GiB``."""
    return _scaled(number, ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))) or f"{number} B"


def count(number: int) -> str:
    """Parameters, in millions or billions if large enough: ``20.91 B``."""
    return _scaled(number, ((10**9, "B"), (10**6, "M"))) or f"{number:,}"


def _scaled(number: int, units: tuple[tuple[int, str], ...]) -> str:
    return next((f"{number / size:.2f} {unit}" for size, unit in units if number >= size), "")
