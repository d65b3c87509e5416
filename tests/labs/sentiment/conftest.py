"""The results of the published run of the lab, for tests of what is made from results."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.labs.run import read
from glassformer.labs.sentiment.experiments import Results


@pytest.fixture(scope="session")
def results(published: Path) -> Results:
    """The published results."""
    found: Results = read(published / "sentiment" / "results.json", Results)
    return found
