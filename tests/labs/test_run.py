"""The frame: steps are computed once, resumed, refused in another run; reports follow from the
results.
"""

import importlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from glassformer.labs import wording
from glassformer.labs.run import Lab, Run, claim, join_lines, read, render, run
from refusals import refused

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Settings:
    count: int = 3
    names: tuple[str, ...] = ("a", "b")


@dataclass(frozen=True)
class Part:
    values: list[float]
    names: tuple[str, ...] = ()
    table: dict[str, float] | None = None


@dataclass(frozen=True)
class Results:
    quick: bool
    seed: int
    first: Part
    second: dict[str, Part]


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def lab(tmp_path: Path, calls: list[str]) -> Lab:
    template = tmp_path / "report.md.j2"
    template.write_text(
        "# Sum\n\n{% if quick %}\nThis is quick.\n{% endif %}\n"
        "{{ first.values | sum | percent }}\nof {{ twice(seed) }}.\n\n{{ figure('dots', 'Dots') "
        "}}\n"
    )

    def first(current: Run) -> Part:
        calls.append("first")
        return Part([0.1] * current.settings.count)

    def second(current: Run) -> dict[str, Part]:
        calls.append("second")
        return {
            name: current.kept(f"second-{name}", Part, lambda: current.done.first) for name in "xy"
        }

    steps = {"first": first, "second": second}
    figures = {"dots": lambda results: Figure(), "left-out": lambda results: None}
    context = {"twice": lambda number: 2 * number}
    return Lab("sum", template, Settings(), {"count": 2}, Results, steps, figures, context)


def test_a_run_leaves_results_figures_and_report(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(lab, out, seed=4, quick=True) == out / "report.md"
    assert read(out / "results.json", Results) == Results(
        True, 4, Part([0.1] * 2), dict.fromkeys("xy", Part([0.1] * 2))
    )
    assert (
        out / "report.md"
    ).read_text() == "# Sum\n\nThis is quick. 20.0 % of 8.\n\n![Dots](figures/dots.png)\n"
    assert sorted(path.name for path in (out / "figures").iterdir()) == ["dots.png", "dots.svg"]
    assert "step 2 of 2: second" in capsys.readouterr().out


def test_what_was_interrupted_goes_on(lab: Lab, tmp_path: Path, calls: list[str]) -> None:
    def stop(current: Run) -> dict[str, Part]:
        current.kept("second-x", Part, lambda: Part([7.0]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Lab(**{**vars(lab), "steps": {**lab.steps, "second": stop}}), tmp_path / "out")
    for _ in range(2):
        again = run(lab, tmp_path / "out", resume=True)
    assert calls == ["first", "second"]
    assert "30.0 %" in again.read_text()
    assert read(tmp_path / "out" / "results.json", Results).second["x"] == Part([7.0])


def test_what_a_run_was_begun_with_is_kept(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(lab, out, names=("c",))
    assert json.loads((out / "lab.json").read_text()) == {
        "lab": "sum", "quick": False, "seed": 0, "count": 3, "names": ["c"],
    }  # fmt: skip
    with refused(fix="--resume"):
        run(lab, out, names=("c",))
    with refused("another names, quick, seed|another count, names, quick, seed"):
        run(lab, out, seed=1, quick=True, resume=True)
    with refused("holds a run with another lab"):
        claim(out, {"lab": "product", "quick": False, "seed": 0, "factors": 3}, resume=True)
    with refused("seed"):
        run(lab, tmp_path / "other", seed=-1)
    with refused("which holds something else: out, report"):
        run(lab, tmp_path)
    assert not (tmp_path / "other").exists()
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with refused(r"file.*, in which nothing can be written"):
            run(lab, place)
    assert (tmp_path / "file").read_text() == "mine"
    for content in ("{", "[]", "{}", "3"):
        (out / "lab.json").write_text(content)
        with refused(r"lab\.json, which cannot be read"):
            claim(out, {"seed": 3}, resume=True)


def test_a_part_comes_back_as_it_was(tmp_path: Path) -> None:
    current = Run(tmp_path, None, 0, SimpleNamespace())
    part = Part([0.1, 1e-300, math.inf, 2.0**60], ("é", ""), {"x": 0.1 + 0.2})
    assert (
        current.kept("one", Part, lambda: part)
        == current.kept("one", Part, lambda: pytest.fail("again"))
        == part
    )
    assert math.isnan(current.kept("two", Part, lambda: Part([math.nan])).values[0])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"values": 3}', '{"values": ["much"]}'])
def test_a_damaged_part_is_named(text: str, lab: Lab, tmp_path: Path) -> None:
    run(lab, tmp_path / "out")
    path = tmp_path / "out" / "steps" / "first.json"
    path.write_text(text)
    with refused(r"first\.json.*" + ("values.0" if "much" in text else ""), fix="Remove the file"):
        run(lab, tmp_path / "out", resume=True)
    assert path.read_text() == text


def test_a_template_with_an_unknown_name_fails(lab: Lab) -> None:
    lab.template.write_text("{{ third }}")
    with pytest.raises(Exception, match="third"):
        render(lab, Results(False, 0, Part([]), {}))


def test_lines_of_a_paragraph_are_joined() -> None:
    text = "# A\nb\n  c\n\n\n\n- d\n  e\n- f\n\n| g |\n|---|\n![h](i)\n```\n j\n\n  k\n```\nl\n"
    assert (
        join_lines(text)
        == "# A\nb c\n\n- d e\n- f\n\n| g |\n|---|\n![h](i)\n\n```\n j\n\n  k\n```\n\nl\n"
    )


@pytest.mark.parametrize("name", ["hand_designed", "sentiment", "lookup", "gpt_oss"])
def test_a_published_report_follows_from_its_results(name: str) -> None:
    published: Lab = importlib.import_module(f"glassformer.labs.{name}").LAB
    directory = ROOT / "docs" / "labs" / published.name
    report = (directory / "report.md").read_text(encoding="utf-8")
    assert render(published, read(directory / "results.json", published.results)) == report
    shown = re.findall(r"!\[.+?\]\(figures/(.+?)\.png\)", report)
    assert (
        sorted(shown)
        == sorted(published.figures)
        == sorted(path.stem for path in directory.glob("figures/*.png"))
    )


@pytest.mark.parametrize(
    ("bound", "text"),
    [(3.079e-10, "3.1e-10"), (3e-10, "3.0e-10"), (0.0, "0"), (9.96e-3, "1.0e-02")],
)
def test_bounds_are_rounded_outwards(bound: float, text: str) -> None:
    assert wording.below(bound) == text
    assert (wording.at_most(0.1622), wording.at_least(3.158), wording.at_most(0.16)) == (
        "0.17",
        "3.15",
        "0.16",
    )


def test_shares_within_two_standard_errors_are_alike() -> None:
    assert wording.alike(0.57, 0.62, 100)
    assert not wording.alike(0.57, 0.82, 100)
    assert wording.alike(0.57, 0.82, 100, least=0.3)
    assert wording.alike(1.0, 1.0, 100)  # where the standard error is 0
    assert not wording.alike(0.9, 1.0, 1000)
