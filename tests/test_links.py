"""Links: of installers, of the hub's downloads, of users, and those that would have others' files
read.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from glassformer.checkpoints import hub
from glassformer.checkpoints.bert import load_encoder, save_encoder
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.classifier import Classifier, load_classifier, save_classifier
from glassformer.cli.main import main
from glassformer.data.chat_template import template_from_directory
from glassformer.data.released_tokenizer import tokenizer_beside
from glassformer.data.tokenizer import WordTokenizer
from glassformer.errors import InputError
from glassformer.files import lies_inside
from glassformer.generation.language_model import load
from glassformer.models import Decoder
from processes import printed
from refusals import refused
from small_models import decoder, encoder

ROOT = Path(__file__).resolve().parent.parent
SECRET = "token of the user"

INSTALLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import glassformer
assert Path(glassformer.__file__).is_symlink() and glassformer.__file__.startswith(sys.argv[1])

from starlette.testclient import TestClient
from glassformer.course.lessons import notebook, otter_tests
from glassformer.data.sentiment import reviews
from glassformer.explorer import PAGE
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.server import create_api
from glassformer.kernels import native
from glassformer.labs import gpt_oss, hand_designed, lookup, sentiment
from glassformer.labs.sentiment import published
from glassformer.programs.library import PROGRAMS
from jinja2 import Environment, FileSystemLoader

models = bundled()
for entry in models:
    if not entry.card.name.startswith("program-"):
        entry.open()
for lab in ("hand_designed", "sentiment", "lookup", "gpt_oss"):
    assert notebook(lab, seed=0, solutions=True)["cells"] and otter_tests(lab, 0)
for lab in (gpt_oss.LAB, hand_designed.LAB, lookup.LAB, sentiment.LAB):
    FileSystemLoader(lab.template.parent).get_source(Environment(), lab.template.name)
assert len(reviews()) > 100
sources = [file.name for file in native.FOLDER.glob("*.[ch]*") if file.read_text(encoding="utf-8")]
assert " ".join(sorted(sources)) == sys.argv[2]
client = TestClient(create_api(Backend(models)))
for name in ("", "favicon.ico", *(file.name for file in PAGE.iterdir())):
    assert client.get("/" + name).status_code == 200, name
page = glassformer.explore("sentiment").save(Path(sys.argv[3]) / "page.html")
assert (Path(glassformer.__file__).parent / "py.typed").exists()
print(len(models), page.stat().st_size > 100_000)
"""


@pytest.mark.slow
def test_a_package_that_is_installed_as_links(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from glassformer.explorer.loading.bundled import bundled
    from glassformer.kernels import native

    for name in ("src", "notebooks", "docs"):
        for place, folders, files in os.walk(ROOT / name):
            folders[:] = [
                folder for folder in folders if folder not in ("build", "__pycache__", "images")
            ]
            copy = tmp_path / "links" / Path(place).relative_to(ROOT)
            copy.mkdir(parents=True)
            for file in files:
                (copy / file).symlink_to(Path(place) / file)
    sources = " ".join(sorted(file.name for file in native.FOLDER.glob("*.[ch]*")))
    arguments = [str(tmp_path / "links" / "src"), sources, str(tmp_path)]
    assert printed(INSTALLED, arguments=arguments).split() == [str(len(bundled())), "True"]


def test_another_package_that_is_installed_as_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_encoder(encoder(), tmp_path / "cache")
    linked(tmp_path / "cache", tmp_path / "site-packages" / hub.MINILM_PACKAGE / "model")
    (tmp_path / "site-packages" / hub.MINILM_PACKAGE / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.setattr("glassformer.files._TRUSTED", set())
    place = tmp_path / "site-packages" / hub.MINILM_PACKAGE / "model"
    with refused("a link to"):
        load_encoder(place)
    if hub.minilm() == str(place):
        load_encoder(place)


def linked(directory: Path, to: Path) -> None:
    """Links in ``to`` to every file of a directory."""
    to.mkdir(parents=True)
    for file in directory.iterdir():
        (to / file.name).symlink_to(file)


def snapshot(directory: Path, to: Path) -> Path:
    """A directory in the layout of the hub's cache."""
    blobs = to / "models--a--b" / "blobs"
    revision = to / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True), revision.mkdir(parents=True)
    for number, file in enumerate(directory.iterdir()):
        shutil.copy(file, blobs / f"{number:040x}")
        (revision / file.name).symlink_to(f"../../blobs/{number:040x}")
    return revision


def local_directory(directory: Path, to: Path) -> Path:
    """A download with --local-dir: large files are links into the hub's cache, small ones are
    copies.
    """
    blobs = to / "cache" / "models--a--b" / "blobs"
    local = to / "local"
    blobs.mkdir(parents=True), local.mkdir()
    for number, file in enumerate(directory.iterdir()):
        large = file.suffix == ".safetensors" or file.name == "tokenizer.json"
        if large:
            shutil.copy(file, blobs / f"{number:064x}")
            (local / file.name).symlink_to(blobs / f"{number:064x}")
        else:
            shutil.copy(file, local / file.name)
    return local


def every_file(directory: Path, to: Path) -> Path:
    """As ``local_directory``, of an older version: every file is a link."""
    revision = snapshot(directory, to)
    (to / "local").mkdir()
    for file in revision.iterdir():
        (to / "local" / file.name).symlink_to(file.resolve())
    return to / "local"


def on_another_disk(directory: Path, to: Path) -> Path:
    """A user's own link to weights that have no room here."""
    (to / "disk").mkdir()
    shutil.copytree(directory, to / "model")
    for file in directory.glob("*.safetensors"):
        shutil.move(to / "model" / file.name, to / "disk" / file.name)
        (to / "model" / file.name).symlink_to(to / "disk" / file.name)
    return to / "model"


def whole_directory(directory: Path, to: Path) -> Path:
    """A user's own link to a directory."""
    (to / "link").symlink_to(directory)
    return to / "link"


LAYOUTS = (snapshot, local_directory, every_file, on_another_disk, whole_directory)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shard_bytes", [10**9, 5000])
def test_a_decoder(
    layout: Callable[[Path, Path], Path], shard_bytes: int, tmp_path: Path, byte_engine: Tokenizer
) -> None:
    model = decoder(vocab_size=300).eval()
    tokens = torch.arange(9)[None]
    model.save_pretrained(tmp_path / "saved", layout="glassformer", shard_bytes=shard_bytes)
    byte_engine.save(str(tmp_path / "saved" / "tokenizer.json"))
    (tmp_path / "saved" / "chat_template.jinja").write_text("{{ messages }}!")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) == 1 if shard_bytes == 10**9 else 4
    place = layout(tmp_path / "saved", tmp_path)
    with torch.no_grad():
        assert torch.equal(Decoder.from_pretrained(place)(tokens), model(tokens))
    found = load(place, device="cpu")
    assert found.tokenizer is not None
    template = template_from_directory(place)
    assert template is not None
    assert template.text == "{{ messages }}!"
    assert main(["info", str(place)]) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_classifier_and_an_encoder(layout: Callable[[Path, Path], Path], tmp_path: Path) -> None:
    words = WordTokenizer.from_texts(["a good film", "a bad film"])
    save_classifier(
        Classifier(encoder(vocab_size=words.vocab_size), words, ("bad", "good")), tmp_path / "saved"
    )
    place = layout(tmp_path / "saved", tmp_path)
    assert load_classifier(place).classes == ("bad", "good")
    load_encoder(place)


def test_a_gguf_file(tmp_path: Path) -> None:
    write_gguf(decoder(head_dim=8, num_layers=1), tmp_path / "a.gguf", kind="F32")
    blob = tmp_path / "models--a--b" / "blobs" / f"{1:064x}"
    blob.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "a.gguf", blob)
    for number, target in enumerate((tmp_path / "a.gguf", blob)):
        (tmp_path / f"link-{number}.gguf").symlink_to(target)
        load_gguf(tmp_path / f"link-{number}.gguf")


HOSTILE = {
    "config.json": lambda place: Decoder.from_pretrained(place),
    "model.safetensors": lambda place: Decoder.from_pretrained(place),
    "tokenizer.json": tokenizer_beside,
    "tokenizer_config.json": template_from_directory,
    "special_tokens_map.json": template_from_directory,
    "chat_template.jinja": template_from_directory,
    "generation_config.json": lambda place: load(place, device="cpu"),
    "model.safetensors.index.json": lambda place: Decoder.from_pretrained(place),
}
"""Files of a directory, and what reads them."""


@pytest.mark.parametrize("content", [SECRET, f'{{"secret": "{SECRET}"}}', f"{SECRET}\n" * 10_000])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_directory_whose_files_lead_to_others(
    name: str,
    content: str,
    tmp_path: Path,
    byte_engine: Tokenizer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "hostile"
    decoder(vocab_size=300).save_pretrained(place, layout="glassformer")
    byte_engine.save(str(place / "tokenizer.json"))
    (tmp_path / "secret").write_text(content)
    (place / name).unlink(missing_ok=True)
    if name.endswith("index.json"):
        (place / "model.safetensors").unlink()
    for target in (tmp_path / "secret", Path("../secret")):
        (place / name).symlink_to(target)
        with pytest.raises(InputError) as raised:
            HOSTILE[name](place)
        assert SECRET not in str(raised.value)
        main(["info", str(place)])
        main(["convert", str(place), str(tmp_path / "out")])
        assert SECRET not in "".join(capsys.readouterr())
        if (tmp_path / "out").exists():
            assert SECRET.encode() not in b"".join(
                file.read_bytes() for file in (tmp_path / "out").iterdir()
            )
            shutil.rmtree(tmp_path / "out")
        (place / name).unlink()


@pytest.mark.parametrize(
    "place", ["blobs", "models--a", "models--a/blobs/b", "blobs/models--a", "x-models--a/blobs"]
)
def test_places_that_only_look_like_a_cache(place: str, tmp_path: Path) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "x").write_text(SECRET)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "link").symlink_to(tmp_path / place / "x")
    assert not lies_inside(tmp_path / "model" / "link")


def test_a_link_in_a_cache_that_leads_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "models--a" / "blobs").mkdir(parents=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "models--a" / "blobs" / "x").symlink_to(tmp_path / "secret")
    (tmp_path / "model" / "link").symlink_to(tmp_path / "models--a" / "blobs" / "x")
    assert not lies_inside(tmp_path / "model" / "link")


def test_a_path_through_the_package_is_not_trusted(tmp_path: Path) -> None:
    package = Path(shutil.__file__).parent  # any directory
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "link").symlink_to(tmp_path / "secret")
    ours = ROOT / "src" / "glassformer"
    for start in (ours, package):
        around = start / os.path.relpath(tmp_path / "model" / "link", start)
        assert around.exists()
        assert not lies_inside(around)
