"""Fixtures for every test."""

from __future__ import annotations

import os
import random
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads inside each would only wait for one another.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same state of the global random generators."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the course's own cells use numpy's global generator
    torch.manual_seed(0)


@pytest.fixture
def without_type_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as users do: without the check of annotations, which would refuse bad input before the library does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real texts beside the repository; a test that needs it is skipped where it is missing."""
    directory = ROOT.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip("no ../shared/data beside the repository")
    return directory
