"""Command lines that ask for what no machine has, or would replace what is there: one line, and nothing done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from glassformer.cli.main import main
from glassformer.generation import generate
from glassformer.models import Decoder, DecoderConfig
from refusals import refused


def refuses(arguments: Sequence[str | Path], said: str, capsys: pytest.CaptureFixture[str], status: int = 2) -> None:
    try:
        found = main([str(each) for each in arguments])
    except SystemExit as stopped:
        found = stopped.code  # type: ignore[assignment]
    assert found == status
    printed = capsys.readouterr().err
    assert said in " ".join(printed.split()), printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    "sizes",
    [
        ["--training.batch-size", "99999999999"],
        ["--model.hidden-dim", "1000000"],
        ["--model.hidden-dim", "100000000000"],
        ["--model.num-layers", "99999999999"],
        ["--seq-len", "99999999999", "--model.max-seq-len", "999999999999"],
        ["--model.ff-dim", "10000000000"],
    ],
)
def test_training_of_absurd_sizes(sizes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--data", "recurrence", "--run", tmp_path / "run", *sizes]
    refuses(command, "of memory; expected at most", capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["lab", "lookup"], ["train", "--data", "recurrence", "--run", "r"]])
def test_seeds_that_no_generator_takes(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in ("1" + 22 * "0", "-1"):
        refuses([*command, "--seed", seed], f"seed = {seed[:2]}", capsys)
    assert list(tmp_path.iterdir()) == []


def test_links_that_lead_in_a_circle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for command in (["explore", loop, "--no-browser"], ["verify", loop, "--task", "identity"]):
        refuses(command, "loop", capsys)


def head(path: Path) -> Path:
    path.write_text(json.dumps({"Km": [[1, 0], [0, 1]], "Qm": [[1, 0], [0, 1]], "Vm": [[1, 0], [0, 1]]}))
    return path


def test_a_certificate_replaces_nothing_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, there = head(tmp_path / "head.json"), tmp_path / "there.json"
    there.write_text("mine")
    link = tmp_path / "link.json"
    link.symlink_to(there)
    command = ["verify", given, "--task", "identity", "--letters", "AB"]
    for path in (there, link):
        refuses([*command, "--json", path], "which is there already", capsys)
    refuses([*command, "--json", "/dev/null", "--overwrite"], "which is there already", capsys)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "counterexample.svg").write_text("mine")
    refuses([*command, "--figure", tmp_path / "figures"], "which is there already", capsys)
    assert there.read_text() == "mine"
    assert main([*map(str, command), "--json", str(there), "--overwrite"]) in (0, 1)
    assert "verdict" in json.loads(there.read_text())


def test_a_lab_takes_no_directory_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    refuses(["lab", "lookup", "--quick", "--out", tmp_path], "holds something else: config.json", capsys)
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for error in (MemoryError("rows_int8"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")):

        def raises(_flags: object, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr("glassformer.cli.commands.info.main", raises)
        refuses(["info", "m"], "not enough memory", capsys, status=1)


def decoder() -> Decoder:
    sizes = DecoderConfig(vocab_size=20, num_layers=1, hidden_dim=16, ff_dim=16, num_heads=2, head_dim=8)
    return Decoder(sizes)


@pytest.mark.usefixtures("without_type_checks")
def test_prompts_that_are_no_lists_of_lists() -> None:
    for wrong in ([1, 2, 3], torch.tensor([1, 2]), torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool), "abc"):
        with refused("prompts of", fix=r"\[prompt\]"):
            generate(decoder(), wrong, 2)  # type: ignore[arg-type]


def test_more_speculation_than_tokens_costs_nothing() -> None:
    model, prompt = decoder(), [[1, 2, 3, 1, 2, 3, 1, 2]]
    assert generate(model, prompt, 3, speculate=999_999_999) == generate(model, prompt, 3)
