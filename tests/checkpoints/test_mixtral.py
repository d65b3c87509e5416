from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM

from glassformer.checkpoints.families.files import decoder_in_memory, in_family
from glassformer.checkpoints.families.llama import MIXTRAL
from glassformer.checkpoints.families.table import canonical
from glassformer.errors import InputError
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

# The form of the real thing, small: grouped heads, eight experts of which two are chosen.
FORM = DecoderConfig(
    vocab_size=512,
    num_layers=4,
    hidden_dim=256,
    ff_dim=512,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    num_experts=8,
    top_k=2,
    max_seq_len=256,
    windowed_layers="all",
)
TINY = dataclasses.replace(FORM, vocab_size=32, num_layers=2, hidden_dim=16, ff_dim=32, num_heads=4, head_dim=8)


def mixtral_from_decoder(decoder: Decoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    written, planned = in_family(MIXTRAL, decoder_in_memory(decoder))
    return written, {name: each.make() for name, each in planned.items()}


def decoder_from_mixtral(config: dict[str, Any], tensors: dict[str, Tensor]) -> Decoder:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "config.json").write_text(json.dumps({"model_type": "mixtral", **config}))
        save_file({name: each.contiguous().clone() for name, each in tensors.items()}, directory / "model.safetensors")
        return Decoder.from_pretrained(directory)


def peer(hf_config: dict[str, Any]) -> MixtralForCausalLM:
    model = MixtralForCausalLM(MixtralConfig(**hf_config, attn_implementation="sdpa")).eval()
    assert model.config._attn_implementation == "sdpa"
    return model


def peer_of(decoder: Decoder, directory: Path, dtype: torch.dtype = torch.float32) -> MixtralForCausalLM:
    """Hugging Face's model, read from files that hold what ``mixtral_from_decoder`` gives."""
    hf_config, tensors = mixtral_from_decoder(decoder)
    (directory / "config.json").write_text(json.dumps(hf_config))
    contiguous = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})
    model, told = MixtralForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
    )
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@torch.no_grad()
def largest_difference(decoder: Decoder, model: MixtralForCausalLM, tokens: Tensor) -> float:
    return (decoder.eval()(tokens) - model(tokens).logits).abs().max().item()


@pytest.mark.parametrize("window", [None, 24])
def test_the_logits_are_hugging_faces_with_our_weights(tmp_path: Path, window: int | None) -> None:
    decoder = Decoder(dataclasses.replace(FORM, window=window))
    model = peer_of(decoder, tmp_path)
    tokens = torch.randint(512, (2, 100))
    assert decoder(tokens).std() > 0.5
    assert largest_difference(decoder, model, tokens) <= 1e-5


def test_the_logits_are_hugging_faces_with_its_weights() -> None:
    hf_config, _ = mixtral_from_decoder(Decoder(FORM))
    model = peer(hf_config | {"initializer_range": 0.06})
    decoder = decoder_from_mixtral(model.config.to_dict(), model.state_dict())
    assert largest_difference(decoder, model, torch.randint(512, (2, 100))) <= 1e-5


@pytest.mark.parametrize("windowed", [(), (0,), (1, 2), (0, 3)])
def test_layer_types_are_ignored_as_by_hugging_face(windowed: tuple[int, ...]) -> None:
    """Its MixtralForCausalLM gives every layer the window, whatever ``layer_types`` says."""
    kinds = ["sliding_attention" if layer in windowed else "full_attention" for layer in range(4)]
    hf_config, _ = mixtral_from_decoder(Decoder(dataclasses.replace(TINY, num_layers=4, window=4)))
    model = peer(hf_config | {"layer_types": kinds, "initializer_range": 0.3})
    decoder = decoder_from_mixtral(model.config.to_dict(), model.state_dict())
    tokens = torch.randint(32, (2, 20))
    assert largest_difference(decoder, model, tokens) <= 1e-5
    assert (decoder.config.window, decoder.config.windowed_layers) == (4, "all")


@torch.no_grad()
def test_prefill_and_cached_steps_are_hugging_faces(tmp_path: Path) -> None:
    decoder = Decoder(FORM).eval()
    model = peer_of(decoder, tmp_path)
    tokens = torch.randint(512, (2, 72))
    cache, theirs = decoder.new_cache(2), None
    for start, stop in [(0, 64), *((i, i + 1) for i in range(64, 72))]:
        out = model(tokens[:, start:stop], past_key_values=theirs, use_cache=True)
        theirs = out.past_key_values
        assert (decoder(tokens[:, start:stop], cache=cache) - out.logits).abs().max() <= 1e-5


def test_both_layouts_give_the_same_decoder(tmp_path: Path) -> None:
    decoder = Decoder(TINY)
    hf_config, released = mixtral_from_decoder(decoder)
    current = peer_of(decoder, tmp_path).state_dict()
    assert "model.layers.0.block_sparse_moe.experts.0.w1.weight" in released
    assert current["model.layers.1.mlp.experts.gate_up_proj"].shape == (8, 64, 16)
    for tensors in (released, current):
        read = decoder_from_mixtral(hf_config, tensors)
        assert read.config == canonical(TINY)
        for name, weight in read.state_dict().items():
            assert torch.equal(weight, decoder.state_dict()[name]), name


def test_tied_output(tmp_path: Path) -> None:
    decoder = Decoder(dataclasses.replace(TINY, tied_output=True))
    hf_config, tensors = mixtral_from_decoder(decoder)
    assert "lm_head.weight" not in tensors
    model = peer_of(decoder, tmp_path)
    assert largest_difference(decoder, model, torch.randint(32, (2, 20))) <= 1e-5
    in_memory = model.state_dict()
    assert "lm_head.weight" in in_memory
    for read in (decoder_from_mixtral(hf_config, tensors), decoder_from_mixtral(hf_config, in_memory)):
        assert read.output.weight is read.embedding.weight
        assert torch.equal(read.embedding.weight, decoder.embedding.weight)
    with refused(r"differs from model\.embed_tokens"):
        decoder_from_mixtral(hf_config, in_memory | {"lm_head.weight": torch.zeros(32, 16)})


def test_key_weights_are_folded_and_layouts_rewritten(tmp_path: Path) -> None:
    """What Mixtral has no place for, but can compute all the same."""
    decoder = Decoder(dataclasses.replace(TINY, key_weights=True, rope_layout="interleaved"))
    for block in decoder.layers:
        torch.nn.init.normal_(block.attention.key_weights)
    tokens = torch.randint(32, (2, 40))
    assert largest_difference(decoder, peer_of(decoder, tmp_path), tokens) <= 1e-5
    read = decoder_from_mixtral(*mixtral_from_decoder(decoder))
    assert (read(tokens) - decoder(tokens)).abs().max() <= 1e-5


def test_the_dtype_is_kept(tmp_path: Path) -> None:
    hf_config, tensors = mixtral_from_decoder(Decoder(TINY).bfloat16())
    read = decoder_from_mixtral(hf_config, tensors)
    assert {p.dtype for p in read.parameters()} == {torch.bfloat16}
    (tmp_path / "config.json").write_text(json.dumps(hf_config))
    save_file(
        {n: t.contiguous() for n, t in tensors.items()}, tmp_path / "model.safetensors", metadata={"format": "pt"}
    )
    assert MixtralForCausalLM.from_pretrained(tmp_path, dtype="auto").dtype == torch.bfloat16


def test_defaults_are_hugging_faces() -> None:
    """A config.json without the fields that have their default is read as Hugging Face reads it."""
    hf_config, tensors = mixtral_from_decoder(Decoder(dataclasses.replace(TINY, num_kv_heads=4)))
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    short = {name: hf_config[name] for name in needed} | {"num_key_value_heads": 4, "head_dim": 8}
    read, theirs = decoder_from_mixtral(short, tensors).config, MixtralConfig(**short)
    assert read.max_seq_len == theirs.max_position_embeddings
    assert read.norm_eps == theirs.rms_norm_eps
    assert read.rope_base == theirs.rope_parameters["rope_theta"]
    assert (read.num_experts, read.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (read.window, read.dropout, read.tied_output) == (None, theirs.attention_dropout, theirs.tie_word_embeddings)
    without_heads = {name: value for name, value in short.items() if name != "head_dim"}
    with refused(r"q_proj.weight of shape \[32, 16\] instead of \[16, 16\]"):
        decoder_from_mixtral(without_heads, tensors)


@pytest.mark.parametrize("where", ["rope_theta", "rope_parameters"])
def test_the_rotary_base_is_read_from_either_place(where: str) -> None:
    hf_config, tensors = mixtral_from_decoder(Decoder(TINY))
    del hf_config["rope_theta"]
    hf_config[where] = 5000.0 if where == "rope_theta" else {"rope_type": "default", "rope_theta": 5000.0}
    assert decoder_from_mixtral(hf_config, tensors).config.rope_base == 5000.0


def test_every_fault_of_the_tensors_is_named_at_once() -> None:
    hf_config, tensors = mixtral_from_decoder(Decoder(TINY))
    del tensors["model.norm.weight"], tensors["model.layers.1.block_sparse_moe.experts.7.w2.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    tensors["model.layers.0.self_attn.sinks"] = torch.zeros(4)
    tensors["lm_head.weight"] = torch.zeros(33, 16)
    with pytest.raises(InputError) as caught:
        decoder_from_mixtral(hf_config, tensors)
    for part in (
        "missing model.norm.weight",
        "missing model.layers.1.block_sparse_moe.experts.7.w2.weight",
        "unknown model.layers.0.self_attn.q_proj.bias",
        "unknown model.layers.0.self_attn.sinks",
        "lm_head.weight of shape [33, 16] instead of [32, 16]",
    ):
        assert part in caught.value.got
    assert caught.value.got.count(",") == 4 + 2  # five faults, and a comma inside each of two shapes


def test_faults_of_the_current_layout_are_named() -> None:
    hf_config, _ = mixtral_from_decoder(Decoder(TINY))
    tensors = peer(hf_config).state_dict()
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(8, 32, 16)
    del tensors["model.layers.1.mlp.gate.weight"]
    with refused(r"missing .*1.mlp.gate.weight, .*gate_up_proj of shape \[8, 32, 16\]"):
        decoder_from_mixtral(hf_config, tensors)


def test_no_tensors_at_all() -> None:
    hf_config, _ = mixtral_from_decoder(Decoder(TINY))
    with refused("num_layers = 2 with 0 tensors"):
        decoder_from_mixtral(hf_config, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type = 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
        ({"num_local_experts": None}, "num_local_experts = None"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0"),
        ({"num_experts_per_tok": 9}, "top_k = 9 with num_experts = 8"),
        ({"num_key_value_heads": 3}, "num_kv_heads = 3 with num_heads = 4"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_configurations_that_are_refused(change: dict[str, Any], message: str) -> None:
    hf_config, tensors = mixtral_from_decoder(Decoder(TINY))
    with refused(message):
        decoder_from_mixtral(hf_config | change, tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_format": "mxfp4", "hidden_dim": 32}, "expert_format = 'mxfp4'"),
        ({"sinks": True}, "sinks = True"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"ff_bias": True}, "ff_bias = True"),
        ({"clamp": Clamp()}, "clamp = Clamp"),
        ({"rope_scaling": Yarn()}, "rope_type = 'yarn'"),
        ({"window": 4, "windowed_layers": "odd"}, "windowed_layers = 'odd'"),
        ({"ff_dim": 0, "num_experts": None}, "num_local_experts = None"),
        ({"sinks": True, "ff_bias": True, "clamp": Clamp()}, "sinks = True, ff_bias = True, clamp = Clamp"),
    ],
)
def test_decoders_that_mixtral_cannot_express_are_refused(change: dict[str, Any], message: str) -> None:
    with refused(message):
        mixtral_from_decoder(Decoder(dataclasses.replace(TINY, **change)))
