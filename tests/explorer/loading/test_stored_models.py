"""Each kind of run and checkpoint becomes a model that reads."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

from glassformer.checkpoints.bert import save_encoder
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.classifier import Classifier, save_classifier
from glassformer.data.in_context_lookup import LookupConfig
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.subword import load_subwords
from glassformer.data.tokenizer import WordTokenizer
from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import read
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading import stored_models
from glassformer.explorer.loading.loaded_model import ModelEntry
from glassformer.explorer.loading.stored_models import (
    Place,
    filled,
    language_model,
    stamp_of,
    stored_entry,
)
from glassformer.labs.lookup.experiments.course_runs import build_course_model
from glassformer.models import Decoder, DecoderConfig, EncoderDecoder
from glassformer.training.in_context_lookup import InContextRecipe, build_model
from refusals import refused
from small_models import decoder, encoder, encoder_decoder, write_run
from trained_subwords import train_subwords
from transformers_models import FAMILIES

DATA = RecurrenceConfig(order=2, vocab_size=7)


def _entry(path: Path) -> ModelEntry:
    return stored_entry(Place(path, "it", "it"))


def _read(path: Path) -> m.Run:
    entry = _entry(path)
    loaded = entry.open()
    assert loaded.card == entry.card
    assert entry.card.origin == "run"
    return read(loaded, m.Ask(model="it", text=entry.card.text)).message


def test_a_run_of_train_on_bytes(tmp_path: Path) -> None:
    model = decoder(vocab_size=256, num_layers=1)
    description = {
        "model": asdict(model.config),
        "data": {"kind": "text", "path": "/home/anna/tales.txt"},
    }
    run = _read(write_run(tmp_path / "run", model, "checkpoints/step-00000010", **description))
    assert run.tokens[:5] == ["O", "n", "c", "e", "␣"]
    about = _entry(tmp_path / "run").card.about
    assert "tales.txt" in about
    assert "anna" not in about


def test_a_run_of_train_on_the_recurrence(tmp_path: Path) -> None:
    model = decoder(vocab_size=7, num_layers=1, num_experts=2)
    description = {"model": asdict(model.config), "data": {"kind": "recurrence", **asdict(DATA)}}
    entry = _entry(write_run(tmp_path / "run", model, **description))
    assert entry.card.views == ["flow", "attention", "sampling", "experts", "whatif", "patch"]
    loaded = entry.open()
    tokens = loaded.encode("3 2 6 4 5 1 3 2 6 4 5 1 3 2")
    assert loaded.rule(tokens) == "x[t] = 3 x[t-1] mod 7, or x[t-1] + 1"


@pytest.mark.parametrize("encoding", ["slots", "bag", "positions"])
def test_a_training_on_fresh_facts(tmp_path: Path, encoding: Any) -> None:
    data = LookupConfig(num_keys=16, num_values=16, held_out=0.0)
    recipe = InContextRecipe("x", encoding, data, split="all", hidden_dim=8, ff_dim=8, num_heads=2)
    description = json.loads(json.dumps({"recipe": asdict(recipe), "seed": 0}))
    run = _read(write_run(tmp_path / "run", build_model(recipe, 0), **description))
    assert run.source[:2] == (["k0=v0", "k3=v1"] if encoding == "slots" else ["k0", "v0"])
    assert run.tokens == ["k0"]


def test_a_model_of_the_lookup_course(tmp_path: Path) -> None:
    model = build_course_model(0)
    description = {"model": json.loads(model.config.to_json()), "samples": 100, "seed": 0}
    run = write_run(tmp_path / "run", model, **description)
    assert _read(run).source == ["NAME", "COLOR", "ALICE", "ITEM", "GREEN"]


def test_a_classifier(tmp_path: Path) -> None:
    tokenizer = WordTokenizer(("slow", "ending", "is", "wonderful"))
    save_classifier(
        Classifier(encoder(vocab_size=7, num_layers=1), tokenizer, ("no", "yes")), tmp_path / "it"
    )
    assert {name for name, _ in _read(tmp_path / "it").said.classes} == {"no", "yes"}


def test_an_encoder_without_a_tokenizer_reads_numbers(tmp_path: Path) -> None:
    save_encoder(encoder(vocab_size=7, num_layers=1, num_classes=None), tmp_path / "it")
    assert _read(tmp_path / "it").tokens == ["1", "2", "3"]


def test_a_gguf_file_without_a_tokenizer_reads_numbers(tmp_path: Path) -> None:
    write_gguf(decoder(num_layers=1), tmp_path / "a.gguf", kind="F32")
    entry = language_model(str(tmp_path / "a.gguf"), "it")
    assert read(entry.open(), m.Ask(model="it", text=entry.card.text)).message.tokens == [
        "1",
        "2",
        "3",
    ]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_directory_of_transformers(tmp_path: Path, family: str) -> None:
    model: Any = FAMILIES[family](bos_token_id=None, eos_token_id=None)
    model.save_pretrained(tmp_path / "it")
    run = _read(tmp_path / "it")
    with torch.no_grad():
        wanted = model(torch.tensor([[1, 2, 3]])).logits[0, -1].double().softmax(-1)
    assert run.said.classes[0][1] == pytest.approx(float(wanted.max()), abs=1e-5)
    assert [stack.layers for stack in run.attentions] == [2]


@pytest.mark.parametrize("layout", ["huggingface", "openai", "glassformer", "mixtral"])
def test_a_decoder_of_any_layout(tmp_path: Path, layout: Any) -> None:
    if layout in ("glassformer", "mixtral"):
        decoder(vocab_size=30, num_layers=1, num_experts=3).save_pretrained(
            tmp_path / "it", layout=layout
        )
    else:
        write_random_gpt_oss(tmp_path / "it", layout=layout)
    model = Decoder.from_pretrained(tmp_path / "it").eval()
    run = _read(tmp_path / "it")
    with torch.no_grad():
        wanted = model(torch.tensor([[1, 2, 3]]))[0, -1].double().softmax(-1)
    assert run.said.classes[0][1] == pytest.approx(float(wanted.max()), abs=1e-5)
    assert [stack.layers for stack in run.attentions] == [model.config.num_layers]


@pytest.mark.parametrize("folder", ["it", "it/original"])
def test_a_released_decoder_reads_by_its_own_tokenizer(
    tmp_path: Path, byte_engine: Tokenizer, folder: str
) -> None:
    directory = tmp_path / folder
    write_random_gpt_oss(directory, replace(GPT_OSS_TINY, vocab_size=280, num_layers=1))
    # the hub's has it above the folder of OpenAI's layout
    byte_engine.save(str(tmp_path / "it" / "tokenizer.json"))
    entry = _entry(directory)
    assert entry.card.input_help == "any text"
    assert _read(directory).tokens == list("Once␣upon␣a␣time")
    loaded = entry.open()
    assert loaded.encode("héa\n") == byte_engine.encode("héa\n").ids
    assert read(loaded, m.Ask(model="it", text="héa\n")).message.tokens == [
        "h",
        "é 1/2",
        "é 2/2",
        "a",
        "⏎",
    ]
    assert loaded.join(loaded.encode("héa\n")) == "héa\n"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "vocab.txt"])
def test_our_own_decoder_reads_text_by_the_tokenizer_that_was_trained_for_it(
    tmp_path: Path, kind: str
) -> None:
    decoder(vocab_size=300, num_layers=1).save_pretrained(tmp_path / "own", layout="glassformer")
    words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nonce\nupon\na\ntime"
    if kind == "vocab.txt":
        (tmp_path / "own" / kind).write_text(words)
    else:
        tokenizer = train_subwords(["once upon a time there was a fox"], kind, 300)
        (tmp_path / "own" / "tokenizer.json").write_text(tokenizer.to_json())
    entry = _entry(tmp_path / "own")
    assert entry.card.input_help == "any text"
    loaded = entry.open()
    assert loaded.encode("once upon a time") == load_subwords(tmp_path / "own").encode(
        "once upon a time", 64
    )


def test_a_tokenizer_of_a_larger_vocabulary_is_refused(
    tmp_path: Path, byte_engine: Tokenizer
) -> None:
    write_random_gpt_oss(tmp_path / "it", replace(GPT_OSS_TINY, vocab_size=250, num_layers=1))
    byte_engine.save(str(tmp_path / "it" / "tokenizer.json"))
    entry = _entry(tmp_path / "it")
    with refused("vocab_size = 250"):
        entry.open()


def test_a_dense_decoder_has_no_view_of_experts(tmp_path: Path) -> None:
    decoder(vocab_size=30, num_layers=1).save_pretrained(tmp_path / "dense", layout="glassformer")
    decoder(vocab_size=30, num_layers=1, num_experts=3).save_pretrained(
        tmp_path / "sparse", layout="glassformer"
    )
    cards = [_entry(tmp_path / name).card for name in ("dense", "sparse")]
    assert cards[0].views == ["flow", "attention", "sampling", "whatif", "patch"]
    assert "experts" not in cards[0].about
    assert cards[1].views == ["flow", "attention", "sampling", "experts", "whatif", "patch"]
    assert _read(tmp_path / "dense").tokens == ["1", "2", "3"]


OTHERS = [
    {"rival": "convolutional"},
    {"recipe": {"tokenizer": "words"}},
    {"model": {"layers": 3}},
    {"model": {}, "data": 3},
]


@pytest.mark.parametrize("description", OTHERS)
def test_runs_of_other_kinds_are_passed_over(tmp_path: Path, description: dict[str, Any]) -> None:
    assert _entry(write_run(tmp_path / "run", nn.Linear(2, 2), **description)) is None


def test_other_directories_are_passed_over(tmp_path: Path) -> None:
    assert _entry(tmp_path) is None
    for content in ({}, {"model_type": "t5"}, {"training": 3, "description": 4}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert _entry(tmp_path) is None


def test_what_is_broken_is_refused(tmp_path: Path) -> None:
    model = decoder(vocab_size=7, num_layers=1)
    good = {"model": asdict(model.config), "data": {"kind": "recurrence", **asdict(DATA)}}
    broken: dict[str, tuple[dict[str, Any], str]] = {
        "model": ({**good, "model": {"vocab_size": 7}}, "num_layers"),
        "unknown": (
            {**good, "data": {**good["data"], "colour": 3}},
            r"unknown.config\.json.*colour",
        ),
        "recipe": (
            {"recipe": {"encoding": "slots", "name": "x", "steps": "many"}},
            r"(?s)config\.json.*steps.*many",
        ),
    }
    for name, (description, message) in broken.items():
        with refused(message):
            _entry(write_run(tmp_path / name, model, **description))
    bare = write_run(tmp_path / "bare", model, **good)
    (bare / "best" / "model.safetensors").unlink()
    with refused(r"model\.safetensors"):
        _entry(bare)
    (bare / "best" / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{")
    with refused("cannot be read"):
        _entry(bare)
    (bare / "best" / "model.safetensors").unlink()
    (bare / "best").rmdir()
    with refused("without weights yet"):
        _entry(bare)
    (bare / "config.json").write_text("{")
    with refused(r"config\.json"):
        _entry(bare)


CONFIG = DecoderConfig(7, num_layers=2, hidden_dim=8, ff_dim=8, num_heads=2, head_dim=4)
RULE = {"kind": "recurrence", **asdict(RecurrenceConfig(order=2, vocab_size=7))}


def _seeded(seed: int) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(CONFIG).eval()


def _backend(path: Path) -> Backend:
    return Backend([_entry(path)])


def _likeliest(backend: Backend) -> float:
    answer = backend.answer("run", m.Ask(model="it", text="1 2 3"))
    return answer.said.classes[0][1]


def _expected(model: Decoder) -> float:
    with torch.no_grad():
        return float(model(torch.tensor([[1, 2, 3]]))[0, -1].double().softmax(-1).max())


def test_a_run_that_trains_on_is_read_anew(tmp_path: Path) -> None:
    """Its checkpoint of the listing goes, a best model comes, and then a better one."""
    first, second, third = (_seeded(seed) for seed in range(3))
    run = write_run(
        tmp_path / "run", first, "checkpoints/step-00000010", model=asdict(CONFIG), data=RULE
    )
    backend = _backend(run)
    later = _backend(run)
    assert _likeliest(backend) == pytest.approx(_expected(first))
    write_run(run, second, "best", model=asdict(CONFIG), data=RULE)
    shutil.rmtree(run / "checkpoints")
    assert _likeliest(backend) == _likeliest(later) == pytest.approx(_expected(second))
    write_run(run, third, "draft", model=asdict(CONFIG), data=RULE)
    shutil.rmtree(run / "best")
    # in between it stays as it was read
    assert _likeliest(backend) == pytest.approx(_expected(second))
    (run / "draft").rename(run / "best")
    assert _likeliest(backend) == pytest.approx(_expected(third))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_widths(tmp_path: Path, dtype: torch.dtype) -> None:
    run = write_run(tmp_path / "run", _seeded(0), model=asdict(CONFIG), data=RULE)
    file = run / "best" / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)
    wanted = _seeded(0)
    wanted.load_state_dict(
        {name: tensor.to(dtype).float() for name, tensor in wanted.state_dict().items()}
    )
    assert _likeliest(_backend(run)) == pytest.approx(_expected(wanted))


def test_tables_that_are_shared_are_stored_once(tmp_path: Path) -> None:
    def build() -> EncoderDecoder:
        model = encoder_decoder(num_encoder_layers=1, num_decoder_layers=1)
        model.output.weight = model.target_embedding.weight
        return model

    model = build()
    found = filled(write_run(tmp_path / "run", model), build, 2)
    assert found.output.weight is found.target_embedding.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


SIZES: dict[str, Any] = {"hidden_dim": 8, "ff_dim": 8, "num_heads": 2, "head_dim": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 10**9}, "num_layers = 1000000000"),
        ({"num_layers": 3}, "missing layers.2"),
        ({"num_layers": 1}, "unknown layers.1"),
        ({"ff_dim": 10**9}, "instead of"),
        ({"num_experts": 10**9}, "num_experts = 1000000000"),
        ({"vocab_size": 10**9}, "instead of"),
    ],
)
def test_a_configuration_of_another_model_is_refused_at_once(
    tmp_path: Path, change: Any, message: str
) -> None:
    run = write_run(tmp_path / "run", _seeded(0), model=asdict(CONFIG) | change, data=RULE)
    backend = _backend(run)
    with refused(message):
        backend.model("it")


def test_a_model_that_memory_cannot_hold_is_refused(tmp_path: Path) -> None:
    def build() -> Decoder:
        torch.empty(2**61, dtype=torch.float64)
        return _seeded(0)

    with refused("cannot be built"):
        filled(write_run(tmp_path / "run", _seeded(0)), build, 2)


def test_the_stamp_follows_the_files(tmp_path: Path) -> None:
    assert stamp_of(tmp_path) is None
    run = write_run(tmp_path / "run", _seeded(0), "checkpoints/step-00000010")
    stamps = [stamp_of(run)]
    assert stamp_of(run) == stamps[0]
    write_run(run, _seeded(0), "best")
    stamps.append(stamp_of(run))
    os.utime(run / "best" / "model.safetensors", ns=(1, 1))
    stamps.append(stamp_of(run))
    shutil.copy(run / "best" / "model.safetensors", run)
    stamps.append(stamp_of(run))
    assert len(set(stamps)) == 4
    assert stored_models.run_weights(run) == run / "best"
    # a process died while it replaced them
    (run / "best").rename(run / ".best.glassformer-replaced")
    assert stored_models.run_weights(run) == run / ".best.glassformer-replaced"


def test_the_card_is_that_of_the_run_that_took_the_place_of_another(tmp_path: Path) -> None:
    def write(**own: Any) -> None:
        model = decoder(vocab_size=7, num_layers=1, **own)
        data = {"kind": "recurrence", **asdict(DATA)}
        write_run(tmp_path / "run", model, model=asdict(model.config), data=data)

    write()
    backend = _backend(tmp_path / "run")
    assert "experts" not in backend.model("it").card.views
    shutil.rmtree(tmp_path / "run")
    assert "experts" not in backend.catalogue().models[0].views  # as it was read
    write(num_experts=2)
    assert "experts" in backend.catalogue().models[0].views
    assert "experts" in backend.model("it").card.views
    # Half of it is there: what is known is listed, and opening it tells.
    (tmp_path / "run" / "config.json").write_text("{")
    os.utime(tmp_path / "run" / "best" / "model.safetensors", ns=(1, 1))
    assert "experts" in backend.catalogue().models[0].views
    with refused("config.json"):
        backend.model("it")
