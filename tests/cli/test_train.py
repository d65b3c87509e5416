"""``glassformer train``: what it trains, continues and refuses."""

import dataclasses
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glassformer.checkpoints.decoders import load_decoder
from glassformer.cli.commands import train as command
from glassformer.cli.main import main
from glassformer.cli.runs import read_run
from glassformer.cli.train_flags import ModelFlags, TrainFlags
from glassformer.cli.training_data import TrainingData, open_data
from glassformer.models import Decoder
from glassformer.training import Batch, TrainingConfig
from refusals import Output, Refuses

TINY = [
    *("--model.num-layers", "1", "--model.hidden-dim", "8", "--model.ff-dim", "16"),
    *("--model.num-heads", "2", "--model.head-dim", "4"),
    *("--training.steps", "12", "--training.batch-size", "4", "--training.warmup-steps", "2"),
    *(
        "--training.eval-every",
        "4",
        "--training.checkpoint-every",
        "5",
        "--training.log-every",
        "1",
    ),
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("All happy families are alike. " * 20)
    return path


def train_text(text: Path, run: Path, *flags: str) -> int:
    return main(["train", "--data", str(text), "--run", str(run), "--seq-len", "8", *TINY, *flags])


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C when update ``step`` asks for its batch."""

    def open_and_interrupt(name: str, seq_len: int | None, seed: int) -> TrainingData:
        data = open_data(name, seq_len, seed)

        def batches(number: int, size: int) -> Batch:
            if number == step:
                os.kill(os.getpid(), signal.SIGINT)
            return data.batches(number, size)

        return dataclasses.replace(data, batches=batches)

    monkeypatch.setattr(command, "open_data", open_and_interrupt)


def numbers(run: Path) -> list[dict[str, object]]:
    """The records of a run without what a clock gave."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: record[key] for key in record.keys() - {"seconds", "tokens_per_second"}}
        for record in records
    ]


def test_a_text_is_learned_and_not_begun_again(
    text: Path, tmp_path: Path, output: Output, refuses: Refuses
) -> None:
    run = tmp_path / "a run"
    experts = ["--model.num-experts", "3", "--model.balance-experts"]
    begin = ["train", "--data", text, "--run", run, "--seq-len", "8", *TINY, *experts]
    said = output([*begin, "--training.betas", "0.8", "0.9", "--seed", "4"]).out
    evaluations = {
        record["step"]: record["evaluation"] for record in numbers(run) if "evaluation" in record
    }
    assert list(evaluations) == [4, 8, 12]
    best = min(evaluations, key=lambda step: evaluations[step]["loss"])
    expected = evaluations[best]
    assert (
        f"best: loss {expected['loss']:.4f} nats per token, accuracy {expected['accuracy']:.4f}"
        in said
    )
    assert f"after step {best}" in said
    weights = sum(
        tensor.numel() for tensor in load_file(run / "best" / "model.safetensors").values()
    )
    assert f"model: {weights:,} parameters" in said
    assert "540 bytes to learn from" in said
    assert f"generate '{run}' \"Once\"" in said, "the path is quoted for a shell"
    assert "best possible" not in said
    stored = read_run(run)
    assert (stored.model.vocab_size, stored.model.hidden_dim, stored.model.num_experts) == (
        256,
        8,
        3,
    )
    assert stored.training.betas == (0.8, 0.9)
    assert stored.data["path"] == str(text)
    assert stored.options == {"seed": 4, "balance_weight": 0.01}
    load_decoder(run)
    before = (run / "metrics.jsonl").read_bytes()
    refuses(begin, "--resume")
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_name_that_the_terminal_cannot_write_is_no_error(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    assert train_text(text, tmp_path / "Grüße") == 0
    assert f"run: {tmp_path / 'Gr??e'}\n".encode() in written.getvalue()


def test_the_balance_weight_counts_only_where_the_balance_is_computed(
    text: Path, tmp_path: Path
) -> None:
    losses = {}
    for name, flags in {
        "dense": ["--balance-weight", "5"],
        "off": ["--model.num-experts", "3", "--balance-weight", "5"],
        "light": ["--model.num-experts", "3", "--model.balance-experts", "--balance-weight", "0"],
        "heavy": ["--model.num-experts", "3", "--model.balance-experts", "--balance-weight", "5"],
    }.items():
        assert train_text(text, tmp_path / name, *flags, "--training.steps", "2") == 0
        losses[name] = numbers(tmp_path / name)[0]["loss"]
    assert losses["off"] == losses["light"]
    assert losses["heavy"] - losses["light"] == pytest.approx(5, abs=1.5), (
        "the balance loss is at least about 1"
    )
    assert losses["dense"] < losses["heavy"] - 3


def test_seeds_decide_weights_and_data(text: Path, tmp_path: Path) -> None:
    for name, seed in (("first", "0"), ("same", "0"), ("other", "1")):
        torch.rand(3)
        assert train_text(text, tmp_path / name, "--seed", seed, "--training.steps", "2") == 0
    assert numbers(tmp_path / "first") == numbers(tmp_path / "same") != numbers(tmp_path / "other")


def test_the_recurrence_is_shown_beside_its_optimum(tmp_path: Path, output: Output) -> None:
    said = output(
        ["train", "--data", "recurrence", "--run", tmp_path / "run", "--seq-len", "16", *TINY]
    ).out
    optimum = open_data("recurrence", 16, 0).optimal_accuracy
    assert (
        f"accuracy that the best possible model expects on these sequences: {optimum:.4f}" in said
    )
    assert f'generate {tmp_path / "run"} "1 2 3"' in said
    stored = read_run(tmp_path / "run")
    assert (stored.model.vocab_size, stored.data["kind"], stored.data["seq_len"]) == (
        7,
        "recurrence",
        16,
    )


@pytest.mark.parametrize("data", ["text", "recurrence"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    data: str,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = str(text) if data == "text" else data
    begin = [
        "train",
        "--data",
        name,
        "--seq-len",
        "8",
        *TINY,
        "--model.dropout",
        "0.2",
        "--model.window",
        "3",
    ]
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    assert main([*begin, "--run", str(whole)]) == 0
    with monkeypatch.context() as patched:
        interrupt_at(6, patched)
        assert main([*begin, "--run", str(parts)]) == 130
    said = capsys.readouterr()
    assert f"continue: glassformer train --run {parts} --resume" in said.out
    assert said.err.count("--resume") + said.err.count("resume=True") == 0
    assert "after step 7 of 12" in said.err
    assert main(["train", "--run", str(parts), "--resume"]) == 0
    assert numbers(parts) == numbers(whole)
    for file in ("best/model.safetensors", "checkpoints/step-00000012/optimizer.safetensors"):
        assert (parts / file).read_bytes() == (whole / file).read_bytes()


def test_resuming_takes_its_flags_from_the_run_unless_they_are_given(
    text: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train_text(text, run, "--training.schedule", "constant") == 0
    assert main(["train", f"--run={run}", "--resume", "--training.steps", "15"]) == 0
    assert [record["step"] for record in numbers(run) if "loss" in record] == list(range(1, 16))


def test_a_text_may_move_but_not_change(
    text: Path, tmp_path: Path, output: Output, refuses: Refuses
) -> None:
    run = tmp_path / "run"
    moved = tmp_path / "moved.txt"
    assert train_text(text, run) == 0
    text.rename(moved)
    resume = ["train", "--run", str(run), "--resume"]
    refuses(resume, f"{text}, which cannot be read")
    assert main([*resume, "--data", str(moved)]) == 0
    assert main([*resume, "--data", str(moved)]) == 0
    moved.write_text("Every unhappy family is unhappy in its own way. " * 20)
    assert "sha256" in output([*resume, "--data", moved], 2).err


def test_patience_and_divergence_are_told(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rates(rate: str) -> list[str]:
        return ["--training.learning-rate", rate, "--training.muon-learning-rate", rate]

    # Steps this small leave float32 weights as they are, so the loss stands still.
    still = [*rates("1e-12"), "--training.patience", "1", "--training.weight-decay", "0"]
    assert train_text(text, tmp_path / "still", *still) == 0
    assert "ended after 1 evaluations in a row without a better loss" in capsys.readouterr().out
    assert train_text(text, tmp_path / "diverging", *rates("1e30")) == 1
    assert "training diverged: step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--data"),
        (["--run"], "--run"),
        (["--data", "missing.txt", "--run", "run"], "'recurrence', or the path of a text file"),
        (["--data", "empty.txt", "--run", "run"], "empty.txt of 0 bytes"),
        (["--data", "foreign", "--run", "run"], "which is a directory"),
        (["--data", "recurrence", "--run", "empty.txt"], "empty.txt, which is a file"),
        (
            ["--data", "recurrence", "--run", "empty.txt/run"],
            "empty.txt for empty.txt/run, which is a file",
        ),
        (["--data", "recurrence", "--run", "run", "--seq-len", "0"], "seq_len = 0"),
        (
            ["--data", "recurrence", "--run", "run", "--model.max-seq-len", "63"],
            "--model.max-seq-len",
        ),
        (["--run", "run", "--resume"], "--run run, which holds no run"),
        (["--run", "foreign", "--resume"], "['fresh'] in its description"),
    ],
)
def test_what_cannot_be_trained(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("foreign").mkdir()
    model = {
        "vocab_size": 7,
        "num_layers": 1,
        "hidden_dim": 8,
        "ff_dim": 8,
        "num_heads": 1,
        "head_dim": 8,
    }
    described = {"model": model, "data": {"kind": "recurrence"}, "fresh": True}
    Path("foreign/config.json").write_text(json.dumps({"training": {}, "description": described}))
    refuses(["train", *flags], message)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("flags", "helpful"),
    [
        (["--steps", "5"], "--training.steps"),
        (["--modle.window", "5"], "--model.window"),
        (["--seeds", "1"], "--seed"),
        (["--model.vocab-size", "9"], "Unrecognized"),
        (["--model.num-heads", "0"], "num_heads = 0"),
        (["--training.optimizer", "rmsprop"], "adamw"),
        (["--seed", "-1"], "seed = -1"),
        (["--seed", "1" + 22 * "0"], "seed = 1"),
        (["--balance-weight", "-1"], "balance_weight = -1.0"),
        (["--model.balance-experts"], "--model.num-experts"),
        (["--training.batch-size", "99999999999"], "of memory; expected at most"),
        (["--model.hidden-dim", "1000000"], "of memory; expected at most"),
        (["--model.hidden-dim", "100000000000"], "of memory; expected at most"),
        (["--model.num-layers", "99999999999"], "of memory; expected at most"),
        (
            ["--seq-len", "99999999999", "--model.max-seq-len", "999999999999"],
            "of memory; expected at most",
        ),
        (["--model.ff-dim", "10000000000"], "of memory; expected at most"),
    ],
)
def test_wrong_flags_name_the_right_ones_and_absurd_sizes_are_refused(
    flags: list[str],
    helpful: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(["train", "--data", "recurrence", "--run", "nowhere", *flags], helpful)
    assert not Path("nowhere").exists()


def test_help_tells_every_field_but_the_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    simple = {"clamp", "rope_scaling", "vocab_size", "expert_format"}
    for prefix, kind in (("model", ModelFlags), ("training", TrainingConfig)):
        for field in dataclasses.fields(kind):
            flag = f"--{prefix}.{field.name.replace('_', '-')}"
            flag = flag.replace("model.", "model.no-") if field.default is True else flag
            assert (flag in shown) is (field.name not in simple), flag


def test_the_defaults_are_a_model_that_can_be_built() -> None:
    flags = TrainFlags(data="recurrence", run=Path("run"))
    assert sum(weight.numel() for weight in Decoder(flags.model).parameters()) < 1_000_000


@pytest.mark.slow
def test_ctrl_c_ends_the_process_with_status_130(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [
        "--data",
        str(text),
        "--run",
        str(run),
        "--seq-len",
        "8",
        *TINY,
        "--training.steps",
        "1000000",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "glassformer", "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 600
        while (
            not (run / "best").exists() and process.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, warned = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130, warned
    assert "Traceback" not in warned
    assert f"continue: glassformer train --run {run} --resume" in said
    latest = sorted((run / "checkpoints").iterdir())[-1]
    assert f"Stopped after step {int(latest.name.removeprefix('step-'))} of" in warned


ACCELERATE = (
    "accelerate.commands.launch --multi_gpu --num_processes 2 --main_process_port {port} -m"
)
TORCHRUN = "torch.distributed.run --nproc-per-node 2 --master-port {port} -m --"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "variables"),
    [(ACCELERATE, {"ACCELERATE_USE_CPU": "true"}), (TORCHRUN, {})],
    ids=["accelerate", "torchrun"],
)
def test_two_processes_follow_the_curve_of_one_and_speak_once(
    launcher: str, variables: dict[str, str], text: Path, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    arguments = ["--data", str(text), "--run", str(tmp_path / "two"), "--seq-len", "8", *TINY]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            *launcher.format(port=port).split(),
            "glassformer",
            "train",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "model",
        "data",
        "run",
        "best",
        "generate",
    ]
    assert train_text(text, tmp_path / "one") == 0
    one, two = (
        [record.get("loss") for record in numbers(tmp_path / name)] for name in ("one", "two")
    )
    # Muon rounds to bfloat16 on its way, so sums taken in another order show in the fourth digit.
    assert two == [loss and pytest.approx(loss, rel=1e-3) for loss in one]
    assert main(["train", "--run", str(tmp_path / "two"), "--resume"]) == 0
