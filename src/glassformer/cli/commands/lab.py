"""``glassformer lab NAME``: run one lab; write its report, figures and numbers to a directory.

With ``--hand-in`` it also executes the lab's notebook, and writes the files to hand in.
"""

import importlib
from functools import partial
from pathlib import Path

from glassformer.cli.flags import LABS_WITH_DATA, LabFlags, LabName
from glassformer.cli.terminal import say
from glassformer.text import shown

# Each module offers LAB; the settings of LABS_WITH_DATA have data.
LABS: dict[LabName, str] = {
    "hand-designed": "glassformer.labs.hand_designed",
    "sentiment": "glassformer.labs.sentiment",
    "lookup": "glassformer.labs.lookup",
    "gpt-oss": "glassformer.labs.gpt_oss",
}


def main(flags: LabFlags) -> int:
    """Run the lab and print the path of its report, or of the files to hand in."""
    if flags.hand_in is not None:
        return _hand_in(flags, flags.hand_in)
    say(f"report: {_run(flags)}")
    return 0


def _run(flags: LabFlags) -> Path:
    from glassformer.labs.run import run

    lab = importlib.import_module(LABS[flags.name]).LAB
    data = {}
    if flags.name in LABS_WITH_DATA:
        data["data"] = flags.data
    return run(
        lab, flags.directory, quick=flags.quick, seed=flags.seed, resume=flags.resume, **data
    )


def _hand_in(flags: LabFlags, directory: Path) -> int:
    from glassformer.course.lessons import lab_name, notebook
    from glassformer.labs.hand_in import Author, hand_in

    author = Author(flags.author or "", flags.day, flags.student_id)
    lesson = notebook(lab_name(flags.name), solutions=True)
    archive = hand_in(lesson, author, directory, flags.directory, partial(_run, flags))
    say(f"folder: {shown(directory)}")
    say(f"archive: {shown(archive)}")
    if author.student_id is None:
        say("without a student ID: pass --student-id where the course asks for one")
    return 0
