"""Runs of decoders: what the command line stores in their config.json, and their weights."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassformer.checkpoints.tensor_files import read_json
from glassformer.cli import RECURRENCE, TEXT
from glassformer.errors import InputError, require
from glassformer.models import Decoder, DecoderConfig
from glassformer.training import TrainingConfig, load_weights
from glassformer.training.run_directory import RunDirectory


@dataclass(frozen=True)
class StoredRun:
    """The configurations that a run was started with."""

    training: TrainingConfig
    model: DecoderConfig
    data: dict[str, Any]
    """Training data; "kind" is :data:`TEXT` or :data:`RECURRENCE`."""
    options: dict[str, Any]
    """All else in its description."""


def description(model: DecoderConfig, data: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The description to pass to :func:`~glassformer.training.train`, so that :func:`read_run` can read the run."""
    return {"model": asdict(model), "data": data, **options}


def decoder_config(described: dict[str, Any]) -> DecoderConfig:
    """The configuration of a run's decoder, which old gpt-oss labs described by the arguments of the course's class."""
    if "n_layers" not in described:
        return DecoderConfig.from_json(json.dumps(described))
    sizes = dict(described)
    windowed, window = sizes.pop("use_sliding_window_alternating", False), sizes.pop("window_size", 128)
    experts, num_experts = sizes.pop("use_moe", False), sizes.pop("num_experts", 8)
    return DecoderConfig(
        num_layers=sizes.pop("n_layers"),
        window=window + 1 if windowed else None,
        num_experts=num_experts if experts else None,
        key_weights=True,
        **sizes,
    )


def no_run(directory: Path) -> InputError:
    """The error of a ``--run`` that names no run."""
    return InputError(
        f"--run {directory}, which holds no run",
        "the directory of a run",
        "Correct the path, or start a run there: glassformer train --data FILE --run DIR.",
    )


def read_run(directory: Path) -> StoredRun:
    """The stored configuration of the run in ``directory``."""
    path = directory / "config.json"
    if not path.is_file():
        raise no_run(directory)
    try:
        stored = read_json(path)
        described = dict(stored["description"])
        model, data = described.pop("model"), described.pop("data")
        require(data["kind"] in (TEXT, RECURRENCE), f"data {data}", f"kind '{TEXT}' or '{RECURRENCE}'", "Correct it.")
        training = TrainingConfig.from_json(json.dumps(stored["training"]))
        return StoredRun(training, DecoderConfig.from_json(json.dumps(model)), data, options=described)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path}, which does not describe a decoder and its data ({type(error).__name__}: {error})",
            "a run of 'glassformer train'",
            "Read other runs from Python, with glassformer.training.load_weights.",
        ) from error


@dataclass(frozen=True)
class TrainedRun:
    """A decoder and where its run stores its weights."""

    config: DecoderConfig
    weights: Path
    """The directory of its best model; before the first evaluation, of its latest checkpoint."""
    kind: Any
    """Kind of the training data."""

    def load(self) -> Decoder:
        """The decoder, on the CPU."""
        decoder = Decoder(self.config)
        load_weights(decoder, self.weights)
        return decoder


def find_trained(directory: Path) -> TrainedRun | None:
    """The run in ``directory``; None if it is not the directory of a run."""
    run = RunDirectory(directory)
    stored = read_json(run.config_file) if run.config_file.is_file() else {}
    if not {"training", "description"} <= stored.keys():
        return None
    try:
        described = stored["description"]
        config = decoder_config(described["model"])
        kind = described.get("data", {"kind": RECURRENCE})["kind"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{run.config_file}, which describes no decoder ({type(error).__name__}: {error})",
            "a run of 'glassformer train' or of the gpt-oss lab",
            "Read other runs from Python, with glassformer.training.load_weights.",
        ) from error
    weights = run.weights()
    if weights is None:
        raise InputError(
            f"{directory}, a run without weights yet",
            "a run with a checkpoint",
            f"Train it first: glassformer train --run {shlex.quote(str(directory))} --resume.",
        )
    return TrainedRun(config, weights, kind)
