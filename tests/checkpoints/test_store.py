"""Models that are found and opened before their weights are read, and what their lazy tensors give."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from glassformer.checkpoints.decoders import save_decoder
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.checkpoints.store import build, open_model
from glassformer.data.gguf_tokenizer import byte_vocabulary
from glassformer.errors import CheckpointError
from glassformer.models import Decoder, DecoderConfig
from refusals import refused
from small_models import write_run

CONFIG = DecoderConfig(
    256, 3, 32, 64, 2, 16, num_kv_heads=2, windowed_layers="even", tied_output=True
)


@pytest.fixture
def decoder() -> Decoder:
    return Decoder(CONFIG).eval()


def test_each_way_to_a_model_gives_the_same_decoder(decoder: Decoder, tmp_path: Path) -> None:
    save_decoder(decoder, tmp_path / "family")
    save_decoder(decoder, tmp_path / "own", layout="glassformer")
    write_gguf(decoder, tmp_path / "model.gguf", kind="F32", tokenizer=byte_vocabulary())
    write_run(tmp_path / "run", decoder, model=asdict(CONFIG), data={"kind": "text"})
    layouts = []
    for name in ("family", "own", "model.gguf", "run"):
        stored = open_model(tmp_path / name, tokenizer="bytes")
        layouts.append(stored.layout)
        assert (stored.config, stored.tokenizer.vocab_size) == (CONFIG, 256)
        assert stored.nbytes > 0
        weights = build(stored, device="cpu").state_dict()
        for tensor_name, tensor in decoder.state_dict().items():
            assert torch.equal(weights[tensor_name], tensor), (name, tensor_name)
    assert layouts == ["Hugging Face", "glassformer", "GGUF", "glassformer"]


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_threads_may_build_one_model_at_once(kind: str, decoder: Decoder, tmp_path: Path) -> None:
    write_gguf(decoder, tmp_path / "model.gguf", kind=kind, tokenizer=byte_vocabulary())
    stored = open_model(tmp_path / "model.gguf")
    expected = build(stored, device="cpu").state_dict()
    with ThreadPoolExecutor(8) as threads:
        decoders = list(threads.map(lambda _: build(stored, device="cpu"), range(40)))
    for built in decoders:
        for name, tensor in built.state_dict().items():
            assert torch.equal(tensor, expected[name]), name


def test_an_output_with_more_digits_than_the_embedding_is_not_the_embedding(
    decoder: Decoder, tmp_path: Path
) -> None:
    save_decoder(decoder.bfloat16(), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding.float()}, file)
    build(open_model(tmp_path / "model"), device="cpu")
    save_file(tensors | {"lm_head.weight": embedding.float() * (1 + 2**-20)}, file)
    with refused(
        "lm_head.weight that differs from model.embed_tokens.weight", error=CheckpointError
    ):
        build(open_model(tmp_path / "model"), device="cpu")


def test_a_directory_called_bytes_gives_no_template(
    decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_decoder(decoder, tmp_path / "model")
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    monkeypatch.chdir(tmp_path)
    assert open_model("model", tokenizer="bytes").chat_template is None


def test_a_local_directory_of_a_hub_name_is_not_completed_from_the_hub(
    decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_decoder(decoder, tmp_path / "openai" / "gpt-oss-20b")
    (tmp_path / "openai" / "gpt-oss-20b" / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    index_file = tmp_path / "openai" / "gpt-oss-20b" / "model.safetensors.index.json"
    index_file.write_text(json.dumps(index))
    monkeypatch.chdir(tmp_path)
    for name in ("gpt-oss-20b", "openai/gpt-oss-20b"):
        with refused("no file .*model-00001-of-00002.safetensors", error=CheckpointError):
            open_model(name)
