"""``glassformer generate``: what it prints for which model, prompt and rule."""

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss

from glassformer.checkpoints.decoders import load_decoder
from glassformer.cli.commands import generate as command
from glassformer.cli.main import main
from glassformer.data.released_tokenizer import read_tokenizer
from glassformer.generation import SamplingRule, generate
from glassformer.kernels import native
from glassformer.labs.gpt_oss import LAB
from glassformer.labs.gpt_oss.experiments.models import train_model
from glassformer.labs.run import Run
from glassformer.models import Decoder
from glassformer.training import TrainingConfig, load_weights
from refusals import Output, Refuses
from small_models import decoder

TINY = [
    *("--model.num-layers", "1", "--model.hidden-dim", "16", "--model.ff-dim", "32"),
    *("--model.num-heads", "2", "--model.head-dim", "8", "--model.max-seq-len", "64"),
    *(
        "--training.batch-size",
        "16",
        "--training.learning-rate",
        "0.02",
        "--training.log-every",
        "50",
    ),
]


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned to say one thing."""
    directory = tmp_path_factory.mktemp("text")
    (directory / "text.txt").write_text("naïve café! " * 60)
    arguments = [
        "--data",
        str(directory / "text.txt"),
        "--run",
        str(directory / "run"),
        "--seq-len",
        "24",
    ]
    assert main(["train", *arguments, *TINY, "--training.steps", "120"]) == 0
    return directory / "run"


@pytest.fixture(scope="module")
def recurrence_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the recurrence, hardly begun."""
    run = tmp_path_factory.mktemp("recurrence") / "run"
    flags = ["--training.steps", "20", "--training.warmup-steps", "0", "--seq-len", "16"]
    assert main(["train", "--data", "recurrence", "--run", str(run), *TINY, *flags]) == 0
    return run


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_text_goes_on_as_it_was_learned(text_run: Path, stream: str, output: Output) -> None:
    arguments = [str(text_run), "naïve", "--max-new-tokens", "20", "--temperature", "0", stream]
    assert output(["generate", *arguments]).out == "naïve café! naïve café\n"


def test_what_is_said_of_compiling_does_not_cut_the_text(
    text_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = native.library
    monkeypatch.setattr(native, "library", lambda: print("compiling ...") or real())
    assert (
        main(["generate", str(text_run), "naïve", "--max-new-tokens", "1", "--temperature", "0"])
        == 0
    )
    assert capsys.readouterr().out.startswith("compiling ...\n")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_dash_reads_standard_input(
    end: str, text_run: Path, recurrence_run: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stdin(f"naïve{end}".encode()))
    flags = ["--max-new-tokens", "20", "--temperature", "0"]
    assert output(["generate", text_run, "-", *flags]).out == "naïve café! naïve café\n"
    for name in (["capture"], ["intervene", "--without", "0.0", "--generate", "3"]):
        monkeypatch.setattr("sys.stdin", stdin(f"1 2 3{end}".encode()))
        assert (
            output([*name, recurrence_run, "-"]).out == output([*name, recurrence_run, "1 2 3"]).out
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty standard input"),
        (b"\n", "an empty standard input"),
        (b"caf\xe9", "the byte 0xe9 at place 3"),
    ],
)
@pytest.mark.parametrize("command", [["generate"], ["capture"], ["intervene", "--without", "0.0"]])
def test_standard_input_that_is_no_text(
    command: list[str],
    content: bytes,
    message: str,
    refuses: Refuses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", stdin(content))
    refuses([*command, "nowhere", "-"], message)  # before the model is looked for


def stdin(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")


def test_numbers_go_on_as_numbers(recurrence_run: Path, tmp_path: Path, output: Output) -> None:
    arguments = [
        "1 2 3",
        "--max-new-tokens",
        "30",
        "--temperature",
        "1.3",
        "--top-k",
        "4",
        "--seed",
        "5",
    ]
    rule = SamplingRule(temperature=1.3, top_k=4, seed=5)
    expected = generate(load_decoder(recurrence_run).eval(), [[1, 2, 3]], 30, rule=rule)[0]
    shown = output(["generate", recurrence_run, *arguments]).out
    assert shown == " ".join(map(str, [1, 2, 3, *expected])) + "\n"
    # without a tokenizer
    output(["convert", recurrence_run, tmp_path / "run.gguf", "--kind", "F32"])
    output(["convert", tmp_path / "run.gguf", tmp_path / "again.GGUF", "--kind", "F32"])
    output(["convert", tmp_path / "again.GGUF", tmp_path / "out"])
    for place in ("run.gguf", "out"):
        assert (
            output(["generate", tmp_path / place, *arguments, "--tokenizer", "numbers"]).out
            == shown
        )
    read = output(["capture", tmp_path / "run.gguf", "1 2 3", "--tokenizer", "numbers"]).out
    assert read == output(["capture", recurrence_run, "1 2 3"]).out
    alone = output(["capture", recurrence_run, "1"]).out.splitlines()
    assert alone[2].endswith("  0 ' 1'"), "the first token reads itself"
    assert "without the first token" not in alone[-1]


def test_a_run_takes_a_device(recurrence_run: Path) -> None:
    flags = ["1 2 3", "--max-new-tokens", "3", "--device", "cpu"]
    assert main(["generate", str(recurrence_run), *flags]) == 0


def test_seeds_repeat_and_differ(recurrence_run: Path, output: Output) -> None:
    begin = ["generate", recurrence_run, "0", "--max-new-tokens", "40"]
    texts = [
        output([*begin, *seed]).out
        for seed in (["--seed", "1"], ["--seed", "1"], ["--seed", "2"], [])
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_pieces_come_as_soon_as_their_tokens(
    recurrence_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    step = Decoder.hidden
    monkeypatch.setattr(
        Decoder, "hidden", lambda *args, **options: (steps.append(1), step(*args, **options))[1]
    )
    pieces = command.run(command.GenerateFlags(str(recurrence_run), "4 5", max_new_tokens=9))
    assert next(pieces) == "4 5"
    assert steps == []
    next(pieces)
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("run", "flags", "message"),
    [
        ("text", [""], "an empty prompt"),
        ("recurrence", [" "], "an empty prompt"),
        ("recurrence", ["1 7"], "'7' at place 2; expected whole numbers from 0 to 6"),
        (
            "recurrence",
            ["one"],
            "'one' at place 1; expected whole numbers from 0 to 6 between spaces",
        ),
        ("recurrence", ["1", "--device", "x"], "'x'"),
        ("recurrence", ["9" * 5000], "'9999"),
        ("recurrence", ["1", "--stop", "9" * 5000], "--stop 9"),
        ("text", ["x", "--max-new-tokens", "65"], "max_seq_len = 64"),
        ("nowhere", ["x"], "which is no model here"),
        ("nowhere", ["x", "--top-p", "2"], "top_p = 2"),
        ("nowhere", [], "TEXT"),
        ("nowhere", ["x", "--temprature", "1"], "--temperature"),
        ("nowhere", ["x", "--tokens", "1"], "--max-new-tokens"),
        ("nowhere", ["x", "--max-new-tokens", "0"], "at least 1"),
    ],
)
def test_what_cannot_be_continued(
    run: str, flags: list[str], message: str, text_run: Path, recurrence_run: Path, refuses: Refuses
) -> None:
    runs = {"text": text_run, "recurrence": recurrence_run, "nowhere": "nowhere"}
    refuses(["generate", runs[run], *flags], message)


def released_continuation(directory: Path, prompt: list[int], count: int) -> list[int]:
    """The greedy tokens that Python gets for the model of ``directory``."""
    return generate(load_decoder(directory).eval(), [prompt], count)[0]


def test_a_released_model_goes_on_as_in_python(tiny_gpt_oss: Path, output: Output) -> None:
    flags = [tiny_gpt_oss, "Hé <|end|>", "--max-new-tokens", "12", "--temperature", "0"]
    said = output(["generate", *flags, "--device", "cpu"])
    tokenizer = read_tokenizer(tiny_gpt_oss / "tokenizer.json")
    prompt = tokenizer.encode("Hé <|end|>")
    assert len(prompt) == 11
    expected = released_continuation(tiny_gpt_oss, prompt, 12)
    assert said.out == tokenizer.decode([*prompt, *expected]) + "\n"
    assert said.err.startswith("11 tokens read in ")
    assert output(["generate", *flags, "--no-speed"]) == (said.out, "")


@pytest.mark.parametrize("name", ["number", "word"])
def test_stop_tokens_end_a_text_and_are_hidden(
    name: str, tiny_gpt_oss: Path, tmp_path: Path, output: Output
) -> None:
    tokenizer = read_tokenizer(tiny_gpt_oss / "tokenizer.json")
    prompt = tokenizer.encode("Hi")
    free = released_continuation(tiny_gpt_oss, prompt, 12)
    # no special token, which has a name already
    stop = next(token for token in free if token < 256)
    named = tmp_path / "tokenizer.json"
    content = json.loads((tiny_gpt_oss / "tokenizer.json").read_text())
    if name == "word":
        # The tokenizer has a name for the token that the model says anyway.
        spelt = {number: piece for piece, number in content["model"]["vocab"].items()}[stop]
        content["added_tokens"].append(content["added_tokens"][0] | {"id": stop, "content": spelt})
        told = spelt
    else:
        told = str(stop)
    named.write_text(json.dumps(content))
    flags = [str(tiny_gpt_oss), "Hi", "--tokenizer", str(named), "--temperature", "0"]
    shown = output(["generate", *flags, "--max-new-tokens", "12", "--stop", told]).out
    assert shown == tokenizer.decode([*prompt, *free[: free.index(stop)]]) + "\n"


@pytest.mark.parametrize(
    ("kind", "prompt", "tokens"), [("bytes", "Hé", [72, 195, 169]), ("numbers", "7 8", [7, 8])]
)
def test_reading_without_a_tokenizer(
    kind: str, prompt: str, tokens: list[int], tmp_path: Path, output: Output
) -> None:
    write_random_gpt_oss(tmp_path / "model", replace(GPT_OSS_TINY, vocab_size=256, num_layers=1))
    flags = [str(tmp_path / "model"), prompt, "--tokenizer", kind, "--temperature", "0"]
    expected = released_continuation(tmp_path / "model", tokens, 6)
    out = output(["generate", *flags, "--max-new-tokens", "6"]).out.removesuffix("\n")
    if kind == "numbers":
        assert [int(number) for number in out.split()] == [*tokens, *expected]
    else:
        assert out == bytes([*tokens, *expected]).decode(errors="replace")


def test_a_run_of_the_lab_speaks(tmp_path: Path, output: Output, refuses: Refuses) -> None:
    recipes = {"Muon": TrainingConfig(steps=2, batch_size=8, warmup_steps=0)}
    settings = replace(LAB.settings, num_train=64, num_test=8, recipes=recipes)
    model, _ = train_model(Run(tmp_path / "lab", settings, 0, SimpleNamespace()), "base")
    run = tmp_path / "lab" / "trainings" / "base"
    load_weights(model, run / "best")
    expected = generate(model, [[1, 2]], 5)[0]
    shown = output(["generate", run, "1 2", "--max-new-tokens", "5", "--temperature", "0"]).out
    assert shown == " ".join(map(str, [1, 2, *expected])) + "\n"
    whole = ["generate", tmp_path / "lab", "1 2"]
    refuses(whole, "a lab of several runs; expected one of its runs")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([""], "an empty prompt"),
        (["x", "--stop", "<|nothing|>"], r"--stop <|nothing|> for "),
        (["x", "--stop", "280"], "a number from 0 to 279"),
        (["x", "--stop", "1", "--stop=2"], "--stop 2 times"),
        (["x", "--tokenizer", "numbers"], "whole numbers from 0 to 279"),
        (["x", "--tokenizer", "missing.json"], "missing.json (No such file"),
        (["x", "--max-new-tokens", "601"], "max_seq_len = 600"),
    ],
)
def test_what_released_models_refuse(
    flags: list[str], message: str, tiny_gpt_oss: Path, refuses: Refuses
) -> None:
    refuses(["generate", tiny_gpt_oss, *flags], message)


def test_without_a_tokenizer_the_way_out_is_told(bare_gpt_oss: Path, refuses: Refuses) -> None:
    refuses(["generate", bare_gpt_oss, "x"], "--tokenizer")


def test_what_capture_cannot_split_names_the_flag_that_shows_it(
    tmp_path: Path, refuses: Refuses
) -> None:
    decoder(norm_place="both").save_pretrained(tmp_path / "gemma", layout="glassformer")
    command = ["capture", tmp_path / "gemma", "1 2 3", "--tokenizer", "numbers", "--what", "heads"]
    refuses(command, "norms after its parts", "--what lens")
