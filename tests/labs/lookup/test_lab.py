"""The lab as a whole: what a run leaves behind, resuming, and that a seed decides everything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.labs import lookup
from glassformer.labs.lookup import lab
from glassformer.labs.lookup.plan import FULL, QUICK, Plan
from glassformer.labs.lookup.results import Results
from refusals import refused

pytestmark = pytest.mark.slow


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch, tiny_run: Path) -> None:
    """Figures are named and not drawn, which takes most of a tiny run's time."""
    names = [path.stem for path in (tiny_run / "figures").glob("*.png")]

    def name_figures(results: Results, directory: Path) -> dict[str, Path]:
        return {name: directory / f"{name}.png" for name in names}

    monkeypatch.setattr(lab, "draw_figures", name_figures)


def without_times(path: Path) -> object:
    def drop(value: object) -> object:
        if isinstance(value, dict):
            return {name: drop(inner) for name, inner in value.items() if name != "seconds"}
        return [drop(inner) for inner in value] if isinstance(value, list) else value

    return drop(json.loads(path.read_text(encoding="utf-8")))


def test_a_run_leaves_report_figures_numbers_and_trainings(tiny_run: Path) -> None:
    left = {"figures", "lab.json", "parts", "report.md", "results.json", "trainings"}
    assert {path.name for path in tiny_run.iterdir()} == left
    names = {
        "course-5",
        "course-sinusoidal-5",
        "slots-5",
        "slots-6",
        "bag-5",
        "positions-5",
        "plain-5",
        "no-mixing-wide-5",
    }
    assert {path.name for path in (tiny_run / "trainings").iterdir()} == names
    assert {path.stem for path in (tiny_run / "parts").iterdir()} == names
    pictures = {path.stem for path in (tiny_run / "figures").glob("*.png")}
    assert pictures == {path.stem for path in (tiny_run / "figures").glob("*.svg")}
    assert pictures >= {"accuracy", "cross-attention", "sharpness", "scrambling", "training", "changes", "finding"}
    report = (tiny_run / "report.md").read_text(encoding="utf-8")
    assert all(f"(figures/{name}.png)" in report for name in pictures)
    assert Results.read(tiny_run / "results.json").seed == 5


@pytest.mark.usefixtures("undrawn")
def test_the_same_seed_gives_the_same_numbers(tiny_run: Path, tiny_plan: Plan, tmp_path: Path) -> None:
    lab.run_plan(tiny_plan, tmp_path / "same", seed=5, resume=True)
    assert without_times(tmp_path / "same" / "results.json") == without_times(tiny_run / "results.json")
    assert (tmp_path / "same" / "report.md").read_bytes() == (tiny_run / "report.md").read_bytes()


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_goes_on_and_finished_parts_are_not_repeated(
    tiny_run: Path, tiny_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    measure_recipe = lab.measure_recipe
    measured: list[str] = []

    def interrupted_at_the_second(recipe, *arguments, **options):
        if len(measured) == 1:
            raise KeyboardInterrupt
        measured.append(recipe.name)
        return measure_recipe(recipe, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(lab, "measure_recipe", interrupted_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            lab.run_plan(tiny_plan, out, seed=5, resume=False)
    assert not (out / "results.json").exists()
    written = {path: path.stat().st_mtime_ns for path in (out / "parts").iterdir()}
    assert len(written) == 3
    monkeypatch.setattr(lab, "measure_course", None)
    lab.run_plan(tiny_plan, out, seed=5, resume=True)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert without_times(out / "results.json") == without_times(tiny_run / "results.json")


@pytest.mark.usefixtures("undrawn")
def test_a_finished_run_is_drawn_again_from_its_numbers_alone(
    tiny_run: Path, tiny_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lab.json", "results.json"):
        (tmp_path / name).write_bytes((tiny_run / name).read_bytes())
    monkeypatch.setattr(lab, "measure_course", None)
    report = lab.run_plan(tiny_plan, tmp_path, seed=5, resume=True)
    assert report.read_bytes() == (tiny_run / "report.md").read_bytes()


def test_a_directory_with_another_run_is_refused(tiny_run: Path, tiny_plan: Plan) -> None:
    with refused(fix="--resume"):
        lab.run_plan(tiny_plan, tiny_run, seed=5, resume=False)
    with refused("another seed"):
        lab.run_plan(tiny_plan, tiny_run, seed=6, resume=True)
    with refused("another num_questions"):
        lab.run_plan(replace(tiny_plan, num_questions=21), tiny_run, seed=5, resume=True)
    with refused("seed = 9999999", expected="kept for measuring"):
        lab.run_plan(tiny_plan, tiny_run / "new", seed=9_999_999, resume=False)
    assert not (tiny_run / "new").exists()
    with refused("seed = -1"):
        lab.run_plan(tiny_plan, tiny_run, seed=-1, resume=True)


def test_a_damaged_part_is_refused(tiny_run: Path, tiny_plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_bytes((tiny_run / "lab.json").read_bytes())
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "course-5.json").write_text("{}", encoding="utf-8")
    with refused("course-5.json, which cannot be read", fix="Remove the file"):
        lab.run_plan(tiny_plan, tmp_path, seed=5, resume=True)


@pytest.mark.parametrize("quick", [False, True])
def test_quick_chooses_the_plan(quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run_plan(*arguments: object) -> Path:
        calls.append(arguments)
        return tmp_path / "report.md"

    monkeypatch.setattr(lab, "run_plan", run_plan)
    assert lookup.run(out=tmp_path, quick=quick, seed=2, resume=True) == tmp_path / "report.md"
    assert calls == [(QUICK if quick else FULL, tmp_path, 2, True)]
