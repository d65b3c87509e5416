from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
from pathlib import Path

import pytest
import torch

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import SingleHead
from glassformer.handcraft.tasks import unique
from glassformer.labs.hand_designed import study
from glassformer.labs.hand_designed.recipes import Recipe, course_recipe, fast_recipe, recipes
from glassformer.labs.hand_designed.study import Study, follow_failures, run_study
from refusals import refused

SHORT = (fast_recipe("copy_first").scaled(0.02), course_recipe("copy_first").scaled(0.001))


def without_seconds(found: Study) -> list[dict]:
    return [{**dataclasses.asdict(cell), "seconds": 0} for cell in found.cells]


def designed() -> SingleHead:
    return SingleHead.from_weights(design(unique()).weights, torch.float32)


def run(directory: Path, chosen: tuple[Recipe, ...] = SHORT, seeds: int = 2, first_seed: int = 0) -> Study:
    return run_study(directory, seeds=seeds, first_seed=first_seed, chosen=chosen, progress=False)


def test_a_study_has_a_cell_for_every_training(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert [(cell.recipe, cell.seed, cell.steps) for cell in found.cells] == [
        ("fast", 0, 16),
        ("fast", 1, 16),
        ("course", 0, 10),
        ("course", 1, 10),
    ]
    assert json.loads((tmp_path / "study.json").read_text()) == found.to_json()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "study.csv").read_text())))
    assert [float(row["mse"]) for row in rows] == [cell.mse for cell in found.cells]
    assert list(rows[0]) == [field.name for field in dataclasses.fields(study.Cell)]


def test_the_summary_is_of_its_cells(tmp_path: Path) -> None:
    found = run(tmp_path, seeds=5)
    for recipe, summary in zip(SHORT, found.summaries, strict=True):
        cells = [cell for cell in found.cells if cell.recipe == recipe.name]
        assert (summary.task, summary.recipe, summary.seeds) == ("copy_first", recipe.name, 5)
        assert summary.solved == len([cell for cell in cells if cell.solved])
        assert summary.solved == len([cell for cell in cells if cell.sequences_right == 1 == cell.outputs_right])
        assert summary.small_error == len([cell for cell in cells if cell.largest_error < 0.01])
        assert summary.median_error == sorted(cell.largest_error for cell in cells)[2]
        assert summary.largest_error == max(cell.largest_error for cell in cells)
        assert summary.lowest_outputs_right == min(cell.outputs_right for cell in cells)
        assert summary.median_seconds == statistics.median(cell.seconds for cell in cells) > 0


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    assert without_seconds(first) == without_seconds(second)
    later = run(tmp_path / "c", seeds=1, first_seed=1)
    assert without_seconds(later) == [cell for cell in without_seconds(first) if cell["seed"] == 1]


def test_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole", seeds=3)
    trained = []
    original = study.train_head

    def stops(task: object, recipe: Recipe, seed: int) -> object:
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append((recipe.name, seed))
        return original(task, recipe, seed)

    monkeypatch.setattr(study, "train_head", stops)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", seeds=3)
    assert not (tmp_path / "parts" / "study.json").exists()
    monkeypatch.setattr(study, "train_head", lambda *args: trained.append(args[1:]) or original(*args))
    resumed = run(tmp_path / "parts", seeds=3)
    assert len(trained) == len(set(map(str, trained))) == 6, "nothing is trained twice"
    assert without_seconds(resumed) == without_seconds(whole)
    assert run(tmp_path / "parts", seeds=3) == resumed


def test_by_default_both_recipes_are_studied_on_each_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def cell(directory: Path, recipe: Recipe, seed: int) -> study.Cell:
        done.append((recipe.task, recipe.name, seed, recipe.steps))
        return study.Cell(recipe.task, recipe.name, seed, recipe.steps, True, 1.0, 1.0, 0.001, 0.0, 1.0)

    monkeypatch.setattr(study, "_cell", cell)
    found = run_study(tmp_path, seeds=1, quick=True, progress=False)
    assert done == [
        (task, recipe.name, 0, recipe.scaled(0.25).steps)
        for task in ("identity", "copy_first", "unique")
        for recipe in recipes(task)
    ]
    assert found.quick
    assert [summary.solved for summary in found.summaries] == [1] * 6


def test_progress_is_a_line_for_each_recipe_elsewhere_than_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(tmp_path, seeds=1, chosen=SHORT, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["copy_first, fast", "copy_first, course"]
    assert "of 1 solved" in lines[0]
    run_study(tmp_path, seeds=1, chosen=SHORT, progress=False)
    assert capsys.readouterr().err == ""


def test_bad_studies_are_refused(tmp_path: Path) -> None:
    with refused("seeds"):
        run(tmp_path, seeds=0)
    with refused("first_seed = -1"):
        run(tmp_path, first_seed=-1)
    with refused(expected="at least one"):
        run(tmp_path, chosen=())
    with refused(fix="Rename"):
        run(tmp_path, chosen=(SHORT[0], SHORT[0]))


def test_other_or_damaged_trainings_are_refused(tmp_path: Path) -> None:
    run(tmp_path, seeds=1)
    with refused("other settings"):
        run(tmp_path, chosen=(SHORT[0].scaled(2.0),), seeds=1)
    file = tmp_path / "cells" / "copy_first-fast-0.json"
    for text in ("{", "[]", '{"asked": {}}', '{"asked": {}, "found": {"task": "unique"}}'):
        file.write_text(text)
        with refused(fix="Remove that file"):
            run(tmp_path, seeds=1)


def test_stories_are_followed_to_their_ends_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So short a recipe solves nothing; the fast one, begun at any weights, does.
    monkeypatch.setattr(study, "fast_recipe", lambda task: fast_recipe(task).scaled(0.02))
    monkeypatch.setattr(study, "descent_recipe", lambda task: fast_recipe(task).scaled(0.01))
    recipe = course_recipe("unique").scaled(0.002)
    (story,) = follow_failures(tmp_path, [4], recipe=recipe, factors=(2, 3))
    assert (story.seed, story.kind) == (4, "trapped")
    assert [moment.steps for moment in story.moments] == [20, 40, 60]
    assert story.minimum.lowest_curvature <= story.minimum.highest_curvature
    assert story.escaped.steps == 20, "from where the recipe has left it"
    assert json.loads((tmp_path / "failures.json").read_text())[0]["kind"] == "trapped"
    monkeypatch.setattr(study, "_follow", None)
    assert follow_failures(tmp_path, [4], recipe=recipe, factors=(2, 3)) == [story]
    with refused("other settings"):
        follow_failures(tmp_path, [4], recipe=recipe, factors=(2, 4))


@pytest.mark.parametrize(("wrong_at_first", "kind", "moments"), [((), "solved", 1), (("AA",), "slow", 2)])
def test_a_head_that_gets_there_needs_no_rescue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_at_first: tuple[str, ...], kind: str, moments: int
) -> None:
    original, seen = study.moment_of, []

    def told(*args: object) -> study.Moment:
        seen.append(args)
        return dataclasses.replace(original(*args), wrong=wrong_at_first if len(seen) == 1 else ())

    monkeypatch.setattr(study, "moment_of", told)
    (story,) = follow_failures(tmp_path, [0], recipe=course_recipe("unique").scaled(0.001))
    assert (story.kind, len(story.moments), story.minimum, story.escaped) == (kind, moments, None, None)


def test_bad_stories_are_refused(tmp_path: Path) -> None:
    with refused("no seeds"):
        follow_failures(tmp_path, [])
    with refused(expected="one for unique"):
        follow_failures(tmp_path, [0], recipe=course_recipe("identity"))
    for factors in ((1,), (3, 2), (3, 3)):
        with refused(expected="rise from 2"):
            follow_failures(tmp_path, [0], factors=factors)


@pytest.mark.slow
def test_the_fast_recipe_solves_unique_from_each_seed(tmp_path: Path) -> None:
    (summary,) = run_study(tmp_path, seeds=5, chosen=[fast_recipe("unique")], progress=False).summaries
    assert (summary.solved, summary.small_error) == (5, 5)
