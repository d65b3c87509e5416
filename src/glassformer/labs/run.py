"""The frame of every lab: steps whose typed results are computed once and kept, then figures and a
report of them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, get_type_hints

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from pydantic import TypeAdapter, ValidationError

from glassformer.errors import InputError
from glassformer.figures.style import save_figure
from glassformer.files import local_path, write_text
from glassformer.labs import wording

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Lab:
    """What a lab is.

    ``results`` is a dataclass with the fields ``quick`` (bool), ``seed`` (int) and one for each
    step, in its type.
    """

    name: str  # as on the command line
    template: Path  # of the report, a Jinja2 template in Markdown; see :func:`render`
    settings: Any  # how much of everything is done, and with what; a dataclass
    quick: Mapping[str, Any]  # the settings in which the quick version differs
    results: type
    steps: Mapping[str, Callable[[Run], Any]]  # what computes each field, in order
    figures: Mapping[
        str, Callable[[Any], Figure | None]
    ]  # from the results alone; None if they lack the experiment
    context: Mapping[str, Any] = field(
        default_factory=dict
    )  # functions and constants that the template calls
    inputs: Callable[[Any], Mapping[str, Any]] = (
        lambda settings: {}
    )  # what else a run depends on, such as a file


@dataclass(frozen=True)
class Run:
    """One run of a lab, as its steps see it."""

    out: Path  # its directory
    settings: Any  # the lab's, as this run has them
    seed: int  # of everything
    done: SimpleNamespace  # the results of earlier steps, by name

    def kept(self, name: str, kind: Any, compute: Callable[[], _Part]) -> _Part:
        """A part of a step, computed at most once in a run however often it is interrupted, and
        kept as JSON.

        ``kind`` is a dataclass, or a list or dictionary of such, of numbers, strings, lists and
        dictionaries. The part is returned as its file gives it back, so that an uninterrupted run
        and a continued one go on from the same.
        """
        path = self.out / "steps" / f"{name}.json"
        if not path.exists():
            write_text(path, to_json(compute(), kind))
        return read(path, kind)


def run(
    lab: Lab,
    out: Path | str,
    *,
    quick: bool = False,
    seed: int = 0,
    resume: bool = False,
    **settings: Any,
) -> Path:
    """Run ``lab`` in the directory ``out`` and return the path of its report.

    ``out`` then holds report.md, figures/ (PNG and SVG), results.json with every number, lab.json
    with what was asked for, and in steps/ what is kept while it runs. The same seed gives the same
    results on one machine, times apart.

    Args:
        lab: Which.
        out: Where to write; it is made if missing.
        quick: The short version, which the report names.
        seed: Of data, initial weights and sampling.
        resume: Continue what an earlier run left in ``out``: what is finished is read and not
            computed again. Without it ``out`` must hold no run.
        settings: Settings other than the lab's.
    """
    out = local_path(out)
    if not seed >= 0:
        raise InputError(
            got=f"seed = {seed}",
            expected="a whole number of at least 0",
            fix="Pass seed >= 0.",
        )
    chosen = replace(lab.settings, **{**(lab.quick if quick else {}), **settings})
    plan = TypeAdapter(type(chosen)).dump_python(chosen, mode="json")
    claim(
        out, {"lab": lab.name, "quick": quick, "seed": seed, **plan, **lab.inputs(chosen)}, resume
    )
    current = Run(out, chosen, seed, SimpleNamespace())
    kinds = get_type_hints(lab.results)
    begun = time.monotonic()
    for number, (name, measure) in enumerate(lab.steps.items(), start=1):
        print(
            f"{lab.name}, step {number} of {len(lab.steps)}: {name.replace('_', ' ')}", flush=True
        )
        setattr(current.done, name, current.kept(name, kinds[name], partial(measure, current)))
    results = lab.results(quick=quick, seed=seed, **vars(current.done))
    write_text(out / "results.json", to_json(results, lab.results))
    for name, draw in lab.figures.items():
        if (figure := draw(results)) is not None:
            save_figure(figure, out / "figures", name, overwrite=True)
    write_text(out / "report.md", render(lab, results))
    print(f"{lab.name}: {time.monotonic() - begun:.0f} s; figures: {out / 'figures'}", flush=True)
    return out / "report.md"


def render(lab: Lab, results: Any) -> str:
    """The report on ``results`` in Markdown.

    The template sees ``results``, each of its fields, what ``lab.context`` has and the functions of
    :mod:`~glassformer.labs.wording` (as filters too), all by name; ``figure(name, caption)`` is an
    image. Lines of a paragraph are joined.
    """

    def figure(name: str, caption: str) -> str:
        assert name in lab.figures, f"no figure {name}"
        return f"![{caption}](figures/{name}.png)"

    environment = Environment(
        loader=FileSystemLoader(lab.template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, of numbers and of words of our own
    )
    words = {
        name: value for name, value in vars(wording).items() if callable(value) and name[0] != "_"
    }
    environment.filters.update(words)
    values = {each.name: getattr(results, each.name) for each in fields(results)}
    text = environment.get_template(lab.template.name).render(
        **words, **values, results=results, figure=figure, **lab.context
    )
    return join_lines(text)


def join_lines(text: str) -> str:
    """``text`` with each paragraph and list item on one line, one empty line between blocks, and
    code as it is.
    """
    blocks = []
    for number, part in enumerate(
        re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    ):
        if number % 2:
            blocks.append(part)
            continue
        for block in re.split(r"\n\s*\n", part):
            lines: list[str] = []
            for line in filter(
                None, (re.sub(r"\s+", " ", line).strip() for line in block.split("\n"))
            ):
                begins = re.match(r"\||#|[-*] |\d+\. |!\[", line) or (
                    lines and re.match(r"\||#|!\[", lines[-1])
                )
                if lines and not begins:
                    lines[-1] += " " + line
                else:
                    lines.append(line)
            if lines:
                blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def read(path: Path, kind: Any) -> Any:
    """The results, or the part of them, that the JSON file ``path`` holds."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        fault = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            fault = ": ".join([*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]])
        raise InputError(
            f"{path}, which cannot be read: {fault}",
            f"a {getattr(kind, '__name__', kind)} that a run of the lab has left",
            "Remove the file and go on with --resume: it is then computed again.",
        ) from error


def to_json(part: object, kind: Any) -> str:
    """``part`` as JSON text; NaN and infinite numbers are kept as such."""
    # Not by dump_json, which writes null for NaN.
    return json.dumps(TypeAdapter(kind).dump_python(part, mode="python"), indent=1) + "\n"


def claim(out: Path | str, plan: dict[str, Any], resume: bool) -> None:
    """Make ``out`` the directory of a run of ``plan``, which its lab.json holds, or check that it
    is this run's.
    """
    out = local_path(out)
    path = out / "lab.json"
    if path.exists() or not out.is_dir():
        others = []
    else:
        others = [each.name for each in out.iterdir() if each.name[0] != "."]
    got = f"{out}, which holds something else: {', '.join(sorted(others)[:3])}"
    if others:
        raise InputError(
            got=got,
            expected="a new or empty directory, or one of a lab",
            fix="Choose another directory.",
        )
    plan = json.loads(json.dumps(plan))
    if not path.exists():
        try:
            write_text(path, json.dumps(plan, indent=1) + "\n")
        except OSError as error:  # a file where a directory should be, or no right to write
            got = f"{out}, in which nothing can be written ({error.strerror or error})"
            raise InputError(
                got, "a directory, or a place for a new one", "Choose another directory."
            ) from error
        return
    fix = (
        "Continue it with resume=True (on the command line: --resume), or choose another directory."
    )
    if not resume:
        raise InputError(
            got=f"{out}, which holds a run of the lab",
            expected="a directory without one",
            fix=fix,
        )
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        names = (
            plan if earlier["lab"] == plan["lab"] else ["lab"]
        )  # another lab's plan has other names
        changed = sorted(name for name in names if earlier[name] != plan[name])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}, which cannot be read", "the plan of a run", "Choose another directory."
        ) from error
    got = f"{out}, which holds a run with another {', '.join(changed)}"
    fix = "Remove it, or choose another directory."
    if changed:
        raise InputError(
            got=got,
            expected="the plan and the seed that it was begun with",
            fix=fix,
        )
