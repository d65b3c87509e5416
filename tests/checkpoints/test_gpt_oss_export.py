from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GptOssForCausalLM

from glassformer.checkpoints.gpt_oss_config import write_gpt_oss_config
from glassformer.checkpoints.gpt_oss_export import NO_SINK, gpt_oss_from_decoder, particulars, remark
from glassformer.checkpoints.random_gpt_oss import GPT_OSS_TINY
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

GPT_OSS = dataclasses.replace(
    GPT_OSS_TINY,
    vocab_size=48,
    num_layers=3,
    hidden_dim=32,
    num_heads=4,
    head_dim=8,
    window=7,
    num_experts=6,
    top_k=2,
    expert_format="dense",
    max_seq_len=1024,
    rope_scaling=Yarn(original_max_seq_len=64),
)
COURSE = DecoderConfig(
    vocab_size=48,
    num_layers=4,
    hidden_dim=32,
    ff_dim=64,
    num_heads=4,
    head_dim=8,
    num_kv_heads=2,
    window=8,
    windowed_layers="odd",
    num_experts=4,
    key_weights=True,
)


def drawn(config: DecoderConfig) -> Decoder:
    """A decoder every part of which tells in its logits."""
    decoder = Decoder(config).eval()
    with torch.no_grad():
        for name, weight in decoder.named_parameters():
            if weight.dim() == 1 or name.endswith("bias"):
                weight.add_(torch.randn_like(weight) * 0.3)
    return decoder


def peer_of(decoder: Decoder, directory: Path) -> GptOssForCausalLM:
    decoder.save_pretrained(directory, layout="gpt_oss")
    model, told = GptOssForCausalLM.from_pretrained(directory, dtype="auto", output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def configuration(decoder: Decoder) -> dict[str, Any]:
    """What Hugging Face's ``config.json`` says of what is written."""
    form = gpt_oss_from_decoder(decoder).config
    return write_gpt_oss_config(form, decoder.embedding.weight.dtype)


@torch.no_grad()
def differences(decoder: Decoder, model: GptOssForCausalLM, tokens: Tensor) -> float:
    ours = decoder(tokens)
    assert ours.std() > 0.3
    return (ours - model(tokens).logits).abs().max().item()


@pytest.mark.parametrize(
    "change", [{}, {"window": None}, {"dropout": 0.1}, {"rope_scaling": Yarn(8.0, 64, 16.0, 2.0, truncate=True)}]
)
@pytest.mark.filterwarnings("error::UserWarning")  # such a model is right for whoever knows the released ones
def test_gpt_oss_is_written_as_it_is(tmp_path: Path, change: dict[str, Any]) -> None:
    decoder = drawn(dataclasses.replace(GPT_OSS, **change))
    model = peer_of(decoder, tmp_path / "written")
    assert differences(decoder, model, torch.randint(48, (2, 100))) <= 1e-5
    read = Decoder.from_pretrained(tmp_path / "written")
    for name, weight in decoder.state_dict().items():
        assert torch.equal(weight, read.state_dict()[name]), name


@pytest.mark.parametrize(
    "config",
    [
        COURSE,
        dataclasses.replace(COURSE, num_experts=None),
        dataclasses.replace(COURSE, num_experts=None, ff_bias=True, sinks=True),
        dataclasses.replace(COURSE, windowed_layers="all", ff_bias=True),
        dataclasses.replace(COURSE, window=None, rope_layout="interleaved", attention_bias=True),
        dataclasses.replace(COURSE, tied_output=True, norm_eps=1e-3),
        dataclasses.replace(
            GPT_OSS, clamp=Clamp(1.0, 2.0), sinks=False, attention_bias=False, ff_bias=False, rope_scaling=None
        ),
    ],
)
def test_what_gpt_oss_lacks_is_rewritten(tmp_path: Path, config: DecoderConfig) -> None:
    decoder = drawn(config)
    with pytest.warns(UserWarning, match=r"programs that take the released gpt-oss's for granted compute other logits"):
        model = peer_of(decoder, tmp_path / "written")
    assert differences(decoder, model, torch.randint(48, (2, 60))) <= 1e-4
    assert differences(Decoder.from_pretrained(tmp_path / "written").eval(), model, torch.randint(48, (2, 60))) <= 1e-4


@pytest.mark.parametrize("config", [GPT_OSS, dataclasses.replace(GPT_OSS, sinks=False), COURSE])
@pytest.mark.filterwarnings("ignore:.*compute other logits")
def test_half_precision_is_written(tmp_path: Path, config: DecoderConfig) -> None:
    decoder = drawn(config)
    decoder.layers[0].ffn_norm.weight.data.mul_(1e4)  # what the gate may reach is then beyond float16
    decoder.to(torch.float16).save_pretrained(tmp_path / "written", layout="gpt_oss")
    read = Decoder.from_pretrained(tmp_path / "written").eval()
    assert read.output.weight.dtype == torch.float16
    assert read.config.clamp is not None
    assert read.config.clamp.limit == (65504.0 if config.clamp is None else 7.0)
    if not config.sinks:
        assert torch.equal(read.layers[0].attention.sinks.float(), torch.full((config.num_heads,), -65504.0))
    tokens = torch.randint(48, (1, 60))
    with torch.no_grad():
        ours, theirs = decoder.float()(tokens), read.float()(tokens)
        assert ours.std() > 0.3
        assert (ours - theirs).abs().max() <= 1e-3


def test_the_limit_of_a_plain_swiglu_is_never_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that goes for one unit's gate with all its might stays below it."""
    decoder = drawn(dataclasses.replace(COURSE, num_layers=1, ff_bias=True))
    written = configuration(decoder)
    block = decoder.layers[0]
    assert written["swiglu_limit"] > 7
    reached = 0.0
    for matrix, bias in ((block.ffn.gate, block.ffn.gate_bias), (block.ffn.up, block.ffn.up_bias)):
        for weight, its_bias in zip(matrix.flatten(0, 1), bias.flatten(), strict=True):
            aimed = block.ffn_norm(1e6 * weight * block.ffn_norm.weight)
            reached = max(reached, abs(weight @ aimed + its_bias).item() + 1)
    assert reached < written["swiglu_limit"] <= 8 * reached


def test_the_dtype_is_kept(tmp_path: Path) -> None:
    decoder = drawn(GPT_OSS).bfloat16()
    model = peer_of(decoder, tmp_path / "written")
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight.equal(decoder.output.weight)


def test_packed_experts_are_written_packed(tmp_path: Path) -> None:
    config = dataclasses.replace(GPT_OSS, expert_format="mxfp4")
    decoder = drawn(config)
    for block in decoder.layers:
        for name, low, high in (("blocks", 0, 256), ("scales", 120, 126)):
            for matrix in ("gate_up", "down"):
                packed = getattr(block.ffn, f"{matrix}_{name}")
                packed.copy_(torch.randint(low, high, packed.shape))
    written, planned = configuration(decoder), gpt_oss_from_decoder(decoder).in_layout("huggingface")
    assert written["quantization_config"]["quant_method"] == "mxfp4"
    blocks = planned["model.layers.2.mlp.experts.gate_up_proj_blocks"]
    assert (blocks.shape, blocks.dtype) == ([6, 128, 1, 16], torch.uint8)
    assert planned["model.layers.2.mlp.experts.down_proj_scales"].shape == [6, 32, 2]
    model = peer_of(decoder, tmp_path / "written")  # which expands them, for want of a GPU
    assert differences(decoder, model.float(), torch.randint(48, (2, 50))) <= 1e-4
    read = Decoder.from_pretrained(tmp_path / "written")
    assert read.config == config
    for name, weight in decoder.state_dict().items():
        assert torch.equal(weight, read.state_dict()[name]), name


def test_packed_experts_with_a_plain_swiglu_are_refused() -> None:
    decoder = Decoder(dataclasses.replace(GPT_OSS, expert_format="mxfp4", clamp=None))
    with refused("packed experts with the plain SwiGLU"):
        gpt_oss_from_decoder(decoder)


def test_an_attention_only_decoder_is_refused() -> None:
    form = dataclasses.replace(COURSE, num_experts=None, clamp=None, ff_bias=False, ff_dim=0)
    with refused("attention-only"):
        gpt_oss_from_decoder(Decoder(form))


def test_weights_without_bound_are_refused() -> None:
    decoder = Decoder(COURSE)
    decoder.layers[1].ffn.up.data[0, 0, 0] = torch.nan
    with refused("weights that are infinite or NaN"):
        gpt_oss_from_decoder(decoder)


def test_a_missing_sink_weighs_nothing() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        scores = torch.tensor([-50.0, -60.0, NO_SINK], dtype=dtype)
        assert scores.softmax(0)[2] == 0
        assert scores.isfinite().all()


def test_what_other_programs_may_take_for_granted_is_told() -> None:
    assert particulars(configuration(Decoder(GPT_OSS))) == []
    assert remark("It", configuration(Decoder(GPT_OSS))) == ""
    written = configuration(Decoder(dataclasses.replace(COURSE, norm_eps=1e-6)))
    told = particulars(written)
    assert remark("It", written).startswith(f"It has {told[0]}, ")
    assert len(told) == 4
    for part in ("layer_types", "swiglu_alpha = 1.0", "without YaRN", "rms_norm_eps = 1e-06"):
        assert part in "".join(told)


@pytest.mark.parametrize("windowed_layers", ["odd", "even", "all"])
def test_one_layer_alone_has_gpt_oss_windows(windowed_layers: Any) -> None:
    config = dataclasses.replace(COURSE, num_layers=1, windowed_layers=windowed_layers)
    form = gpt_oss_from_decoder(Decoder(config)).config
    assert (form.layer_window(0), form.windowed_layers) == (config.layer_window(0), "even")
    assert not any("layer_types" in each for each in particulars(configuration(Decoder(config))))
