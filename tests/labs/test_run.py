"""The frame: steps are computed once, resumed, refused in another run; the report follows from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from glassformer.labs.run import Lab, Run, join_lines, read, render, run
from refusals import refused


@dataclass(frozen=True)
class Settings:
    count: int = 3
    names: tuple[str, ...] = ("a", "b")


@dataclass(frozen=True)
class Part:
    values: list[float]


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
        "{{ first.values | sum | percent }}\nof {{ twice(seed) }}.\n\n{{ figure('dots', 'Dots') }}\n"
    )

    def first(current: Run) -> Part:
        calls.append("first")
        return Part([0.1] * current.settings.count)

    def second(current: Run) -> dict[str, Part]:
        calls.append("second")
        return {name: current.kept(f"second-{name}", Part, lambda: current.done.first) for name in "xy"}

    steps = {"first": first, "second": second}
    figures = {"dots": lambda results: Figure(), "left-out": lambda results: None}
    context = {"twice": lambda number: 2 * number}
    return Lab("sum", template, Settings(), {"count": 2}, Results, steps, figures, context)


def test_a_run_leaves_results_figures_and_report(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(lab, out, seed=4, quick=True) == out / "report.md"
    assert read(out / "results.json", Results) == Results(
        True, 4, Part([0.1] * 2), dict.fromkeys("xy", Part([0.1] * 2))
    )
    assert (out / "report.md").read_text() == "# Sum\n\nThis is quick. 20.0 % of 8.\n\n![Dots](figures/dots.png)\n"
    assert sorted(path.name for path in (out / "figures").iterdir()) == ["dots.png", "dots.svg"]
    assert "step 2 of 2: second" in capsys.readouterr().out


def test_a_step_is_computed_once(lab: Lab, tmp_path: Path, calls: list[str]) -> None:
    run(lab, tmp_path / "out")
    again = run(lab, tmp_path / "out", resume=True)
    assert calls == ["first", "second"]
    assert "30.0 %" in again.read_text()


def test_what_was_interrupted_goes_on(lab: Lab, tmp_path: Path, calls: list[str]) -> None:
    def stop(current: Run) -> dict[str, Part]:
        current.kept("second-x", Part, lambda: Part([7.0]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Lab(**{**vars(lab), "steps": {**lab.steps, "second": stop}}), tmp_path / "out")
    run(lab, tmp_path / "out", resume=True)
    assert calls == ["first", "second"]
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
    with refused("seed"):
        run(lab, tmp_path / "other", seed=-1)
    assert not (tmp_path / "other").exists()


def test_a_damaged_part_is_named(lab: Lab, tmp_path: Path) -> None:
    run(lab, tmp_path / "out")
    (tmp_path / "out" / "steps" / "first.json").write_text('{"values": ["much"]}')
    with refused(r"first\.json.*values\.0", fix="Remove the file"):
        run(lab, tmp_path / "out", resume=True)


def test_a_template_with_an_unknown_name_fails(lab: Lab) -> None:
    lab.template.write_text("{{ third }}")
    with pytest.raises(Exception, match="third"):
        render(lab, Results(False, 0, Part([]), {}))


def test_lines_of_a_paragraph_are_joined() -> None:
    text = "# A\nb\n  c\n\n\n\n- d\n  e\n- f\n\n| g |\n|---|\n![h](i)\n```\n j\n\n  k\n```\nl\n"
    assert join_lines(text) == "# A\nb c\n\n- d e\n- f\n\n| g |\n|---|\n![h](i)\n\n```\n j\n\n  k\n```\n\nl\n"
