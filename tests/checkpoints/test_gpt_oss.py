import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from glassformer.checkpoints.tensor_files import FileTensor
from glassformer.errors import CheckpointError
from glassformer.generation.decoding import generate
from glassformer.models import Decoder
from refusals import refused

Peer = Callable[..., GptOssForCausalLM]
Files = Callable[..., Path]
NO_YARN = {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}


@torch.no_grad()
def largest_difference(decoder: Decoder, model: GptOssForCausalLM, tokens: Tensor) -> float:
    return (decoder.eval()(tokens) - model(tokens).logits).abs().max().item()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        NO_YARN,
        {"num_hidden_layers": 2, "sliding_window": 128},
        {"num_hidden_layers": 6, "num_key_value_heads": 4},
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        {"layer_types": ["full_attention"] * 3},
        {"swiglu_limit": 0.5, "swiglu_alpha": 1.0, "rms_norm_eps": 1e-3},
        {"attention_bias": False},
        {"tie_word_embeddings": True},
    ],
)
def test_the_logits_are_hugging_faces(tmp_path: Path, peer: Peer, changes: dict[str, Any]) -> None:
    model = peer(**changes)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(48, (2, 40))
    decoder = Decoder.from_pretrained(tmp_path)
    assert decoder(tokens).std() > 0.5
    assert largest_difference(decoder, model, tokens) <= 1e-4


def test_the_logits_are_hugging_faces_beyond_the_original_length(
    tmp_path: Path, peer: Peer
) -> None:
    model = peer(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    assert model.config.rope_parameters["original_max_position_embeddings"] == 4096
    model.save_pretrained(tmp_path)
    assert (
        largest_difference(Decoder.from_pretrained(tmp_path), model, torch.randint(48, (1, 4160)))
        <= 1e-4
    )


@pytest.mark.parametrize("experts", ["dense", "mxfp4"])
def test_greedy_tokens_are_hugging_faces(tmp_path: Path, openai_files: Files, experts: str) -> None:
    decoder = Decoder.from_pretrained(openai_files(), dtype=torch.float32, experts=experts).eval()
    decoder.save_pretrained(tmp_path / "theirs")
    model = GptOssForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    prompt = torch.randint(48, (1, 20))
    theirs = model.generate(prompt, max_new_tokens=50, do_sample=False, pad_token_id=0)[
        0, 20:
    ].tolist()
    assert len(set(theirs)) > 5
    assert generate(decoder, prompt.tolist(), 50)[0] == theirs


def test_openais_layout_holds_the_same_network(tmp_path: Path, openai_files: Files) -> None:
    """Written by hand into Hugging Face's names and shapes, and run by Hugging Face."""
    directory = openai_files()
    form = json.loads((directory / "config.json").read_text())
    stored = load_file(directory / "model.safetensors")
    theirs: dict[str, Tensor] = {
        "model.embed_tokens.weight": stored["embedding.weight"],
        "lm_head.weight": stored["unembedding.weight"],
        "model.norm.weight": stored["norm.scale"],
    }
    for layer in range(form["num_hidden_layers"]):
        old = f"block.{layer}."
        new = f"model.layers.{layer}."
        for end in ("weight", "bias"):
            q, k, v = stored[f"{old}attn.qkv.{end}"].split([64, 32, 32])
            theirs |= {
                f"{new}self_attn.{name}_proj.{end}": part
                for name, part in (("q", q), ("k", k), ("v", v))
            }
            theirs[f"{new}self_attn.o_proj.{end}"] = stored[f"{old}attn.out.{end}"]
            theirs[f"{new}mlp.router.{end}"] = stored[f"{old}mlp.gate.{end}"]
        theirs[f"{new}self_attn.sinks"] = stored[f"{old}attn.sinks"]
        theirs[f"{new}input_layernorm.weight"] = stored[f"{old}attn.norm.scale"]
        theirs[f"{new}post_attention_layernorm.weight"] = stored[f"{old}mlp.norm.scale"]
        for name, matrix in (("gate_up_proj", "mlp1"), ("down_proj", "mlp2")):
            packed = (stored[f"{old}mlp.{matrix}_weight.{part}"] for part in ("blocks", "scales"))
            theirs[f"{new}mlp.experts.{name}"] = convert_moe_packed_tensors(*packed)
            theirs[f"{new}mlp.experts.{name}_bias"] = stored[f"{old}mlp.{matrix}_bias"]
    sizes = (
        "num_hidden_layers",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "head_dim",
        "num_attention_heads",
    )
    hf_config = {name: form[name] for name in (*sizes, "num_key_value_heads", "sliding_window")}
    hf_config |= {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}
    there = tmp_path / "hf"
    there.mkdir()
    (there / "config.json").write_text(json.dumps(hf_config))
    save_file(
        {n: t.contiguous() for n, t in theirs.items()},
        there / "model.safetensors",
        metadata={"format": "pt"},
    )
    model = GptOssForCausalLM.from_pretrained(there, dtype=torch.float32)
    tokens = torch.randint(48, (2, 60))
    for experts in ("dense", "mxfp4"):
        decoder = Decoder.from_pretrained(directory, dtype=torch.float32, experts=experts)
        assert largest_difference(decoder, model, tokens) <= 1e-4
    ours = Decoder.from_pretrained(there, dtype=torch.float32)
    for name, weight in (
        Decoder.from_pretrained(directory, dtype=torch.float32, experts="dense")
        .state_dict()
        .items()
    ):
        assert torch.equal(weight, ours.state_dict()[name]), name


def test_what_is_stored_stays_as_it_is(openai_files: Files) -> None:
    directory = openai_files()
    decoder = Decoder.from_pretrained(directory)
    stored = load_file(directory / "model.safetensors")
    assert {weight.dtype for weight in decoder.parameters()} == {torch.bfloat16}
    ffn = decoder.layers[1].ffn
    assert torch.equal(ffn.gate_up_blocks, stored["block.1.mlp.mlp1_weight.blocks"])
    assert torch.equal(ffn.down_scales, stored["block.1.mlp.mlp2_weight.scales"])
    assert torch.equal(
        decoder.layers[1].attention.value.weight, stored["block.1.attn.qkv.weight"][96:]
    )
    assert not any(tensor.is_meta for tensor in (*decoder.parameters(), *decoder.buffers()))
    assert not decoder.training


def test_no_more_is_held_than_the_decoder_and_one_tensor(
    openai_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tensor of bytes and every bfloat16 matrix is the one that was read: nothing is copied
    again.
    """
    seen: list[int] = []
    plain = FileTensor.read

    def noted(tensor: FileTensor, **options: Any) -> Tensor:
        read = plain(tensor, **options)
        seen.append(read.untyped_storage().data_ptr())
        return read

    monkeypatch.setattr(FileTensor, "read", noted)
    decoder = Decoder.from_pretrained(openai_files())
    kept = {tensor.untyped_storage().data_ptr() for tensor in decoder.state_dict().values()}
    assert kept <= set(seen)


@pytest.mark.parametrize("experts", ["dense", "mxfp4"])
def test_an_exponent_that_means_nan_is_refused(openai_files: Files, experts: str) -> None:
    directory = openai_files()
    tensors = load_file(directory / "model.safetensors")
    tensors["block.1.mlp.mlp2_weight.scales"][3, 5, 0] = 255
    save_file(tensors, directory / "model.safetensors")
    named = r"block\.1\.mlp\.mlp2_weight\.scales with weights that are infinite or NaN.*model\.safe"
    with refused(named, error=CheckpointError):
        Decoder.from_pretrained(directory, experts=experts)


def test_a_width_that_is_no_whole_number_of_blocks_is_refused(openai_files: Files) -> None:
    path = openai_files(num_hidden_layers=1) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 63}))
    with refused(r"expert_format = 'mxfp4' .* hidden_dim = 63", error=CheckpointError):
        Decoder.from_pretrained(path.parent)


def test_a_dtype_that_is_none_is_refused(openai_files: Files) -> None:
    with refused(r"dtype = torch\.int8"):
        Decoder.from_pretrained(openai_files(), dtype=torch.int8)
