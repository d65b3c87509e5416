"""Outputs for a run's metrics: a file of JSON lines, TensorBoard, and a progress bar."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from glassformer.errors import InputError, naming_extras
from glassformer.files import write_text
from glassformer.text import short
from glassformer.untrusted import json_value, read_bytes, require_regular

_LARGEST = 2**30  # bytes of a file of metrics

Record = dict[str, Any]
"""One line of metrics.jsonl: "step" and either the numbers of that update or its "evaluation"."""


def read_records(
    path: Path, until_step: int, warn: Callable[[str], object] = lambda message: None
) -> list[Record]:
    """Return the records in ``path`` up to and including ``until_step``; an absent file has none.

    A last line that is incomplete, because its process died while writing it, is left out and
    reported by ``warn``.
    """
    if not os.path.lexists(path) or require_regular(path, inside=True).st_size == 0:
        return []
    *lines, rest = read_bytes(path, _LARGEST, inside=True).split(b"\n")
    if rest and _record(rest) is not None:
        lines.append(rest)
    elif rest:
        text = short(rest.decode("utf-8", errors="replace"))
        warn(f"{path}, line {len(lines) + 1}, is not whole and is left out: {text}")
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is None or not _follows(record, records):
            raise InputError(
                f"{path}, line {number}: {short(line.decode('utf-8', errors='replace'))}",
                'a record such as {"step": 100, "loss": 1.5}, of a later step than those before',
                "Restore the line from a copy, or remove it. To go on without earlier records, "
                "remove the file.",
            )
        records.append(record)
    return [record for record in records if record["step"] <= until_step]


def _follows(record: Record, records: list[Record]) -> bool:
    """Return whether a step's record comes after ``records``: one update and one evaluation."""
    if records and record["step"] < records[-1]["step"]:
        return False
    same_kind = (earlier for earlier in records[-2:] if _kind(earlier) == _kind(record))
    return all(earlier["step"] != record["step"] for earlier in same_kind)


def _record(line: bytes) -> Record | None:
    """Return the record in a line; None if the line is no record."""
    try:
        record = json_value(line.decode("utf-8"))
        numbers = {name: value for name, value in record.items() if name != "evaluation"}
        values = (*numbers.values(), *record.get("evaluation", {}).values())
        has_fields = type(record["step"]) is int and ("loss" in record or "evaluation" in record)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if has_fields and all(value is None or type(value) in (int, float) for value in values):
        return record
    return None


def _kind(record: Record) -> str:
    return "evaluation" if "evaluation" in record else "loss"


class MetricsFile:
    """A file with one JSON object a line, which starts with ``records``.

    Each record is appended and flushed.
    """

    def __init__(self, path: Path, records: list[Record]) -> None:
        write_text(path, "".join(_line(record) for record in records))
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append ``record``. NaN and infinities, which JSON lacks, become null."""
        self._file.write(_line(record))
        self._file.flush()

    def sync(self) -> None:
        """Wait until every record is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Scalars for TensorBoard: ``train/loss`` and so on.

    Scalars of earlier files after ``from_step`` are superseded.
    """

    def __init__(self, directory: Path, from_step: int) -> None:
        with naming_extras():
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(directory), purge_step=from_step + 1)

    def write(self, record: Record) -> None:
        """Write the numbers of ``record``."""
        section = "evaluation" if "evaluation" in record else "train"
        for name, value in record.get("evaluation", record).items():
            if name != "step":
                self._writer.add_scalar(f"{section}/{name}", value, record["step"])

    def sync(self) -> None:
        """Hand every scalar to the system."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is buffered and close the files."""
        self._writer.close()


SECONDS_BETWEEN_LINES = 10.0
"""How often a run whose output is no terminal prints its progress between evaluations."""


class Progress:
    """A bar with loss, ``metric``, speed in ``unit`` and time left.

    Without a terminal it prints lines instead: one for each evaluation, and at other logged steps
    one after :data:`SECONDS_BETWEEN_LINES`. An earlier part of the run made ``done`` of the
    ``steps``.
    """

    def __init__(self, steps: int, done: int, metric: str, unit: str, show: bool) -> None:
        self._steps = steps
        self._metric = metric
        self._unit = unit
        self._lines = show and (sys.stderr is None or not sys.stderr.isatty())
        self._bar = tqdm(
            total=steps,
            initial=done,
            unit="step",
            disable=not show or self._lines,
            dynamic_ncols=True,
        )
        self._parts: dict[str, str] = {}
        self._last_line = time.monotonic()

    def advance(self) -> None:
        """Count one step."""
        self._bar.update()

    def show(self, record: Record) -> None:
        """Show the numbers of ``record``."""
        if "evaluation" in record:
            self._parts[f"evaluation {self._metric}"] = f"{record['evaluation'][self._metric]:.4f}"
        else:
            self._parts["loss"] = f"{record['loss']:.4f}"
            self._parts[f"{self._unit}/s"] = f"{record[f'{self._unit}_per_second']:,.0f}"
        text = ", ".join(f"{name} {value}" for name, value in self._parts.items())
        self._bar.set_postfix_str(text, refresh=False)
        waited = time.monotonic() - self._last_line
        if self._lines and ("evaluation" in record or waited >= SECONDS_BETWEEN_LINES):
            self._last_line = time.monotonic()
            print(f"step {record['step']}/{self._steps}: {text}", file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """Print ``message`` without disturbing the bar, also where the bar is hidden."""
        tqdm.write(message, file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


def _line(record: Record) -> str:
    return json.dumps(_finite(record)) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
