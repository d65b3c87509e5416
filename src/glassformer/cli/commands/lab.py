"""``glassformer lab NAME``: run one lab from start to end; it leaves a directory with report, figures and numbers."""

import importlib
from pathlib import Path

from glassformer.cli.flags import LABS_WITH_DATA, LabFlags, LabName

# Each module offers LAB; the settings of LABS_WITH_DATA have data.
LABS: dict[LabName, str] = {
    "hand-designed": "glassformer.labs.hand_designed",
    "sentiment": "glassformer.labs.sentiment",
    "lookup": "glassformer.labs.lookup",
    "gpt-oss": "glassformer.labs.gpt_oss",
}


def run(flags: LabFlags) -> Path:
    """Run the lab that ``flags`` names and return the path of its report."""
    from glassformer.labs.run import run as run_lab

    lab = importlib.import_module(LABS[flags.name]).LAB
    data = {"data": flags.data} if flags.name in LABS_WITH_DATA else {}
    return run_lab(lab, flags.directory, quick=flags.quick, seed=flags.seed, resume=flags.resume, **data)


def main(flags: LabFlags) -> int:
    """Run the lab and print the path of its report."""
    print(f"report: {run(flags)}")
    return 0
