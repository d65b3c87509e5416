"""The stored weights of runs and checkpoints: found when somebody asks for them, and read only where they fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_tensors, stored_tensors
from glassformer.errors import InputError, require
from glassformer.training.checkpoint import named_tensors
from glassformer.training.run_directory import RunDirectory

_Model = TypeVar("_Model", bound=nn.Module)


def run_weights(run: Path) -> Path:
    """The directory of a run's best weights; before its first evaluation, of its latest ones.

    Raises:
        InputError: There are none yet, or they are damaged, of which the file's table of contents tells.
    """
    weights = RunDirectory(run).weights()
    if weights is None:
        raise InputError(f"{run}, which has no weights yet", "a run with a checkpoint", "Train it further.")
    stored_tensors(weights)
    return weights


def stamp_of(directory: Path) -> Hashable:
    """What changes when the weights in a directory, or the best ones of the run in it, are written anew.

    None: there are none just now.
    """
    run = RunDirectory(directory)
    for place in (directory, run.best, *reversed(run.checkpoints())):
        try:
            told = [(file, file.stat()) for file in sorted(place.glob("*.safetensors"))]
        except OSError:
            continue  # a training has just replaced it
        if told:
            return tuple((str(file), each.st_ino, each.st_size, each.st_mtime_ns) for file, each in told)
    return None


def filled(run: Path, build: Callable[[], _Model], layers: int) -> _Model:
    """A model with the weights of a run, in float32 whatever the file holds.

    Nothing is allocated before the stored tensors are known to be those of the model.

    Args:
        run: Its directory.
        build: Makes the model; also on the device "meta", where it takes no memory.
        layers: How many layers the run's configuration tells of.

    Raises:
        InputError: Weights that are missing, damaged, or other ones than the configuration tells of.
    """
    stored = stored_tensors(run_weights(run))
    config = run / CONFIG_FILE
    require(
        layers <= len(stored),
        f"{config} with {layers:,} layers, beside {len(stored):,} stored tensors",
        "a configuration and weights of one run",
        "Restore config.json, or train again.",
    )
    try:
        with torch.device("meta"):
            shapes = {name: (name, list(tensor.shape)) for name, tensor in named_tensors(build()).items()}
        tensors = read_tensors(stored, shapes, torch.float32)
        model = build()
    except (RuntimeError, MemoryError) as error:  # such as a table of positions of any length, which is not stored
        first = str(error).split("\n")[0]
        raise InputError(
            f"{config}, whose model cannot be made ({first})", "what training wrote", "Mend it."
        ) from error
    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            tensor.copy_(tensors[name])
    return model
