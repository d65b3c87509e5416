"""Two trained language models, which ``make models`` installs; without them these tests are skipped."""

import functools
import sys
from pathlib import Path

import pytest

from glassformer.checkpoints.gguf_file import GgufFile
from glassformer.errors import InputError
from glassformer.generation.language_model import LanguageModel, find_place, load

# What these tests share with those of random models.
sys.path.append(str(Path(__file__).resolve().parent.parent / "checkpoints"))


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
def expanded_smollm2() -> LanguageModel:
    """SmolLM2-135M-Instruct, expanded."""
    return opened("smollm2", "dense")


@pytest.fixture(scope="session")
def gemma() -> LanguageModel:
    """Gemma 3 270m in the file's blocks."""
    return opened("gemma-3-270m", "blocks")


def file_of(name: str) -> GgufFile:
    try:
        return find_place(name)
    except InputError as error:
        pytest.skip(f"{error} (make models)")


@pytest.fixture(scope="session")
def smollm2_file() -> GgufFile:
    """SmolLM2-135M-Instruct."""
    return file_of("smollm2")


@pytest.fixture(scope="session")
def gemma_file() -> GgufFile:
    """Gemma 3 270M: one file in four pieces."""
    return file_of("gemma-3-270m")
