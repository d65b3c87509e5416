"""Each kind of run and checkpoint becomes a model that reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from tokenizers import Tokenizer
from torch import nn

from glassformer.checkpoints.bert import save_encoder
from glassformer.classifier import Classifier, save_classifier
from glassformer.data.in_context_lookup import LookupConfig
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.subword import load_subwords, train_subwords
from glassformer.data.tokenizer import WordTokenizer
from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import read
from glassformer.explorer.loading.loaded_model import ModelEntry
from glassformer.explorer.loading.stored_models import Place, stored_entry
from glassformer.labs.lookup.experiments.course_runs import build_course_model
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.training import TrainingConfig
from glassformer.training.checkpoint import save_weights
from glassformer.training.in_context_lookup import InContextRecipe, build_model
from refusals import refused

DATA = RecurrenceConfig(order=2, vocab_size=7)


def _decoder(vocab_size: int, **options: Any) -> Decoder:
    config = DecoderConfig(vocab_size, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=2, head_dim=4, **options)
    return Decoder(config)


def _run(directory: Path, model: nn.Module, description: Mapping[str, Any], where: str = "best") -> Path:
    """A run directory as training leaves it."""
    (directory / where).mkdir(parents=True)
    save_weights(model, directory / where)
    content = {"training": asdict(TrainingConfig()), "description": description}
    (directory / "config.json").write_text(json.dumps(content))
    return directory


def _entry(path: Path) -> ModelEntry:
    return stored_entry(Place(path, "it", "it"))


def _read(path: Path) -> m.Run:
    entry = _entry(path)
    loaded = entry.open()
    assert loaded.card == entry.card
    assert entry.card.origin == "run"
    return read(loaded, m.Ask(model="it", text=entry.card.text)).message


def test_a_run_of_train_on_bytes(tmp_path: Path) -> None:
    model = _decoder(256)
    description = {"model": asdict(model.config), "data": {"kind": "text", "path": "/home/anna/tales.txt"}}
    run = _read(_run(tmp_path / "run", model, description, "checkpoints/step-00000010"))
    assert run.tokens[:5] == ["O", "n", "c", "e", "␣"]
    about = _entry(tmp_path / "run").card.about
    assert "tales.txt" in about
    assert "anna" not in about


def test_a_run_of_train_on_the_recurrence(tmp_path: Path) -> None:
    model = _decoder(7, num_experts=2)
    description = {"model": asdict(model.config), "data": {"kind": "recurrence", **asdict(DATA)}}
    entry = _entry(_run(tmp_path / "run", model, description))
    assert entry.card.views == ["attention", "sampling", "experts", "whatif"]
    loaded = entry.open()
    tokens = loaded.encode("3 2 6 4 5 1 3 2 6 4 5 1 3 2")
    assert loaded.rule(tokens) == "x[t] = 3 x[t-1] mod 7, or x[t-1] + 1"


@pytest.mark.parametrize("encoding", ["slots", "bag", "positions"])
def test_a_training_on_fresh_facts(tmp_path: Path, encoding: Any) -> None:
    data = LookupConfig(num_keys=16, num_values=16, held_out=0.0)
    recipe = InContextRecipe("x", encoding, data, split="all", hidden_dim=8, ff_dim=8, num_heads=2)
    description = json.loads(json.dumps({"recipe": asdict(recipe), "seed": 0}))
    run = _read(_run(tmp_path / "run", build_model(recipe, 0), description))
    assert run.source is not None
    assert run.source[:2] == (["k0=v0", "k3=v1"] if encoding == "slots" else ["k0", "v0"])
    assert run.tokens == ["k0"]


def test_a_model_of_the_lookup_course(tmp_path: Path) -> None:
    model = build_course_model(0)
    description = {"model": json.loads(model.config.to_json()), "samples": 100, "seed": 0}
    assert _read(_run(tmp_path / "run", model, description)).source == ["NAME", "COLOR", "ALICE", "ITEM", "GREEN"]


def _encoder(num_classes: int | None) -> Encoder:
    return Encoder(
        EncoderConfig(7, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=2, max_seq_len=16, num_classes=num_classes)
    )


def test_a_classifier(tmp_path: Path) -> None:
    tokenizer = WordTokenizer(("slow", "ending", "is", "wonderful"))
    save_classifier(Classifier(_encoder(2), tokenizer, ("no", "yes")), tmp_path / "it")
    assert {name for name, _ in _read(tmp_path / "it").said.classes} == {"no", "yes"}


def test_an_encoder_without_a_tokenizer_reads_numbers(tmp_path: Path) -> None:
    save_encoder(_encoder(None), tmp_path / "it")
    assert _read(tmp_path / "it").tokens == ["1", "2", "3"]


def test_a_mixtral_checkpoint(tmp_path: Path) -> None:
    decoder = _decoder(30, num_experts=3)
    decoder.save_pretrained(tmp_path / "mixtral", layout="mixtral")
    run = _read(tmp_path / "mixtral")
    with torch.no_grad():
        wanted = decoder.eval()(torch.tensor([[1, 2, 3]]))[0, -1].double().softmax(-1)
    assert run.said.classes[0][1] == pytest.approx(float(wanted.max()), abs=1e-5)


@pytest.mark.parametrize("layout", ["huggingface", "openai", "glassformer"])
def test_a_decoder_as_released_keeps_its_experts_packed(tmp_path: Path, layout: Any) -> None:
    if layout == "glassformer":
        _decoder(30, num_experts=3).save_pretrained(tmp_path / "it", layout="glassformer")
    else:
        write_random_gpt_oss(tmp_path / "it", layout=layout)
    decoder = Decoder.from_pretrained(tmp_path / "it").eval()
    run = _read(tmp_path / "it")
    with torch.no_grad():
        wanted = decoder(torch.tensor([[1, 2, 3]]))[0, -1].double().softmax(-1)
    assert run.said.classes[0][1] == pytest.approx(float(wanted.max()), abs=1e-5)
    assert [stack.layers for stack in run.attentions] == [decoder.config.num_layers]


@pytest.mark.parametrize("folder", ["it", "it/original"])
def test_a_released_decoder_reads_text_by_its_own_tokenizer(
    tmp_path: Path, byte_engine: Tokenizer, folder: str
) -> None:
    directory = tmp_path / folder
    write_random_gpt_oss(directory, replace(GPT_OSS_TINY, vocab_size=280, num_layers=1))
    byte_engine.save(str(tmp_path / "it" / "tokenizer.json"))  # the hub's has it above the folder of OpenAI's layout
    entry = _entry(directory)
    assert entry.card.input_help == "any text"
    assert _read(directory).tokens == list("Once␣upon␣a␣time")
    loaded = entry.open()
    assert loaded.encode("héa\n") == byte_engine.encode("héa\n").ids
    assert read(loaded, m.Ask(model="it", text="héa\n")).message.tokens == ["h", "\\xc3", "\\xa9", "a", "⏎"]
    assert loaded.join(loaded.encode("héa\n")) == "héa\n"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "vocab.txt"])
def test_our_own_decoder_reads_text_by_the_tokenizer_that_was_trained_for_it(tmp_path: Path, kind: str) -> None:
    _decoder(300).save_pretrained(tmp_path / "own", layout="glassformer")
    words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nonce\nupon\na\ntime"
    if kind == "vocab.txt":
        (tmp_path / "own" / kind).write_text(words)
    else:
        tokenizer = train_subwords(["once upon a time there was a fox"], kind, 300)
        (tmp_path / "own" / "tokenizer.json").write_text(tokenizer.to_json())
    entry = _entry(tmp_path / "own")
    assert entry.card.input_help == "any text"
    loaded = entry.open()
    assert loaded.encode("once upon a time") == load_subwords(tmp_path / "own").encode("once upon a time", 64)


def test_a_tokenizer_of_a_larger_vocabulary_is_refused(tmp_path: Path, byte_engine: Tokenizer) -> None:
    write_random_gpt_oss(tmp_path / "it", replace(GPT_OSS_TINY, vocab_size=260, num_layers=1))
    byte_engine.save(str(tmp_path / "it" / "tokenizer.json"))
    entry = _entry(tmp_path / "it")
    with refused("vocab_size = 260"):
        entry.open()


def test_a_dense_decoder_has_no_view_of_experts(tmp_path: Path) -> None:
    _decoder(30).save_pretrained(tmp_path / "dense", layout="glassformer")
    _decoder(30, num_experts=3).save_pretrained(tmp_path / "sparse", layout="glassformer")
    cards = [_entry(tmp_path / name).card for name in ("dense", "sparse")]
    assert cards[0].views == ["attention", "sampling", "whatif"]
    assert "experts" not in cards[0].about
    assert cards[1].views == ["attention", "sampling", "experts", "whatif"]
    assert _read(tmp_path / "dense").tokens == ["1", "2", "3"]


@pytest.mark.parametrize(
    "description",
    [
        {"rival": "convolutional"},
        {"recipe": {"tokenizer": "words"}},
        {"model": {"layers": 3}},
        {"model": {}, "data": 3},
    ],
)
def test_runs_of_other_kinds_are_passed_over(tmp_path: Path, description: dict[str, Any]) -> None:
    assert _entry(_run(tmp_path / "run", nn.Linear(2, 2), description)) is None


def test_other_directories_are_passed_over(tmp_path: Path) -> None:
    assert _entry(tmp_path) is None
    for content in ({}, {"model_type": "t5"}, {"training": 3, "description": 4}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert _entry(tmp_path) is None


def test_what_is_broken_is_refused(tmp_path: Path) -> None:
    model = _decoder(7)
    good = {"model": asdict(model.config), "data": {"kind": "recurrence", **asdict(DATA)}}
    broken: dict[str, tuple[dict[str, Any], str]] = {
        "model": ({**good, "model": {"vocab_size": 7}}, "num_layers"),
        "unknown": ({**good, "data": {**good["data"], "colour": 3}}, r"unknown.config\.json.*colour"),
        "recipe": ({"recipe": {"encoding": "slots", "name": "x", "steps": "many"}}, r"(?s)config\.json.*steps.*many"),
        "lab": ({"model": {"n_layers": 2, "size": 4}}, "lab.config.json, which does not describe a model"),
    }
    for name, (description, message) in broken.items():
        with refused(message):
            _entry(_run(tmp_path / name, model, description))
    bare = _run(tmp_path / "bare", model, good)
    (bare / "best" / "model.safetensors").unlink()
    with refused(r"model\.safetensors"):
        _entry(bare)
    (bare / "best" / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{")
    with refused("cannot be read"):
        _entry(bare)
    (bare / "best" / "model.safetensors").unlink()
    (bare / "best").rmdir()
    with refused("no weights yet"):
        _entry(bare)
    (bare / "config.json").write_text("{")
    with refused(r"config\.json"):
        _entry(bare)
