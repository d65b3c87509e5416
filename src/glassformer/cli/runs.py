"""What the command line stores about a run in its config.json, and reads to continue the run or to generate."""

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
    """The configuration of a run's decoder, which the gpt-oss lab describes by the arguments of the course's class.

    Raises:
        InputError: No description of a decoder.
    """
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
    """The stored configuration of the run in ``directory``.

    Raises:
        InputError: No run there, or one of something else than a decoder.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise no_run(directory)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        described = dict(stored["description"])
        model, data = described.pop("model"), described.pop("data")
        require(data["kind"] in (TEXT, RECURRENCE), f"data {data}", f"kind '{TEXT}' or '{RECURRENCE}'", "Correct it.")
        training = TrainingConfig.from_json(json.dumps(stored["training"]))
        return StoredRun(training, DecoderConfig.from_json(json.dumps(model)), data, options=described)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}, which does not describe a decoder and its data ({type(error).__name__}: {error})",
            "a run of 'glassformer train'",
            "Read other runs from Python, with glassformer.training.load_weights.",
        ) from error
