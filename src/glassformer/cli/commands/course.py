"""``glassformer course``: write a lab's notebook for students, and grade what they hand in."""

import glob
import json
import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from glassformer.cli import writing
from glassformer.cli.flags import CourseFlags, GradeFlags, StartFlags
from glassformer.cli.main import EXIT_INPUT
from glassformer.cli.terminal import say
from glassformer.course.grading import Grade, grade_files, grades_csv, gradescope
from glassformer.course.lessons import lab_name, notebook, otter_tests
from glassformer.errors import InputError
from glassformer.files import any_file, no_file, require_absent, write_text
from glassformer.text import shown


def _jupyter_lab() -> str | None:
    """The command that starts JupyterLab, or None where it is not installed.

    An environment that is not activated has its programs beside its interpreter and not on the
    path.
    """
    own = shutil.which("jupyter-lab", path=sysconfig.get_path("scripts"))
    on_path = shutil.which("jupyter-lab")
    if own is not None and own != on_path:
        return shlex.quote(own)
    return "jupyter lab" if on_path is not None else None


def start(flags: StartFlags) -> None:
    """Write the notebook, and tests where they are asked for."""
    lab = lab_name(flags.lab)
    path = flags.directory / f"{lab}.ipynb"
    content = notebook(lab, seed=flags.seed, solutions=flags.solutions, published=False)
    files = {path: json.dumps(content, indent=1, ensure_ascii=False) + "\n"}
    if flags.otter:
        files |= {
            flags.directory / "tests" / name: text
            for name, text in otter_tests(lab, flags.seed).items()
        }
    for file in files:
        require_absent(file, flags.overwrite)
    for file, text in files.items():
        with writing(file):
            write_text(file, text, replaces=any_file if flags.overwrite else no_file)
    say(f"notebook: {shown(path)}")
    jupyter_lab = _jupyter_lab()
    needed = {
        "jupyterlab": jupyter_lab is not None,
        "'glassformer[course]'": all(map(find_spec, ("accelerate", "matplotlib", "sklearn"))),
    }
    absent = " ".join(name for name, there in needed.items() if not there)
    if absent:
        missing = f" (what it needs is not all here yet: pip install {absent})"
    else:
        missing = ""
    say(f"open it:  {jupyter_lab or 'jupyter lab'} {shlex.quote(str(path))}{missing}")


def _files(named: Sequence[Path]) -> list[Path]:
    """The files, each once; patterns, which some shells leave as they are, are expanded."""
    found = []
    for path in named:
        if not path.exists():
            matching = sorted(Path(each) for each in glob.glob(str(path), recursive=True))
        else:
            matching = [path]
        if len(matching) <= 0:
            raise InputError(
                got=f"{shown(path)}, which is not there",
                expected="a file, or a pattern that files match",
                fix="Name the notebooks.",
            )
        found += matching
    return list({path.resolve(): path for path in found}.values())


def grade(flags: GradeFlags) -> int:
    """Grade the files, print a line for each, and write the tables; the status says whether any
    could be read.

    What was graded is in the table also where a long run is interrupted; an older table stays if
    nothing was.
    """
    files = _files(flags.files)
    got = f"--gradescope with {len(files)} files"
    if flags.gradescope is not None and len(files) != 1:
        raise InputError(
            got=got,
            expected="one file",
            fix="Gradescope grades them one by one.",
        )
    read = {path.resolve() for path in files}
    for path in filter(None, (flags.out, flags.gradescope)):
        require_absent(path, flags.overwrite)
        got = f"{shown(path)} to write, which is among the files to grade"
        if path.resolve() in read:
            raise InputError(
                got=got,
                expected="another file",
                fix="Choose another name.",
            )
    grades: list[Grade] = []
    unreadable = 0
    is_new = not flags.out.exists()
    if is_new:  # to learn now whether it can be written
        with writing(flags.out):
            write_text(flags.out, grades_csv(grades), replaces=no_file)
    try:
        for rows in grade_files(files, flags.seed, flags.run):
            grades += rows
            if rows[0].status == "unreadable":
                unreadable += 1
                say(f"{rows[0].file}: {rows[0].feedback}")
            else:
                of = sum(each.of for each in rows)
                say(
                    f"{rows[0].file}: {sum(each.points for each in rows):g} of {of:g} points, "
                    f"{rows[0].lab}"
                )
    finally:
        if grades:
            with writing(flags.out):
                write_text(flags.out, grades_csv(grades), replaces=any_file)
        elif is_new:
            flags.out.unlink()
    say(
        f"grades: {shown(flags.out)}; {len(files) - unreadable} of {len(files)} files could be read"
    )
    if flags.gradescope is not None:
        with writing(flags.gradescope):
            text = json.dumps(gradescope(grades), indent=2) + "\n"
            write_text(flags.gradescope, text, replaces=any_file if flags.overwrite else no_file)
        say(f"results: {shown(flags.gradescope)}")
    return EXIT_INPUT if unreadable == len(files) else 0


def main(flags: CourseFlags) -> int:
    """Run ``course start`` or ``course grade``."""
    if isinstance(flags.command, GradeFlags):
        return grade(flags.command)
    start(flags.command)
    return 0
