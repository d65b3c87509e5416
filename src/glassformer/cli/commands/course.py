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
    """Return the command that starts JupyterLab, or None if it is not installed.

    Programs of an environment that is not activated are beside the interpreter, not on the path.
    """
    beside_python = shutil.which("jupyter-lab", path=sysconfig.get_path("scripts"))
    on_path = shutil.which("jupyter-lab")
    if beside_python is not None and beside_python != on_path:
        return shlex.quote(beside_python)
    if on_path is not None:
        return "jupyter lab"
    return None


def start(flags: StartFlags) -> None:
    """Write the notebook, and Otter's tests if requested."""
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
    absent = " ".join(name for name, installed in needed.items() if not installed)
    hint = f" (packages are missing: pip install {absent})" if absent else ""
    say(f"open it:  {jupyter_lab or 'jupyter lab'} {shlex.quote(str(path))}{hint}")


def _files(patterns: Sequence[Path]) -> list[Path]:
    """Return the files, each once; expand patterns, which some shells do not expand."""
    files: list[Path] = []
    for path in patterns:
        if path.exists():
            matching = [path]
        else:
            matching = sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not matching:
            raise InputError(
                got=f"{shown(path)}, which is not there",
                expected="a file, or a pattern that files match",
                fix="Name the notebooks.",
            )
        files += matching
    return list({path.resolve(): path for path in files}.values())


def grade(flags: GradeFlags) -> int:
    """Grade the files, print a line for each, write the tables; status 2 if none could be read.

    An interrupted run writes the grades so far. If there are none, an older table is kept.
    """
    files = _files(flags.files)
    _check_outputs(flags, files)
    grades: list[Grade] = []
    unreadable = 0
    is_new = not flags.out.exists()
    if is_new:  # fails now if the table cannot be written
        with writing(flags.out):
            write_text(flags.out, grades_csv(grades), replaces=no_file)
    try:
        for rows in grade_files(files, flags.seed, flags.run):
            grades += rows
            if rows[0].status == "unreadable":
                unreadable += 1
                say(f"{rows[0].file}: {rows[0].feedback}")
            else:
                points = sum(row.points for row in rows)
                maximum = sum(row.of for row in rows)
                say(f"{rows[0].file}: {points:g} of {maximum:g} points, {rows[0].lab}")
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


def _check_outputs(flags: GradeFlags, files: Sequence[Path]) -> None:
    """Refuse output files that exist or are among the ``files`` to grade."""
    if flags.gradescope is not None and len(files) != 1:
        raise InputError(
            got=f"--gradescope with {len(files)} files",
            expected="one file",
            fix="Gradescope grades them one by one.",
        )
    inputs = {path.resolve() for path in files}
    for path in filter(None, (flags.out, flags.gradescope)):
        require_absent(path, flags.overwrite)
        if path.resolve() in inputs:
            raise InputError(
                got=f"{shown(path)} to write, which is among the files to grade",
                expected="another file",
                fix="Choose another name.",
            )


def main(flags: CourseFlags) -> int:
    """Run ``course start`` or ``course grade``."""
    if isinstance(flags.command, GradeFlags):
        return grade(flags.command)
    start(flags.command)
    return 0
