"""Stored runs of ``glassformer train``: the part of config.json that continues them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.checkpoints.decoders import is_run
from glassformer.checkpoints.tensor_files import read_json
from glassformer.errors import InputError, first_line
from glassformer.models import DecoderConfig
from glassformer.training import TrainingConfig
from glassformer.training.run_directory import RunDirectory


@dataclass(frozen=True)
class StoredRun:
    """The configurations that a run was started with."""

    training: TrainingConfig
    model: DecoderConfig
    data: dict[str, Any]
    """Training data; 'glassformer train' writes :data:`TEXT` or :data:`RECURRENCE` as "kind"."""
    options: dict[str, Any]
    """Other fields of the run's description."""


def read_run(directory: Path) -> StoredRun:
    """Return the run in ``directory``; refuse a directory without one."""
    path = RunDirectory(directory).config_file
    stored = read_json(path) if path.is_file() else {}
    if not is_run(stored):
        raise InputError(
            got=f"--run {directory}, which holds no run",
            expected="the directory of a run",
            fix="Correct the path, or start a run there: glassformer train --data FILE --run DIR.",
        )
    try:
        described = dict(stored["description"])
        model = DecoderConfig.from_json(json.dumps(described.pop("model")))
        data = described.pop("data")
        training = TrainingConfig.from_json(json.dumps(stored["training"]))
        data |= {"kind": data["kind"]}  # a KeyError for data without a kind
        return StoredRun(training, model, data, described)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}, which describes no decoder and its data ({_reason(error)})",
            "a run of 'glassformer train' or of the gpt-oss lab",
            "Continue other runs from Python, with glassformer.training.train.",
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, InputError):
        return error.got
    if isinstance(error, KeyError):
        return f"no {error}"
    return first_line(error)
