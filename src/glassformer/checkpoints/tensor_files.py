"""Safetensors files whose tensors are all checked before the first is read, and then read one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glassformer.errors import InputError, require

_ANEW = "It is damaged: restore it from a copy, or download or train it anew."

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, which has not been read yet."""

    file: Path
    name: str
    """As in the file."""
    shape: list[int]
    kind: str
    """As safetensors writes it: ``"F32"``."""


def stored_tensors(directory: Path, clean: Callable[[str], str] = str) -> dict[str, StoredTensor]:
    """Every tensor of ``model.safetensors``, or of the pieces that ``model.safetensors.index.json`` lists.

    Args:
        directory: Where the files lie.
        clean: Makes one spelling of the several that files have for a name; the result's keys are what it returns.

    Raises:
        InputError: A file that is missing or damaged, or two tensors whose cleaned name is the same.
    """
    index = directory / f"{WEIGHTS_FILE}.index.json"
    files = {WEIGHTS_FILE}
    if index.exists() and not (directory / WEIGHTS_FILE).exists():
        pieces = read_json(index).get("weight_map")
        if not isinstance(pieces, dict):
            raise InputError(f"{index} without a weight_map", "the file of each tensor", "Download it anew.")
        files = {Path(str(name)).name for name in pieces.values()}
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(files):
        for tensor in _stored_in(directory / file):
            name = clean(tensor.name)
            if name in tensors:
                raise InputError(
                    f"{name} twice in {directory}: as {tensors[name].name} and as {tensor.name}",
                    "each tensor once",
                    "Remove one of them.",
                )
            tensors[name] = tensor
    return tensors


def read_tensors(
    stored: Mapping[str, StoredTensor], wanted: Mapping[str, tuple[str, list[int]]], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The tensors of ``stored`` by the names of ``wanted``, in ``dtype`` and in memory of their own.

    Args:
        stored: What there is; all of it must be wanted.
        wanted: ``{our name: (name in stored, shape)}``.
        dtype: Of the result, whatever it is in the file.

    Raises:
        InputError: Tensors that are missing, unknown, of another shape or no floating-point numbers: all of them are
            named, and nothing is read.
    """
    names = {name for name, _ in wanted.values()}
    faults = [f"missing {name}" for name, _ in wanted.values() if name not in stored]
    faults += [f"unknown {tensor.name}" for name, tensor in stored.items() if name not in names]
    for name, shape in wanted.values():
        tensor = stored.get(name)
        if tensor is not None and tensor.shape != shape:
            faults.append(f"{tensor.name} of shape {tensor.shape} instead of {shape}")
        elif tensor is not None and tensor.kind not in ("F64", "F32", "F16", "BF16"):
            faults.append(f"{tensor.name} of kind {tensor.kind}")
    if faults:
        raise InputError(
            ", ".join(faults),
            f"exactly the floating-point tensors that {CONFIG_FILE} tells of",
            f"Take {CONFIG_FILE} and the weights from the same place.",
        )
    read: dict[str, Tensor] = {}
    for file in sorted({tensor.file for tensor in stored.values()}):
        try:
            with safe_open(file, "pt") as opened:
                for ours, (name, _) in wanted.items():
                    if stored[name].file == file:  # copied, as what is not lies in the file itself
                        read[ours] = opened.get_tensor(stored[name].name).to(dtype, copy=True)
        except (SafetensorError, OSError) as error:
            raise _damaged(file, error) from error
    return read


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file ``path``.

    Raises:
        InputError: No file, or one with something else in it.
    """
    require(path.is_file(), f"no file {path}", "a JSON object", "Pass the directory that holds it.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}, which cannot be read ({error})", "a JSON object", _ANEW) from error
    require(isinstance(content, dict), f"{path} with a {type(content).__name__}", "a JSON object", _ANEW)
    return content


def _stored_in(file: Path) -> list[StoredTensor]:
    require(
        file.is_file(),
        f"no file {file}",
        "weights as safetensors",
        "Download it too, or save the model as safetensors: nothing that would have to be unpickled is read.",
    )
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no dictionary
            return [StoredTensor(file, name, list(part.get_shape()), part.get_dtype()) for name, part in slices.items()]
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> InputError:
    return InputError(f"{file}, which cannot be read ({error})", "a complete safetensors file", _ANEW)
