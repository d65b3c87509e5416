from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.checkpoints import assembly
from glassformer.checkpoints.assembly import (
    check_sizes,
    config_errors,
    empty_decoder,
    fill,
    machine_memory,
    require_memory,
)
from glassformer.checkpoints.tensor_files import StoredTensor
from glassformer.errors import CheckpointError, InputError
from glassformer.layers.options import Yarn
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

CPU, HERE = torch.device("cpu"), Path("here")
CONFIG = DecoderConfig(
    vocab_size=20, num_layers=2, hidden_dim=32, ff_dim=32, num_heads=2, head_dim=8, num_experts=4, rope_scaling=Yarn()
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
    assert all(tensor.data_ptr() == state[name].data_ptr() for name, tensor in filled.named_parameters())
    assert (filled.output.weight is filled.embedding.weight) == decoder.config.tied_output
    tokens = torch.randint(20, (1, 30))
    with torch.no_grad():
        assert torch.equal(filled(tokens), decoder(tokens))


def test_an_empty_decoder_needs_no_compiler() -> None:
    code = (
        "import sys; from glassformer.checkpoints.assembly import empty_decoder; "
        "from glassformer.models import DecoderConfig; "
        "sizes = dict(vocab_size=9, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=1, head_dim=8, num_experts=4); "
        "empty_decoder(DecoderConfig(**sizes)); "
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 4}, "num_layers = 4 with 3 tensors"),
        ({"num_experts": 13}, "num_experts = 13 with tensors of 12 numbers"),
        ({"head_dim": 2**12}, "head_dim = 4096"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_belong_to_the_files_is_refused(change: dict[str, Any], message: str) -> None:
    stored = {name: StoredTensor(HERE, name, [3, 4], "F32") for name in "abc"}
    check_sizes(CONFIG, stored, HERE)
    with refused(rf"here.config\.json with {message}", error=CheckpointError):
        check_sizes(dataclasses.replace(CONFIG, **change), stored, HERE)


@pytest.mark.parametrize(
    ("count", "change", "message"),
    [
        (
            5000,
            {"num_layers": 600},
            "num_layers = 600 and num_experts = 4, which take at least 5400 tensors, with 5000",
        ),
        (51, {"num_experts": 10_000}, "num_layers = 2 and num_experts = 10000, which take at least 60014 tensors"),
    ],
)
def test_more_tensors_than_there_are_are_not_named(count: int, change: dict[str, Any], message: str) -> None:
    stored = {str(name): StoredTensor(HERE, str(name), [100, 100], "U8") for name in range(count)}
    check_sizes(CONFIG, stored, HERE)
    of_layer = 7 + 3 * change["num_experts"] if "num_experts" in change else 9  # a tensor for each expert and matrix
    with refused(message, error=CheckpointError):
        check_sizes(dataclasses.replace(CONFIG, **change), stored, HERE, of_layer)


def test_a_model_of_few_tensors_may_lack_many_of_them() -> None:
    """What is missing is then named."""
    stored = {str(name): StoredTensor(HERE, str(name), [9], "F32") for name in range(30)}
    check_sizes(dataclasses.replace(CONFIG, num_layers=24), stored, HERE)


def test_sizes_beyond_all_numbers_are_refused() -> None:
    with refused("sizes too large for a decoder"):
        empty_decoder(dataclasses.replace(CONFIG, hidden_dim=2**40, vocab_size=2**40))


def test_more_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = empty_decoder(CONFIG)
    needed = sum(weight.nbytes for weight in decoder.parameters())
    pages = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": needed}
    monkeypatch.setattr(assembly.os, "sysconf", pages.__getitem__)
    require_memory(decoder, torch.device("cpu"), HERE)
    pages["SC_PHYS_PAGES"] = needed - 1
    require_memory(decoder, torch.device("cuda"), HERE)  # says so itself
    with refused(r"here, whose weights take 0\.0 GiB", error=CheckpointError):
        require_memory(decoder, torch.device("cpu"), HERE)
    for unknown in ({"SC_PAGE_SIZE": 1}, None):
        if unknown is None:
            monkeypatch.delattr(assembly.os, "sysconf_names")
        else:
            monkeypatch.setattr(assembly.os, "sysconf_names", unknown)
        assert machine_memory() is None
        require_memory(decoder, torch.device("cpu"), HERE)  # nobody knows


def test_faults_of_a_configuration_are_told_with_its_file() -> None:
    with (
        refused("^here with num_layers = 0$", fix="Pass", error=CheckpointError) as told,
        config_errors(HERE),
    ):
        dataclasses.replace(CONFIG, num_layers=0)
    assert type(told.value.__cause__) is InputError
    for value in ("wide", None, [1], math.inf, True):
        with refused("here with norm_eps = ", error=CheckpointError), config_errors(HERE):
            dataclasses.replace(CONFIG, norm_eps=value)  # type: ignore[arg-type]
    with refused("^there$", error=CheckpointError), config_errors(HERE):
        raise CheckpointError("there", "elsewhere", "Go.")
