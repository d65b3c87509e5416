"""Runs labs: steps whose results are computed once and stored, then figures and a report."""

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
    """A lab: its settings, steps, figures and report."""

    name: str
    """Name on the command line."""
    template: Path
    """Jinja2 template of the report in Markdown, see :func:`render`."""
    settings: Any
    """Dataclass with the settings of the full version."""
    quick: Mapping[str, Any]
    """Settings that differ in the quick version."""
    results: type
    """Dataclass with the fields ``quick`` (bool), ``seed`` (int) and the result of each step."""
    steps: Mapping[str, Callable[[Run], Any]]
    """Functions that compute the fields of the results, in order."""
    figures: Mapping[str, Callable[[Any], Figure | None]]
    """Functions that draw figures from the results; None if the results lack the experiment."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Functions and constants for the template."""
    inputs: Callable[[Any], Mapping[str, Any]] = lambda settings: {}
    """Returns what else a run depends on, such as the content of a file."""


@dataclass(frozen=True)
class Run:
    """A run of a lab, which its steps receive."""

    out: Path
    """Directory of the run."""
    settings: Any
    seed: int
    """Seed of data, initial weights and sampling."""
    done: SimpleNamespace
    """Results of earlier steps, by name."""

    def kept(self, name: str, kind: Any, compute: Callable[[], _Part]) -> _Part:
        """Return a part of a step, which is computed once in a run and stored as JSON.

        ``kind`` is the type of the part: a dataclass of numbers, strings, lists and dictionaries,
        or a list or dictionary of such dataclasses. The part is always read back from its file, so
        that a resumed run continues from the same values as an uninterrupted one.
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
    with the plan, and steps/ with intermediate results. The same seed gives the same results on one
    machine, except for times.

    Args:
        lab: The lab to run.
        out: Directory to write to; it is created if missing.
        quick: If True, run the short version; the report says so.
        seed: Seed of data, initial weights and sampling.
        resume: Continue an earlier run in ``out``: finished parts are read instead of computed
            again. Without ``resume``, ``out`` must not hold a run.
        settings: Settings that differ from the lab's.
    """
    out = local_path(out)
    if seed < 0:
        raise InputError(
            got=f"seed = {seed}",
            expected="a whole number of at least 0",
            fix="Pass seed >= 0.",
        )
    if quick:
        settings = {**lab.quick, **settings}
    chosen = replace(lab.settings, **settings)
    plan = {"lab": lab.name, "quick": quick, "seed": seed}
    plan |= TypeAdapter(type(chosen)).dump_python(chosen, mode="json")
    claim(out, {**plan, **lab.inputs(chosen)}, resume)
    current = Run(out, chosen, seed, SimpleNamespace())
    kinds = get_type_hints(lab.results)
    start = time.monotonic()
    for number, (name, measure) in enumerate(lab.steps.items(), start=1):
        print(
            f"{lab.name}, step {number} of {len(lab.steps)}: {name.replace('_', ' ')}", flush=True
        )
        setattr(current.done, name, current.kept(name, kinds[name], partial(measure, current)))
    results = lab.results(quick=quick, seed=seed, **vars(current.done))
    write_text(out / "results.json", to_json(results, lab.results))
    for name, draw in lab.figures.items():
        figure = draw(results)
        if figure is not None:
            save_figure(figure, out / "figures", name, overwrite=True)
    write_text(out / "report.md", render(lab, results))
    print(f"{lab.name}: {time.monotonic() - start:.0f} s; figures: {out / 'figures'}", flush=True)
    return out / "report.md"


def render(lab: Lab, results: Any) -> str:
    """Return the report on ``results`` in Markdown.

    The template can use ``results``, each of its fields, the names of ``lab.context`` and the
    functions of :mod:`~glassformer.labs.wording`, also as filters. ``figure(name, caption)``
    inserts an image. Lines of a paragraph are joined.
    """

    def figure(name: str, caption: str) -> str:
        assert name in lab.figures, f"no figure {name}"
        return f"![{caption}](figures/{name}.png)"

    environment = Environment(
        loader=FileSystemLoader(lab.template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the report is Markdown, and all its text is our own
    )
    words = {
        name: value for name, value in vars(wording).items() if callable(value) and name[0] != "_"
    }
    environment.filters.update(words)
    values = {field.name: getattr(results, field.name) for field in fields(results)}
    text = environment.get_template(lab.template.name).render(
        **words, **values, results=results, figure=figure, **lab.context
    )
    return join_lines(text)


_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def join_lines(text: str) -> str:
    """Put each paragraph and list item of a Markdown text on one line.

    One empty line separates blocks. Code blocks stay unchanged.
    """
    blocks: list[str] = []
    for number, part in enumerate(_CODE.split(text)):
        if number % 2:  # code, which the group of _CODE captures
            blocks.append(part)
        else:
            joined = [_joined(block) for block in re.split(r"\n\s*\n", part)]
            blocks += [block for block in joined if block]
    return "\n\n".join(blocks) + "\n"


def _joined(block: str) -> str:
    """Join the lines of a block, except those that begin an item, a heading, a row or an image."""
    lines: list[str] = []
    for raw_line in block.split("\n"):
        line = re.sub(r"\s+", " ", raw_line).strip()
        if not line:
            continue
        begins = re.match(r"\||#|[-*] |\d+\. |!\[", line)
        if not lines or begins or re.match(r"\||#|!\[", lines[-1]):
            lines.append(line)
        else:
            lines[-1] += " " + line
    return "\n".join(lines)


def read(path: Path, kind: Any) -> Any:
    """Read results, or a part of them, from the JSON file ``path``."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            reason = f"{place}: {first['msg']}" if place else first["msg"]
        raise InputError(
            got=f"{path}, which cannot be read: {reason}",
            expected=f"a {getattr(kind, '__name__', kind)} that a run of the lab has written",
            fix="Remove the file and continue with --resume: it is then computed again.",
        ) from error


def to_json(part: object, kind: Any) -> str:
    """Convert ``part`` to JSON text, with NaN and infinite numbers."""
    # Pydantic's dump_json would write null for NaN.
    return json.dumps(TypeAdapter(kind).dump_python(part, mode="python"), indent=1) + "\n"


def claim(out: Path | str, plan: dict[str, Any], resume: bool) -> None:
    """Write ``plan`` to lab.json in a new directory ``out``, or check that ``out`` has it."""
    out = local_path(out)
    path = out / "lab.json"
    plan = json.loads(json.dumps(plan))
    if path.exists():
        _check_plan(path, plan, resume)
        return
    if out.is_dir():
        others = sorted(entry.name for entry in out.iterdir() if entry.name[0] != ".")
        if others:
            raise InputError(
                got=f"{out}, which holds something else: {', '.join(others[:3])}",
                expected="a new or empty directory, or one of a lab",
                fix="Choose another directory.",
            )
    try:
        write_text(path, json.dumps(plan, indent=1) + "\n")
    except OSError as error:  # a file where a directory should be, or no right to write
        raise InputError(
            got=f"{out}, in which nothing can be written ({error.strerror or error})",
            expected="a directory, or a place for a new one",
            fix="Choose another directory.",
        ) from error


def _check_plan(path: Path, plan: dict[str, Any], resume: bool) -> None:
    """Raise InputError unless the run of lab.json may be resumed and has the same plan."""
    if not resume:
        raise InputError(
            got=f"{path.parent}, which holds a run of the lab",
            expected="a directory without a run",
            fix=(
                "Continue it with resume=True (on the command line: --resume), "
                "or choose another directory."
            ),
        )
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        # The plan of another lab has other names.
        names = list(plan) if earlier["lab"] == plan["lab"] else ["lab"]
        changed = sorted(name for name in names if earlier[name] != plan[name])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            got=f"{path}, which cannot be read",
            expected="the plan of a run",
            fix="Choose another directory.",
        ) from error
    if changed:
        raise InputError(
            got=f"{path.parent}, which holds a run with another {', '.join(changed)}",
            expected="the plan and the seed of that run",
            fix="Remove the directory, or choose another one.",
        )
