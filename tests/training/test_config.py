import dataclasses

import pytest

from glassformer.training import TrainingConfig
from refusals import refused


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
        ({"patience": 3}, "patience = 3 with eval_every = None"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"muon_learning_rate": -1.0}, "muon_learning_rate"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"final_lr_fraction": 1.1}, "final_lr_fraction"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"steps": 5, "warmup_steps": 6}, "warmup_steps = 6 with steps = 5"),
        ({"seed": -1}, "seed"),
        ({"optimizer": "lion"}, "optimizer = 'lion'"),
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"schedule": "linear"}, "schedule = 'linear'"),
        ({"precision": "fp8"}, "precision = 'fp8'"),
        ({"optimizer": "muon", "precision": "fp16"}, "muon"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, object], message: str) -> None:
    with refused(message):
        TrainingConfig(**values)


def test_the_configuration_of_an_older_run_is_read() -> None:
    text = """{"steps": 20, "batch_size": 8, "learning_rate": 1, "optimizer": "sgd", "muon_learning_rate": 0.02,
    "weight_decay": 0, "betas": [0, 0.95], "momentum": 0.5, "schedule": "constant", "warmup_steps": 0,
    "final_lr_fraction": 0.0, "clip_norm": null, "accumulation": 1, "precision": "no", "eval_every": null,
    "checkpoint_every": 5, "keep_checkpoints": 2, "patience": null, "seed": 0, "log_every": 10, "tensorboard": false}"""
    config = TrainingConfig(
        20,
        8,
        1.0,
        "sgd",
        weight_decay=0.0,
        betas=(0.0, 0.95),
        momentum=0.5,
        schedule="constant",
        clip_norm=None,
    )
    assert TrainingConfig.from_json(text) == dataclasses.replace(config, checkpoint_every=5)


def test_what_decides_the_weights_must_stay_on_resuming() -> None:
    earlier = TrainingConfig()
    numbers = (
        "accumulation",
        "eval_every",
        "checkpoint_every",
        "keep_checkpoints",
        "patience",
        "log_every",
    )
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


def test_a_warm_up_that_nobody_chose_fits_the_run() -> None:
    assert TrainingConfig(steps=4, warmup_steps=None).warmup == 4
    assert TrainingConfig(steps=400, warmup_steps=None).warmup == 10
    earlier = TrainingConfig(steps=4, warmup_steps=None, schedule="constant")
    with refused("warmup_steps was 4, is 10"):
        dataclasses.replace(earlier, steps=20).require_continues(earlier)
    dataclasses.replace(earlier, steps=3).require_continues(dataclasses.replace(earlier, steps=3))
