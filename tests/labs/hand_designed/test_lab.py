"""The lab as a whole: what a run leaves behind, resuming, and that a seed decides everything."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from glassformer.handcraft.tasks import TASKS
from glassformer.labs import hand_designed
from glassformer.labs.hand_designed import lab
from glassformer.labs.hand_designed.lab import FULL, QUICK, Plan
from glassformer.labs.hand_designed.results import Results
from refusals import refused


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch, tiny_run: Path) -> None:
    """Figures are named and not drawn, which takes most of a tiny run's time."""
    names = [path.stem for path in (tiny_run / "figures").glob("*.png")]

    def name_figures(results: Results, directory: Path) -> dict[str, Path]:
        return {name: directory / f"{name}.png" for name in names}

    monkeypatch.setattr(lab, "draw_figures", name_figures)


def test_a_run_leaves_report_figures_numbers_and_the_courses_log(tiny_run: Path) -> None:
    names = {path.name for path in tiny_run.iterdir()}
    assert {"figures", "lab.json", "parts", "report.md", "results.json", "submission_log.json"} <= names
    assert {path.stem for path in (tiny_run / "parts").iterdir()} == {"identity", "copy_first", "unique"}
    log = json.loads((tiny_run / "submission_log.json").read_text(encoding="utf-8"))
    assert len(log) == 14


def test_all_tasks_that_one_head_can_do_are_designed(tiny_run: Path) -> None:
    results = Results.read(tiny_run / "results.json")
    assert {design.task for design in results.designs} | {results.refutation.task} == set(TASKS)
    assert all(each.holds for design in results.designs for each in (design.float64, design.float32, design.large))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_same_seed_gives_the_same_heads_and_another_seed_others(
    tiny_run: Path, tiny_plan: Plan, tmp_path: Path
) -> None:
    lab.run_plan(tiny_plan, tmp_path / "same", seed=5, resume=True)
    lab.run_plan(tiny_plan, tmp_path / "other", seed=6, resume=False)
    first, same, other = (
        Results.read(out / "results.json") for out in (tiny_run, tmp_path / "same", tmp_path / "other")
    )
    assert same.comparisons == first.comparisons
    assert same.refutation == first.refutation
    assert all(one.learned != two.learned for one, two in zip(first.comparisons, other.comparisons, strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_goes_on_and_finished_parts_are_not_repeated(
    tiny_run: Path, tiny_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, compare = tmp_path / "run", lab.compare
    compared: list[str] = []

    def interrupted_at_the_third(task: str, steps: int, seed: int):
        if len(compared) == 2:
            raise KeyboardInterrupt
        compared.append(task)
        return compare(task, steps, seed)

    with monkeypatch.context() as patch:
        patch.setattr(lab, "compare", interrupted_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            lab.run_plan(tiny_plan, out, seed=5, resume=False)
    assert not (out / "results.json").exists()
    again: list[str] = []

    def counted(task: str, steps: int, seed: int):
        again.append(task)
        return compare(task, steps, seed)

    monkeypatch.setattr(lab, "compare", counted)
    lab.run_plan(tiny_plan, out, seed=5, resume=True)
    assert (compared, again) == (["identity", "copy_first"], ["unique"])
    assert Results.read(out / "results.json").comparisons == Results.read(tiny_run / "results.json").comparisons


@pytest.mark.usefixtures("undrawn")
def test_a_finished_run_is_drawn_again_from_its_numbers_alone(
    tiny_run: Path, tiny_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lab.json", "results.json", "submission_log.json"):
        (tmp_path / name).write_bytes((tiny_run / name).read_bytes())
    monkeypatch.setattr(lab, "compare", None)
    monkeypatch.setattr(lab, "write_submission", None)
    report = lab.run_plan(tiny_plan, tmp_path, seed=5, resume=True)
    assert report.read_bytes() == (tiny_run / "report.md").read_bytes()


def test_a_directory_with_another_run_is_refused(tiny_run: Path, tiny_plan: Plan) -> None:
    with refused(fix="--resume"):
        lab.run_plan(tiny_plan, tiny_run, seed=5, resume=False)
    with refused("another seed"):
        lab.run_plan(tiny_plan, tiny_run, seed=6, resume=True)
    with refused("another steps"):
        lab.run_plan(dataclasses.replace(tiny_plan, steps=5), tiny_run, seed=5, resume=True)
    with refused("seed = -1"):
        lab.run_plan(tiny_plan, tiny_run, seed=-1, resume=True)


def test_damaged_files_are_refused(tiny_run: Path, tiny_plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text("{", encoding="utf-8")
    with refused("cannot be read"):
        lab.run_plan(tiny_plan, tmp_path, seed=5, resume=True)
    (tmp_path / "lab.json").write_bytes((tiny_run / "lab.json").read_bytes())
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "identity.json").write_text("{}", encoding="utf-8")
    with refused(r"identity\.json, which cannot be read"):
        lab.run_plan(tiny_plan, tmp_path, seed=5, resume=True)


@pytest.mark.parametrize("quick", [False, True])
def test_quick_chooses_the_plan(quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run_plan(*arguments: object) -> Path:
        calls.append(arguments)
        return tmp_path / "report.md"

    monkeypatch.setattr(lab, "run_plan", run_plan)
    assert hand_designed.run(out=tmp_path, quick=quick, seed=2, resume=True) == tmp_path / "report.md"
    assert calls == [(QUICK if quick else FULL, tmp_path, 2, True)]
