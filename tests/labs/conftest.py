"""Fixtures and marks of the labs' tests."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from glassformer.labs.run import Lab, read, render

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "labs"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what needs a finished run of a lab: it trains and draws for many seconds."""
    for item in items:
        if "tiny_run" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def documents() -> Path:
    """The directory of the courses' documents beside the repository; a test that needs it is
    skipped without it.
    """
    directory = ROOT.parent / "shared" / "seeds"
    if not directory.is_dir():
        pytest.skip("no ../shared/seeds beside the repository")
    return directory


@cache
def _published(directory: str) -> tuple[Lab, Any]:
    lab: Lab = importlib.import_module(f"glassformer.labs.{directory}").LAB
    return lab, read(PUBLISHED / lab.name / "results.json", lab.results)


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Any:
    """The published results of the lab in whose directory of tests the test is."""
    return _published(request.path.parent.name)[1]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[..., str]:
    """The report on these results with other values of some fields."""
    lab, results = _published(request.path.parent.name)
    return lambda **changes: render(lab, replace(results, **changes))
