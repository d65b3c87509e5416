import json
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from safetensors.torch import load_file
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.checkpoints.store import open_model
from glassformer.cli.main import main
from glassformer.data.gguf_tokenizer import byte_vocabulary
from glassformer.errors import InputError
from glassformer.generation.model_rule import BY_DEFAULT, generation_config, rule_of
from glassformer.generation.sampling import SamplingRule
from glassformer.labs.gpt_oss import Transformer
from glassformer.models import Decoder, DecoderConfig
from glassformer.text import byte_size
from refusals import Output, Refuses
from small_models import write_run

SMALL = replace(GPT_OSS_TINY, vocab_size=96, num_layers=2, num_experts=4)
COURSE = {
    "vocab_size": 96,
    "n_layers": 2,
    "hidden_dim": 32,
    "ff_dim": 64,
    "num_heads": 2,
    "head_dim": 8,
}
MIXTURE = {"use_moe": True, "num_experts": 4}
WINDOWED = {"use_sliding_window_alternating": True, "window_size": 4}
TOKENS = torch.arange(40).remainder(29).unsqueeze(0)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """gpt-oss in Hugging Face's layout, with a tokenizer beside it."""
    write_random_gpt_oss(tmp_path / "in", SMALL)
    (tmp_path / "in" / "tokenizer.json").write_text('{"version": "1.0"}')
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    (tmp_path / "in" / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    return tmp_path / "in"


def trained(directory: Path, *, windows: bool = False) -> Decoder:
    """A run of the lab."""
    form = COURSE | MIXTURE | (WINDOWED if windows else {})
    model = Transformer(**form).decoder().eval()
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.key_weights.uniform_(0.5, 2.0)
    write_run(directory, model, model=asdict(model.config), data={"kind": "recurrence"})
    return model


def logits(directory: Path) -> torch.Tensor:
    with torch.no_grad():
        return Decoder.from_pretrained(directory, dtype=torch.float32).eval()(TOKENS)


def test_gpt_oss_to_openai_and_back(
    released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    back = tmp_path / "back"
    assert main(["convert", str(released), str(there), "--to", "openai"]) == 0
    size = sum(tensor.nbytes for tensor in load_file(there / "model.safetensors").values())
    assert capsys.readouterr().out == f"{there}: gpt-oss in OpenAI's layout, {byte_size(size)}\n"
    assert main(["convert", str(there), str(back)]) == 0
    assert (back / "model.safetensors").read_bytes() == (
        released / "model.safetensors"
    ).read_bytes()
    assert (there / "tokenizer.json").read_bytes() == (back / "tokenizer.json").read_bytes()
    assert "model_type" not in json.loads((there / "config.json").read_text())
    assert torch.equal(logits(there), logits(released))


def test_the_tokenizer_above_openais_layout_is_kept(released: Path, tmp_path: Path) -> None:
    assert (
        main(["convert", str(released), str(tmp_path / "hub" / "original"), "--to", "openai"]) == 0
    )
    (tmp_path / "hub" / "original" / "tokenizer.json").rename(tmp_path / "hub" / "tokenizer.json")
    (tmp_path / "hub" / "LICENSE").write_text("above")
    (tmp_path / "hub" / "original" / "LICENSE").write_text("beside")
    assert main(["convert", str(tmp_path / "hub" / "original"), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (
        released / "tokenizer.json"
    ).read_bytes()
    assert (tmp_path / "out" / "LICENSE").read_text() == "beside"


def test_settings_that_stay_right_are_kept(released: Path, tmp_path: Path) -> None:
    assert main(["convert", str(released), str(tmp_path / "out"), "--experts", "bfloat16"]) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["eos_token_id"], config["use_cache"]) == (7, True)
    assert "quantization_config" not in config
    assert torch.allclose(logits(tmp_path / "out"), logits(released), atol=1e-4)


def test_links_to_elsewhere_are_not_copied(released: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (released / "LICENSE").symlink_to(tmp_path / "secret")
    (released / "tokenizer_config.json").symlink_to("tokenizer.json")
    assert main(["convert", str(released), str(tmp_path / "out"), "--to", "openai"]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.parametrize("experts", [[], ["--experts", "bfloat16"]])
def test_into_our_own_layout(released: Path, tmp_path: Path, experts: list[str]) -> None:
    assert (
        main(["convert", str(released), str(tmp_path / "out"), "--to", "glassformer", *experts])
        == 0
    )
    assert torch.allclose(logits(tmp_path / "out"), logits(released), atol=1e-4)
    config = Decoder.from_pretrained(tmp_path / "out").config
    assert config.expert_format == ("dense" if experts else "mxfp4")


def test_a_run_of_the_lab_keeps_its_key_weights(
    tmp_path: Path, output: Output, refuses: Refuses
) -> None:
    model = trained(tmp_path / "run", windows=True)
    assert "glassformer's own layout" in output(["convert", tmp_path / "run", tmp_path / "out"]).out
    with torch.no_grad():
        assert torch.equal(logits(tmp_path / "out"), model(TOKENS))
    refuses(
        ["convert", tmp_path / "run", tmp_path / "other", "--to", "openai"], "key_weights = True"
    )
    refuses(["convert", tmp_path / "run", tmp_path / "other.gguf"], "key_weights")
    assert not (tmp_path / "other").exists()


def test_a_run_of_the_command_is_read_by_transformers(tmp_path: Path) -> None:
    config = DecoderConfig(
        vocab_size=256, num_layers=1, hidden_dim=32, ff_dim=32, num_heads=2, head_dim=8
    )
    model = Decoder(config).eval()
    write_run(tmp_path, model, model=asdict(config), data={"kind": "text"})
    assert main(["convert", str(tmp_path), str(tmp_path / "out")]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert type(theirs).__name__ == "LlamaForCausalLM"
    with torch.no_grad():
        for written in (theirs(TOKENS).logits, logits(tmp_path / "out")):
            assert torch.allclose(written, model(TOKENS), atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("Hé\x00")["input_ids"] == [
        72,
        195,
        169,
        0,
    ]


def test_packing_a_run(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    run = str(tmp_path / "run")
    assert main(["convert", run, str(tmp_path / "a"), "--experts", "mxfp4"]) == 0
    assert Decoder.from_pretrained(tmp_path / "a").config.expert_format == "mxfp4"
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "glassformer"]) == 0


@pytest.mark.parametrize("flags", [[], ["--to", "openai"], ["--to", "glassformer"]])
def test_packed_experts_in_our_own_layout_as_numbers(tmp_path: Path, flags: list[str]) -> None:
    Decoder(replace(SMALL, expert_format="dense")).save_pretrained(
        tmp_path / "numbers", layout="glassformer"
    )
    packed = str(tmp_path / "packed")
    out = tmp_path / "out"
    pack = ["--to", "glassformer", "--experts", "mxfp4"]
    assert main(["convert", str(tmp_path / "numbers"), packed, *pack]) == 0
    unpacked = Decoder.from_pretrained(packed, experts="dense").eval()
    assert main(["convert", packed, str(out), *flags, "--experts", "bfloat16"]) == 0
    assert Decoder.from_pretrained(out).config.expert_format == "dense"
    with torch.no_grad():
        assert torch.equal(logits(out), unpacked(TOKENS))


def test_what_exists_is_kept_unless_told(released: Path, tmp_path: Path, refuses: Refuses) -> None:
    out = tmp_path / "out"
    out.mkdir()
    refuses(["convert", released, out, "--to", "openai"], "pass --replace")
    assert list(out.iterdir()) == []
    for kept in (
        trained(tmp_path / "run") and tmp_path / "run",
        tmp_path,
    ):  # more than weights, or others' files
        refuses(["convert", released, kept, "--replace"], f"{kept}, which exists already and holds")
    assert main(["convert", str(released), str(out), "--to", "openai", "--replace"]) == 0
    before = logits(released)
    assert main(["convert", str(released), str(released), "--to", "openai", "--replace"]) == 0
    assert torch.equal(logits(released), before)


def test_damaged_sources_are_named(released: Path, tmp_path: Path, refuses: Refuses) -> None:
    (released / "model.safetensors").write_bytes(b"12345678")
    refuses(
        ["convert", released, tmp_path / "out", "--to", "openai"],
        "model.safetensors, which cannot be read",
    )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def llama(tmp_path: Path, byte_engine: Tokenizer) -> Path:
    """A Llama in Hugging Face's layout with all that a chat needs, whose tokenizer splits as
    GPT-2's.
    """
    directory = tmp_path / "in"
    engine = Tokenizer.from_str(byte_engine.to_str())
    config = DecoderConfig(
        vocab_size=300, num_layers=1, hidden_dim=32, ff_dim=32, num_heads=2, head_dim=16
    )
    Decoder(config).save_pretrained(directory)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(
        "{% for m in messages %}<|start|>{{ m.content }}{% endfor %}"
    )
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<|return|>"}')
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(content | {"eos_token_id": 258}))
    return directory


@pytest.mark.parametrize("out", ["out", "out.gguf", "out --to glassformer"])
def test_tokenizer_template_and_end_stay(llama: Path, tmp_path: Path, out: str) -> None:
    name, *flags = out.split()
    assert main(["convert", str(llama), str(tmp_path / name), *flags]) == 0
    first, second = (open_model(path) for path in (llama, tmp_path / name))
    text = "It's  12 öß\n<|start|>x"
    assert first.tokenizer.encode_prompt(text) == second.tokenizer.encode_prompt(text)
    assert first.stop_tokens == second.stop_tokens
    message = [{"role": "user", "content": "Hi"}]
    assert second.chat_template.tokens(message, second.tokenizer) == [
        261,
        *second.tokenizer.encode("Hi"),
    ]


def test_the_sampling_rule_stays(llama: Path, tmp_path: Path) -> None:
    rule = SamplingRule(0.25, 30, 0.5, min_p=0.125, repetition_penalty=1.5)
    plain = tmp_path / "plain.gguf"
    gguf = tmp_path / "out.gguf"
    again = tmp_path / "again"
    assert main(["convert", str(llama), str(plain)]) == 0
    assert rule_of(open_model(plain)).source == BY_DEFAULT
    (llama / "generation_config.json").write_text(json.dumps(generation_config(rule)))
    assert main(["convert", str(llama), str(gguf)]) == main(["convert", str(gguf), str(again)]) == 0
    assert (
        rule_of(open_model(llama)).rule
        == rule_of(open_model(gguf)).rule
        == rule_of(open_model(again)).rule
        == rule
    )


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_a_format_of_gguf_is_none_of_a_directory(
    kind: str, llama: Path, tmp_path: Path, refuses: Refuses
) -> None:
    refuses(
        ["convert", llama, tmp_path / "out", "--kind", kind], f"--kind {kind}", "ends with .gguf"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["out", "out.gguf"])
def test_a_place_that_cannot_be_written_to_is_named(
    llama: Path, tmp_path: Path, name: str, refuses: Refuses
) -> None:
    (tmp_path / "file").touch()
    refuses(
        ["convert", llama, tmp_path / "file" / name],
        f"file/{name} (",
        "a place that can be written to",
    )


def test_a_template_writes_the_same_names_from_gguf(llama: Path, tmp_path: Path) -> None:
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"}
    (llama / "tokenizer_config.json").write_text(json.dumps(names))
    (llama / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    )
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(config | {"eos_token_id": [258, 260]}))
    assert main(["convert", str(llama), str(tmp_path / "a.gguf")]) == 0
    first, second = (open_model(path) for path in (llama, tmp_path / "a.gguf"))
    assert first.chat_template is not None
    assert second.chat_template is not None
    message = [{"role": "user", "content": "Hi"}]
    assert (
        second.chat_template.render(message)
        == first.chat_template.render(message)
        == "<|startoftext|>Hi<|return|>"
    )
    assert first.stop_tokens == second.stop_tokens


@pytest.mark.parametrize("end", [65, 258])  # an ordinary token, and a special one
@pytest.mark.parametrize("flags", [[], ["--to", "glassformer"]])
def test_the_ends_of_a_gguf_file_stay(end: int, flags: list[str], tmp_path: Path) -> None:
    words = byte_vocabulary()
    words["tokenizer.ggml.tokens"] += ["[PAD256]", "[PAD257]", "<end>"]
    words["tokenizer.ggml.token_type"] += [5, 5, 3]
    words |= {"tokenizer.ggml.eos_token_id": end, "tokenizer.ggml.bos_token_id": 258}
    write_gguf(Decoder(DecoderConfig(259, 1, 8, 8, 1, 8)), tmp_path / "a.gguf", tokenizer=words)
    assert main(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "out"), *flags]) == 0
    assert (
        open_model(tmp_path / "a.gguf").stop_tokens
        == open_model(tmp_path / "out").stop_tokens
        == (end,)
    )
    if not flags:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert model.generation_config.eos_token_id == [end]


def test_a_packed_file_that_grows_says_why(llama: Path, tmp_path: Path, output: Output) -> None:
    packed = tmp_path / "packed.gguf"
    whole = tmp_path / "whole"
    half = tmp_path / "half.gguf"
    assert "expanded" not in output(["convert", llama, packed, "--kind", "Q8_0"]).out
    size = byte_size(open_model(packed).nbytes)
    assert f", expanded from {size} in Q8_0\n" in output(["convert", packed, whole]).out
    assert (
        f", expanded from {size} in Q8_0\n"
        in output(["convert", packed, half, "--kind", "F16"]).out
    )
    assert (
        "expanded" not in output(["convert", packed, tmp_path / "again.gguf", "--kind", "Q8_0"]).out
    )


def test_nfc_is_said_to_be_lost(llama: Path, tmp_path: Path, output: Output) -> None:
    for normalizer, said in ((None, False), ({"type": "NFC"}, True)):
        content = json.loads((llama / "tokenizer.json").read_text()) | {"normalizer": normalizer}
        (llama / "tokenizer.json").write_text(json.dumps(content))
        assert ("NFC" in output(["convert", llama, tmp_path / f"{said}.gguf"]).out) == said


def test_a_file_without_an_end_is_said_to_have_llama_cpps(
    llama: Path, tmp_path: Path, output: Output
) -> None:
    assert "token 11" not in output(["convert", llama, tmp_path / "a.gguf"]).out
    words = byte_vocabulary() | {"tokenizer.ggml.eos_token_id": 0}
    for name, said in (("b", False), ("c", True)):
        write_gguf(
            Decoder(DecoderConfig(256, 1, 8, 8, 1, 8)), tmp_path / f"{name}.gguf", tokenizer=words
        )
        assert (
            "token 11"
            in output(["convert", tmp_path / f"{name}.gguf", tmp_path / f"{name}2.gguf"]).out
        ) == said
        words = byte_vocabulary()


def test_a_tokenizer_that_gguf_lacks(
    llama: Path, byte_engine: Tokenizer, tmp_path: Path, refuses: Refuses
) -> None:
    byte_engine.save(str(llama / "tokenizer.json"))  # it does not split at all
    refuses(["convert", llama, tmp_path / "out.gguf"], "tokenizer.ggml.pre")
    assert not (tmp_path / "out.gguf").exists()


def test_a_directory_is_complete_or_absent(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["convert", str(llama), str(tmp_path / "a.gguf")]) == 0
    before = sorted(tmp_path.iterdir())
    fails = Mock(side_effect=InputError("a template", "none", "Stop."))
    monkeypatch.setattr("glassformer.cli.commands.convert.template_from_gguf", fails)
    assert main(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "out")]) == 2
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("out", ["out", "out.gguf"])
def test_a_tokenizer_that_is_named_comes_with_its_template(
    llama: Path, tmp_path: Path, out: str
) -> None:
    bare = tmp_path / "bare"
    Decoder.from_pretrained(llama).save_pretrained(bare)
    assert main(["convert", str(bare), str(tmp_path / out), "--tokenizer", str(llama)]) == 0
    given = open_model(llama)
    found = open_model(tmp_path / out)
    assert found.tokenizer.encode("Hé, you") == given.tokenizer.encode("Hé, you")
    assert found.chat_template.text == given.chat_template.text
    assert (found.chat_template.bos, found.chat_template.eos) == (
        given.chat_template.bos,
        given.chat_template.eos,
    )
    assert set(given.declared_ends) <= set(found.stop_tokens)
