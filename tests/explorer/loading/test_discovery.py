"""Models on disk are found under unique names; damaged ones are reported and skipped."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from glassformer.cli.commands.explore import backend_of
from glassformer.cli.flags import ExploreFlags
from glassformer.explorer import messages as m
from glassformer.explorer.loading.discovery import MOST_FOUND, entries_at, find_models, list_models
from glassformer.explorer.loading.loaded_model import LoadedHead
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.weight_files import write_head
from refusals import refused
from small_models import decoder, write_run


def _train_run(directory: Path) -> Path:
    model = decoder(vocab_size=256, num_layers=1)
    return write_run(
        directory, model, model=asdict(model.config), data={"kind": "text", "path": "x.txt"}
    )


def _listed(run: str | None = None, *, runs: Path) -> list[str]:
    return list(backend_of(ExploreFlags(run, runs=runs)).entries)


def test_runs_are_found_under_names_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("a", "lab/trainings/A", "lab/trainings/B b", "lab/A", "deep/1/2/3/4"):
        _train_run(tmp_path / path)
    (tmp_path / "lab" / "lab.json").write_text("{}")
    found = find_models(tmp_path, {"a"})
    assert [entry.card.name for entry in found] == ["a-2", "lab-a", "lab-a-2", "lab-b-b"]
    assert [entry.card.title for entry in found] == ["a", "lab/A", "lab/A", "lab/B b"]
    assert capsys.readouterr().err == ""


def test_what_is_broken_is_told_of_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _train_run(tmp_path / "good")
    (_train_run(tmp_path / "bad") / "config.json").write_text("{\n")
    assert [entry.card.name for entry in find_models(tmp_path)] == ["good"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"glassformer: warning: skipped {tmp_path / 'bad'}: got ")


@pytest.mark.parametrize("name", ["head.json", "unique.npz", "unique-notes.json"])
def test_a_broken_head_is_told_of_by_its_name(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("broken")
    assert find_models(tmp_path) == []
    found = [line.split(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert found == [f"skipped {tmp_path / name}"] * (name != "unique-notes.json")


def test_too_many_are_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(MOST_FOUND + 2):
        write_head(design(TASKS["identity"]()).weights, tmp_path / f"identity-{number:03d}.json")
    found = find_models(tmp_path)
    assert len(found) == MOST_FOUND
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_heads_are_found_by_their_names(tmp_path: Path) -> None:
    for name in ("unique.json", "my-copy_first.npz", "other.json"):
        task = next((task for task in TASKS if task in name), "identity")
        write_head(design(TASKS[task]()).weights, tmp_path / name)
    write_head(design(TASKS["previous_token"]()).weights, tmp_path / "previous_token.npz")
    (tmp_path / "unique-notes.json").write_text('{"a": 3}')
    found = {entry.card.name: entry.open() for entry in find_models(tmp_path)}
    tasks = {
        name: loaded.task.name for name, loaded in found.items() if isinstance(loaded, LoadedHead)
    }
    assert {name.rpartition("0-")[2]: task for name, task in tasks.items()} == {
        "unique": "unique",
        "my-copy_first": "copy_first",
        "previous_token": "previous_token",
    }


def test_a_named_head_gets_the_task_beside_it(tmp_path: Path) -> None:
    weights = HeadWeights(np.eye(2), np.eye(2), np.eye(2))
    write_head(weights, tmp_path / "mine.json")
    with refused(fix=r"task\.json"):
        entries_at(tmp_path / "mine.json")
    example = {"letters": "AB", "examples": [{"input": "AB", "output": "AB"}]}
    (tmp_path / "task.json").write_text(json.dumps(example))
    (entry,) = entries_at(tmp_path / "mine.json")
    loaded = entry.open()
    assert loaded.task.space.letters == ("A", "B")
    assert entry.card.text == "AB"
    write_head(HeadWeights(np.eye(3), np.eye(3), np.eye(3)), tmp_path / "three.json")
    with refused("Km of shape"):
        entries_at(tmp_path / "three.json")


def test_what_is_named_is_offered_first(tmp_path: Path) -> None:
    _train_run(tmp_path / "runs" / "one")
    names = _listed(runs=tmp_path / "runs")
    assert names[0] == "identity"
    assert names[-1] == "one"
    assert list_models("sentiment")[0].card.name == "sentiment"
    assert sorted(each.card.name for each in list_models("sentiment")) == sorted(names[:-1])
    named = _listed(str(tmp_path / "runs" / "one"), runs=tmp_path / "nowhere")
    assert named[0] == "one"
    assert named[1:] == names[:-1]
    everything = backend_of(ExploreFlags(str(tmp_path / "runs"), runs=tmp_path / "runs"))
    # once, though found twice
    assert [card.name for card in everything.catalogue().models] == [
        "one",
        *names[:-1],
    ]
    run = everything.answer("run", m.Ask(model="one", text="ab"))
    assert run.tokens == ["a", "b"]


def test_a_run_that_begins_later_is_listed_when_the_page_asks_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (_train_run(tmp_path / "bad") / "config.json").write_text("{\n")
    _train_run(tmp_path / "later")
    backend = backend_of(ExploreFlags(str(tmp_path / "later"), runs=tmp_path))
    _train_run(tmp_path / "earlier")
    for _ in range(2):
        names = [card.name for card in backend.answer("models", m.Nothing()).models]
        assert (names[0], names[-1]) == ("later", "earlier")
        assert len(names) == len(list_models()) + 2
    assert backend.answer("run", m.Ask(model="earlier", text="ab")).tokens == ["a", "b"]
    assert len(capsys.readouterr().err.splitlines()) == 1  # what is broken, once


def test_a_run_that_begins_later_takes_no_name_away(tmp_path: Path) -> None:
    _train_run(tmp_path / "b c")
    backend = backend_of(ExploreFlags(runs=tmp_path))
    _train_run(tmp_path / "B-C")
    found = {card.name: card.title for card in backend.answer("models", m.Nothing()).models}
    assert (found["b-c"], found["b-c-2"]) == ("b c", "B-C")


def test_a_run_called_like_one_that_comes_along_gets_another_name(tmp_path: Path) -> None:
    names = _listed(str(_train_run(tmp_path / "sentiment")), runs=tmp_path)
    assert names[0] == "sentiment-2"
    assert "sentiment" in names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("nothing", "it, which does not exist"),
        ("empty", "it, which holds no model"),
        ("broken", r"model\.safetensors"),
        ("unknown", "model_type 'granite'"),
        ("text", r"\.json file or an \.npz file"),
        ("gguf", r"it, which cannot be read"),
    ],
)
def test_what_is_named_must_be_there_and_whole(tmp_path: Path, make: str, message: str) -> None:
    path = tmp_path / "it"
    if make == "empty":
        path.mkdir()
    elif make == "broken":
        (_train_run(path) / "best" / "model.safetensors").unlink()
    elif make == "unknown":
        path.mkdir()
        (path / "config.json").write_text('{"model_type": "granite"}')
    elif make in ("text", "gguf"):
        path.write_text("hello" if make == "text" else "GGUF")
    with refused(anywhere=message):
        entries_at(path)


def test_a_path_may_begin_with_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _train_run(tmp_path / "mine")
    assert list_models("~/mine")[0].card.name == "mine"


def test_links_do_not_lead_out(tmp_path: Path) -> None:
    _train_run(tmp_path / "elsewhere" / "one")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    assert find_models(tmp_path / "runs") == []
