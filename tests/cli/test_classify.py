"""``glassformer classify``: what it prints for texts, files and standard input."""

import io
import json
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from glassformer.classifier import Classifier, load_classifier, save_classifier, token_effects
from glassformer.cli.commands import classify as command
from glassformer.data.tokenizer import WordTokenizer
from glassformer.models.encoder import Encoder, EncoderConfig
from refusals import Output, Refuses

TEXTS = ("a great film", "a dull film", "")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that praises what has "great" in it and blames what has "dull", by weights
    chosen by hand.
    """
    torch.manual_seed(0)
    tokenizer = WordTokenizer(("a", "film", "great", "dull"))
    config = EncoderConfig(
        vocab_size=7,
        num_layers=1,
        hidden_dim=8,
        ff_dim=8,
        num_heads=1,
        num_classes=2,
        positions="none",
        final_norm=False,
    )
    encoder = Encoder(config)
    for weight in encoder.parameters():
        nn.init.zeros_(weight)
    nn.init.ones_(encoder.layers[0].attention_norm.weight)
    nn.init.ones_(encoder.layers[0].ffn_norm.weight)
    with torch.no_grad():
        # Three groups of coordinates: others, great and dull; a word is a wave in one of them.
        for token, first in ((0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 2), (6, 4)):
            encoder.embedding.weight[token, first : first + 2] = torch.tensor([1.0, -1.0])
        encoder.classifier.weight[1, 2:6] = torch.tensor([3.0, -3.0, -3.0, 3.0])
    directory = tmp_path_factory.mktemp("classifier") / "run"
    save_classifier(Classifier(encoder, tokenizer, ("negative", "positive")), directory)
    return directory


def standard_input(text: str, encoding: str = "utf-8") -> io.TextIOWrapper:
    """As bytes from outside, which the locale would read in some other way."""
    return io.TextIOWrapper(io.BytesIO(text.encode(encoding)), encoding="ascii")


def test_texts_get_class_probability_and_tokens(run: Path, output: Output) -> None:
    printed = output(["classify", "--run", run, *TEXTS]).out.splitlines()
    judge = load_classifier(run)
    positive = judge.probabilities(TEXTS)[:, 1].tolist()
    assert positive[0] > 0.9
    assert positive[1] < 0.1
    assert printed[0] == f"positive  {100 * positive[0]:.1f} %  a great film"
    assert printed[1].startswith(f"    great +{100 * (positive[0] - 0.5):.1f}, ")
    assert printed[2] == f"negative  {100 * (1 - positive[1]):.1f} %  a dull film"
    assert printed[3].startswith("    dull +")
    assert printed[4:] == ["negative  50.0 %  (empty)"]


def test_the_number_of_tokens_is_chosen(run: Path, output: Output) -> None:
    for tokens, lines in (("0", 1), ("1", 2), ("9", 2)):
        printed = output(["classify", "--run", run, "--tokens", tokens, TEXTS[0]]).out.splitlines()
        assert len(printed) == lines
        assert printed[-1].count(",") == (2 if tokens == "9" else 0)


def test_json_holds_everything(run: Path, output: Output) -> None:
    printed = output(["classify", "--run", run, "--json", *TEXTS]).out.splitlines()
    judge = load_classifier(run)
    for line, text, row in zip(printed, TEXTS, judge.probabilities(TEXTS).tolist(), strict=True):
        found = json.loads(line)
        best = max(range(2), key=row.__getitem__)
        effects = token_effects(judge, text, best)
        assert found["text"] == text
        assert found["label"] == judge.classes[best]
        assert found["probabilities"] == pytest.approx(
            dict(zip(judge.classes, row, strict=True)), abs=1e-6
        )
        assert [(each["token"], each["effect"]) for each in found["tokens"]] == effects


def test_files_and_standard_input(
    run: Path, tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = output(["classify", "--run", run, *TEXTS])
    (tmp_path / "texts.txt").write_bytes(("\ufeff" + "\r\n".join(TEXTS) + "\r\n").encode())
    assert output(["classify", "--run", run, "--file", tmp_path / "texts.txt"]) == expected
    monkeypatch.setattr(sys, "stdin", standard_input("\n".join(TEXTS) + "\n"))
    assert output(["classify", "--run", run]) == expected


def test_standard_input_is_answered_at_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = Mock(isatty=Mock(return_value=True))
    stdin.buffer.readline.side_effect = [*(f"{text}\n".encode() for text in TEXTS), b""]
    monkeypatch.setattr(sys, "stdin", stdin)
    for count, verdict in enumerate(command.run(command.ClassifyFlags(run=run)), start=1):
        assert verdict.text == TEXTS[count - 1]
        assert stdin.buffer.readline.call_count == count


def test_more_texts_than_are_read_at_once_keep_their_order(run: Path) -> None:
    texts = [TEXTS[number * number % 3] + " a" * (number % 7) for number in range(150)]
    judge = load_classifier(run)
    found = list(command.judge(judge, texts, 64, effects=False))
    assert [verdict.text for verdict in found] == texts
    expected = judge.probabilities(texts)[:, 1].tolist()
    assert [verdict.probabilities["positive"] for verdict in found] == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize(
    ("text", "label", "ending"),
    [
        ("", "negative  50.0 %", "  (empty)"),
        ("great " * 100_000, "positive  ", "..."),
        ("zzzqqq xylophone", "negative  50.0 %", "  zzzqqq xylophone"),
        ("😀👍🏽 \u200bunseen", "negative  50.0 %", "unseen"),
        ("great\x07 \x1b[31m\tfilm \u200b", "positive  ", "\\x1b[31m film \\u200b"),
    ],
    ids=["empty", "long", "unknown", "emoji", "control"],
)
def test_odd_texts_get_the_same_harmless_line_from_every_source(
    run: Path,
    tmp_path: Path,
    text: str,
    label: str,
    ending: str,
    output: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(f"{text}\n".encode())
    printed = []
    for arguments in ([text], ["--file", str(file)], []):
        for json_flag in ([], ["--json"]):
            monkeypatch.setattr(sys, "stdin", standard_input(f"{text}\n"))
            printed.append(output(["classify", "--run", run, *json_flag, *arguments]).out)
    line, *effects = printed[0].splitlines()
    assert line.startswith(label)
    assert line.endswith(ending)
    assert len(line) < 130
    assert all(each.startswith("    ") for each in effects)
    assert "\x1b" not in printed[0]
    assert printed[0::2] == printed[:1] * 3
    assert printed[1::2] == printed[1:2] * 3
    assert json.loads(printed[1])["text"] == text


def test_names_of_classes_do_not_steer_the_terminal(
    run: Path, tmp_path: Path, output: Output
) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "classes.json").write_text(json.dumps(["no", "\x1b[31myes"]))
    line = output(
        ["classify", "--run", tmp_path / "run", "great\n\x1b[31m\tfilm \ud83d"]
    ).out.splitlines()[0]
    assert line.startswith("\\x1b[31myes  ")
    assert line.endswith("great \\x1b[31m film \\ud83d")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a film\n\x00\x01\n", "{place}, line 2: a NUL byte"),
        ("a film\n".encode("utf-16"), "{place}, line 1: a NUL byte"),
        (
            "a naïve film".encode("latin-1"),
            "{place}, line 1: byte 0xef at place 5, which is not UTF-8",
        ),
        (b"", "no texts"),
    ],
)
def test_texts_that_cannot_be_read_are_named(
    content: bytes,
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output: Output,
) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for flags, place in ((["--file", file], str(file)), ([], "standard input")):
        said = output(["classify", "--run", run, *flags], 2).err
        assert message.format(place=place) in said
        assert said.count("\n") == 1


def test_wrong_flags_are_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    refuses(["classify", "--run", run, "--file", tmp_path], "which cannot be read")
    refuses(["classify", "--run", run, "a film", "--file", tmp_path / "x"], "1 texts and --file")
    refuses(["classify", "--run", run, "--tokens", "-1"], "tokens = -1")
    refuses(["classify", "--run", tmp_path, "a film"], "without classes.json")
    monkeypatch.setattr(sys, "stdin", None)  # what Python makes of a closed one
    refuses(["classify", "--run", run], "no texts")


def test_the_bundled_classifier_has_a_name(
    tmp_path: Path, output: Output, refuses: Refuses
) -> None:
    assert output(["classify", "--run", "sentiment", "A wonderful film."]).out.startswith(
        "positive"
    )
    refuses(
        ["classify", "--run", tmp_path / "absent", "A film."], "glassformer lab sentiment --quick"
    )
