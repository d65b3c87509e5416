"""What is known of a released model before it is loaded, and how its words reach the screen."""

import io
import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

import glassformer
from glassformer.checkpoints import store as module
from glassformer.checkpoints.assembly import count_parameters
from glassformer.checkpoints.decoders import load_decoder, read_decoder_config
from glassformer.checkpoints.tensor_files import FileTensor
from glassformer.cli.conversation import Conversation
from glassformer.cli.terminal import Stopwatch, write
from glassformer.data.chat_template import ChatTemplate
from glassformer.data.harmony import FINAL, Message, Setting, render
from glassformer.data.released_tokenizer import read_tokenizer
from glassformer.errors import CheckpointError
from glassformer.generation import language_model
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.observe.capture import capture
from glassformer.observe.detectors import head_scores
from glassformer.observe.edits import zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.sweep import ablation_sweep
from refusals import Output, refused
from scripted import Script


@pytest.fixture
def directory(tiny_gpt_oss: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(tiny_gpt_oss, tmp_path / "model")
    return tmp_path / "model"


def change(directory: Path, **entries: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def with_vocabulary(directory: Path, vocab_size: int) -> module.Stored:
    """A model with a smaller or larger vocabulary than its files say."""
    stored = module.open_model(directory)
    config = replace(stored.config, vocab_size=vocab_size)
    return replace(stored, decoder=replace(stored.decoder, config=config))


def test_model_and_tokenizer_are_found_without_loading(
    tiny_gpt_oss: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileTensor, "read", lambda *args, **more: pytest.fail("loaded"))
    found = module.open_model(str(tiny_gpt_oss))
    assert (found.path, found.config.vocab_size) == (tiny_gpt_oss, 280)
    names = [found.tokenizer.token_bytes(token).decode() for token in found.stop_tokens]
    assert sorted(names) == ["<|call|>", "<|endoftext|>", "<|return|>"]


def test_a_file_of_a_repository_is_looked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_file", lambda *asked: asked)
    monkeypatch.setattr(module, "read_parts", lambda found: found)
    monkeypatch.setattr(module, "gguf_in", lambda _, kind: f"file-{kind}.gguf")
    assert module.find_model("owner/name:part.gguf").file == ("owner/name", "part.gguf")
    assert module.find_model("owner/name:Q4_K_M").file == ("owner/name", "file-Q4_K_M.gguf")


def test_all_parts_of_a_model_are_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(
        module, "find_file", lambda *wanted: asked.append(wanted) or Path(wanted[1])
    )
    monkeypatch.setattr(module, "read_parts", lambda found: found)
    assert module.find_model("owner/name:Q4/m-00002-of-00003.gguf").file == Path(
        "Q4/m-00001-of-00003.gguf"
    )
    assert asked == [("owner/name", f"Q4/m-0000{number}-of-00003.gguf") for number in (1, 2, 3)]


def test_it_loads_for_evaluation(tiny_gpt_oss: Path) -> None:
    model = module.build(module.open_model(str(tiny_gpt_oss)), device="cpu")
    assert not model.training
    expected = load_decoder(tiny_gpt_oss).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_texts_run_under_captures_and_interventions(tiny_gpt_oss: Path) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu")
    assert isinstance(lm, glassformer.LanguageModel)
    with capture(lm) as seen:
        logits = lm("some text")
    assert not logits.requires_grad
    assert torch.equal(logits, lm.model(lm.tokens("some text")))
    assert torch.equal(logits, lm(lm.tokens("some text")))
    assert lm.generate("some text", stop=torch.arange(280)) == ""
    with refused("tokens from 280"):
        lm(torch.tensor([[280]]))
    assert len(seen.weights) == len(lm.model.layers)
    with intervene(lm, zero("attention", layers=0)):
        assert not torch.equal(lm("some text"), logits)


@pytest.mark.parametrize("pack", [None, "Q8_0"])
def test_every_weight_is_counted_however_it_is_held(pack: Any, directory: Path) -> None:
    (directory / "consolidated.safetensors").write_bytes(bytes(1000))  # not what is loaded
    lm = glassformer.load(directory, device="cpu", pack=pack)
    assert isinstance(lm.model.layers[0].ffn, PackedMixture)
    assert language_model.count_weights(lm.model) == count_parameters(
        replace(lm.model.config, expert_format="dense")
    )
    assert lm.size == (directory / "model.safetensors").stat().st_size


def test_a_reply_begins_without_the_space_of_sentence_piece(
    tiny_gpt_oss: Path,
    spaced_engine: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output: Output,
) -> None:
    spaced_engine.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    options = ["--tokenizer", str(tmp_path), "--max-new-tokens", "1"]
    assert output(["generate", tiny_gpt_oss, "2 + 2", *options]).out.startswith("2 + 2")
    talk = Conversation(
        Script(spaced_engine, ["4 "]), tokenizer, Setting(), template=ChatTemplate("{{ messages }}")
    )
    assert "".join(piece.text for piece in talk.say("2 + 2")) == "4 "
    lm = replace(glassformer.load(tiny_gpt_oss, device="cpu"), tokenizer=tokenizer)
    monkeypatch.setattr(
        language_model, "stream", lambda *_, **__: [[token] for token in tokenizer.encode("4")]
    )
    assert [
        lm.generate(asked) for asked in ([{"role": "user", "content": "2 + 2"}], "2 + 2 =")
    ] == ["4", " 4"]


TEXTS = ["a", "some longer text", "and another one"]


def test_one_token_is_that_within_a_text(tiny_gpt_oss: Path) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu")
    assert lm.token("a") == lm.tokens("a")[0, -1]
    with_begin = replace(lm, tokenizer=replace(lm.tokenizer, begin=(7,)))
    assert with_begin.token("a") == lm.token("a")
    for text in ("", "some longer text"):
        with refused(expected="a text of one token"):
            lm.token(text)


def test_several_texts_are_padded_on_the_left(tiny_gpt_oss: Path) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu", dtype=torch.float32)
    batch = lm.tokens(TEXTS)
    assert [*batch] == ["tokens", "key_padding"]
    for text, tokens, real in zip(TEXTS, batch["tokens"], batch["key_padding"], strict=True):
        assert torch.equal(tokens[real], lm.tokens(text)[0])
        assert bool(real[-1])
    logits = lm(TEXTS)
    assert torch.equal(logits, lm(batch))
    assert torch.equal(logits, lm.model(**batch))
    for text, row, real in zip(TEXTS, logits, batch["key_padding"], strict=True):
        torch.testing.assert_close(row[real], lm(text)[0], rtol=1e-4, atol=1e-4)
    assert lm.tokens(["a", "b"])["key_padding"].all()
    special = lm.tokens(["<|end|>", "a"], special=True)["tokens"]
    assert torch.equal(special[0], lm.tokens("<|end|>", special=True)[0])


def test_tokens_of_several_texts_are_not_read_as_one(tiny_gpt_oss: Path) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu")
    batch = lm.tokens(TEXTS)
    assert lm.strings(batch) == [lm.strings(lm.tokens(text)) for text in TEXTS]
    for function in (lm.strings, lm.labels, lm.text):
        with refused("tokens of shape", expected="one text", fix=r"tokens\[0\]"):
            function(batch["tokens"])
    with refused("by name"):
        lm.text(batch)  # type: ignore[arg-type]
    with refused("input_ids", expected="tokens and key_padding"):
        lm.strings({"input_ids": batch["tokens"]})


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("given", ["text", ["text"], {"tokens": torch.ones(1, 2).long()}, None])
def test_texts_for_the_network_itself_are_refused(given: Any, tiny_gpt_oss: Path) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu")
    with refused(f"tokens of type {type(given).__name__}", fix=r"lm\(batch\)"):
        lm.model(given)


def test_captures_interventions_sweeps_and_lenses_take_several_texts(tiny_gpt_oss: Path) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu", dtype=torch.float32)
    batch = lm.tokens(TEXTS)
    with capture(lm, what="residual", queries=-1) as seen:
        logits = lm(batch)
    assert seen[0, "residual"].shape[:2] == (3, 1)
    with intervene(lm, zero("attention", layers=0)):
        assert not torch.equal(lm(batch), logits)
    sweep = ablation_sweep(lm, batch, lambda logits: logits[:, -1, 7])
    for row, text in enumerate(TEXTS):
        alone = ablation_sweep(lm, lm.tokens(text), lambda logits: logits[:, -1, 7])
        torch.testing.assert_close(
            sweep.by_text[..., row], alone.by_text[..., 0], rtol=1e-4, atol=1e-4
        )
    lens = logit_lens(lm, batch, queries=-1)
    torch.testing.assert_close(lens[-1], logits[:, -1:], rtol=1e-4, atol=1e-4)
    assert direct_logits(lm, batch, 7).total.shape == (3,)
    assert head_scores(lm, batch).sink.isfinite().all()


def test_several_texts_are_continued_as_each_alone(tiny_gpt_oss: Path) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu", dtype=torch.float64)
    assert lm.generate(TEXTS, 12) == [lm.generate(text, 12) for text in TEXTS]
    asked = [[{"role": "user", "content": text}] for text in TEXTS]
    assert lm.generate(asked, 12) == [lm.generate(messages, 12) for messages in asked]
    assert lm.generate(TEXTS[:1], 12) == [lm.generate(TEXTS[0], 12)]
    ends = lm.model(lm.tokens(TEXTS[0]))[0, -1].argmax()  # with which the first text ends at once
    expected = [lm.generate(text, 12, stop=ends[None]) for text in TEXTS]
    assert expected[0] == ""
    assert lm.generate(TEXTS, 12, stop=ends[None]) == expected
    steps = [*lm.stream(TEXTS, 12)]
    assert all(len(pieces) == 3 for pieces in steps)
    drawn = {"temperature": 1.0, "seed": 3}
    assert lm.generate(TEXTS, 5, **drawn) == lm.generate(TEXTS, 5, **drawn)


def test_lists_that_are_no_texts_are_refused(tiny_gpt_oss: Path, without_type_checks: None) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu")
    message = {"role": "user", "content": "a"}
    for texts in ([], ["a", 1], ["a", [message]], [message, "a"], [[message], message]):
        for call in (lm.tokens, lm.generate, lm):
            with refused(expected="a list of one or more texts"):
                call(texts)
    for call in (lm.tokens, lm):
        with refused(expected="a list of one or more texts"):
            call([[message]])
    with refused("an empty text"):
        lm.tokens(["a", ""])
    with refused(expected="a text, or messages"):
        lm.generate([["a"]])


def test_a_directory_is_described_before_it_is_loaded(tiny_gpt_oss: Path) -> None:
    found = module.open_model(str(tiny_gpt_oss))
    assert re.fullmatch(rf"{re.escape(found.name)}: [0-9.]+ kB", found.about)


def test_messages_need_a_chat_template(tiny_gpt_oss: Path) -> None:
    lm = glassformer.load(tiny_gpt_oss, device="cpu")
    messages = [{"role": "user", "content": "a"}]
    system = {"role": "system", "content": "Be brief."}
    reply = {"role": "assistant", "content": "b"}
    asked = Message("user", "a")
    said = [
        *Setting(instructions="Be brief.").messages(),
        asked,
        Message("assistant", "b", FINAL),
        asked,
    ]
    assert lm.prompt([system, *messages, reply, *messages]) == render(said, lm.tokenizer)
    for other in (["a", "b"], [*messages, "a"], [], torch.tensor([[1, 2]])):
        with refused(expected="a text, or messages"):
            lm.prompt(other)
    lm = replace(lm, tokenizer=replace(lm.tokenizer, specials={}))
    with refused("which has no chat template"):
        lm.prompt(messages)


def test_the_former_name_of_pack_is_unknown(tiny_gpt_oss: Path, output: Output) -> None:
    for read in (glassformer.load, load_decoder):
        with pytest.raises(TypeError, match="'dense'"):
            read(tiny_gpt_oss, device="cpu", dense="int8")
    with pytest.raises(SystemExit, match=r"^2$"):
        output(["generate", tiny_gpt_oss, "text", "--dense", "int8"])


def test_stop_tokens_are_those_of_files_and_names(directory: Path) -> None:
    change(directory, eos_token_id=3)
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [4, 3, 999, "x", None]})
    )
    found = module.open_model(str(directory))
    assert found.declared_ends == (3, 4)
    assert set(found.stop_tokens) == {
        3,
        4,
        *map(found.tokenizer.special, ("<|return|>", "<|call|>", "<|endoftext|>")),
    }
    (directory / "generation_config.json").unlink()
    change(directory, eos_token_id=None)
    assert module.open_model(str(directory)).declared_ends == ()


def test_a_tokenizer_can_be_named(bare_gpt_oss: Path, tiny_gpt_oss: Path) -> None:
    assert module.open_model(str(bare_gpt_oss)).tokenizer is None
    found = module.open_model(str(bare_gpt_oss), tokenizer=str(tiny_gpt_oss / "tokenizer.json"))
    assert found.tokenizer is not None
    assert found.require_tokenizer() is found.tokenizer


def test_for_the_released_vocabulary_the_way_to_its_tokenizer_is_told(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    with refused("without a tokenizer", fix="openai/gpt-oss-20b"):
        with_vocabulary(directory, 201088).require_tokenizer()


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "tekken.json"])
def test_another_form_of_a_tokenizer_is_named_and_how_it_becomes_one(
    name: str, directory: Path
) -> None:
    (directory / "tokenizer.json").rename(directory / name)
    with refused(f"with {name} as its tokenizer", expected="tokenizer.json", fix="AutoTokenizer"):
        module.open_model(str(directory)).require_tokenizer()


def test_what_does_not_fit_is_refused(directory: Path, bare_gpt_oss: Path) -> None:
    with refused("without a tokenizer", fix=r"--tokenizer.*'numbers'"):
        module.open_model(str(bare_gpt_oss)).require_tokenizer()
    with refused("265 tokens for a model of vocab_size = 200"):
        with_vocabulary(directory, 200).require_tokenizer()
    # Some special tokens are beyond it, as Gemma 3's for images is.
    assert with_vocabulary(directory, 260).stop_tokens == (257, 258)
    change(directory, vocab_size="many")
    with refused("vocab_size = 'many'"):
        module.open_model(str(directory))
    (directory / "config.json").unlink()
    with refused(r"config\.json", error=CheckpointError):
        module.open_model(str(directory))
    with refused("no directory"):
        module.open_model("no such/model/here")
    with refused("'smolm2'", expected="a short name", fix="Did you mean 'smollm2'"):
        module.open_model("smolm2")
    with refused("'nosuch'", expected="a short name", fix="gpt-oss-20b"):
        module.open_model("nosuch")


def test_a_vocabulary_that_is_not_told_is_its_owners_default(
    bare_gpt_oss: Path, tmp_path: Path
) -> None:
    said = json.loads((bare_gpt_oss / "config.json").read_text())
    del said["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(said))
    config = read_decoder_config(tmp_path)
    assert (config.vocab_size, config.max_seq_len) == (201088, said["max_position_embeddings"])


def test_devices_are_named_as_torch_names_them() -> None:
    assert module.chosen_device("cpu") == torch.device("cpu")
    assert module.chosen_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for wrong in ("gpu", "cuda:99", "meta"):
        with refused(f"device = '{wrong}'", fix="'cpu'"):
            module.chosen_device(wrong)


def test_the_stopwatch_counts_what_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.0, 13.0, 16.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    watch = Stopwatch(7)
    assert str(watch) == ""
    tokens = watch.timed(iter([5, 6, 7]))
    assert next(tokens) == 5
    assert str(watch) == "7 tokens read in 2.0 s, 1 generated"
    assert list(tokens) == [6, 7]
    assert str(watch) == "7 tokens read in 2.0 s, 3 generated in 6.0 s: 0.5 tokens/s"


class Screen(io.TextIOWrapper):
    """A terminal of some encoding."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters() -> None:
    text = "a\x1b[2J\tb\x07\nc\x9b é"
    shown = Screen(io.BytesIO(), "ascii")
    piped = io.StringIO()
    write(text, shown)
    write(text, piped)
    assert shown.buffer.getvalue() == b"a?[2J\tb?\nc? ?"
    assert piped.getvalue() == text


def test_the_changes_of_logits_are_called_so(tiny_gpt_oss: Path, output: Output) -> None:
    head = output(["intervene", tiny_gpt_oss, "some text", "--without", "0.0"]).out.splitlines()[0]
    assert head.split("  ")[-2:] == ["change of logit", "next token"]


@pytest.mark.parametrize(
    ("command", "flags", "got"),
    [
        ("capture", ["--layer", "99"], "--layer [99]"),
        ("capture", ["--what", "lens", "--layer", "99"], "--layer [99]"),
        ("capture", ["--head", "99"], "--head [99]"),
        ("intervene", ["--steer", " a", " b", "--layer", "99"], "--layer [99]"),
        ("intervene", ["--without", "99.0"], "--without 99.0: layer [99]"),
        ("intervene", ["--without", "0.99"], "--without 0.99: head [99]"),
        ("intervene", ["--without", "99.ffn"], "--without 99.ffn: layer [99]"),
    ],
)
def test_a_place_that_the_model_lacks_is_refused_by_its_flag(
    command: str, flags: list[str], got: str, tiny_gpt_oss: Path, output: Output
) -> None:
    printed = output([command, tiny_gpt_oss, "some text", *flags], 2)
    assert got in printed.err
