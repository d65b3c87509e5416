from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glassformer.cli.runs import description, find_trained
from glassformer.labs.gpt_oss import Transformer
from glassformer.models import Decoder, DecoderConfig
from glassformer.training import TrainingConfig
from glassformer.training.checkpoint import save_weights
from refusals import refused

COURSE = {"vocab_size": 20, "n_layers": 2, "hidden_dim": 16, "ff_dim": 24, "num_heads": 2, "head_dim": 8}
WINDOWED = {"use_sliding_window_alternating": True, "window_size": 3, "use_moe": True, "num_experts": 4}


def begun(directory: Path, described: object) -> Path:
    """A run with a configuration and no weights."""
    directory.mkdir(exist_ok=True)
    text = f'{{"training": {TrainingConfig().to_json()}, "description": {json.dumps(described)}}}'
    (directory / "config.json").write_text(text)
    return directory


def kept(model: Decoder, place: Path) -> None:
    place.mkdir(parents=True)
    save_weights(model, place)


@pytest.fixture(params=["course", "own"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Decoder]:
    """A run of either kind with a best model and a checkpoint of another."""
    model: Decoder
    make: Callable[[], Decoder]
    if request.param == "course":
        described: object = {"model": COURSE | WINDOWED, "fresh": True, "seed": 0}
        make = lambda: Transformer(**COURSE, **WINDOWED).decoder()  # noqa: E731
    else:
        config = DecoderConfig(9, num_layers=1, hidden_dim=16, ff_dim=8, num_heads=2, head_dim=8, sinks=True)
        described = description(config, {"kind": "recurrence"})
        make = lambda: Decoder(config)  # noqa: E731
    directory, model = begun(tmp_path / "run", described), make()
    kept(model, directory / "best")
    kept(make(), directory / "checkpoints" / "step-00000010")
    return directory, model


def test_the_best_model_is_found(run: tuple[Path, Decoder]) -> None:
    directory, model = run
    found = find_trained(directory)
    assert found is not None
    assert found.config == model.config
    tokens = torch.randint(9, (2, 12))
    assert torch.equal(found.load().eval()(tokens), model.eval()(tokens))


def test_before_the_first_evaluation_the_last_checkpoint_counts(run: tuple[Path, Decoder]) -> None:
    directory, model = run
    shutil.rmtree(directory / "best")
    kept(model, directory / "checkpoints" / "step-00000020")
    found = find_trained(directory)
    assert found is not None
    assert found.weights.name == "step-00000020"


def test_other_directories_are_no_runs(tmp_path: Path) -> None:
    assert find_trained(tmp_path) is None
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    assert find_trained(tmp_path) is None


def test_a_run_without_weights_says_so(tmp_path: Path) -> None:
    with refused("without weights yet"):
        find_trained(begun(tmp_path, {"model": COURSE}))


@pytest.mark.parametrize(
    "described", [{}, [], None, {"model": {"n_layers": 2}}, {"model": {**COURSE, "depth": 3}}, {"model": {"a": 1}}]
)
def test_runs_of_something_else_are_refused(described: object, tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    with refused(r"config\.json, which describes no decoder"):
        find_trained(begun(tmp_path, described))
