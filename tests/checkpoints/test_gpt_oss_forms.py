"""gpt-oss in its two layouts, with experts packed or as numbers."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssForCausalLM

from glassformer.checkpoints.decoders import write_decoder
from glassformer.checkpoints.families.files import decoder_in_memory, in_family, with_experts
from glassformer.checkpoints.families.gpt_oss import GPT_OSS as ROW
from glassformer.checkpoints.families.gpt_oss import OPENAI, packed_experts
from glassformer.checkpoints.store import open_model
from glassformer.errors import CheckpointError
from glassformer.kernels.options import Clamp
from glassformer.kernels.packed import values
from glassformer.layers.options import Yarn
from glassformer.layers.quantized import mxfp4
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

SMALL = dataclasses.replace(GPT_OSS_TINY, vocab_size=96, num_layers=2, num_experts=4)
DENSE = dataclasses.replace(SMALL, expert_format="dense")
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
    model, told = GptOssForCausalLM.from_pretrained(
        directory, dtype="auto", output_loading_info=True
    )
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@torch.no_grad()
def differences(decoder: Decoder, model: GptOssForCausalLM, tokens: Tensor) -> float:
    ours = decoder(tokens)
    assert ours.std() > 0.3
    return (ours - model(tokens).logits).abs().max().item()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"window": None},
        {"dropout": 0.1},
        {"rope_scaling": Yarn(8.0, 64, 16.0, 2.0, truncate=True)},
    ],
)
def test_gpt_oss_is_written_as_it_is(tmp_path: Path, change: dict[str, Any]) -> None:
    decoder = drawn(dataclasses.replace(GPT_OSS, **change))
    model = peer_of(decoder, tmp_path / "written")
    assert differences(decoder, model, torch.randint(48, (2, 100))) <= 1e-5
    read = Decoder.from_pretrained(tmp_path / "written")
    for name, weight in decoder.state_dict().items():
        assert torch.equal(weight, read.state_dict()[name]), name


def test_a_model_that_no_family_describes_is_written_in_our_own_layout(tmp_path: Path) -> None:
    decoder = drawn(COURSE)
    decoder.save_pretrained(tmp_path / "written")
    assert (
        json.loads((tmp_path / "written" / "config.json").read_text())["model_type"]
        == "glassformer-decoder"
    )
    tokens = torch.randint(48, (2, 60))
    assert torch.equal(Decoder.from_pretrained(tmp_path / "written")(tokens), decoder(tokens))


def test_half_precision_is_written(tmp_path: Path) -> None:
    decoder = drawn(GPT_OSS).to(torch.float16)
    decoder.save_pretrained(tmp_path / "written", layout="gpt_oss")
    read = Decoder.from_pretrained(tmp_path / "written")
    for name, weight in decoder.state_dict().items():
        assert torch.equal(weight, read.state_dict()[name]), name


def test_packed_experts_are_written_packed(tmp_path: Path) -> None:
    config = dataclasses.replace(GPT_OSS, expert_format="mxfp4")
    decoder = drawn(config)
    for block in decoder.layers:
        for name, low, high in (("blocks", 0, 256), ("scales", 120, 126)):
            for matrix in ("gate_up", "down"):
                packed = getattr(block.ffn, f"{matrix}_{name}")
                packed.copy_(torch.randint(low, high, packed.shape))
    written, tensors = in_family(ROW, decoder_in_memory(decoder))
    assert written["quantization_config"]["quant_method"] == "mxfp4"
    blocks = tensors["model.layers.2.mlp.experts.gate_up_proj_blocks"]
    assert (blocks.shape, blocks.kind) == ([6, 128, 1, 16], "U8")
    assert tensors["model.layers.2.mlp.experts.down_proj_scales"].shape == [6, 32, 2]
    model = peer_of(decoder, tmp_path / "written")  # which expands them, for want of a GPU
    assert differences(decoder, model.float(), torch.randint(48, (2, 50))) <= 1e-4
    read = Decoder.from_pretrained(tmp_path / "written")
    assert read.config == config
    for name, weight in decoder.state_dict().items():
        assert torch.equal(weight, read.state_dict()[name]), name


@pytest.mark.parametrize(
    ("config", "layout", "message"),
    [
        (
            dataclasses.replace(GPT_OSS, expert_format="mxfp4", clamp=None),
            "gpt_oss",
            "clamp = None",
        ),
        (COURSE, "gpt_oss", "key_weights = True"),
        (dataclasses.replace(GPT_OSS, norm_eps=1e-6), "openai", "norm_eps = 1e-06"),
        (dataclasses.replace(GPT_OSS, clamp=Clamp(alpha=1.0)), "openai", r"Clamp\(alpha=1.0"),
        (dataclasses.replace(GPT_OSS, windowed_layers="odd"), "openai", "windowed_layers = 'odd'"),
        (dataclasses.replace(GPT_OSS, tied_output=True), "openai", "tied_output = True"),
        (
            dataclasses.replace(GPT_OSS, rope_scaling=Yarn(truncate=True)),
            "openai",
            "rope_scaling = Yarn",
        ),
        (
            dataclasses.replace(GPT_OSS, rope_scaling=None, max_seq_len=99, qk_norm="head"),
            "openai",
            "qk_norm",
        ),
    ],
)
def test_what_a_layout_lacks_leaves_nothing(
    tmp_path: Path, config: DecoderConfig, layout: str, message: str
) -> None:
    with refused(message):
        Decoder(config).save_pretrained(tmp_path / "out", layout=layout)
    assert list(tmp_path.iterdir()) == []


def test_experts_as_numbers_by_hand(tmp_path: Path) -> None:
    """Rows of gate and up in turns; Hugging Face's experts are transposed, OpenAI's are not."""
    decoder = drawn(dataclasses.replace(GPT_OSS, max_seq_len=2048))
    state = decoder.state_dict()
    ffn = "layers.0.ffn."
    both = torch.stack([state[ffn + "gate"], state[ffn + "up"]], 2).flatten(1, 2)
    biases = torch.stack([state[ffn + "gate_bias"], state[ffn + "up_bias"]], 2).flatten(1)
    for layout in ("gpt_oss", "openai"):
        decoder.save_pretrained(tmp_path / layout, layout=layout)
        for name, tensor in Decoder.from_pretrained(tmp_path / layout).state_dict().items():
            assert torch.equal(tensor, state[name]), name
    theirs, openai = (
        load_file(tmp_path / layout / "model.safetensors") for layout in ("gpt_oss", "openai")
    )
    assert torch.equal(theirs["model.layers.0.mlp.experts.gate_up_proj"], both.mT)
    assert torch.equal(theirs["model.layers.0.mlp.experts.down_proj"], state[f"{ffn}down"].mT)
    assert torch.equal(openai["block.0.mlp.mlp1_weight"], both)
    assert torch.equal(openai["block.0.mlp.mlp2_weight"], state[f"{ffn}down"])
    for written in (
        theirs["model.layers.0.mlp.experts.gate_up_proj_bias"],
        openai["block.0.mlp.mlp1_bias"],
    ):
        assert torch.equal(written, biases)
    for end in ("weight", "bias"):
        rows = torch.cat(
            [state[f"layers.0.attention.{name}.{end}"] for name in ("query", "key", "value")]
        )
        assert torch.equal(openai[f"block.0.attn.qkv.{end}"], rows)


@settings(max_examples=50, deadline=None)
@given(
    yarn=st.none() | st.builds(Yarn, st.integers(2, 64).map(float), st.integers(1, 10**4)),
    window=st.none() | st.integers(1, 500),
    limit=st.floats(0.5, 50),
    kv=st.sampled_from([1, 2, 4]),
    experts=st.integers(2, 200),
)
def test_openais_form_is_read_back(
    yarn: Yarn | None, window: int | None, limit: float, kv: int, experts: int
) -> None:
    length = 777 if yarn is None else int(yarn.factor * yarn.original_max_seq_len)
    changes = {"rope_scaling": yarn, "window": window, "num_kv_heads": kv, "num_experts": experts}
    config = dataclasses.replace(GPT_OSS, **changes, clamp=Clamp(limit=limit), max_seq_len=length)
    assert OPENAI.read_config(OPENAI.write_config(config, torch.float32)) == config


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """One network in both layouts and with both kinds of experts."""
    root = tmp_path_factory.mktemp("made")
    found = {}
    for (kind, config), layout in itertools.product(
        (("mxfp4", SMALL), ("dense", DENSE)), ("gpt_oss", "openai")
    ):
        found[layout, kind] = root / f"{layout}-{kind}"
        write_random_gpt_oss(found[layout, kind], config, layout=layout)
    return found


def convert(source: Path, out: Path, layout: str, experts: Any = None) -> None:
    stored = open_model(source).decoder
    write_decoder(stored if experts is None else with_experts(stored, experts), out, layout, {})


@pytest.mark.parametrize("to", ["gpt_oss", "openai"])
@pytest.mark.parametrize("source", ["gpt_oss", "openai"])
@pytest.mark.parametrize(
    ("experts", "kind"), [("mxfp4", None), ("dense", None), ("mxfp4", "dense")]
)
def test_each_form_becomes_what_was_drawn_in_the_other(
    made: dict[tuple[str, str], Path],
    tmp_path: Path,
    source: str,
    to: str,
    experts: str,
    kind: str | None,
) -> None:
    convert(made[source, experts], tmp_path / "out", to, kind)
    expected = made[to, kind or experts]
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        expected / "model.safetensors"
    ).read_bytes()
    written, wanted = (
        json.loads((path / "config.json").read_text()) for path in (tmp_path / "out", expected)
    )
    assert written.items() <= wanted.items()


def test_packing_what_was_packed_gives_the_same_numbers(
    made: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    convert(made["openai", "dense"], tmp_path / "out", "gpt_oss", "mxfp4")
    paths = made["openai", "mxfp4"], tmp_path / "out"
    before, after = (Decoder.from_pretrained(path, experts="dense") for path in paths)
    assert (
        load_file(tmp_path / "out" / "model.safetensors")[
            "model.layers.0.mlp.experts.down_proj_scales"
        ].max()
        < 255
    )
    for name, tensor in after.state_dict().items():
        assert torch.equal(tensor, before.state_dict()[name]), name


def test_a_tied_output_and_missing_biases_stay(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "in", DENSE)
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    config |= {"tie_word_embeddings": True, "attention_bias": False}
    tensors = load_file(tmp_path / "in" / "model.safetensors")
    gone = ("lm_head.weight", "_proj.bias")
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if not (name.endswith(gone) and "experts" not in name)
    }
    save_file(kept, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    tokens = torch.randint(96, (1, 40))
    logits = Decoder.from_pretrained(tmp_path / "in", dtype=torch.float32).eval()(tokens)
    convert(tmp_path / "in", tmp_path / "out", "gpt_oss")
    assert torch.equal(
        Decoder.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()(tokens), logits
    )
    theirs = (
        GptOssForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
        .eval()(tokens)
        .logits
    )
    assert torch.allclose(theirs, logits, atol=1e-4)


@pytest.mark.parametrize("layout", ["gpt_oss", "openai"])
@pytest.mark.parametrize("experts", ["dense", "mxfp4"])
def test_a_decoder_is_written_in_either_layout(tmp_path: Path, layout: str, experts: Any) -> None:
    decoder = Decoder(DENSE)
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.copy_((weight + 0.1 * torch.randn_like(weight)).bfloat16())
    write_decoder(with_experts(decoder_in_memory(decoder), experts), tmp_path / "out", layout, {})
    read = Decoder.from_pretrained(tmp_path / "out")
    assert read.config.expert_format == experts
    tokens = torch.randint(96, (1, 40))
    with torch.no_grad():
        ours = decoder.eval()(tokens)
        theirs = read.eval()(tokens)
    if experts == "dense":
        assert torch.allclose(ours, theirs, atol=1e-4)
    else:  # 4 bits a weight
        assert (
            0.9
            < torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1].item()
            < 0.9999
        )


def test_an_exponent_of_nan_stops_it_and_leaves_nothing(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "in", SMALL)
    file = tmp_path / "in" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.experts.down_proj_scales"][2, 3, 1] = 255
    save_file(tensors, file, {"format": "pt"})
    with refused(
        r"layers\.1\.mlp\.experts\.down_proj_scales .*NaN.*model\.safetensors",
        error=CheckpointError,
    ):
        convert(tmp_path / "in", tmp_path / "out", "openai")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_widths_that_do_not_pack_are_refused() -> None:
    with refused(expected="multiples of 32"):
        with_experts(decoder_in_memory(Decoder(dataclasses.replace(DENSE, ff_dim=48))), "mxfp4")


def test_experts_in_mxfp4_keep_their_values_in_the_order_of_gpt_oss() -> None:
    raw = {
        name: torch.randint(256, (3, rows, 2 * 17), dtype=torch.uint8)
        for name, rows in (("gate", 5), ("up", 5), ("down", 64))
    }
    for blocks in raw.values():
        blocks.unflatten(-1, (-1, 17))[..., 0].clamp_(2, 250)
    found = packed_experts(raw)
    gate_up, down = (
        mxfp4.decode(found[f"{name}_blocks"], found[f"{name}_scales"], torch.float32)
        for name in ("gate_up", "down")
    )
    assert torch.equal(gate_up[:, 0::2], values("MXFP4", raw["gate"]))
    assert torch.equal(gate_up[:, 1::2], values("MXFP4", raw["up"]))
    assert torch.equal(down, values("MXFP4", raw["down"]))
