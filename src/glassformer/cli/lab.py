"""``glassformer lab NAME``: run one lab from start to end; it leaves a directory with report, figures and numbers."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import FlagCreatePairsOff, Positional

from glassformer.errors import require

LabName = Literal["hand-designed", "sentiment", "lookup", "gpt-oss"]

# Each module offers run(out, quick, seed, resume) -> path of the report; those of WITH_DATA take data as well.
LABS: dict[LabName, str] = {
    "hand-designed": "glassformer.labs.hand_designed",
    "sentiment": "glassformer.labs.sentiment",
    "lookup": "glassformer.labs.lookup",
    "gpt-oss": "glassformer.labs.gpt_oss",
}

WITH_DATA: tuple[LabName, ...] = ("sentiment",)


@dataclass(frozen=True)
class LabConfig:
    """Run a lab from start to end: train, measure, draw, write the report.

    Everything it makes lies in one directory: report.md, the figures (PNG and SVG) and results.json.

    Raises:
        InputError: ``seed`` is negative, or ``data`` for a lab that takes none.
    """

    name: Positional[LabName]
    """Which lab."""

    quick: bool = False
    """A short version that shows every part in under two minutes."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where to write; by default runs/NAME, or runs/NAME-quick."""

    seed: int = 0
    """Seed of the data, the initial weights and the sampling."""

    resume: bool = False
    """Continue what an interrupted run left in the directory."""

    data: Annotated[str | None, tyro.conf.arg(metavar="PATH|NAME")] = None
    """Labelled texts for the sentiment lab: a TSV, CSV or JSONL file, a directory with such files for train, dev and
    test, or the name of a data set on the Hugging Face hub. By default the reviews that ship with glassformer."""

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed = {self.seed}", "a whole number of at least 0", "Pass --seed 0 or more.")
        require(
            self.data is None or self.name in WITH_DATA,
            f"--data for the lab {self.name}, which makes its own",
            f"a lab that takes data: {', '.join(WITH_DATA)}",
            "Leave --data out.",
        )

    @property
    def directory(self) -> Path:
        """Where the lab writes: ``out``, or a directory under ``runs/`` named after the lab."""
        return self.out or Path("runs") / (f"{self.name}-quick" if self.quick else self.name)


def run(config: LabConfig) -> Path:
    """Run the lab that ``config`` names and return the path of its report.

    Raises:
        InputError: The lab's directory is in the way, or cannot be continued.
    """
    lab = importlib.import_module(LABS[config.name])
    data = {"data": config.data} if config.name in WITH_DATA else {}
    report: Path = lab.run(out=config.directory, quick=config.quick, seed=config.seed, resume=config.resume, **data)
    return report


def main(arguments: Sequence[str], prog: str) -> int:
    """Parse ``arguments``, run the lab, say where the report is; return the exit status."""
    config = tyro.cli(LabConfig, prog=prog, args=arguments, config=(FlagCreatePairsOff,))
    print(f"report: {run(config)}")
    return 0
