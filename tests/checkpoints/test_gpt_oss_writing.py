from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from glassformer.checkpoints.gpt_oss_config import read_gpt_oss_config
from glassformer.checkpoints.gpt_oss_layouts import Matrix
from glassformer.checkpoints.gpt_oss_writing import PlannedExperts, PlannedModel, write_gpt_oss, write_openai_config
from glassformer.checkpoints.random_gpt_oss import GPT_OSS_TINY
from glassformer.checkpoints.shards import Planned, plan
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import Decoder
from refusals import refused

CONFIG = replace(
    GPT_OSS_TINY,
    vocab_size=11,
    num_layers=1,
    hidden_dim=32,
    num_heads=4,
    head_dim=8,
    window=5,
    num_experts=3,
    top_k=2,
    expert_format="dense",
)


def model() -> tuple[PlannedModel, dict[str, Tensor]]:
    """A decoder's weights, and as a model to write."""
    decoder = Decoder(CONFIG)
    state = {name: torch.randn_like(tensor) for name, tensor in decoder.state_dict().items()}
    ffn = "layers.0.ffn."
    both = {
        "gate_up": torch.stack([state[ffn + "gate"], state[ffn + "up"]], 2).flatten(1, 2),
        "gate_up_bias": torch.stack([state[ffn + "gate_bias"], state[ffn + "up_bias"]], 2).flatten(1),
    }
    dense = [
        Planned(list(each.shape), each.dtype, lambda each=each: iter(each))
        for each in (both["gate_up"], state[ffn + "down"])
    ]
    experts: dict[Matrix, PlannedExperts] = {
        "gate_up": PlannedExperts((dense[0],), plan(both["gate_up_bias"])),
        "down": PlannedExperts((dense[1],), plan(state[ffn + "down_bias"])),
    }
    others = {name: plan(tensor) for name, tensor in state.items() if "ffn." not in name or "router" in name}
    return PlannedModel(CONFIG, others, [experts]), {**state, **{ffn + name: tensor for name, tensor in both.items()}}


def test_openai_has_query_key_and_value_in_one(tmp_path: Path) -> None:
    planned, state = model()
    write_gpt_oss(planned, tmp_path / "out", "openai")
    written = load_file(tmp_path / "out" / "model.safetensors")
    attention = "layers.0.attention."
    for end in ("weight", "bias"):
        rows = torch.cat([state[f"{attention}{name}.{end}"] for name in ("query", "key", "value")])
        assert torch.equal(written[f"block.0.attn.qkv.{end}"], rows)
    assert torch.equal(written["block.0.mlp.mlp1_weight"], state["layers.0.ffn.gate_up"])
    assert torch.equal(written["unembedding.weight"], state["output.weight"])


def test_hugging_face_has_experts_transposed(tmp_path: Path) -> None:
    planned, state = model()
    size, content = write_gpt_oss(planned, tmp_path / "out", "huggingface", shard_bytes=10_000)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    written = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert len(files) > 1
    assert content == json.loads((tmp_path / "out" / "config.json").read_text())
    assert size == sum(tensor.nbytes for tensor in written.values())
    moe = "model.layers.0.mlp.experts."
    assert torch.equal(written[f"{moe}gate_up_proj"], state["layers.0.ffn.gate_up"].mT)
    assert torch.equal(written[f"{moe}down_proj"], state["layers.0.ffn.down"].mT)
    assert torch.equal(written[f"{moe}down_proj_bias"], state["layers.0.ffn.down_bias"])
    assert torch.equal(written["model.layers.0.self_attn.k_proj.weight"], state["layers.0.attention.key.weight"])


@pytest.mark.parametrize("layout", ["huggingface", "openai"])
def test_what_is_written_is_read(layout: Any, tmp_path: Path) -> None:
    planned, state = model()
    write_gpt_oss(planned, tmp_path / "out", layout)
    for name, tensor in Decoder.from_pretrained(tmp_path / "out").state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_files_beside_and_settings_are_kept(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    planned, _ = model()
    extras = {"eos_token_id": 3, "hidden_size": 7}
    write_gpt_oss(planned, tmp_path / "out", "huggingface", extras=extras, beside=[tmp_path / "tokenizer.json"])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["eos_token_id"], config["hidden_size"]) == (3, 32)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    planned, _ = model()

    def fails() -> Iterator[Tensor]:
        raise OSError("the disk is gone")

    broken = replace(planned, weights={**planned.weights, "output.weight": Planned([11, 32], torch.float32, fails)})
    with pytest.raises(OSError, match="gone"):
        write_gpt_oss(broken, tmp_path / "out", "openai")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_noticed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * 10**9))
    planned, _ = model()
    huge = replace(planned, weights={**planned.weights, "output.weight": Planned([2 * 10**9], torch.float32, list)})
    with refused(r"where 3\.0 GB are free", expected=r"room for 8\.0 GB"):
        write_gpt_oss(huge, tmp_path / "new" / "out", "openai")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=50, deadline=None)
@given(
    yarn=st.none() | st.builds(Yarn, st.integers(2, 64).map(float), st.integers(1, 10**4)),
    window=st.none() | st.integers(1, 500),
    limit=st.floats(0.5, 50),
    kv=st.sampled_from([1, 2, 4]),
    experts=st.integers(2, 200),
)
def test_openais_configuration_is_read_back(
    yarn: Yarn | None, window: int | None, limit: float, kv: int, experts: int
) -> None:
    length = 777 if yarn is None else int(yarn.factor * yarn.original_max_seq_len)
    config = replace(
        CONFIG,
        rope_scaling=yarn,
        window=window,
        clamp=Clamp(limit=limit),
        num_kv_heads=kv,
        num_experts=experts,
        max_seq_len=length,
    )
    assert read_gpt_oss_config(write_openai_config(config), "openai", Path("config.json")) == config


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sinks": False, "norm_eps": 1e-6}, r"no sinks, norm_eps = 1e-06"),
        ({"ff_bias": False}, "no biases"),
        ({"clamp": None}, "another SwiGLU"),
        ({"clamp": Clamp(alpha=1.0)}, "another SwiGLU"),
        ({"windowed_layers": "odd"}, "windows on other layers"),
        ({"tied_output": True}, "tied"),
        ({"key_weights": True}, "key weights"),
        ({"num_experts": None}, "no experts"),
        ({"rope_layout": "interleaved"}, "interleaved"),
        ({"rope_scaling": Yarn(truncate=True)}, "rounded borders"),
    ],
)
def test_what_openais_configuration_cannot_tell(changes: dict[str, Any], named: str) -> None:
    with refused(named):
        write_openai_config(replace(CONFIG, **changes))
