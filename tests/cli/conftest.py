"""A small released model: random gpt-oss weights and a tokenizer of its kind; and command lines that are refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from tokenizers import Tokenizer

from glassformer.cli.main import main
from refusals import Output, Refuses


@pytest.fixture(scope="session")
def bare_gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model without a tokenizer."""
    directory = tmp_path_factory.mktemp("released") / "bare"
    write_random_gpt_oss(directory, replace(GPT_OSS_TINY, vocab_size=280, num_layers=2, max_seq_len=600), seed=1)
    return directory


@pytest.fixture(scope="session")
def tiny_gpt_oss(bare_gpt_oss: Path, byte_engine: Tokenizer) -> Path:
    """The directory of the same model with its tokenizer."""
    directory = bare_gpt_oss.parent / "whole"
    write_random_gpt_oss(directory, replace(GPT_OSS_TINY, vocab_size=280, num_layers=2, max_seq_len=600), seed=1)
    byte_engine.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("GLASSFORMER_DEBUG", raising=False)


@pytest.fixture
def refuses(capsys: pytest.CaptureFixture[str]) -> Refuses:
    """Run a command line that cannot be used: nothing on standard output, and one line that says why, or tyro's box."""

    def run(arguments: Sequence[object], *words: str, status: int = 2) -> None:
        capsys.readouterr()
        try:
            found, lines = main([str(each) for each in arguments]), 1
        except SystemExit as stopped:
            found, lines = stopped.code, None
        printed = capsys.readouterr()
        said = " ".join(printed.err.replace("│", " ").split())
        assert (found, printed.out) == (status, ""), printed
        assert all(each in said for each in words), printed.err
        assert lines is None or printed.err.count("\n") == lines
        assert "Traceback" not in said

    return run


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    """Run a command line that ends with this status, and give what it printed."""

    def run(arguments: Sequence[object], status: int = 0) -> object:
        capsys.readouterr()
        assert main([str(each) for each in arguments]) == status, capsys.readouterr()
        return capsys.readouterr()

    return run
