"""Where tokenizers are found, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from tokenizers import Tokenizer

from glassformer.data import released_tokenizer as module
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
        ("original", "without a tokenizer; expected tokenizer.json"),
    ],
)
def test_wrong_names_are_told(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "original").mkdir()
    got, _, other = message.partition("; expected ")
    with refused(got, anywhere=other):
        module.named_tokenizer(name)
