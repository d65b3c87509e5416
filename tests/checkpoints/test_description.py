import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import gguf
import numpy as np
import pytest
import torch
from random_gpt_oss import GPT_OSS_TINY, SIZES, random_gpt_oss, write_random_gpt_oss
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    GPT2Config,
    GPTNeoXConfig,
    RobertaConfig,
)

from glassformer.checkpoints.bert import save_encoder
from glassformer.checkpoints.description import describe
from glassformer.checkpoints.families.files import in_family
from glassformer.checkpoints.families.gguf_metadata import gguf_entries
from glassformer.checkpoints.families.gpt_oss import GPT_OSS, OPENAI
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import read_gguf
from glassformer.checkpoints.gguf_writing import _metadata, write_gguf
from glassformer.errors import CheckpointError
from glassformer.kernels.options import Clamp
from glassformer.layers.quantized import Pack
from glassformer.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from refusals import refused

DENSE = DecoderConfig(
    vocab_size=50,
    num_layers=3,
    hidden_dim=32,
    ff_dim=64,
    num_heads=4,
    head_dim=8,
    num_experts=4,
    num_kv_heads=2,
)


def header_of(size: str, directory: Path) -> None:
    """The files of a released size, whose weights take no room: the file has a hole."""
    model = random_gpt_oss(SIZES[size])
    written, tensors = in_family(OPENAI, model)
    (directory / "config.json").write_text(json.dumps(written))
    header = {}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.kind,
            "shape": tensor.shape,
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


@pytest.mark.parametrize(
    ("size", "total", "active", "experts"),
    [("20b", 20.91, 3.61, 19.12), ("120b", 116.83, 5.13, 114.71)],
)
def test_the_released_sizes(
    size: str, total: float, active: float, experts: float, tmp_path: Path
) -> None:
    header_of(size, tmp_path)
    found = describe(tmp_path)
    # OpenAI's model card, table 1, in billions; its MLP has the routers too.
    got = [found.total, found.active, found.parameters["experts"] + found.parameters["router"]]
    assert [round(number / 1e9, 2) for number in got] == [total, active, experts]
    assert (found.family, found.layout, found.experts, found.num_files) == (
        "gpt-oss",
        "OpenAI",
        "mxfp4",
        1,
    )


def held(decoder: Decoder) -> int:
    return sum(tensor.nbytes for tensor in decoder.state_dict().values())


@pytest.mark.parametrize("layout", ["huggingface", "openai"])
def test_memory_is_what_loading_takes(layout: Any, tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "model", GPT_OSS_TINY, layout=layout, shard_bytes=200_000)
    found = describe(tmp_path / "model")
    packed, dense = (
        Decoder.from_pretrained(tmp_path / "model", experts=kind) for kind in ("mxfp4", "dense")
    )
    assert found.memory(2, packed=True) == held(packed)
    assert found.memory(2) == held(dense)
    assert found.memory(4) == held(dense.float())
    assert found.total == sum(weight.numel() for weight in dense.parameters())
    assert found.num_files == len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    assert sum(found.stored_bytes.values()) == held(packed)
    assert found.config.expert_format == "mxfp4"


@pytest.mark.parametrize("tokens", [3, 200])
def test_a_cache(tokens: int, tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "model")
    found = describe(tmp_path / "model")
    seen = [min(tokens, 16), tokens, min(tokens, 16), tokens]
    # keys and values, two heads of 16, two bytes
    assert found.cache(tokens) == sum(seen) * 2 * 2 * 16 * 2


def test_active_parameters_are_those_that_a_gradient_reaches(tmp_path: Path) -> None:
    decoder = Decoder(DENSE)
    decoder.save_pretrained(tmp_path / "model")
    found = describe(tmp_path / "model")
    logits = decoder(torch.tensor([[7]]))
    logits.sum().backward()
    idle = 0
    for name, weight in decoder.named_parameters():
        if name.endswith(("ffn.gate", "ffn.up", "ffn.down")):
            idle += sum(expert.numel() for expert in weight.grad if not expert.any())
    assert found.active == sum(weight.numel() for weight in decoder.parameters()) - idle - 50 * 32
    assert (found.family, found.layout) == ("Mixtral", "Hugging Face")


@pytest.mark.parametrize(
    "config",
    [
        DENSE,
        replace(DENSE, num_experts=None, tied_output=True),
        replace(DENSE, ff_bias=True, sinks=True, attention_bias=True, key_weights=True, window=4),
    ],
)
def test_own_decoders(config: DecoderConfig, tmp_path: Path) -> None:
    decoder = Decoder(config)
    decoder.save_pretrained(tmp_path / "model", layout="glassformer")
    found = describe(tmp_path / "model")
    assert (found.family, found.config) == ("glassformer", config)
    assert found.total == sum(weight.numel() for weight in decoder.parameters())
    attention = sum(w.numel() for name, w in decoder.named_parameters() if ".attention." in name)
    assert found.parameters["attention"] == attention
    inside = sum(w.numel() for name, w in decoder.named_parameters() if ".ffn." in name)
    assert (
        sum(found.parameters.get(part, 0) for part in ("experts", "feed-forward", "router"))
        == inside
    )  # type: ignore[call-overload]
    if config.tied_output:
        assert found.active == found.total


def test_packed_own_decoders(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "theirs")
    Decoder.from_pretrained(tmp_path / "theirs").save_pretrained(
        tmp_path / "own", layout="glassformer"
    )
    theirs = describe(tmp_path / "theirs")
    own = describe(tmp_path / "own")
    assert (own.parameters, own.stored_bytes, own.active) == (
        theirs.parameters,
        theirs.stored_bytes,
        theirs.active,
    )


def test_the_bert_family(tmp_path: Path) -> None:
    form = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    form |= {"intermediate_size": 32}
    for name, config in (("bert", BertConfig(**form)), ("roberta", RobertaConfig(**form))):
        model = AutoModel.from_config(config)
        model.save_pretrained(tmp_path / name)
        found = describe(tmp_path / name)
        assert found.family == "BERT"
        assert found.total == sum(weight.numel() for weight in model.parameters())
        embedded = sum(
            w.numel()
            for n, w in model.named_parameters()
            if "embeddings" in n and "LayerNorm" not in n
        )
        assert found.parameters["embedding"] == embedded
        assert (found.experts, found.memory(2, packed=True), found.cache(100)) == (None, None, 0)


def test_numbers_that_are_not_read_take_room_too(tmp_path: Path) -> None:
    save_encoder(Encoder(EncoderConfig(60, 1, 16, 32, 2)), tmp_path / "model")
    assert "others" not in describe(tmp_path / "model").stored_bytes
    file = tmp_path / "model" / "model.safetensors"
    more = {
        "pooler.a": torch.ones(6, 5).to(torch.float8_e4m3fn),
        "pooler.b": torch.ones(7, dtype=torch.uint16),
    }
    save_file(load_file(file) | more, file)
    assert describe(tmp_path / "model").stored_bytes["others"] == 30 + 14


def test_own_encoders(tmp_path: Path) -> None:
    encoder = Encoder(
        EncoderConfig(
            vocab_size=30, num_layers=1, hidden_dim=16, ff_dim=16, num_heads=2, num_classes=2
        )
    )
    save_encoder(encoder, tmp_path / "model")
    found = describe(tmp_path / "model")
    assert found.total == sum(weight.numel() for weight in encoder.parameters())
    assert found.config == encoder.config


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    Decoder(DENSE).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    for changes, named in (
        ({"intermediate_size": 63}, r"w1\.weight of shape \[64, 32\] instead of \[63, 32\]"),
        (
            {"model_type": "bert", "hidden_act": "relu", "hidden_size": "wide"},
            "hidden_size = 'wide'",
        ),
    ):
        file.write_text(json.dumps(config | changes))
        with refused(named, error=CheckpointError):
            describe(tmp_path / "model")


@pytest.mark.parametrize("pack", get_args(Pack))
@pytest.mark.parametrize(("ff_dim", "fits"), [(64, True), (48, False)])
def test_kinds_that_cannot_hold_the_weights(
    pack: Pack, ff_dim: int, fits: bool, tmp_path: Path
) -> None:
    Decoder(replace(DENSE, num_experts=None, ff_dim=ff_dim)).bfloat16().save_pretrained(
        tmp_path / "model"
    )
    found = describe(tmp_path / "model")
    if fits:
        decoder = Decoder.from_pretrained(tmp_path / "model", pack=pack)
        assert found.memory(2, pack=pack) == held(decoder)
    else:
        with refused(got="a width of 48"):
            Decoder.from_pretrained(tmp_path / "model", pack=pack)
        assert found.memory(2, pack=pack) is None


def test_narrow_experts_cannot_be_packed(tmp_path: Path) -> None:
    Decoder(replace(DENSE, ff_dim=48)).save_pretrained(tmp_path / "model")
    found = describe(tmp_path / "model")
    assert found.memory(2, packed=True) is None
    assert math.isclose(found.memory(2) or 0, 2 * found.total)


@pytest.mark.parametrize("tied", [False, True])
def test_parts_are_those_of_the_decoder_whatever_their_names(tied: bool, tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
    neox = GPTNeoXConfig(**sizes, intermediate_size=64, tie_word_embeddings=tied)
    gpt2 = GPT2Config(**sizes, n_positions=64, tie_word_embeddings=tied)
    for config, positions in ((neox, 0), (gpt2, 64)):
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(tmp_path / "model")
        file = tmp_path / "model" / "model.safetensors"
        # As older versions of transformers wrote them.
        mask = "transformer.h.0.attn.bias" if positions else "gpt_neox.layers.0.attention.bias"
        save_file(
            load_file(file) | {mask: torch.ones(1, 1, 64, 64)}, file, metadata={"format": "pt"}
        )
        found = describe(tmp_path / "model")
        total = sum(weight.numel() for weight in model.parameters())
        assert found.total == total
        assert found.active == (total if tied else total - (50 + positions) * 32)
        assert found.parameters["embedding"] == (50 + positions) * 32
        assert found.parameters["norms"] == 5 * 2 * 32
        assert found.parameters.get("output", 0) == (0 if tied else 50 * 32)
        assert (found.parameters["others"], found.stored_bytes["others"]) == (0, 4 * 64 * 64)
        assert found.parameters.keys() == found.stored_bytes.keys()


@pytest.mark.parametrize("kind", ["BF16", "F16", "Q8_0"])
@pytest.mark.parametrize("experts", [None, 4])
def test_memory_of_gguf_files(kind: str, experts: int | None, tmp_path: Path) -> None:
    config = DecoderConfig(50, 2, 32, 64, 4, 8, num_experts=experts)
    write_gguf(Decoder(config), tmp_path / "model.gguf", kind=kind)
    file = read_gguf(tmp_path / "model.gguf")
    assert describe(file.path).held == held(load_gguf(file))


def test_memory_of_gguf_files_with_packed_experts(tmp_path: Path) -> None:
    config = replace(DENSE, window=4, sinks=True, attention_bias=True, ff_bias=True, clamp=Clamp())
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gpt-oss")
    for key, value in _metadata(GPT_OSS, config).items():
        if key.startswith("gpt-oss."):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    writer.add_uint32("gpt-oss.attention.sliding_window", 4)
    for entry in gguf_entries(GPT_OSS, config, ()):
        for name, shape in entry.shapes().items():
            if "exps.weight" in name:
                blocks = np.zeros((*shape[:-1], shape[-1] // 32 * 17), np.uint8)
                writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            else:
                writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "model.gguf")
    found = describe(file.path)
    decoder = load_gguf(file)
    assert (found.held, found.experts) == (held(decoder), "mxfp4")
