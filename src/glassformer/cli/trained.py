"""The decoder of a run of ``glassformer train`` or of the gpt-oss lab."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.checkpoints.tensor_files import read_json
from glassformer.cli.runs import RECURRENCE, decoder_config
from glassformer.errors import InputError, require
from glassformer.models import Decoder, DecoderConfig
from glassformer.training import load_weights
from glassformer.training.run_directory import RunDirectory


@dataclass(frozen=True)
class TrainedRun:
    """A decoder and where its run stores its weights."""

    config: DecoderConfig
    weights: Path
    """The directory of its best model; before the first evaluation, of its latest checkpoint."""
    kind: Any
    """Kind of the training data."""

    def load(self) -> Decoder:
        """The decoder, on the CPU.

        Raises:
            InputError: Weights that are damaged or of another model.
        """
        decoder = Decoder(self.config)
        load_weights(decoder, self.weights)
        return decoder


def find_trained(directory: Path) -> TrainedRun | None:
    """The run in ``directory``; None if it is not the directory of a run.

    Raises:
        InputError: A run of something else than a decoder, or one without weights yet.
    """
    run = RunDirectory(directory)
    stored = read_json(run.config_file) if run.config_file.is_file() else {}
    if not {"training", "description"} <= stored.keys():
        return None
    try:
        described = stored["description"]
        config = decoder_config(described["model"])
        kind = described.get("data", {"kind": RECURRENCE})["kind"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{run.config_file}, which describes no decoder ({type(error).__name__}: {error})",
            "a run of 'glassformer train' or of the gpt-oss lab",
            "Read other runs from Python, with glassformer.training.load_weights.",
        ) from error
    weights = run.weights()
    require(
        weights is not None,
        f"{directory}, a run without weights yet",
        "a run with a checkpoint",
        f"Train it first: glassformer train --run {shlex.quote(str(directory))} --resume.",
    )
    assert weights is not None
    return TrainedRun(config, weights, kind)
