"""Runs of decoders: what the command line stores in their config.json, and their weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.checkpoints.tensor_files import read_json
from glassformer.errors import InputError
from glassformer.models import Decoder, DecoderConfig
from glassformer.training import TrainingConfig, load_weights
from glassformer.training.run_directory import RunDirectory


@dataclass(frozen=True)
class StoredRun:
    """The configurations that a run was started with."""

    directory: Path
    training: TrainingConfig
    model: DecoderConfig
    data: dict[str, Any]
    """Training data; of 'glassformer train' its "kind" is :data:`TEXT` or :data:`RECURRENCE`."""
    options: dict[str, Any]
    """All else in its description."""

    @property
    def weights(self) -> Path:
        """The directory of its best model; before the first evaluation, of its latest checkpoint."""
        return RunDirectory(self.directory).weights()

    def load(self) -> Decoder:
        """The decoder, on the CPU."""
        decoder = Decoder(self.model)
        load_weights(decoder, self.weights)
        return decoder


def find_run(directory: Path) -> StoredRun | None:
    """The run in ``directory``; None if it is not the directory of a run."""
    path = RunDirectory(directory).config_file
    stored = read_json(path) if path.is_file() else {}
    if not {"training", "description"} <= stored.keys():
        return None
    try:
        described = dict(stored["description"])
        model, data = DecoderConfig.from_json(json.dumps(described.pop("model"))), described.pop("data")
        training = TrainingConfig.from_json(json.dumps(stored["training"]))
        return StoredRun(directory, training, model, data | {"kind": data["kind"]}, described)  # no data without one
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}, which describes no decoder and its data ({type(error).__name__}: {error})",
            "a run of 'glassformer train' or of the gpt-oss lab",
            "Read other runs from Python, with glassformer.training.load_weights.",
        ) from error


def read_run(directory: Path) -> StoredRun:
    """The run in ``directory``, which must be there."""
    run = find_run(directory)
    if run is None:
        fix = "Correct the path, or start a run there: glassformer train --data FILE --run DIR."
        raise InputError(f"--run {directory}, which holds no run", "the directory of a run", fix)
    return run
