import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glassformer import load
from glassformer.checkpoints.decoders import load_decoder
from glassformer.cli.runs import read_run
from glassformer.errors import CheckpointError
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import Decoder, DecoderConfig
from glassformer.training import TrainingConfig
from glassformer.training.checkpoint import save_weights
from refusals import refused

MODEL = DecoderConfig(
    20, 1, 8, ff_dim=8, num_heads=1, head_dim=8, clamp=Clamp(), rope_scaling=Yarn()
)
TRAINING = TrainingConfig(steps=5, betas=(0.5, 0.9))
DESCRIBED = {"model": json.loads(MODEL.to_json()), "data": {"kind": "recurrence"}}


def begun(directory: Path, described: object) -> Path:
    """A run with a configuration and no weights."""
    text = f'{{"training": {TRAINING.to_json()}, "description": {json.dumps(described)}}}'
    (directory / "config.json").write_text(text)
    return directory


def kept(model: Decoder, place: Path) -> None:
    place.mkdir(parents=True)
    save_weights(model, place)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    stored = read_run(begun(tmp_path, DESCRIBED | {"seed": 3}))
    assert (stored.model, stored.training) == (MODEL, TRAINING)
    assert (stored.data, stored.options) == ({"kind": "recurrence"}, {"seed": 3})


def test_the_best_model_is_loaded_and_before_it_the_last_checkpoint(tmp_path: Path) -> None:
    models = [Decoder(MODEL) for _ in range(3)]
    begun(tmp_path, DESCRIBED)
    with refused("without weights yet", fix=r"glassformer train --run .* --resume"):
        load(tmp_path)
    for model, place in zip(
        models, ("best", "checkpoints/step-00000010", "checkpoints/step-00000020"), strict=True
    ):
        kept(model, tmp_path / place)
    tokens = torch.randint(20, (2, 12))
    for expected in (models[0], models[2]):
        for found in (load_decoder(tmp_path).eval(), load(tmp_path).model):
            assert (found.config, found(tokens).tolist()) == (
                MODEL,
                expected.eval()(tokens).tolist(),
            )
        shutil.rmtree(tmp_path / "best", ignore_errors=True)


@pytest.mark.parametrize(
    ("kind", "text", "tokens"), [("text", "Hé", [72, 195, 169]), ("recurrence", " 7  8", [7, 8])]
)
def test_a_run_reads_texts_as_it_was_trained(
    kind: str, text: str, tokens: list[int], tmp_path: Path
) -> None:
    model = replace(MODEL, vocab_size=256)
    begun(tmp_path, {"model": json.loads(model.to_json()), "data": {"kind": kind}})
    kept(Decoder(model), tmp_path / "best")
    lm = load(tmp_path)
    assert lm.tokens(text).tolist() == [tokens]
    assert lm.text(tokens) == ("Hé" if kind == "text" else " 7 8")
    assert (lm.name, lm.stop_tokens) == (tmp_path.name, ())


def test_other_directories_are_no_runs(tmp_path: Path) -> None:
    for text in (None, '{"model_type": "gpt_oss"}'):
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        with refused("holds no run", fix="glassformer train --data FILE --run DIR"):
            read_run(tmp_path)
    begun(tmp_path, {"model": {"num_encoder_layers": 1}})
    with refused("which describes no decoder", error=CheckpointError):
        load(tmp_path)


@pytest.mark.parametrize(
    "described",
    [
        None,
        [],
        {},
        {"model": {"a": 1}},
        {"model": {**DESCRIBED["model"], "depth": 3}, "data": {"kind": "text"}},
        {"model": DESCRIBED["model"]},
        {"model": DESCRIBED["model"], "data": 3},
        {"model": DESCRIBED["model"], "data": {}},
        {"model": {**DESCRIBED["model"], "num_heads": 0}, "data": {"kind": "text"}},
    ],
)
def test_runs_of_something_else_are_refused(tmp_path: Path, described: object) -> None:
    with refused(r"config\.json, which describes no decoder and its data") as error:
        read_run(begun(tmp_path, described))
    assert "Error" not in error.value.got
