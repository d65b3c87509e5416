"""The lab as a whole: what a run leaves behind, resuming, and that a seed decides everything."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from glassformer.labs import gpt_oss
from glassformer.labs.gpt_oss import lab
from glassformer.labs.gpt_oss.plan import FULL, QUICK, Plan
from glassformer.labs.gpt_oss.results import Results
from refusals import refused


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch, tiny_run: Path) -> None:
    """Figures are named and not drawn, which takes most of a tiny run's time."""
    names = [path.stem for path in (tiny_run / "figures").glob("*.png")]

    def name_figures(results: Results, directory: Path) -> dict[str, Path]:
        return {name: directory / f"{name}.png" for name in names}

    monkeypatch.setattr(lab, "draw_figures", name_figures)


def test_a_run_leaves_report_figures_numbers_and_trainings(tiny_run: Path, tiny_plan: Plan) -> None:
    assert {path.name for path in tiny_run.iterdir()} == {
        "figures",
        "lab.json",
        "report.md",
        "results.json",
        "trainings",
    }
    assert {path.name for path in (tiny_run / "trainings").iterdir()} == {e.name for e in tiny_plan.experiments}
    assert len(list((tiny_run / "figures").glob("*.png"))) == len(list((tiny_run / "figures").glob("*.svg"))) == 5


@pytest.mark.usefixtures("undrawn")
def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    tiny_run: Path, tiny_plan: Plan, tmp_path: Path
) -> None:
    lab.run_plan(tiny_plan, tmp_path / "same", seed=5, resume=True)
    for name in ("results.json", "report.md", "trainings/long/best/model.safetensors"):
        assert (tmp_path / "same" / name).read_bytes() == (tiny_run / name).read_bytes()
    one = dataclasses.replace(tiny_plan, experiments=tiny_plan.experiments[:1])
    lab.run_plan(one, tmp_path / "other", seed=6, resume=False)
    first, other = (Results.read(out / "results.json") for out in (tiny_run, tmp_path / "other"))
    assert first.models[0].losses != other.models[0].losses


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_goes_on_and_finished_trainings_are_not_repeated(
    tiny_run: Path, tiny_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    train_model = lab.train_model
    trained: list[str] = []

    def interrupted_at_the_third(experiment, *arguments):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(experiment.name)
        return train_model(experiment, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(lab, "train_model", interrupted_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            lab.run_plan(tiny_plan, out, seed=5, resume=False)
    assert not (out / "results.json").exists()
    written = {path: path.stat().st_mtime_ns for path in (out / "trainings").rglob("model.safetensors")}
    report = lab.run_plan(tiny_plan, out, seed=5, resume=True)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert report.read_bytes() == (tiny_run / "report.md").read_bytes()
    assert f"figures: {out / 'figures'}" in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_a_finished_run_is_drawn_again_from_its_numbers_alone(
    tiny_run: Path, tiny_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lab.json", "results.json"):
        (tmp_path / name).write_bytes((tiny_run / name).read_bytes())
    monkeypatch.setattr(lab, "train_model", None)
    report = lab.run_plan(tiny_plan, tmp_path, seed=5, resume=True)
    assert report.read_bytes() == (tiny_run / "report.md").read_bytes()


def test_a_directory_with_another_run_is_refused(tiny_run: Path, tiny_plan: Plan) -> None:
    with refused(fix="--resume"):
        lab.run_plan(tiny_plan, tiny_run, seed=5, resume=False)
    with refused("another seed"):
        lab.run_plan(tiny_plan, tiny_run, seed=6, resume=True)
    with refused("another num_prompts"):
        lab.run_plan(dataclasses.replace(tiny_plan, num_prompts=5), tiny_run, seed=5, resume=True)
    with refused("seed = -1"):
        lab.run_plan(tiny_plan, tiny_run, seed=-1, resume=True)


def test_a_damaged_plan_is_refused(tiny_plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text("{", encoding="utf-8")
    with refused("cannot be read"):
        lab.run_plan(tiny_plan, tmp_path, seed=5, resume=True)


@pytest.mark.parametrize("quick", [False, True])
def test_quick_chooses_the_plan(quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run_plan(*arguments: object) -> Path:
        calls.append(arguments)
        return tmp_path / "report.md"

    monkeypatch.setattr(lab, "run_plan", run_plan)
    assert gpt_oss.run(out=tmp_path, quick=quick, seed=2, resume=True) == tmp_path / "report.md"
    assert calls == [(QUICK if quick else FULL, tmp_path, 2, True)]


def test_what_was_asked_for_is_kept(tiny_run: Path, tiny_plan: Plan) -> None:
    kept = json.loads((tiny_run / "lab.json").read_text(encoding="utf-8"))
    assert kept["seed"] == 5
    assert kept["num_measured"] == tiny_plan.num_measured
    assert kept["recipes"]["long"]["steps"] == 4
