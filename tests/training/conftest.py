"""What the tests of training share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# The toys are imported by the tests here and, as scripts, by the worker processes.
sys.path.append(str(Path(__file__).resolve().parent))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models of a few hundred weights gain nothing from threads, and wait for one another on a busy
    machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
