"""GGUF files against llama.cpp: those of its converter have transformers' logits, and it computes
ours in those that are written here. Slow, and skipped where llama.cpp is missing.
"""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import family_models
import pytest
import torch
from family_models import FAMILIES, VOCAB, stored_model
from random_gpt_oss import write_random_gpt_oss

from glassformer.checkpoints.decoders import load_decoder
from glassformer.checkpoints.families import family_of
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import read_gguf
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary, tokenizer_from_gguf
from glassformer.errors import InputError
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.quantized.packed_experts import PackedMixture

LLAMA_CPP = os.environ.get("GLASSFORMER_LLAMA_CPP")
PERPLEXITY = os.environ.get("GLASSFORMER_LLAMA_PERPLEXITY")
pytestmark = pytest.mark.slow
# llama.cpp has no others.
KNOWN = [family for family in FAMILIES if family not in ("nanochat", "gpt_neo")]
SEEDS = range(400)
EACH = 2
GELU = ("gemma2", "gemma3_text", "gpt2", "gpt_neox")
"""llama.cpp looks GELU up in a table of float16; GPT-NeoX's is the one by tanh."""


def written(family: str, seed: int, directory: Path) -> Any:
    """transformers' model in ``directory``, and beside it its GGUF file; None if that cannot hold
    it.
    """
    model = stored_model(family, seed, directory)
    ours = directory.with_suffix(".ours.gguf")
    try:
        write_gguf(load_decoder(directory), ours, kind="F32")
    except InputError:
        return None
    content = json.loads((directory / "config.json").read_text())
    keys = read_gguf(ours).metadata
    architecture = keys["general.architecture"]
    row = family_of(model.config.model_type)
    if content.get("n_inner") or (row is not None and row.gguf not in (architecture, None)):
        return None
    # Values that the converter does not write.
    lost = {"gemma3": ("attention.sliding_window_pattern",), "gptneox": ("rope.scaling.type",)}
    lost["gemma2"] = lost["gemma3"] + lost["gptneox"]
    if any(f"{architecture}.{name}" in keys for name in lost.get(architecture, ())):
        return None
    if family in ("gpt_neox", "gemma2") and keys[f"{architecture}.rope.freq_base"] != 10000:
        return None
    if family == "gpt_neox":
        content["rotary_pct"] = content["rope_parameters"]["partial_rotary_factor"]
    if family == "gpt2":
        content["n_ctx"] = content["n_positions"]
    (directory / "config.json").write_text(json.dumps(content))
    vocabulary = {
        "model": {"vocab": {str(token): token for token in range(VOCAB)}},
        "added_tokens": [],
    }
    (directory / "tokenizer.json").write_text(json.dumps(vocabulary))
    return model


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Path, Any]]]:
    """Of every family models with their files, in one run of the converter."""
    if LLAMA_CPP is None:
        pytest.skip("GLASSFORMER_LLAMA_CPP does not name a copy of llama.cpp")
    root = tmp_path_factory.mktemp("converted")
    found = {}
    for family in KNOWN:
        models = (
            (path := root / f"{family}_{seed}", written(family, seed, path)) for seed in SEEDS
        )
        held = ((path, model) for path, model in models if model is not None)
        found[family] = [each for each, _ in zip(held, range(EACH), strict=False)]
    paths = [str(path) for models in found.values() for path, _ in models]
    script = Path(__file__).with_name("llama_cpp_convert.py")
    subprocess.run([sys.executable, script, LLAMA_CPP, *paths], check=True, capture_output=True)
    return found


@pytest.mark.parametrize("family", KNOWN)
@torch.no_grad()
def test_files_of_llama_cpps_converter(
    family: str, converted: dict[str, list[tuple[Path, Any]]]
) -> None:
    assert converted[family]
    for path, model in converted[family]:
        tokens = torch.randint(3, VOCAB, (2, 40))
        logits = model(tokens).logits
        assert logits.std() > 0.1
        theirs, ours = (
            load_gguf(path.with_suffix(ending)).eval() for ending in (".gguf", ".ours.gguf")
        )
        assert (theirs(tokens) - logits).abs().max() <= 5e-5
        assert (ours(tokens) - logits).abs().max() <= 5e-5


@torch.no_grad()
def test_a_gpt_oss_of_the_converter_keeps_its_experts_packed(tmp_path: Path) -> None:
    if LLAMA_CPP is None:
        pytest.skip("GLASSFORMER_LLAMA_CPP does not name a copy of llama.cpp")
    write_random_gpt_oss(tmp_path / "model")
    script = Path(__file__).with_name("llama_cpp_convert.py")
    subprocess.run(
        [sys.executable, script, LLAMA_CPP, str(tmp_path / "model")],
        check=True,
        capture_output=True,
    )
    expected = load_decoder(tmp_path / "model", dtype=torch.float32).eval()
    tokens = torch.randint(expected.config.vocab_size, (2, 200))
    for hold, kind in (("blocks", PackedMixture), ("dense", MixtureOfExperts)):
        found = load_gguf(tmp_path / "model.gguf", hold=hold).eval()  # type: ignore[arg-type]
        assert type(found.layers[0].ffn) is kind
        assert torch.equal(found(tokens), expected(tokens))


def kept_keys(path: Path) -> dict[str, Any]:
    file = read_gguf(path)
    start = f"{file.metadata['general.architecture']}."
    return {name: value for name, value in file.metadata.items() if name.startswith(start)}


@pytest.mark.parametrize("family", KNOWN)
def test_tensors_and_values_are_the_converters(
    family: str, converted: dict[str, list[tuple[Path, Any]]]
) -> None:
    """Names, shapes and bits; and where both have a key, its value."""
    for path, _ in converted[family]:
        ours, theirs = (read_gguf(path.with_suffix(ending)) for ending in (".ours.gguf", ".gguf"))
        # Two families have an output that is the embedding: the converter leaves it out, and
        # llama.cpp asks for it.
        names = (
            ours.tensors.keys() - (theirs.tensors.keys() ^ {"output.weight"})
            | theirs.tensors.keys()
        )
        assert names == theirs.tensors.keys()
        for name, tensor in theirs.tensors.items():
            scaled = name.startswith("rope_f")
            torch.testing.assert_close(
                ours.tensors[name].read(), tensor.read(), rtol=1e-6 if scaled else 0, atol=0
            )
        both = kept_keys(path.with_suffix(".ours.gguf")), kept_keys(path.with_suffix(".gguf"))
        # A mixture has no network of that width.
        for name in both[0].keys() & both[1].keys() - {"qwen3moe.feed_forward_length"}:
            assert both[0][name] == pytest.approx(both[1][name]), name


@pytest.mark.parametrize("family", KNOWN)
@torch.no_grad()
def test_llama_cpp_computes_our_probabilities(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The perplexity of a text of bytes, which llama.cpp splits into tokens itself."""
    if PERPLEXITY is None:
        pytest.skip("GLASSFORMER_LLAMA_PERPLEXITY does not name llama.cpp's llama-perplexity")
    monkeypatch.setattr(family_models, "VOCAB", 256)
    monkeypatch.setattr(family_models, "LONGEST", 256)
    letters = random.Random(0)
    length = 64
    compared = 0
    text = "".join(letters.choice("abcdefghij klm.nop") for _ in range(600))
    (tmp_path / "text").write_text(text)
    file = tmp_path / "model.gguf"
    for seed in SEEDS:
        stored_model(family, seed, tmp_path / str(seed))
        decoder = load_decoder(tmp_path / str(seed)).eval()
        try:
            write_gguf(decoder, file, kind="F32", tokenizer=byte_vocabulary())
        except InputError:
            continue
        tokens = tokenizer_from_gguf(read_gguf(file).metadata).encode(text)
        assert tokens == list(text.encode())
        chunks = torch.tensor(tokens[: len(tokens) // length * length]).view(-1, length)
        scored = (
            decoder(chunks)
            .log_softmax(-1)[:, length // 2 : -1]
            .gather(2, chunks[:, length // 2 + 1 :, None])
        )
        flags = f"-c {length} -b {length} -t 1 -ctk f32 -ctv f32 -fa off".split()
        command = [PERPLEXITY, "-m", str(file), "-f", str(tmp_path / "text"), *flags]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.findall(r"\[\d+\]([\d.]+)", answer.stdout)
        assert len(found) == len(chunks), answer.stderr[-2000:]
        wanted = (-scored.mean()).exp().item()
        assert float(found[-1]) == pytest.approx(wanted, rel=1e-3 if family in GELU else 1e-5), seed
        if (compared := compared + 1) == EACH:
            break
    assert compared
