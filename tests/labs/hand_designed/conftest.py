"""What the published run measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.labs.hand_designed.experiments import Results
from glassformer.labs.run import read


@pytest.fixture(scope="session")
def results(published: Path) -> Results:
    return read(published / "hand-designed" / "results.json", Results)
