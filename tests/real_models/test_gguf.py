"""Trained models in GGUF files: the logits of transformers, in float32, held in blocks and expanded."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from glassformer.checkpoints.description import describe_gguf
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import GgufFile, joined, read_gguf
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.data.gguf_tokenizer import tokenizer_from_gguf

pytestmark = pytest.mark.slow

JOHN, FRANCE = "When Mary and John went to the store, John gave a drink to", "The capital of France is"
REFERENCE = {
    ("smollm2", JOHN): (14, " Mary", (11.037, 7.282)),
    ("smollm2", FRANCE): (5, " Paris", (17.371, 14.889)),
    ("gemma", JOHN): (15, " Mary", (23.369, 20.483)),
    ("gemma", FRANCE): (6, " the", (19.092, 18.548)),
}
"""Tokens, the likeliest next one, and the largest logits, of transformers in float64 on the expanded weights."""
BOUND = {"smollm2": 2e-4, "gemma": 5e-4}


@pytest.fixture(params=["smollm2", "gemma"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def file(name: str, request: pytest.FixtureRequest) -> GgufFile:
    found = request.getfixturevalue(name)
    assert isinstance(found, GgufFile)
    return found


@pytest.mark.parametrize("hold", ["blocks", "dense"])
@torch.no_grad()
def test_logits_of_known_texts(name: str, file: GgufFile, hold: str) -> None:
    decoder = load_gguf(file, hold=hold).eval()  # type: ignore[arg-type]
    tokenizer = tokenizer_from_gguf(file.metadata)
    for text in (JOHN, FRANCE):
        count, likeliest, largest = REFERENCE[name, text]
        tokens = tokenizer.begun(tokenizer.encode(text))
        assert len(tokens) == count
        top = decoder(torch.tensor([tokens]))[0, -1].topk(len(largest))
        assert tokenizer.decode([int(top.indices[0])]) == likeliest
        np.testing.assert_allclose(top.values, largest, atol=1.5e-3)


@torch.no_grad()
def test_logits_are_those_of_transformers(name: str, file: GgufFile, tmp_path: Path) -> None:
    """On the expanded weights, which transformers reads from a directory in its own layout."""
    packed, dense = (load_gguf(file, hold=hold).eval() for hold in ("blocks", "dense"))
    dense.save_pretrained(tmp_path / "model")
    peer = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    tokens = torch.randint(1000, 40000, (1, 60))
    wanted = peer(tokens).logits
    for decoder in (packed, dense):
        logits = decoder(tokens)
        assert (logits - wanted).abs().max() <= BOUND[name]
        assert torch.equal(logits.argmax(-1), wanted.argmax(-1))


@torch.no_grad()
def test_transformers_own_reader_of_gguf_has_the_same_logits(smollm2: GgufFile) -> None:
    peer = AutoModelForCausalLM.from_pretrained(
        smollm2.path.parent, gguf_file=smollm2.path.name, dtype=torch.float32
    ).eval()
    tokens = torch.randint(1000, 40000, (1, 60))
    assert (load_gguf(smollm2).eval()(tokens) - peer(tokens).logits).abs().max() <= BOUND["smollm2"]


def test_values_are_those_of_the_package(name: str, file: GgufFile) -> None:
    """Bit for bit, in two kinds of blocks."""
    dense = load_gguf(file, hold="dense")
    with file.reading() as read:
        for tensor, ours in (("token_embd.weight", "embedding"), ("blk.1.ffn_down.weight", "layers.1.ffn.down")):
            number = gguf.GGMLQuantizationType[file.tensors[tensor].kind]
            wanted = gguf.quants.dequantize(read(tensor).numpy(), number)
            assert torch.equal(dense.get_submodule(ours).weight, torch.from_numpy(wanted))


def test_the_header_is_that_of_the_package(smollm2: GgufFile) -> None:
    reader = gguf.GGUFReader(smollm2.path)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            value = smollm2.metadata[name]
            value = value.tolist() if isinstance(value, np.ndarray) else value
            assert (np.float32(value) if isinstance(value, float) else value) == field.contents(), name
    for each in reader.tensors:
        tensor = smollm2.tensors[each.name]
        assert (tensor.start, tensor.nbytes) == (each.data_offset, each.n_bytes)
        assert tensor.shape == tuple(each.shape.tolist()[::-1])


def test_described_without_reading(smollm2: GgufFile, gemma: GgufFile) -> None:
    found = describe_gguf(smollm2)
    assert (found.family, found.layout, found.total) == ("Llama", "GGUF", 134515008)
    assert {kind: number for kind, (number, _) in found.kinds.items()} == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    for file in (smollm2, gemma):
        loaded = load_gguf(file).state_dict()
        tensors = {tensor.data_ptr(): tensor.nbytes for tensor in loaded.values()}
        assert describe_gguf(file).held == sum(tensors.values())


def test_headers_are_read_quickly(file: GgufFile) -> None:
    """0.5 s and 0.15 s on an idle machine; the package takes 18 s and 4.6 s."""
    start = time.perf_counter()
    joined(file.pieces)
    assert time.perf_counter() - start < 3


@torch.no_grad()
def test_a_model_written_again_has_the_same_logits(name: str, file: GgufFile, tmp_path: Path) -> None:
    decoder = load_gguf(file).eval()
    write_gguf(decoder, tmp_path / "a.gguf", kind="F32", tokenizer=file.metadata)
    again = read_gguf(tmp_path / "a.gguf")
    assert list(tokenizer_from_gguf(again.metadata).encode(JOHN)) == tokenizer_from_gguf(file.metadata).encode(JOHN)
    tokens = torch.randint(1000, 40000, (1, 30))
    assert (load_gguf(again).eval()(tokens) - decoder(tokens)).abs().max() <= BOUND[name]
