"""``glassformer generate``: what it prints for which run, prompt and rule."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from glassformer.cli import generate as command
from glassformer.cli.main import main
from glassformer.cli.runs import read_run
from glassformer.errors import InputError
from glassformer.generation import SamplingRule, generate
from glassformer.models import Decoder
from glassformer.training import load_weights

TINY = [
    *("--model.num-layers", "1", "--model.hidden-dim", "16", "--model.ff-dim", "32"),
    *("--model.num-heads", "2", "--model.head-dim", "8", "--model.max-seq-len", "64"),
    *("--training.batch-size", "16", "--training.learning-rate", "0.02", "--training.log-every", "50"),
]


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned to say one thing."""
    directory = tmp_path_factory.mktemp("text")
    (directory / "text.txt").write_text("naïve café! " * 60)
    arguments = ["--data", str(directory / "text.txt"), "--run", str(directory / "run"), "--seq-len", "24"]
    assert main(["train", *arguments, *TINY, "--training.steps", "120"]) == 0
    return directory / "run"


@pytest.fixture(scope="module")
def recurrence_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the recurrence, hardly begun."""
    run = tmp_path_factory.mktemp("recurrence") / "run"
    flags = ["--training.steps", "20", "--training.warmup-steps", "0", "--seq-len", "16"]
    assert main(["train", "--data", "recurrence", "--run", str(run), *TINY, *flags]) == 0
    return run


def continuation(run: Path, prompt: list[int], count: int, rule: SamplingRule) -> list[int]:
    """The tokens that Python gets for the best model of ``run``."""
    model = Decoder(read_run(run).model)
    load_weights(model, run / "best")
    return generate(model, [prompt], count, rule=rule)[0]


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_text_goes_on_as_it_was_learned(text_run: Path, stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--run", str(text_run), "--prompt", "naïve", "--max-new-tokens", "20", "--temperature", "0", stream]
    assert main(["generate", *arguments]) == 0
    assert capsys.readouterr().out == "naïve café! naïve café\n"


def test_numbers_go_on_as_numbers(recurrence_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt", " 1 2  3", "--max-new-tokens", "30", "--temperature", "1.3", "--top-k", "4", "--seed", "5"]
    assert main(["generate", "--run", str(recurrence_run), *arguments]) == 0
    expected = continuation(recurrence_run, [1, 2, 3], 30, SamplingRule(temperature=1.3, top_k=4, seed=5))
    assert capsys.readouterr().out == " ".join(map(str, [1, 2, 3, *expected])) + "\n"


def test_seeds_repeat_and_differ(recurrence_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in (["--seed", "1"], ["--seed", "1"], ["--seed", "2"], []):
        assert main(["generate", "--run", str(recurrence_run), "--prompt", "0", "--max-new-tokens", "40", *seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_the_best_model_speaks_and_before_it_the_latest(recurrence_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(recurrence_run, run)
    older = run / "checkpoints" / "step-00000007"
    (run / "best").rename(older)
    flags = command.GenerateFlags(run=run, prompt="0", max_new_tokens=3)
    assert "".join(command.run(flags)).startswith("0 ")
    for name in ("step-00000020", "step-00000007"):
        assert (run / "checkpoints" / name).is_dir()
        shutil.rmtree(run / "checkpoints" / name)
    with pytest.raises(InputError, match=r"no weights yet.*glassformer train --run .* --resume"):
        command.run(flags)


def test_pieces_come_as_soon_as_their_tokens(recurrence_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    step = Decoder.hidden
    monkeypatch.setattr(Decoder, "hidden", lambda *args, **options: (steps.append(1), step(*args, **options))[1])
    pieces = command.run(command.GenerateFlags(run=recurrence_run, prompt="4 5", max_new_tokens=9))
    assert [next(pieces), next(pieces)] == ["4", " 5"]
    assert steps == []
    next(pieces)
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("content", "pieces"),
    [
        (b"ab", ["a", "b", ""]),
        ("é€".encode(), ["", "é", "", "", "€", ""]),
        (b"a\xffb", ["a", "\N{REPLACEMENT CHARACTER}", "b", ""]),
        (b"a\xe2\x82", ["a", "", "", "\N{REPLACEMENT CHARACTER}"]),
    ],
)
def test_characters_appear_when_they_are_whole(content: bytes, pieces: list[str]) -> None:
    assert list(command.decode(content, "text")) == pieces


@pytest.mark.parametrize(
    ("run", "flags", "message"),
    [
        ("text", ["--prompt", ""], "an empty prompt"),
        ("recurrence", ["--prompt", " "], "whole numbers from 0 to 6"),
        ("recurrence", ["--prompt", "1 7"], "the prompt '1 7'; expected whole numbers from 0 to 6"),
        ("recurrence", ["--prompt", "-1"], "whole numbers from 0 to 6"),
        ("recurrence", ["--prompt", "one"], '--prompt "1 2 3"'),
        ("text", ["--prompt", "x", "--max-new-tokens", "65"], "max_seq_len = 64"),
        ("nowhere", ["--prompt", "x"], "holds no run"),
    ],
)
def test_what_cannot_be_continued_is_one_line(
    run: str,
    flags: list[str],
    message: str,
    text_run: Path,
    recurrence_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = {"text": text_run, "recurrence": recurrence_run, "nowhere": text_run / "nowhere"}
    assert main(["generate", "--run", str(runs[run]), *flags]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("flags", "helpful"),
    [
        ([], "--prompt"),
        (["--prompt", "x", "--temprature", "1"], "--temperature"),
        (["--prompt", "x", "--tokens", "1"], "--max-new-tokens"),
        (["--prompt", "x", "--top-p", "2"], "between 0 and 1"),
        (["--prompt", "x", "--top-k", "0"], "at least 1"),
        (["--prompt", "x", "--max-new-tokens", "0"], "at least 1"),
    ],
)
def test_wrong_flags_name_the_right_ones(
    flags: list[str], helpful: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "--run", "nowhere", *flags])
    assert stopped.value.code == 2
    assert helpful in capsys.readouterr().err


def test_help_tells_every_flag(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    flags = (
        "run",
        "prompt",
        "max-new-tokens",
        "temperature",
        "top-k",
        "top-p",
        "seed",
        "stream",
        "no-stream",
        "compile",
    )
    assert all(f"--{flag}" in shown for flag in flags)
    assert "--no-compile" not in shown


def test_a_compiled_step_is_asked_for(recurrence_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(command, "stream", lambda *args, compile, **options: asked.append(compile) or iter([[1], [2]]))
    for compile in (False, True):
        flags = command.GenerateFlags(run=recurrence_run, prompt="3", compile=compile)
        assert "".join(command.run(flags)) == "3 1 2"
    assert asked == [False, True]
    assert torch.is_grad_enabled()
