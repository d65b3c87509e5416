"""``glassformer lab NAME``: run one lab from start to end; it leaves a directory with report, figures and numbers."""

import importlib

from glassformer.cli.flags import LABS_WITH_DATA, LabFlags, LabName
from glassformer.cli.terminal import say

# Each module offers LAB; the settings of LABS_WITH_DATA have data.
LABS: dict[LabName, str] = {
    "hand-designed": "glassformer.labs.hand_designed",
    "sentiment": "glassformer.labs.sentiment",
    "lookup": "glassformer.labs.lookup",
    "gpt-oss": "glassformer.labs.gpt_oss",
}


def main(flags: LabFlags) -> int:
    """Run the lab and print the path of its report."""
    from glassformer.labs.run import run

    lab = importlib.import_module(LABS[flags.name]).LAB
    data = {"data": flags.data} if flags.name in LABS_WITH_DATA else {}
    report = run(lab, flags.directory, quick=flags.quick, seed=flags.seed, resume=flags.resume, **data)
    say(f"report: {report}")
    return 0
