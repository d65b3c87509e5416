"""What the tests of observe share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# The models that several tests here describe and draw.
sys.path.append(str(Path(__file__).resolve().parent))


@pytest.fixture
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
