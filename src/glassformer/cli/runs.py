"""What the command line keeps about a run in its config.json, and reads again to continue it or to generate."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassformer.errors import InputError, require
from glassformer.models.decoder_config import DecoderConfig
from glassformer.training.config import TrainingConfig

TEXT, RECURRENCE = "text", "recurrence"
"""Kinds of data: bytes of a text, or numbers of the recurrence."""


@dataclass(frozen=True)
class StoredRun:
    """What a run was begun with.

    Args:
        training: How it is trained.
        model: What its decoder is made of.
        data: What it learns from: "kind" is "text" (bytes) or "recurrence" (small numbers).
        options: Whatever else its description holds.
    """

    training: TrainingConfig
    model: DecoderConfig
    data: dict[str, Any]
    options: dict[str, Any]


def description(model: DecoderConfig, data: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The description with which :func:`~glassformer.training.train` begins a run that :func:`read_run` understands."""
    return {"model": asdict(model), "data": data, **options}


def read_run(directory: Path) -> StoredRun:
    """What the run in ``directory`` was begun with.

    Raises:
        InputError: No run there, or one whose description tells no decoder and data.
    """
    path = directory / "config.json"
    require(
        path.is_file(),
        f"--run {directory}, which holds no run",
        "the directory of a run",
        "Mend the path, or make a run there: glassformer train --data FILE --run DIR.",
    )
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        described = dict(stored["description"])
        model, data = json.dumps(described.pop("model")), described.pop("data")
        require(data["kind"] in (TEXT, RECURRENCE), f"data {data}", "kind 'text' or 'recurrence'", "Mend it.")
        training = TrainingConfig.from_json(json.dumps(stored["training"]))
        return StoredRun(training, DecoderConfig.from_json(model), data, options=described)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}, which does not describe a decoder and its data ({type(error).__name__}: {error})",
            "a run that 'glassformer train' made",
            "Other runs are read from Python, with glassformer.training.load_weights.",
        ) from error
