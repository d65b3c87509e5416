"""The results of the published run of the lab, for tests of what is made from results."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.labs.kept import read_part
from glassformer.labs.sentiment.results import Results

PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "labs" / "sentiment"


@pytest.fixture(scope="session")
def published() -> Path:
    """The directory of the published run."""
    return PUBLISHED


@pytest.fixture(scope="session")
def results() -> Results:
    """Its results."""
    return read_part(PUBLISHED / "results.json", Results)
