"""Captures as files: the tensors as safetensors, the labels as JSON in the file's own header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from glassformer.errors import InputError, require
from glassformer.files import new_file
from glassformer.observe.captured import Captured, Record, as_texts

_KEY, _VERSION = "glassformer.capture", 1
_FIELDS = ("what", "name", "layer", "call", "heads", "queries", "keys", "source", "cross")


def save_captured(seen: Captured, path: str | Path) -> None:
    """Write a capture to one file, which is the old one or the whole new one whatever happens.

    Gradients are left out.

    Raises:
        InputError: A capture without any record.
    """
    require(len(seen.records) > 0, "a capture of nothing", "at least one record", "Run the model within the block.")
    path = Path(path)
    labels = {
        "version": _VERSION,
        "tokens": seen.tokens,
        "source_tokens": seen.source_tokens,
        "records": [_labels(record) for record in seen.records],
    }
    tensors = {str(number): record.values.detach().cpu().contiguous() for number, record in enumerate(seen.records)}
    with new_file(path) as draft:
        # Copies: safetensors refuses tensors that share memory.
        save_file({name: each.clone() for name, each in tensors.items()}, draft, {_KEY: json.dumps(labels)})


def load_captured(path: str | Path) -> Captured:
    """What :func:`save_captured` wrote. Labels are checked against the tensors; nothing is unpickled.

    Raises:
        InputError: A file that is missing or damaged, that holds something else, or whose labels do not fit.
    """
    path = Path(path)
    require(path.is_file(), f"no file {path}", "what save_captured() wrote", "Mend the path.")
    try:
        with safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no dictionary
    except (SafetensorError, OSError) as error:
        raise _refused(path, str(error)) from error
    try:
        labels = json.loads(metadata.get(_KEY, "null"))
    except (ValueError, RecursionError) as error:
        raise _refused(path, str(error)) from error
    if not isinstance(labels, dict) or labels.get("version") != _VERSION or not isinstance(labels.get("records"), list):
        raise _refused(path, f"no labels of version {_VERSION}")
    if set(tensors) != {str(number) for number in range(len(labels["records"]))}:
        raise _refused(path, f"{len(tensors)} tensors for {len(labels['records'])} labels")
    try:
        records = [_record(each, tensors[str(number)]) for number, each in enumerate(labels["records"])]
        tokens, source_tokens = (as_texts(name, labels.get(name)) for name in ("tokens", "source_tokens"))
        return Captured(records, tokens=tokens, source_tokens=source_tokens)
    except (InputError, TypeError, ValueError, OverflowError) as error:
        raise _refused(path, str(error)) from error


def _labels(record: Record) -> dict[str, Any]:
    labels = {name: getattr(record, name) for name in _FIELDS}
    if isinstance(record.keys, range):
        labels["keys"] = {"start": record.keys.start, "stop": record.keys.stop}
    return labels


def _record(labels: Any, values: Tensor) -> Record:
    require(isinstance(labels, dict) and set(labels) == set(_FIELDS), "a record with other fields", str(_FIELDS), "")
    given: Mapping[str, Any] = labels
    for name, kind in (("what", str), ("name", str), ("layer", int), ("call", int), ("source", bool), ("cross", bool)):
        require(type(given[name]) is kind, f"{name} = {given[name]!r}", kind.__name__, "")
    keys = given["keys"]
    if isinstance(keys, dict):
        ends = _numbers("keys", [keys.get("start"), keys.get("stop")])
        assert ends is not None
        keys = range(*ends)
    else:
        keys = _numbers("keys", keys)
    return Record(
        given["what"],
        given["name"],
        given["layer"],
        given["call"],
        values,
        _numbers("heads", given["heads"]),
        _numbers("queries", given["queries"]),
        keys,
        given["source"],
        given["cross"],
    )


def _numbers(name: str, given: Any) -> tuple[int, ...] | None:
    if given is None:
        return None
    require(
        isinstance(given, list) and all(type(each) is int and each >= 0 for each in given),
        f"{name} of another kind",
        "a list of numbers",
        "",
    )
    return tuple(given)


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{path}, which cannot be read ({why})", "a file that save_captured() wrote", "Save it anew.")
