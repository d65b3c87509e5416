"""A small released model: random gpt-oss weights and a tokenizer of its kind."""

from dataclasses import replace
from pathlib import Path

import pytest
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from tokenizers import Tokenizer


@pytest.fixture(scope="session")
def bare_gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model without a tokenizer."""
    directory = tmp_path_factory.mktemp("released") / "bare"
    write_random_gpt_oss(
        directory, replace(GPT_OSS_TINY, vocab_size=280, num_layers=2, max_seq_len=600), seed=1
    )
    return directory


@pytest.fixture(scope="session")
def tiny_gpt_oss(bare_gpt_oss: Path, byte_engine: Tokenizer) -> Path:
    """The directory of the same model with its tokenizer."""
    directory = bare_gpt_oss.parent / "whole"
    write_random_gpt_oss(
        directory, replace(GPT_OSS_TINY, vocab_size=280, num_layers=2, max_seq_len=600), seed=1
    )
    byte_engine.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("GLASSFORMER_DEBUG", raising=False)
