"""Two trained language models, which ``make models`` installs; without them these tests are skipped."""

from __future__ import annotations

import functools

import pytest

from glassformer.errors import InputError
from glassformer.generation.language_model import LanguageModel, load


@functools.cache
def opened(name: str, hold: str) -> LanguageModel:
    try:
        return load(name, device="cpu", hold=hold)
    except InputError as error:
        pytest.skip(f"{error} (make models)")


@pytest.fixture(scope="session", params=["blocks", "dense"])
def smollm2(request: pytest.FixtureRequest) -> LanguageModel:
    """SmolLM2-135M-Instruct, in the file's blocks and expanded."""
    return opened("smollm2", request.param)


@pytest.fixture(scope="session")
def gemma() -> LanguageModel:
    """Gemma 3 270m in the file's blocks."""
    return opened("gemma-3-270m", "blocks")
