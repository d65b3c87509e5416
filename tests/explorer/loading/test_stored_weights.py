"""Stored weights are read when they are wanted, in float32, and only where they fit."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glassformer.data.recurrence import RecurrenceConfig
from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.discovery import stored_entry
from glassformer.explorer.loading.stored_models import Place, filled, run_weights, stamp_of
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.training import TrainingConfig
from glassformer.training.checkpoint import save_weights
from refusals import refused

CONFIG = DecoderConfig(7, num_layers=2, hidden_dim=8, ff_dim=8, num_heads=2, head_dim=4)
RULE = {"kind": "recurrence", **asdict(RecurrenceConfig(order=2, vocab_size=7))}


def _decoder(seed: int) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(CONFIG).eval()


def _run(path: Path, network: torch.nn.Module, where: str = "best", **description: Any) -> Path:
    (path / where).mkdir(parents=True, exist_ok=True)
    save_weights(network, path / where)
    told = {"training": asdict(TrainingConfig()), "description": description}
    (path / "config.json").write_text(json.dumps(told))
    return path


def _explorer(path: Path) -> Backend:
    entry = stored_entry(Place(path, "it", "it"))
    return Backend([entry])


def _likeliest(backend: Backend) -> float:
    answer = backend.answer("run", m.Ask(model="it", text="1 2 3"))
    return answer.said.classes[0][1]


def _expected(model: Decoder) -> float:
    with torch.no_grad():
        return float(model(torch.tensor([[1, 2, 3]]))[0, -1].double().softmax(-1).max())


def test_a_run_that_trains_on_is_read_anew(tmp_path: Path) -> None:
    """Its checkpoint of the listing goes, a best model comes, and then a better one."""
    first, second, third = (_decoder(seed) for seed in range(3))
    run = _run(tmp_path / "run", first, "checkpoints/step-00000010", model=asdict(CONFIG), data=RULE)
    backend, later = _explorer(run), _explorer(run)
    assert _likeliest(backend) == pytest.approx(_expected(first))
    _run(run, second, "best", model=asdict(CONFIG), data=RULE)
    shutil.rmtree(run / "checkpoints")
    assert _likeliest(backend) == _likeliest(later) == pytest.approx(_expected(second))
    _run(run, third, "draft", model=asdict(CONFIG), data=RULE)
    shutil.rmtree(run / "best")
    assert _likeliest(backend) == pytest.approx(_expected(second))  # in between it stays as it was read
    (run / "draft").rename(run / "best")
    assert _likeliest(backend) == pytest.approx(_expected(third))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_widths(tmp_path: Path, dtype: torch.dtype) -> None:
    run = _run(tmp_path / "run", _decoder(0), model=asdict(CONFIG), data=RULE)
    file = run / "best" / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)
    wanted = _decoder(0)
    wanted.load_state_dict({name: tensor.to(dtype).float() for name, tensor in wanted.state_dict().items()})
    assert _likeliest(_explorer(run)) == pytest.approx(_expected(wanted))


def test_tables_that_are_shared_are_stored_once(tmp_path: Path) -> None:
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_source_len": 8, "max_target_len": 8}

    def build() -> EncoderDecoder:
        model = EncoderDecoder(EncoderDecoderConfig(9, hidden_dim=8, ff_dim=8, num_heads=2, **sizes))
        model.output.weight = model.target_embedding.weight
        return model

    torch.manual_seed(0)
    model = build()
    found = filled(_run(tmp_path / "run", model), build, 2)
    assert found.output.weight is found.target_embedding.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


SIZES: dict[str, Any] = {"hidden_dim": 8, "ff_dim": 8, "num_heads": 2, "head_dim": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 10**9}, "1,000,000,000 layers, but"),
        ({"num_layers": 3}, "missing layers.2"),
        ({"num_layers": 1}, "unknown layers.1"),
        ({"ff_dim": 10**9}, "instead of"),
        ({"num_experts": 10**9}, "unknown|missing"),
        ({"vocab_size": 10**9}, "instead of"),
    ],
)
def test_a_configuration_of_another_model_is_refused_before_it_is_made(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    run = _run(tmp_path / "run", _decoder(0), model=asdict(CONFIG) | change, data=RULE)
    backend = _explorer(run)
    with refused(message):
        backend.model("it")


def test_a_model_that_memory_cannot_hold_is_refused(tmp_path: Path) -> None:
    def build() -> Decoder:
        torch.empty(2**61, dtype=torch.float64)
        return _decoder(0)

    with refused("cannot be built"):
        filled(_run(tmp_path / "run", _decoder(0)), build, 2)


def test_the_stamp_follows_the_files(tmp_path: Path) -> None:
    assert stamp_of(tmp_path) is None
    run = _run(tmp_path / "run", _decoder(0), "checkpoints/step-00000010")
    stamps = [stamp_of(run)]
    assert stamp_of(run) == stamps[0]
    _run(run, _decoder(0), "best")
    stamps.append(stamp_of(run))
    os.utime(run / "best" / "model.safetensors", ns=(1, 1))
    stamps.append(stamp_of(run))
    shutil.copy(run / "best" / "model.safetensors", run)
    stamps.append(stamp_of(run))
    assert len(set(stamps)) == 4
    assert run_weights(run) == run / "best"
