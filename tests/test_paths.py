"""One meaning of a path: ``~``, ``~user``, text or Path, in every public function and command that
takes one.
"""

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from tokenizers import Tokenizer

import glassformer
from glassformer.checkpoints.bert import load_encoder, save_encoder
from glassformer.checkpoints.decoders import load_decoder, read_decoder_config, save_decoder
from glassformer.checkpoints.description import describe
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import read_gguf
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.checkpoints.store import named_tokenizer, open_model
from glassformer.classifier import Classifier, load_classifier, save_classifier
from glassformer.cli.main import main, parse
from glassformer.data.chat_template import template_from_directory
from glassformer.data.released_tokenizer import read_tokenizer, tokenizer_beside
from glassformer.data.sentiment import from_files, read_examples
from glassformer.data.subword import load_subwords
from glassformer.data.tokenizer import WordTokenizer
from glassformer.explorer.loading.discovery import entries_at, find_models, list_models
from glassformer.figures.style import save_figure
from glassformer.files import local_path
from glassformer.generation.language_model import load
from glassformer.handcraft.designs import design
from glassformer.handcraft.task_files import read_task
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.weight_files import read_head, write_head
from glassformer.labs.run import claim
from glassformer.programs.compiler import compile_program
from glassformer.programs.library import PROGRAMS, read_program
from glassformer.programs.saved import load_program, save_program
from glassformer.training import EpochBatches, TargetTask, TrainingConfig, load_weights, train
from glassformer.training.checkpoint import save_weights
from glassformer.training.loop import train_in
from refusals import refused
from small_models import decoder, encoder

Named = Callable[[Any], Any]

BATCH = {
    "source": torch.tensor([[3, 4]]),
    "inputs": torch.tensor([[1]]),
    "targets": torch.tensor([[2]]),
}
CONFIG = TrainingConfig(steps=1, batch_size=1)


class Constant(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(5))

    def forward(
        self, source: torch.Tensor, inputs: torch.Tensor, real: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.logits.expand(*inputs.shape, 5)


def task() -> TargetTask:
    return TargetTask(EpochBatches(BATCH), BATCH)


def classifier() -> Classifier:
    words = WordTokenizer.from_texts(["a good film", "a bad film"])
    return Classifier(encoder(vocab_size=words.vocab_size), words, ("bad", "good"))


def run_of(*words: str) -> Named:
    def run(path: Any) -> None:
        assert main([word.format(path) for word in words]) == 0

    return run


WRITERS: dict[str, tuple[str, Named]] = {
    "train": ("run", lambda path: train(Constant(), task(), CONFIG, path, progress=False)),
    "train_in": ("run", lambda path: train_in(path, Constant(), task(), CONFIG, {})),
    "save_weights": ("", lambda path: save_weights(Constant(), path)),
    "save_classifier": ("it", lambda path: save_classifier(classifier(), path)),
    "save_encoder": ("it", lambda path: save_encoder(encoder(), path)),
    "save_decoder": ("it", lambda path: save_decoder(decoder(), path, layout="glassformer")),
    "save_pretrained": ("it", lambda path: decoder().save_pretrained(path, layout="glassformer")),
    "write_gguf": (
        "a.gguf",
        lambda path: write_gguf(decoder(head_dim=8, num_layers=1), path, kind="F32"),
    ),
    "write_head": ("a.json", lambda path: write_head(design(TASKS["identity"]()).weights, path)),
    "save_program": (
        "a.json",
        lambda path: save_program(compile_program(PROGRAMS["length"].program, "ab", 2), path),
    ),
    "page.save": ("a.html", lambda path: glassformer.explore("identity").save(path)),
    "save_figure": ("", lambda path: save_figure(Figure(), path, "plot", formats=["svg"])),
    "lab": ("out", lambda path: claim(path, {"lab": "x"}, resume=False)),
    "design": ("b.json", run_of("design", "identity", "{}")),
    "program --out": ("b.json", run_of("program", "length", "--out", "{}")),
    "program --out=": ("b.json", run_of("program", "length", "--out={}")),
    "explore --save": ("b.html", run_of("explore", "identity", "--save", "{}")),
    "explore --save=": ("b.html", run_of("explore", "identity", "--save={}")),
    "course start": ("", run_of("course", "start", "lookup", "{}")),
}
"""What writes a file or a directory of this name; "": into the directory itself."""

READERS: dict[str, tuple[str, Named]] = {
    "load_weights": ("run/best", lambda path: load_weights(Constant(), path)),
    "load_classifier": ("classifier", load_classifier),
    "load_encoder": ("encoder", load_encoder),
    "load_decoder": ("decoder", load_decoder),
    "from_pretrained": ("decoder", type(decoder()).from_pretrained),
    "read_decoder_config": ("decoder", read_decoder_config),
    "describe": ("decoder", describe),
    "read_gguf": ("a.gguf", read_gguf),
    "load_gguf": ("a.gguf", load_gguf),
    "load": ("a.gguf", lambda path: load(path, tokenizer="bytes", device="cpu")),
    "open_model": ("decoder", lambda path: open_model(path, tokenizer="bytes")),
    "a tokenizer": ("tokenizer.json", lambda path: named_tokenizer(str(path), 300)),
    "read_tokenizer": ("tokenizer.json", read_tokenizer),
    "load_subwords": ("vocab.txt", load_subwords),
    "tokenizer_beside": ("", lambda path: tokenizer_beside(path).encode("a")),  # type: ignore[union-attr]
    "template_from_directory": ("", lambda path: template_from_directory(path).text),  # type: ignore[union-attr]
    "read_head": ("head.json", read_head),
    "read_task": ("task.json", read_task),
    "load_program": ("program.json", load_program),
    "read_program": ("program.py", lambda path: read_program(path, run_python=True)),
    "read_examples": ("texts.tsv", read_examples),
    "from_files": ("texts.tsv", from_files),
    "explore": ("classifier", glassformer.explore),
    "list_models": ("classifier", list_models),
    "entries_at": ("classifier", entries_at),
    "find_models": ("classifier", lambda path: find_models(path)[0]),
    "info": ("decoder", run_of("info", "{}")),
    "verify": ("head.json", run_of("verify", "--task", "identity", "{}")),
    "verify --task-file=": ("task.json", run_of("verify", "~/head.json", "--task-file={}")),
    "program": ("program.json", run_of("program", "{}", "a", "b")),
    "classify": ("classifier", run_of("classify", "a good film", "--run={}")),
}
"""What reads a file or a directory of this name."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, byte_engine: Tokenizer) -> Path:
    """A home with a file or directory of each kind."""
    place = tmp_path_factory.mktemp("home")
    train(Constant(), task(), CONFIG, place / "run", progress=False)
    save_classifier(classifier(), place / "classifier")
    save_encoder(encoder(), place / "encoder")
    decoder(vocab_size=300).save_pretrained(place / "decoder", layout="glassformer")
    write_gguf(decoder(head_dim=8, num_layers=1, vocab_size=300), place / "a.gguf", kind="F32")
    byte_engine.save(str(place / "tokenizer.json"))
    (place / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    (place / "chat_template.jinja").write_text("{{ messages }}")
    write_head(design(TASKS["identity"]()).weights, place / "head.json")
    (place / "task.json").write_text(
        '{"letters": "ABC", "examples": [{"input": "A", "output": "A"}]}'
    )
    save_program(compile_program(PROGRAMS["length"].program, "ab", 2), place / "program.json")
    code = "from glassformer.programs import library as lib\nprogram = lib.length\nvocabulary = 'ab'\nmax_len = 2\n"
    (place / "program.py").write_text(code)
    (place / "texts.tsv").write_text("".join(f"text {n}\t{n % 2}\n" for n in range(40)))
    return place


@pytest.fixture
def at_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory elsewhere, in which no "~" may appear."""
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


@pytest.mark.parametrize("form", [str, Path])
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_below_a_home_is_there(
    name: str, form: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "home"
    (place / "new").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(tmp_path / "work")
    file, write = WRITERS[name]
    write(form(f"~/new/{file}".rstrip("/")))
    assert list((tmp_path / "work").iterdir()) == []
    assert (place / "new" / file).exists()
    assert list((place / "new").iterdir()) != []


@pytest.mark.parametrize("form", [str, Path])
@pytest.mark.parametrize("name", READERS)
def test_what_is_read_below_a_home(name: str, form: Callable[[str], Any], at_home: Path) -> None:
    file, read = READERS[name]
    read(form(f"~/{file}".rstrip("/")))


@pytest.mark.parametrize("name", [*READERS, *WRITERS])
def test_the_home_of_nobody_is_named(
    name: str, at_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, use = (READERS | WRITERS)[name]
    with pytest.raises(
        (ValueError, SystemExit, AssertionError)
    ) as raised:  # of a function, a flag and a command
        use(f"~no-such-user/{file}")
    told = " ".join(f"{raised.value} {capsys.readouterr().err}".replace("│", " ").split())
    assert "of no user of this machine" in told
    assert list(tmp_path.iterdir()) == []


def test_the_home_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwuid(os.getuid())
    monkeypatch.setenv("HOME", "/home/ada")
    assert local_path("~/a") == Path("/home/ada/a") == local_path(Path("~/a"))
    assert local_path("~") == Path("/home/ada")
    assert local_path(f"~{user.pw_name}/a") == Path(user.pw_dir) / "a"


def test_other_paths_are_what_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a", "a/~/b", "/a", "a~", ".", "..", "a/", "runs//a"):
        assert local_path(path) == local_path(local_path(path)) == Path(path)
    assert local_path("./~a") == local_path(local_path("./~a")) == tmp_path / "~a"
    with refused("an empty path"):
        local_path("")


def test_the_flags_of_commands_that_are_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    for flags in (["--run", "~/run"], ["--run=~/run"], ["--run=~/run/"]):
        assert parse("classify", [*flags, "a"]).run == Path("/home/ada/run")
    assert parse("lab", ["lookup", "--out=~/out"]).directory == Path("/home/ada/out")
    files = parse("course", ["grade", "~/a.ipynb", "~/b/*.ipynb", "--out", "~/grades.csv"]).command
    assert [str(path) for path in (*files.files, files.out)] == [
        "/home/ada/a.ipynb",
        "/home/ada/b/*.ipynb",
        "/home/ada/grades.csv",
    ]
    assert parse("explore", ["--runs=~/runs"]).runs == Path("/home/ada/runs")


@pytest.mark.parametrize("flag", ["--message", "--instructions"])
def test_texts_are_no_paths(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert getattr(parse("chat", ["m", f"{flag}=~/said"]), flag[2:]) == "~/said"


def test_a_run_that_was_written_below_a_home_is_the_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for resume in (False, True):
        assert (
            train(Constant(), task(), CONFIG, "~/runs/a", resume=resume, progress=False).step == 1
        )
    load_weights(Constant(), "~/runs/a/best")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
