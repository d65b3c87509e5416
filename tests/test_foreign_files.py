"""What the library did not write stays: every function and command that writes, over every kind of
foreign file.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from torch import nn

import glassformer
from glassformer.checkpoints.bert import save_encoder
from glassformer.checkpoints.decoders import save_decoder
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.classifier import Classifier, load_classifier, save_classifier
from glassformer.cli.main import main
from glassformer.data.tokenizer import WordTokenizer
from glassformer.errors import InputError
from glassformer.figures.style import save_figure
from glassformer.files import Written, new_directory
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.weight_files import write_head
from glassformer.labs.hand_designed.course import save_figure as save_course_figure
from glassformer.labs.run import claim
from glassformer.programs.compiler import compile_program
from glassformer.programs.library import PROGRAMS
from glassformer.programs.saved import save_program
from glassformer.training import EpochBatches, TargetTask, TrainingConfig, train
from glassformer.training.optim import build_optimizers
from glassformer.training.run_directory import RunDirectory, RunState
from refusals import refused
from small_models import decoder, encoder

Write = Callable[[Path], Any]

BATCH = {
    "source": torch.tensor([[3, 4]]),
    "inputs": torch.tensor([[1]]),
    "targets": torch.tensor([[2]]),
}
CONFIG = TrainingConfig(steps=2, batch_size=1, checkpoint_every=1, eval_every=1)


def classifier() -> Classifier:
    words = WordTokenizer.from_texts(["a good film", "a bad film"])
    return Classifier(encoder(vocab_size=words.vocab_size), words, ("bad", "good"))


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(5))

    def forward(
        self, source: torch.Tensor, inputs: torch.Tensor, real: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.logits.expand(*inputs.shape, 5)


def trained(directory: Path, *, resume: bool = False) -> None:
    train(
        Constant(),
        TargetTask(EpochBatches(BATCH), BATCH),
        CONFIG,
        directory,
        resume=resume,
        progress=False,
    )


def converted(directory: Path) -> None:
    with TemporaryDirectory() as place:
        decoder().save_pretrained(Path(place) / "source", layout="glassformer")
        command("convert", f"{place}/source", "--replace", "--to", "glassformer")(directory)


def command(*words: str) -> Write:
    def write(path: Path) -> None:
        if main([*words, str(path)]):
            raise InputError(" ".join(words), "status 0", "See above.")

    return write


def verified(path: Path) -> None:
    weights = path.parent / "weights.npz"
    write_head(design(TASKS["identity"]()).weights, weights)
    command("verify", str(weights), "--task", "identity", "--json")(path)


def head() -> HeadWeights:
    return HeadWeights(np.eye(2), np.eye(2), np.eye(2))


def figure(path: Path) -> None:
    drawn = Figure()
    drawn.subplots().plot([1, 2])
    save_figure(drawn, path.parent, path.stem, formats=[path.suffix[1:]])


def course_figure(path: Path) -> None:
    drawn = Figure()
    drawn.subplots().plot([1, 2])
    save_course_figure(drawn, path.stem, str(path.parent), path.suffix[1:], add_timestamp=False)


DIRECTORIES: dict[str, Write] = {
    "save_classifier": lambda path: save_classifier(classifier(), path),
    "save_encoder": lambda path: save_encoder(encoder(), path, replace=True),
    "save_decoder": lambda path: save_decoder(decoder(), path, layout="glassformer", replace=True),
    "save_pretrained": lambda path: decoder().save_pretrained(
        path, layout="glassformer", replace=True
    ),
    "convert": converted,
}
"""Functions that write a directory, and may replace one that they wrote."""

FILES: dict[str, tuple[str, Write]] = {
    "write_head json": ("head.json", lambda path: write_head(head(), path)),
    "write_head npz": ("head.npz", lambda path: write_head(head(), path)),
    "save_program": (
        "program.json",
        lambda path: save_program(
            compile_program(PROGRAMS["length"].program, PROGRAMS["length"].vocabulary, 2), path
        ),
    ),
    "write_gguf": (
        "model.gguf",
        lambda path: write_gguf(decoder(head_dim=8, num_layers=1), path, kind="F32"),
    ),
    "page.save": ("thesis.html", lambda path: glassformer.explore("identity").save(path)),
    **{f"save_figure {suffix}": (f"plot.{suffix}", figure) for suffix in ("png", "svg", "pdf")},
    "the course's save_figure": ("plot.png", course_figure),
}
"""Functions that write a file, and may replace one that they wrote."""

COMMANDS: dict[str, tuple[str, Write]] = {
    "design": ("head.json", command("design", "identity")),
    "program": ("program.json", command("program", "length", "--out")),
    "explore": ("page.html", command("explore", "identity", "--save")),
    "verify": ("certificate.json", verified),
    "course start": (
        "lookup.ipynb",
        lambda path: command("course", "start", "lookup")(path.parent),
    ),
}
"""Commands that write a file, and replace any other with --overwrite alone."""


def everything(top: Path) -> dict[str, bytes | str]:
    """The bytes of every file, and where every link leads, by path."""
    return {
        str(path.relative_to(top)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def thesis(top: Path) -> None:
    (top / "data").mkdir(parents=True)
    (top / "chapter.tex").write_text("years of work")
    (top / "data" / "results.csv").write_text("1,2")


def hidden(top: Path) -> None:
    top.mkdir()
    (top / ".notes").write_text("years of work")


def same_names(top: Path) -> None:
    """Files of the names that are written, of another project."""
    top.mkdir()
    for name in ("config.json", "tokenizer.json", "classes.json", "model.safetensors"):
        (top / name).write_text('{"years": "of work"}')


def links(top: Path) -> None:
    top.mkdir()
    (top.parent / "elsewhere").write_text("years of work")
    for name in ("config.json", "model.safetensors"):
        (top / name).symlink_to(top.parent / "elsewhere")


def empty_folder_inside(top: Path) -> None:
    (top / "model.safetensors").mkdir(parents=True)


@pytest.mark.parametrize("foreign", [thesis, hidden, same_names, links, empty_folder_inside])
@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_of_others_stays(
    name: str, foreign: Callable[[Path], None], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    foreign(target)
    before = everything(target)
    with refused():
        DIRECTORIES[name](target)
    assert everything(target) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_of_ours_is_replaced_until_another_file_is_in_it(
    name: str, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    (tmp_path / "empty").mkdir()
    DIRECTORIES[name](tmp_path / "empty")  # nothing is lost
    DIRECTORIES[name](target)
    DIRECTORIES[name](target)
    (target / "notes.md").write_text("years of work")
    before = everything(target)
    with refused("|notes.md"):
        DIRECTORIES[name](target)
    assert everything(target) == before
    (tmp_path / "link").symlink_to(target)
    with refused():
        DIRECTORIES[name](tmp_path / "link")
    assert everything(target) == before
    (target / "notes.md").unlink()
    DIRECTORIES[name](tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in target.iterdir()} == set(before) - {"notes.md"}


@pytest.mark.parametrize("name", DIRECTORIES)
@pytest.mark.parametrize("where", ["working directory", "above it", "home", "file"])
def test_places_that_are_no_target(
    name: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    (tmp_path / "here" / ".profile").write_text("years of work")
    monkeypatch.chdir(tmp_path / "here" / ("below" if where == "above it" else "."))
    (tmp_path / "here" / "file").write_text("years of work")
    target = {
        "working directory": ".",
        "above it": "..",
        "home": "~",
        "file": tmp_path / "here" / "file",
    }[where]
    before = everything(tmp_path / "here")
    with refused():
        DIRECTORIES[name](Path(target))
    assert everything(tmp_path / "here") == before


def test_what_comes_while_a_directory_is_written_stays(tmp_path: Path) -> None:
    kind = Written("a toy", ("file",), lambda directory: True)
    target = tmp_path / "target"
    for _ in range(2):
        with new_directory(target, replaces=kind) as draft:
            (draft / "file").write_text("ours")
    with refused("notes"), new_directory(target, replaces=kind) as draft:
        (draft / "file").write_text("new")
        (target / "notes").write_text("years of work")
    assert everything(tmp_path) == {"target/file": b"ours", "target/notes": b"years of work"}


@pytest.mark.parametrize("moves", [0, 1])
def test_a_place_that_cannot_be_renamed_stays(
    moves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the root of a mounted file system."""
    save_classifier(classifier(), tmp_path / "it")
    before = everything(tmp_path)
    done = []
    rename = os.replace

    def busy(source: Path, target: Path) -> None:
        if Path(source).is_dir():
            if len(done) == moves:
                done.append(source)
                raise OSError(errno.EBUSY, "Device or resource busy")
            done.append(source)
        rename(source, target)

    monkeypatch.setattr("glassformer.files.os.replace", busy)
    with pytest.raises(OSError, match="busy"):
        save_classifier(classifier(), tmp_path / "it")
    assert everything(tmp_path) == before


def test_drafts_of_others_stay(tmp_path: Path) -> None:
    """Hidden names such as those of unfinished downloads."""
    for name in (
        ".it.partial",
        ".it.replaced",
        "run/.download.partial",
        "run/checkpoints/.x.partial",
    ):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("years of work")
    before = everything(tmp_path)
    (tmp_path / "run" / "config.json").write_text("{}")
    for _ in range(2):
        save_classifier(classifier(), tmp_path / "it")
    RunDirectory(tmp_path / "run").begin(CONFIG, {})
    assert before.items() <= everything(tmp_path).items()


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_others_stays(name: str, tmp_path: Path, byte_engine: Tokenizer) -> None:
    file, write = FILES[name]
    target = tmp_path / file
    for content in (
        b"",
        b"years of work",
        b'{"Km": [[1, 0], [0, 1]], "Qm": [[1, 0], [0, 1]], "Vm": [[1, 0], [0, 1]]}',
    ):
        target.write_bytes(content)
        with refused():
            write(target)
        assert target.read_bytes() == content
    target.unlink()
    (tmp_path / "precious").write_bytes(b"years of work")
    target.symlink_to(tmp_path / "precious")
    with refused():
        write(target)
    assert target.is_symlink()
    target.unlink()
    target.mkdir()
    with refused():
        write(target)
    assert everything(tmp_path) == {"precious": b"years of work"}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_ours_is_replaced(name: str, tmp_path: Path) -> None:
    file, write = FILES[name]
    target = tmp_path / file
    write(target)
    before = everything(tmp_path)
    (tmp_path / f"link{target.suffix}").symlink_to(target)
    write(target)
    write(tmp_path / f"link{target.suffix}")
    (tmp_path / f"link{target.suffix}").unlink()
    assert everything(tmp_path).keys() == before.keys()


def test_files_of_the_same_format_stay(tmp_path: Path) -> None:
    """A plot, weights and a page that another program wrote."""
    np.savez(tmp_path / "head.npz", Km=np.eye(2), Qm=np.eye(2), Vm=np.eye(2))
    Figure().savefig(tmp_path / "plot.png")
    Figure().savefig(tmp_path / "plot.pdf")
    Figure().savefig(tmp_path / "plot.svg")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(100))
    (tmp_path / "thesis.html").write_text("<!doctype html><title>glassformer</title>")
    before = everything(tmp_path)
    for file, write in FILES.values():
        if (tmp_path / file).exists():
            with refused():
                write(tmp_path / file)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_replace_a_file_on_request_alone(name: str, tmp_path: Path) -> None:
    file, write = COMMANDS[name]
    target = tmp_path / file
    target.write_text("years of work")
    with refused():
        write(target)
    assert target.read_text() == "years of work"
    assert {path.name for path in tmp_path.iterdir()} <= {file, "weights.npz"}


@pytest.mark.parametrize(
    "taken", ["metrics.jsonl", "best/draft.tex", "checkpoints/step-00000001/notes", "config.json"]
)
def test_a_run_is_not_begun_over_files_of_others(taken: str, tmp_path: Path) -> None:
    (tmp_path / "run" / taken).parent.mkdir(parents=True)
    (tmp_path / "run" / taken).write_text("years of work")
    before = everything(tmp_path)
    with refused():
        trained(tmp_path / "run")
    assert everything(tmp_path) == before


def test_a_run_in_a_directory_with_other_files(tmp_path: Path) -> None:
    thesis(tmp_path / "run")
    before = everything(tmp_path)
    trained(tmp_path / "run")
    assert before.items() <= everything(tmp_path).items()


def test_what_is_put_into_a_run_stays_while_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    model = Constant()
    run.begin(CONFIG, {})
    optimizers = build_optimizers(model, CONFIG)
    run.save(model, optimizers, RunState(1), 1)
    run.save_best(model, RunState(1))
    for place in ("best", "checkpoints/step-00000001"):
        (run.path / place / "notes").write_text("years of work")
    shutil.copytree(
        run.path / "checkpoints/step-00000001", run.path / "checkpoints/step-for-the-thesis"
    )
    for step in (2, 3):
        run.save(model, optimizers, RunState(step), 1)
        run.save_best(model, RunState(step))
    assert "best-1 keeps what else" in capsys.readouterr().err
    there = everything(run.path)
    for place in ("best-1", "checkpoints/step-00000001", "checkpoints/step-for-the-thesis"):
        assert there[f"{place}/notes"] == b"years of work"
        assert f"{place}/model.safetensors" in there
    assert [path.name for path in run.checkpoints()] == ["step-00000001", "step-00000003"]
    assert {path.name for path in run.best.iterdir()} == {"model.safetensors", "state.json"}


def test_a_lab_is_not_begun_over_files_of_others(tmp_path: Path) -> None:
    thesis(tmp_path / "out")
    before = everything(tmp_path)
    with refused("chapter.tex"):
        claim(tmp_path / "out", {"lab": "x"}, resume=False)
    assert everything(tmp_path) == before


def test_a_classifier_is_what_was_saved(tmp_path: Path) -> None:
    first = classifier()
    save_classifier(first, tmp_path / "it")
    assert json.loads((tmp_path / "it" / "classes.json").read_text()) == ["bad", "good"]
    texts = ["a good film"]
    assert torch.equal(
        load_classifier(tmp_path / "it").probabilities(texts), first.probabilities(texts)
    )
