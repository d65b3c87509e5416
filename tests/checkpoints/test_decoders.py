import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from glassformer.checkpoints.decoders import load_decoder, read_decoder_config, save_decoder
from glassformer.errors import CheckpointError
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

FORM = DecoderConfig(
    vocab_size=40,
    num_layers=2,
    hidden_dim=32,
    ff_dim=32,
    num_heads=4,
    head_dim=8,
    num_kv_heads=2,
    num_experts=4,
)
PARTS: dict[str, Any] = {"sinks": True, "attention_bias": True, "ff_bias": True, "clamp": Clamp()}
GPT_OSS = dataclasses.replace(FORM, window=8, windowed_layers="even", rope_scaling=Yarn(), **PARTS)
TOKENS = torch.randint(40, (2, 30))


def same(one: Decoder, other: Decoder) -> bool:
    state = other.state_dict()
    return one.config == other.config and all(
        tensor.dtype == state[name].dtype and torch.equal(tensor, state[name])
        for name, tensor in one.state_dict().items()
    )


def edit(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "config",
    [
        FORM,
        dataclasses.replace(FORM, num_experts=None, tied_output=True, dropout=0.5),
        dataclasses.replace(
            FORM, key_weights=True, window=8, rope_layout="interleaved", balance_experts=True
        ),
        GPT_OSS,
        dataclasses.replace(GPT_OSS, expert_format="mxfp4"),
        dataclasses.replace(FORM, expert_format="mxfp4"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_own_layout_keeps_everything(
    tmp_path: Path, config: DecoderConfig, dtype: torch.dtype
) -> None:
    decoder = Decoder(config).to(dtype)
    decoder.save_pretrained(tmp_path / "own", layout="glassformer", shard_bytes=3000)
    assert len(list((tmp_path / "own").glob("*.safetensors"))) > 1
    read = Decoder.from_pretrained(str(tmp_path / "own"))
    assert same(read, decoder)
    assert (read.output.weight is read.embedding.weight) == config.tied_output
    # without dropout, as transformers gives it
    assert torch.equal(read(TOKENS), decoder.eval()(TOKENS))


@pytest.mark.parametrize(
    "change",
    [{}, {"num_experts": None}, {"window": 9, "windowed_layers": "all"}, {"tied_output": True}],
)
def test_without_a_layout_a_family_is_written_where_it_can_be(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    decoder = Decoder(dataclasses.replace(FORM, **change)).eval()
    save_decoder(decoder, tmp_path / "there")
    model, told = AutoModelForCausalLM.from_pretrained(
        tmp_path / "there", output_loading_info=True, dtype="auto"
    )
    assert type(model) is (MixtralForCausalLM if decoder.config.num_experts else LlamaForCausalLM)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    read = load_decoder(tmp_path / "there").eval()
    with torch.no_grad():
        for logits in (model.eval()(TOKENS).logits, read(TOKENS)):
            assert (logits - decoder(TOKENS)).abs().max() <= 1e-5


def test_without_a_layout_the_first_family_with_exactly_its_parts_is_written(
    tmp_path: Path,
) -> None:
    for number, (config, model_type) in enumerate(
        (
            (GPT_OSS, "gpt_oss"),
            (dataclasses.replace(FORM, window=4), "glassformer-decoder"),
            (dataclasses.replace(FORM, key_weights=True), "glassformer-decoder"),
            (dataclasses.replace(FORM, rope_layout="interleaved"), "glassformer-decoder"),
        )
    ):
        save_decoder(Decoder(config), tmp_path / f"model-{number}")
        assert (
            json.loads((tmp_path / f"model-{number}" / "config.json").read_text())["model_type"]
            == model_type
        )
    # Where every layer has the window, or none, however the configuration says it, Mixtral
    # expresses it.
    for number, change in enumerate(
        ({"window": 4, "windowed_layers": (0, 1)}, {"window": 4, "windowed_layers": ()})
    ):
        decoder = Decoder(dataclasses.replace(FORM, **change))
        decoder.save_pretrained(tmp_path / str(number))
        written = json.loads((tmp_path / str(number) / "config.json").read_text())
        assert (written["model_type"], written["sliding_window"]) == (
            "mixtral",
            decoder.config.layer_window(0),
        )


def test_mixtral_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    decoder = Decoder(FORM)
    save_decoder(decoder, tmp_path / "there", layout="mixtral", shard_bytes=20_000)
    read = load_decoder(tmp_path / "there")
    assert dataclasses.replace(read.config, windowed_layers=FORM.windowed_layers) == FORM
    assert all(
        torch.equal(weight, decoder.state_dict()[name])
        for name, weight in read.state_dict().items()
    )
    assert (
        load_decoder(tmp_path / "there", dtype=torch.bfloat16).output.weight.dtype == torch.bfloat16
    )


@pytest.mark.parametrize("windowed", [(), (0,), (1, 2), (0, 3)])
def test_layer_types_of_mixtral_are_ignored_as_by_hugging_face(
    windowed: tuple[int, ...], tmp_path: Path
) -> None:
    """Its MixtralForCausalLM gives every layer the window, whatever ``layer_types`` says."""
    decoder = Decoder(
        dataclasses.replace(FORM, num_layers=4, window=4, windowed_layers="all")
    ).eval()
    save_decoder(decoder, tmp_path / "there", layout="mixtral")
    edit(
        tmp_path / "there",
        layer_types=[f"{'sliding' if at in windowed else 'full'}_attention" for at in range(4)],
    )
    read = load_decoder(tmp_path / "there").eval()
    peer = MixtralForCausalLM.from_pretrained(tmp_path / "there").eval()
    with torch.no_grad():
        for logits in (read(TOKENS), peer(TOKENS).logits):
            assert (logits - decoder(TOKENS)).abs().max() <= 1e-5
    assert (read.config.window, read.config.windowed_layers) == (4, "all")


def test_defaults_of_mixtral_are_hugging_faces(tmp_path: Path) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    short = sizes | {"num_attention_heads": 4, "num_key_value_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral", **short}))
    read = read_decoder_config(tmp_path)
    theirs = MixtralConfig(**short)
    assert read.max_seq_len == theirs.max_position_embeddings
    assert read.norm_eps == theirs.rms_norm_eps
    assert read.rope_base == theirs.rope_parameters["rope_theta"]
    assert (read.num_experts, read.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (read.window, read.dropout, read.tied_output) == (
        None,
        theirs.attention_dropout,
        theirs.tie_word_embeddings,
    )
    assert read.head_dim == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_format": "mxfp4"}, "expert_format = 'mxfp4'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"rope_scaling": Yarn()}, "rope_type = 'yarn'"),
        ({"window": 4, "windowed_layers": "odd"}, "windowed_layers = 'odd'"),
        ({"ff_dim": 0, "num_experts": None}, "num_local_experts = None"),
        ({"num_experts": None}, "num_local_experts = None"),
        (
            {"sinks": True, "ff_bias": True, "clamp": Clamp()},
            "sinks = True, ff_bias = True, clamp = Clamp",
        ),
    ],
)
def test_decoders_that_mixtral_cannot_express_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with refused(message):
        save_decoder(
            Decoder(dataclasses.replace(FORM, **change)), tmp_path / "there", layout="mixtral"
        )


@pytest.mark.parametrize("layout", ["gpt_oss", "mixtral", "glassformer"])
def test_faults_of_the_tensors_are_all_named(tmp_path: Path, layout: str) -> None:
    save_decoder(
        Decoder(FORM if layout == "mixtral" else GPT_OSS), tmp_path / "there", layout=layout
    )
    file = tmp_path / "there" / "model.safetensors"
    tensors = load_file(file)
    names = sorted(tensors)
    tensors[names[0]] = torch.zeros(1, 1, 1)
    tensors[names[1]] = tensors[names[1]].to(torch.int32)
    del tensors[names[2]]
    save_file({**tensors, "more": torch.zeros(2)}, file)
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path / "there")
    for part in (
        f"missing {names[2]}",
        "unknown more in",
        f"{names[0]} of shape [1, 1, 1]",
        f"{names[1]} of kind I32",
    ):
        assert part in caught.value.got
    assert str(tmp_path / "there") in caught.value.got


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        ("mixtral", {"model_type": None}, "model_type None"),
        ("mixtral", {"num_local_experts": 10**9}, "num_experts = 1000000000"),
        ("mixtral", {"head_dim": 10**6}, "head_dim = 1000000"),
        ("glassformer", {"num_layers": 0}, "num_layers = 0"),
        ("glassformer", {"num_layers": 10**9}, "num_layers = 1000000000"),
        (
            "glassformer",
            {"hidden_dim": 2**60, "vocab_size": 2**60},
            "sizes too large for a decoder",
        ),
        ("glassformer", {"hidden_dim": 64}, r"of shape \[40, 32\] instead of \[40, 64\]"),
        ("glassformer", {"rope_base": "wide"}, "rope_base = 'wide'"),
        ("glassformer", {"rope_base": float("inf")}, "rope_base = inf"),
        ("glassformer", {"clamp": {"limit": 7, "beta": 1}}, "beta"),
    ],
)
def test_configurations_that_are_refused(
    tmp_path: Path, layout: Any, change: dict[str, Any], message: str
) -> None:
    save_decoder(Decoder(FORM), tmp_path / "there", layout=layout)
    edit(tmp_path / "there", **change)
    with refused(message, error=CheckpointError) as caught:
        load_decoder(tmp_path / "there")
    assert "config.json" in str(caught.value) or "model.safetensors" in str(caught.value)


@pytest.mark.parametrize("layout", ["gpt_oss", "mixtral", "glassformer"])
def test_experts_are_packed_and_expanded_when_asked_for(tmp_path: Path, layout: Any) -> None:
    form = FORM if layout == "mixtral" else GPT_OSS
    save_decoder(Decoder(form), tmp_path / "dense", layout=layout)
    packed = load_decoder(tmp_path / "dense", experts="mxfp4")
    assert packed.config.expert_format == "mxfp4"
    assert load_decoder(tmp_path / "dense", experts="dense").config.expert_format == "dense"
    save_decoder(
        packed, tmp_path / "packed", layout="glassformer" if layout == "mixtral" else layout
    )
    dense = load_decoder(tmp_path / "packed", experts="dense")
    assert dense.config.expert_format == "dense"
    assert same(load_decoder(tmp_path / "packed"), packed)
    with torch.no_grad():
        assert (dense.eval()(TOKENS) - packed.eval()(TOKENS)).abs().max() <= 1e-4


def test_a_network_without_experts_cannot_be_packed(tmp_path: Path) -> None:
    save_decoder(
        Decoder(dataclasses.replace(FORM, num_experts=None)), tmp_path / "own", layout="glassformer"
    )
    with refused("expert_format = 'mxfp4' with num_experts = None"):
        load_decoder(tmp_path / "own", experts="mxfp4")


def test_options_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with refused("experts = 'int4'"):
        load_decoder(tmp_path, experts="int4")
    with refused("layout = 'gguf'"):
        save_decoder(Decoder(FORM), tmp_path / "x", layout="gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["nonsense", "cuda:99"])
def test_devices_that_do_not_exist_are_refused(wrong: str, tmp_path: Path) -> None:
    save_decoder(Decoder(FORM), tmp_path / "x")
    with refused(f"device = '{wrong}'", fix="Use 'cpu'"):
        Decoder.from_pretrained(tmp_path / "x", device=wrong)


@pytest.mark.parametrize("layout", ["gpt_oss", "mixtral", "glassformer"])
@pytest.mark.parametrize("experts", [None, "dense", "mxfp4"])
def test_on_the_meta_device_there_are_shapes_alone(
    layout: Any, experts: Any, tmp_path: Path
) -> None:
    form = FORM if layout == "mixtral" else GPT_OSS
    save_decoder(Decoder(dataclasses.replace(form, ff_dim=64)), tmp_path / "x", layout=layout)
    there, here = (
        load_decoder(tmp_path / "x", experts=experts, device=place) for place in ("meta", "cpu")
    )
    assert all(tensor.is_meta for tensor in there.state_dict().values())
    shapes = [
        {name: tensor.shape for name, tensor in each.state_dict().items()} for each in (there, here)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("layout", ["gpt_oss", "mixtral", "glassformer"])
def test_a_configuration_is_read_as_the_decoder_has_it(layout: Any, tmp_path: Path) -> None:
    save_decoder(Decoder(FORM if layout == "mixtral" else GPT_OSS), tmp_path / "x", layout=layout)
    assert read_decoder_config(tmp_path / "x") == load_decoder(tmp_path / "x").config


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"model_type": "gpt_oss"}, 201088),
        ({"num_experts": 4, "experts_per_token": 2, "num_hidden_layers": 1}, 201088),
        ({"model_type": "mixtral"}, 32000),
    ],
)
def test_a_configuration_without_vocabulary_has_its_owners(
    said: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert read_decoder_config(tmp_path).vocab_size == expected


def test_a_directory_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder(GPT_OSS)
    save_decoder(decoder, tmp_path / "there")
    with refused("exists already"):
        save_decoder(decoder, tmp_path / "there")
    before = (tmp_path / "there" / "model.safetensors").read_bytes()
    dies = Mock(side_effect=OSError("the disk is full"))
    monkeypatch.setattr("glassformer.checkpoints.decoders.write_tensors", dies)
    with pytest.raises(OSError, match="the disk is full"):
        save_decoder(Decoder(GPT_OSS), tmp_path / "there", replace=True)
    assert (tmp_path / "there" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
