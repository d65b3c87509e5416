"""Fixtures and marks of the labs' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "labs"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what needs a finished run of a lab: it trains and draws for many seconds."""
    for item in items:
        if "tiny_run" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def published() -> Path:
    """The directory of the labs' published results, one directory each."""
    return PUBLISHED
