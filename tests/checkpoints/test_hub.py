"""Where models come from: directories, and names of the hub, which is never asked in earnest."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import huggingface_hub
import pytest

from glassformer.checkpoints.bert import load_encoder, save_encoder
from glassformer.checkpoints.hub import find_directory
from glassformer.errors import InputError
from glassformer.models import Encoder, EncoderConfig


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A directory of an encoder."""
    save_encoder(Encoder(EncoderConfig(50, 1, 24, 40, 4)), tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.mark.parametrize("source", ["/nowhere/at/all", "./nowhere", "a/b/c", "name with spaces", "-rf"])
def test_what_is_no_directory_and_no_name_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"which is no directory; expected a directory with config\.json"):
        load_encoder(source)


@pytest.mark.parametrize("source", ["nobody/no-such-model", "nobody/..", "no--thing/x"])
def test_a_name_that_the_hub_does_not_give_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"could not be had from the hub \(.+\)|which is no directory"):
        find_directory(source)


def test_a_name_is_asked_of_the_hub_only_where_no_directory_has_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def give(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tiny)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", give)
    loaded = load_encoder("someone/tiny")
    assert [name for name, _ in asked] == ["someone/tiny"]
    endings = (".json", ".safetensors", ".txt", ".jinja", "LICENSE*", "USAGE_POLICY")
    assert all(pattern.endswith(endings) for pattern in asked[0][1])
    assert {"special_tokens_map.json", "LICENSE*", "USAGE_POLICY"} <= set(asked[0][1])
    assert dataclasses.asdict(loaded.config) == dataclasses.asdict(load_encoder(str(tiny)).config)
    monkeypatch.chdir(tiny.parent)
    load_encoder("tiny")
    assert len(asked) == 1
