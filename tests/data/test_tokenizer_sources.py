"""Where tokenizers are found, and what is said where there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from tokenizers import Tokenizer

from glassformer.data import released_tokenizer as module
from glassformer.data.released_tokenizer import HARMONY_SPECIALS
from refusals import refused


@pytest.fixture
def directory(tmp_path: Path, harmony_engine: Tokenizer) -> Path:
    """Of a model, as on the hub."""
    (tmp_path / "original").mkdir()
    harmony_engine.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_it_lies_beside_the_weights_or_above_openais(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for place in (directory, directory / "original"):
        found = module.tokenizer_beside(place)
        assert found is not None
        assert found.source == str(directory.resolve() / "tokenizer.json")
    assert module.tokenizer_beside(tmp_path_factory.mktemp("empty")) is None


def test_a_link_to_elsewhere_is_refused(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "original").mkdir()
    (other / "tokenizer.json").symlink_to(directory / "tokenizer.json")
    for place in (other, other / "original"):
        with refused(r"tokenizer\.json, a link to", expected="files in the directory itself"):
            module.tokenizer_beside(place)
    assert module.named_tokenizer(str(other / "tokenizer.json")).vocab_size == 410  # the user named it


def test_links_of_the_hubs_cache_are_followed(directory: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "cache" / "snapshots" / "abc", tmp_path / "cache" / "blobs"
    for each in (snapshot, blobs):
        each.mkdir(parents=True)
    (directory / "tokenizer.json").rename(blobs / "1")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/1")
    assert module.tokenizer_beside(snapshot) is not None


def test_a_directory_of_another_name_does_not_look_above(directory: Path) -> None:
    (directory / "weights").mkdir()
    assert module.tokenizer_beside(directory / "weights") is None


def test_users_name_a_file_or_a_directory(directory: Path) -> None:
    for name in (directory, directory / "tokenizer.json"):
        assert module.named_tokenizer(str(name)).encode("a") != []


def test_users_name_a_model_of_the_hub(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def download(name: str, file: str) -> str:
        asked.append((name, file))
        return str(directory / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert module.named_tokenizer("openai/gpt-oss-20b").vocab_size == 410
    assert asked == [("openai/gpt-oss-20b", "tokenizer.json")]

    def fail(name: str, file: str) -> str:
        raise OSError("no connection\nat all")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with refused(r"'openai/gpt-oss-20b', which is not a file .*hub \(no connection\)"):
        module.named_tokenizer("openai/gpt-oss-20b")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.json", "No such file"),
        ("no such thing", "; expected a directory or file with tokenizer.json"),
        ("original", "without a tokenizer; expected tokenizer.json or o200k_base.tiktoken"),
    ],
)
def test_wrong_names_are_told(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "original").mkdir()
    got, _, other = message.partition("; expected ")
    with refused(got, anywhere=other):
        module.named_tokenizer(name)


def test_none_is_installed_without_package_or_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.ENCODINGS_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert module.installed_tokenizer() is None

    def fail(name: str) -> None:
        raise ConnectionError

    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=fail))
    assert module.installed_tokenizer() is None


def test_the_installed_packages_are_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    base = {bytes([byte]): byte for byte in range(256)}
    rest = {b"\x00" + token.to_bytes(3, "big"): token for token in range(256, min(HARMONY_SPECIALS.values()))}
    pieces = {token: piece for piece, token in (base | rest).items()}
    import tiktoken

    monkeypatch.delenv(module.ENCODINGS_VARIABLE, raising=False)
    monkeypatch.setattr(
        tiktoken, "get_encoding", lambda name: SimpleNamespace(decode_single_token_bytes=pieces.__getitem__)
    )
    found = module.installed_tokenizer()
    assert found is not None
    assert found.vocab_size == 200019
    assert found.decode([*b"hi", 200002]) == "hi<|return|>"


def test_the_vocabulary_of_openai_harmony_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "o200k_base.tiktoken").write_text("YQ== 0\n")
    monkeypatch.setenv(module.ENCODINGS_VARIABLE, str(tmp_path))
    with refused("with 1 tokens"):
        module.installed_tokenizer()
