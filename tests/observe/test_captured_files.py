from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from glassformer.errors import InputError
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.captured import AXES, Captured
from glassformer.observe.captured_files import load_captured, save_captured

KEY = "glassformer.capture"


def seen_everything() -> Captured:
    config = DecoderConfig(20, 2, 24, 16, 4, 8, 2, window=3, sinks=True, max_seq_len=32, num_experts=4)
    model = Decoder(config).eval()
    with capture(
        model, what=list(AXES), heads={0: [1, 2], 1: [3]}, queries=slice(2, None), tokens=list("abcdef")
    ) as seen:
        model(torch.randint(20, (2, 6)))
    return seen


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    seen = seen_everything()
    save_captured(seen, tmp_path / "deep" / "seen.safetensors")
    loaded = load_captured(tmp_path / "deep" / "seen.safetensors")
    assert loaded.tokens == seen.tokens
    assert len(loaded.records) == len(seen.records)
    for ours, theirs in zip(seen.records, loaded.records, strict=True):
        for name in ("what", "name", "layer", "call", "heads", "queries", "keys", "source", "cross"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert torch.equal(ours.values, theirs.values)
        assert ours.values.dtype == theirs.values.dtype
    assert {record.what for record in loaded.records} == set(AXES)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["seen.safetensors"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "seen.safetensors"
    seen = seen_everything()
    save_captured(seen, path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(f"os.{step}", fail)
    with pytest.raises(OSError, match="disk full"):
        save_captured(Captured(seen.records[:1]), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("without_type_checks")
def test_files_that_are_not_captures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "seen.safetensors"
    with pytest.raises(InputError, match="no file"):
        load_captured(path)
    with pytest.raises(InputError, match="a capture of nothing"):
        save_captured(Captured(), path)
    save_captured(Captured(seen_everything().records[:2]), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        load_captured(path)
    path.write_bytes(b"no safetensors at all")
    with pytest.raises(InputError, match="cannot be read"):
        load_captured(path)


GOOD: dict[str, Any] = {
    "what": "residual",
    "name": "layers.0",
    "layer": 0,
    "call": 0,
    "heads": None,
    "queries": [0, 1, 2],
    "keys": None,
    "source": False,
    "cross": False,
}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    "labels",
    [
        None,
        "[",
        "[" * 100_000,
        "[]",
        json.dumps({"version": 2, "records": [GOOD]}),
        json.dumps({"version": 1, "records": []}),
        json.dumps({"version": 1, "records": [GOOD, GOOD]}),
        *(
            json.dumps({"version": 1, "records": [{**GOOD, **changes}]})
            for changes in (
                {"what": "eval"},
                {"what": ["residual"]},
                {"name": 3},
                {"layer": "0"},
                {"call": None},
                {"queries": [0, 1]},
                {"queries": "abc"},
                {"queries": [0, 1, -2]},
                {"queries": [0, 1, True]},
                {"keys": {"start": 0, "stop": 10**12}},
                {"keys": {"start": 0}},
                {"keys": {"start": 0, "stop": 10**400}},
                {"heads": [0]},
                {"source": 1},
                {"more": 1},
            )
        ),
        json.dumps({"version": 1, "records": [{"what": "residual"}]}),
        json.dumps({"version": 1, "records": [7]}),
        json.dumps({"version": 1, "records": [GOOD], "tokens": "abc"}),
        json.dumps({"version": 1, "records": [GOOD], "tokens": [["a"], [1]]}),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: str | None, tmp_path: Path) -> None:
    path = tmp_path / "seen.safetensors"
    save_file({"0": torch.rand(2, 3, 4)}, path, None if labels is None else {KEY: labels})
    with pytest.raises(InputError, match=r"seen\.safetensors, which cannot be read"):
        load_captured(path)
    save_file({"0": torch.rand(2, 3, 4)}, path, {KEY: json.dumps({"version": 1, "records": [GOOD]})})
    assert load_captured(path).records[0].queries == (0, 1, 2)
