import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassformer.checkpoints import assembly
from glassformer.checkpoints.assembly import (
    check_sizes,
    empty_decoder,
    fill,
    require_memory,
    require_room,
)
from glassformer.checkpoints.tensor_files import FileTensor, WeightFile
from glassformer.errors import CheckpointError
from glassformer.layers.options import Yarn
from glassformer.memory import Memory
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

CPU = torch.device("cpu")
HERE = Path("here")
CONFIG = DecoderConfig(
    vocab_size=20,
    num_layers=2,
    hidden_dim=32,
    ff_dim=32,
    num_heads=2,
    head_dim=8,
    num_experts=4,
    rope_scaling=Yarn(),
)


@pytest.mark.parametrize("change", [{}, {"tied_output": True}, {"expert_format": "mxfp4"}])
def test_an_empty_decoder_that_is_filled_is_the_one_it_was(change: dict[str, Any]) -> None:
    decoder = Decoder(dataclasses.replace(CONFIG, **change))
    empty = empty_decoder(decoder.config)
    assert all(weight.is_meta for weight in empty.parameters())
    state = decoder.state_dict()
    if change.get("tied_output"):
        del state["output.weight"]
    filled = fill(empty, state)
    assert not any(tensor.is_meta for tensor in (*filled.parameters(), *filled.buffers()))
    assert all(
        tensor.data_ptr() == state[name].data_ptr() for name, tensor in filled.named_parameters()
    )
    assert (filled.output.weight is filled.embedding.weight) == decoder.config.tied_output
    tokens = torch.randint(20, (1, 30))
    with torch.no_grad():
        assert torch.equal(filled(tokens), decoder(tokens))


@pytest.mark.parametrize(
    ("count", "change", "message"),
    [
        (
            5000,
            {"num_layers": 600},
            "num_layers = 600 and num_experts = 4, which take at least 5400 tensors, with 5000",
        ),
        (
            51,
            {"num_experts": 10_000},
            "num_layers = 2 and num_experts = 10000, which take at least 60014 tensors",
        ),
    ],
)
def test_more_tensors_than_there_are_are_not_named(
    count: int, change: dict[str, Any], message: str
) -> None:
    stored = {
        str(name): FileTensor(WeightFile((HERE,)), str(name), [100, 100], "U8")
        for name in range(count)
    }
    check_sizes(CONFIG, stored, HERE)
    # a tensor for each expert and matrix
    of_layer = 7 + 3 * change["num_experts"] if "num_experts" in change else 9
    with refused(message, error=CheckpointError):
        check_sizes(dataclasses.replace(CONFIG, **change), stored, HERE, of_layer)


def test_more_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = empty_decoder(CONFIG)
    needed = sum(weight.nbytes for weight in decoder.parameters())
    memory = {"total": needed, "free": 0, "with_swap": needed}
    monkeypatch.setattr(assembly, "process_memory", lambda: Memory(**memory))
    require_memory(decoder, torch.device("cpu"), HERE)
    memory["with_swap"] = needed - 1
    require_memory(decoder, torch.device("cuda"), HERE)  # says so itself
    with refused(r"here, whose weights take [0-9.]+ k?B", error=CheckpointError):
        require_memory(decoder, torch.device("cpu"), HERE)
    memory |= {"total": needed - 1, "with_swap": None}
    with refused(r"here, whose weights take [0-9.]+ k?B", error=CheckpointError):
        require_memory(decoder, torch.device("cpu"), HERE)
    memory["total"] = None
    require_memory(decoder, torch.device("cpu"), HERE)  # nobody knows


def test_a_full_disk_is_refused_with_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=60_000_000))
    with refused(
        "where 60.0 MB are free", expected="room for 78.6 MB"
    ):  # the weights, and 64 MiB that stay free
        require_room(tmp_path / "new", 11_500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=80_000_000))
    require_room(tmp_path / "new", 11_500_000)
