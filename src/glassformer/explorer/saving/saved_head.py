"""A hand-designed head and its task inside a saved page, for ``web/src/engine/single-head.ts``."""

from typing import Any

import torch
from torch import Tensor

from glassformer.explorer.loading.loaded_model import LoadedHead
from glassformer.handcraft.tasks import KEPT_CASES

_MOST_SCORES = 1 << 19
"""Sequences x positions x positions that are all run while weights are typed."""


def saved_head(loaded: LoadedHead) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The task as data, and the weights of the design, the judged outputs of all sequences, and which keys are wanted.

    None for a task that is not proved by running every sequence.
    """
    task, space = loaded.task, loaded.task.space
    if task.examples is not None or task.count > min(KEPT_CASES, _MOST_SCORES // space.num_positions**2):
        return None
    cases = task.all_cases
    tensors = {name: torch.tensor(matrix) for name, matrix in loaded.weights.matrices.items()}
    tensors["targets"] = torch.from_numpy(cases.target[cases.counted])
    if task.description is not None:
        tensors["tiers"] = torch.from_numpy(task.description.table.tiers).double()
    data = {
        "letters": list(space.letters),
        "has_cls": space.has_cls,
        "max_len": space.max_len,
        "v_dim": task.v_dim,
        "readout": task.readout,
        "tolerance": task.tolerance,
        "decisive_error": task.decisive_error,
    }
    return {"kind": "head", "task": data}, tensors
