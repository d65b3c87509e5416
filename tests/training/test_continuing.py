"""What a run that is continued says of its surroundings and of its files."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training_toys import InterruptedTask, ToyModel, ToyTask

from glassformer.training import TrainingConfig, train
from refusals import refused

CONFIG = TrainingConfig(
    steps=8, batch_size=8, log_every=1, eval_every=2, checkpoint_every=2, keep_checkpoints=9
)


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def begun(directory: Path, config: TrainingConfig = CONFIG) -> Path:
    """A run that was stopped after four of eight steps."""
    assert (
        train(ToyModel(), InterruptedTask(at=3), config, directory, progress=False).ending
        == "interrupted"
    )
    return directory


def continued(directory: Path) -> int:
    return train(ToyModel(), ToyTask(), CONFIG, directory, resume=True, progress=False).step


def environments(directory: Path) -> list[dict]:
    return json.loads((directory / "config.json").read_text())["environments"]


def test_another_number_of_threads_is_said_and_recorded(
    tmp_path: Path, threads: int, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path)
    capsys.readouterr()
    torch.set_num_threads(threads + 1)
    assert continued(tmp_path) == 8
    said = capsys.readouterr().err
    assert f"goes on with threads = {threads + 1} instead of {threads}" in said
    assert [(each["step"], each["threads"]) for each in environments(tmp_path)] == [
        (0, threads),
        (4, threads + 1),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("torch", "1.0"),
        ("device", "another"),
        ("processes", 2),
        ("cpu_capability", "none"),
        ("native_library", None),
    ],
)
def test_every_other_difference_is_said(
    name: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = begun(tmp_path) / "config.json"
    content = json.loads(file.read_text())
    content["environments"][-1][name] = value
    file.write_text(json.dumps(content))
    capsys.readouterr()
    continued(tmp_path)
    said = capsys.readouterr().err
    assert f"{name} = " in said
    assert f"instead of {value!r}" in said


def test_switches_of_torch_are_part_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path)
    torch.use_deterministic_algorithms(True)
    try:
        continued(tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    assert "deterministic_algorithms = True instead of False" in capsys.readouterr().err


def test_nothing_is_said_where_nothing_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(ToyModel(), ToyTask(), CONFIG, tmp_path / "whole", progress=False)
    begun(tmp_path / "parts")
    capsys.readouterr()
    assert continued(tmp_path / "parts") == 8
    assert capsys.readouterr().err == ""
    assert len(environments(tmp_path / "parts")) == 1
    weights = [
        (tmp_path / name / "best" / "model.safetensors").read_bytes() for name in ("whole", "parts")
    ]
    assert weights[0] == weights[1]
    assert whole.step == 8
    torch.set_num_threads(torch.get_num_threads())
    assert continued(tmp_path / "parts") == 8  # which has ended
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stored", ["gone", "null", "text", "numbers"])
def test_a_run_that_does_not_say_its_environment(
    stored: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = begun(tmp_path) / "config.json"
    content = json.loads(file.read_text())
    content["environments"] = {"null": None, "text": "x", "numbers": [1, 2]}.get(stored)
    if stored == "gone":
        del content["environments"]
    file.write_text(json.dumps(content))
    capsys.readouterr()
    assert continued(tmp_path) == 8
    assert capsys.readouterr().err == ""


def cut(directory: Path, end: int) -> None:
    file = directory / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:end])


def test_a_last_record_that_is_cut_in_half_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (begun(tmp_path) / "metrics.jsonl").read_text().splitlines(keepends=True)
    cut(tmp_path, -len(lines[-1]) // 2)
    capsys.readouterr()
    best = json.loads((tmp_path / "best" / "state.json").read_text())["step"]
    last = json.loads(lines[-1])
    if last["step"] == best and "evaluation" in last:
        with refused("without the evaluation"):
            continued(tmp_path)
    else:
        continued(tmp_path)
    said = capsys.readouterr().err
    assert f"metrics.jsonl, line {len(lines)}, is not whole and is left out" in said
    assert f"holds {len(lines) - 1} of the {len(lines)} records up to step 4" in said


def test_records_that_are_missing_as_whole_lines_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (begun(tmp_path) / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] != 3]
    (tmp_path / "metrics.jsonl").write_text("".join(kept))
    capsys.readouterr()
    assert continued(tmp_path) == 8
    assert (
        f"holds {len(lines) - 1} of the {len(lines)} records up to step 4"
        in capsys.readouterr().err
    )


def test_a_last_record_without_its_line_end_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (begun(tmp_path) / "metrics.jsonl").read_text()
    cut(tmp_path, -1)
    capsys.readouterr()
    assert continued(tmp_path) == 8
    assert capsys.readouterr().err == ""
    assert (tmp_path / "metrics.jsonl").read_text().startswith(before)


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"step": 4}',
        '{"step": 9, "note": 1}',
        '["step", 4]',
        '{"step": 1, "loss": 2.0}',
        "{}",
        "null",
    ],
)
def test_a_line_that_is_no_record_of_ours_is_named(line: str, tmp_path: Path) -> None:
    file = begun(tmp_path) / "metrics.jsonl"
    number = file.read_text().count("\n") + 1
    with file.open("a") as opened:
        opened.write(f"{line}\n")
    with refused(rf"metrics\.jsonl, line {number}:"):
        continued(tmp_path)


def test_a_record_twice_is_named(tmp_path: Path) -> None:
    file = begun(tmp_path) / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], *lines]))
    with refused(r"metrics\.jsonl, line 2:"):
        continued(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("kind", ["missing", "half"])
def test_a_checkpoint_that_is_half_there_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    file = begun(tmp_path) / "checkpoints" / "step-00000004" / name
    content = file.read_bytes()
    file.unlink()
    if kind == "half":
        file.write_bytes(content[: len(content) // 2])
    with refused(name):
        continued(tmp_path)
    assert {each.name for each in (tmp_path / "checkpoints").iterdir()} == {
        "step-00000002",
        "step-00000004",
    }


def test_a_checkpoint_with_the_state_of_another_step_is_refused(tmp_path: Path) -> None:
    places = begun(tmp_path) / "checkpoints"
    os.replace(places / "step-00000002" / "state.json", places / "step-00000004" / "state.json")
    with refused("step-00000004 with the state of step 2"):
        continued(tmp_path)
