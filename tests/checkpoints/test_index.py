"""An index that names tensors which no file has, as of a model whose output projection is its
embedding.
"""

import json
from pathlib import Path

import pytest
import torch

from glassformer.checkpoints.description import describe
from glassformer.errors import CheckpointError
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

CONFIG = DecoderConfig(
    vocab_size=20, num_layers=2, hidden_dim=16, ff_dim=24, num_heads=2, head_dim=8, tied_output=True
)


def saved(directory: Path, *more: str, tied: bool = True) -> Decoder:
    """A Llama in several files, whose index names more tensors, in its last file."""
    torch.manual_seed(1)
    decoder = Decoder(DecoderConfig(**{**vars(CONFIG), "tied_output": tied})).eval()
    decoder.save_pretrained(directory, layout="llama", shard_bytes=4000)
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    places = content["weight_map"]
    last = sorted(places.values())[-1]
    assert last != sorted(places.values())[0]
    if not tied:
        last = places["lm_head.weight"]
    content["weight_map"] = places | dict.fromkeys(more, last)
    index.write_text(json.dumps(content))
    return decoder


@pytest.mark.parametrize(
    "more", ["lm_head.weight", "model.layers.1.self_attn.rotary_emb.inv_freq", "model.unused"]
)
def test_a_tensor_that_the_model_does_not_need(more: str, tmp_path: Path) -> None:
    decoder = saved(tmp_path / "model", more)
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(Decoder.from_pretrained(tmp_path / "model")(tokens), decoder(tokens))
    assert describe(tmp_path / "model").total == sum(
        weight.numel() for weight in decoder.parameters()
    )


def test_transformers_opens_it_with_the_same_logits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    saved(tmp_path / "model", "lm_head.weight")
    tokens = torch.arange(12)[None]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        assert torch.allclose(
            Decoder.from_pretrained(tmp_path / "model")(tokens), theirs(tokens).logits, atol=1e-5
        )


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
)
def test_a_tensor_that_the_model_needs_is_named(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "model", tied=False)
    index = tmp_path / "model" / "model.safetensors.index.json"
    file = tmp_path / "model" / json.loads(index.read_text())["weight_map"][name]
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].replace(f'"{name}"'.encode(), f'"{"x" * len(name)}"'.encode())
    file.write_bytes(content[:8] + header + content[8 + length :])
    with refused(f"missing {name}", error=CheckpointError):
        Decoder.from_pretrained(tmp_path / "model")
