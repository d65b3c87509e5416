"""Two trained language models, which ``make models`` installs; without them these tests are
skipped.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.checkpoints.gguf_file import GgufFile
from glassformer.checkpoints.store import find_model
from glassformer.errors import InputError
from glassformer.generation.language_model import LanguageModel, load

# What these tests share with those of random models.
sys.path.append(str(Path(__file__).resolve().parent.parent / "checkpoints"))


@functools.cache
def installed(find: Callable[..., Any], name: str, **options: str) -> Any:
    try:
        return find(name, **options)
    except InputError as error:
        pytest.skip(f"{error} (make models)")


opened = functools.partial(installed, load, device="cpu")


@pytest.fixture(scope="session", params=["blocks", "dense"])
def smollm2(request: pytest.FixtureRequest) -> LanguageModel:
    """SmolLM2-135M-Instruct, in the file's blocks and expanded."""
    return opened("smollm2", hold=request.param)


@pytest.fixture(scope="session")
def expanded_smollm2() -> LanguageModel:
    """SmolLM2-135M-Instruct, expanded."""
    return opened("smollm2", hold="dense")


@pytest.fixture(scope="session")
def gemma() -> LanguageModel:
    """Gemma 3 270m in the file's blocks."""
    return opened("gemma-3-270m", hold="blocks")


@pytest.fixture(scope="session")
def smollm2_file() -> GgufFile:
    """SmolLM2-135M-Instruct."""
    return installed(find_model, "smollm2").file


@pytest.fixture(scope="session")
def gemma_file() -> GgufFile:
    """Gemma 3 270M: one file in four pieces."""
    return installed(find_model, "gemma-3-270m").file
