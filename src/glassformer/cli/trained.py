"""The decoder of a run, whether ``glassformer train`` made it or the gpt-oss lab did."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glassformer.checkpoints.tensor_files import read_json
from glassformer.errors import InputError
from glassformer.labs.gpt_oss.network import Transformer
from glassformer.models import Decoder, DecoderConfig
from glassformer.training import load_weights
from glassformer.training.run_directory import RunDirectory


@dataclass(frozen=True)
class TrainedRun:
    """Where a run keeps its decoder."""

    config: DecoderConfig
    weights: Path
    """The directory of its best model; before the first evaluation, of its latest checkpoint."""

    def load(self) -> Decoder:
        """The decoder, on the CPU.

        Raises:
            InputError: Weights that are damaged or of another model.
        """
        decoder = Decoder(self.config)
        load_weights(decoder, self.weights)
        return decoder


def find_trained(directory: Path) -> TrainedRun | None:
    """The run in ``directory``; None where it holds something else.

    Raises:
        InputError: A run of something else than a decoder, or one without weights yet.
    """
    run = RunDirectory(directory)
    stored = read_json(run.config_file) if run.config_file.is_file() else {}
    if not {"training", "description"} <= stored.keys():
        return None
    weights = run.weights()
    if weights is None:
        raise InputError(
            f"{directory}, a run without weights yet", "a run with a checkpoint", "Train it further first."
        )
    return TrainedRun(_config(stored["description"], run.config_file), weights)


def _config(description: Any, file: Path) -> DecoderConfig:
    """The lab's runs are described in the course's words, as what its class of a decoder is made with."""
    try:
        model = description["model"]
        if "n_layers" not in model:
            return DecoderConfig.from_json(json.dumps(model))
        with torch.device("meta"):
            return Transformer(**model).config
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file}, which describes no decoder ({type(error).__name__}: {error})",
            "a run of 'glassformer train' or of the gpt-oss lab",
            "Other runs are read from Python, with glassformer.training.load_weights.",
        ) from error
