"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("module", ["generation.decoding", "layers.attention", "models.decoder"])
def test_the_examples_of_a_module(module: str) -> None:
    done = doctest.testmod(import_module(f"glassformer.{module}"), optionflags=doctest.ELLIPSIS)
    assert done.attempted > 0
    assert done.failed == 0
