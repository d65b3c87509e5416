from __future__ import annotations

import contextlib
import dataclasses
import io
import json

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.training import TrainingConfig
from refusals import refused


@given(
    steps=st.integers(1, 10**6),
    learning_rate=st.floats(1e-9, 1e3),
    optimizer=st.sampled_from(["adamw", "muon", "sgd"]),
    betas=st.tuples(st.floats(0, 0.9999), st.floats(0, 0.9999)),
    momentum=st.floats(0, 0.9999),
    clip_norm=st.none() | st.floats(1e-6, 1e6),
    patience=st.none() | st.integers(1, 100),
    tensorboard=st.booleans(),
)
def test_json_gives_back_the_same_configuration(**values: object) -> None:
    config = TrainingConfig(**values)
    assert TrainingConfig.from_json(config.to_json()) == config


def test_absent_fields_take_their_defaults() -> None:
    assert TrainingConfig.from_json('{"steps": 5}') == TrainingConfig(steps=5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "steps = 0"),
        ({"batch_size": -1}, "batch_size = -1"),
        ({"accumulation": 0}, "accumulation = 0"),
        ({"keep_checkpoints": 0}, "keep_checkpoints = 0"),
        ({"log_every": 0}, "log_every = 0"),
        ({"eval_every": 0}, "eval_every = 0"),
        ({"checkpoint_every": 0}, "checkpoint_every = 0"),
        ({"patience": 0}, "patience = 0"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate = nan"),
        ({"muon_learning_rate": -1.0}, "muon_learning_rate"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"final_lr_fraction": 1.1}, "final_lr_fraction"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": (0.9,)}, "betas"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"steps": 5, "warmup_steps": 6}, "warmup_steps = 6 with steps = 5"),
        ({"seed": -1}, "seed"),
        ({"optimizer": "lion"}, "optimizer = 'lion'"),
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"momentum": -0.1}, "momentum = -0.1"),
        ({"schedule": "linear"}, "schedule = 'linear'"),
        ({"precision": "fp8"}, "precision = 'fp8'"),
        ({"optimizer": "muon", "precision": "fp16"}, "muon"),
        ({"steps": True}, "steps = True"),
        ({"steps": 5.0}, "steps = 5.0"),
        ({"batch_size": "8"}, "batch_size = '8'"),
        ({"learning_rate": True}, "learning_rate = True"),
        ({"learning_rate": float("inf")}, "learning_rate = inf"),
        ({"clip_norm": float("nan")}, "clip_norm = nan"),
        ({"betas": [0.9, 0.95]}, "betas"),
        ({"tensorboard": 1}, "tensorboard = 1"),
        ({"seed": None}, "seed = None"),
        ({"learning_rate": "fast"}, "learning_rate = 'fast'"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, object], message: str) -> None:
    with refused(message):
        TrainingConfig(**values)


@pytest.mark.parametrize(
    ("text", "got", "fix"),
    [
        ("{", "'{'", None),
        ("[1]", r"\[1\]", None),
        ('{"learning_rat": 1.0}', "learning_rat", "learning_rate"),
        ('{"zzz": 1}', "zzz", "Remove zzz"),
        ('{"steps": 0}', "steps = 0", None),
    ],
)
def test_unusable_json_is_refused(text: str, got: str, fix: str | None) -> None:
    with refused(got, fix=fix):
        TrainingConfig.from_json(text)


def test_the_configuration_of_an_older_run_is_read() -> None:
    text = """{"steps": 20, "batch_size": 8, "learning_rate": 1, "optimizer": "sgd", "muon_learning_rate": 0.02,
    "weight_decay": 0, "betas": [0, 0.95], "momentum": 0.5, "schedule": "constant", "warmup_steps": 0,
    "final_lr_fraction": 0.0, "clip_norm": null, "accumulation": 1, "precision": "no", "eval_every": null,
    "checkpoint_every": 5, "keep_checkpoints": 2, "patience": null, "seed": 0, "log_every": 10, "tensorboard": false}"""
    config = TrainingConfig(
        20, 8, 1.0, "sgd", weight_decay=0.0, betas=(0.0, 0.95), momentum=0.5, schedule="constant", clip_norm=None
    )
    assert TrainingConfig.from_json(text) == dataclasses.replace(config, checkpoint_every=5)


def test_what_decides_the_weights_must_stay_on_resuming() -> None:
    earlier = TrainingConfig()
    numbers = ("accumulation", "eval_every", "checkpoint_every", "keep_checkpoints", "patience", "log_every")
    looks = {**dict.fromkeys(numbers, 7), "tensorboard": True}
    dataclasses.replace(earlier, **looks).require_continues(earlier)
    for field, value in {
        "batch_size": 1,
        "learning_rate": 0.5,
        "optimizer": "muon",
        "muon_learning_rate": 0.5,
        "weight_decay": 0.5,
        "betas": (0.1, 0.1),
        "momentum": 0.5,
        "schedule": "constant",
        "warmup_steps": 3,
        "final_lr_fraction": 0.5,
        "clip_norm": None,
        "precision": "bf16",
        "seed": 1,
        "steps": 2000,
    }.items():
        with refused(f"{field} was"):
            dataclasses.replace(earlier, **{field: value}).require_continues(earlier)
    # Every field is either free or refused.
    assert len(looks) + 14 == len(dataclasses.fields(TrainingConfig))


def test_a_constant_schedule_allows_more_steps() -> None:
    earlier = TrainingConfig(schedule="constant")
    dataclasses.replace(earlier, steps=2000).require_continues(earlier)


def test_every_refused_field_is_named() -> None:
    with pytest.raises(InputError) as error:
        TrainingConfig(seed=1, clip_norm=2.0).require_continues(TrainingConfig())
    assert "clip_norm was 1.0, is 2.0" in str(error.value)
    assert "seed was 0, is 1" in str(error.value)


def test_fields_are_flags_with_help() -> None:
    config = tyro.cli(TrainingConfig, args=["--steps", "7", "--clip-norm", "None", "--betas", "0.5", "0.6"])
    assert config == TrainingConfig(steps=7, clip_norm=None, betas=(0.5, 0.6))
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        tyro.cli(TrainingConfig, args=["--help"])
    text = " ".join(shown.getvalue().replace("│", " ").split())
    assert "Updates of the weights in the whole run." in text
    assert "Peak learning rate of AdamW, or of SGD." in text


def test_json_is_readable() -> None:
    assert json.loads(TrainingConfig().to_json())["schedule"] == "cosine"
