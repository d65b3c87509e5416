"""``LanguageModel.save``: what it wrote loads, chats and converts."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import glassformer
from glassformer.checkpoints.store import open_model
from glassformer.cli.main import main
from glassformer.data.chat_template import ChatTemplate
from glassformer.data.released_tokenizer import from_json
from glassformer.generation import SamplingRule
from glassformer.generation.language_model import LanguageModel
from glassformer.generation.model_rule import rule_of
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

TEMPLATE = "{{ bos_token }}{% for each in messages %}<|start|>{{ each.content }}<|end|>{% endfor %}"
SAID = [{"role": "user", "content": "Hé"}]


@pytest.fixture
def lm(byte_engine: Tokenizer) -> LanguageModel:
    torch.manual_seed(0)
    content = json.loads(byte_engine.to_str())
    content["pre_tokenizer"]["use_regex"] = True  # GPT-2's pattern, which GGUF has a name for
    tokenizer = from_json(json.dumps(content))
    model = Decoder(DecoderConfig(tokenizer.vocab_size, 2, 16, 32, 2, 8)).eval()
    template = ChatTemplate(TEMPLATE, "<|startoftext|>", "<|end|>")
    rule = SamplingRule(0.3, top_p=0.8)
    stops = (tokenizer.special("<|end|>"), tokenizer.special("<|return|>"))
    return LanguageModel("small", model, tokenizer, template, stops, 0, rule=rule)


def test_what_was_saved_is_loaded_as_it_was(lm: LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path / "tuned")
    again = glassformer.load(tmp_path / "tuned", device="cpu")
    assert torch.equal(again("Hé, you"), lm("Hé, you"))
    assert again.prompt(SAID) == lm.prompt(SAID)
    assert set(lm.stop_tokens) <= set(again.stop_tokens)
    assert again.rule == lm.rule
    assert rule_of(open_model(tmp_path / "tuned")).source == "generation_config.json"
    options = {"max_new_tokens": 9, "rule": lm.rule, "seed": 1}
    assert again.generate(SAID, **options) == lm.generate(SAID, **options)
    again.save(tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "tuned" / name).read_bytes()


def test_it_chats_and_converts(
    lm: LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm.save(tmp_path / "tuned")
    assert (
        main(["convert", str(tmp_path / "tuned"), str(tmp_path / "tuned.gguf"), "--kind", "F32"])
        == 0
    )
    packed = glassformer.load(tmp_path / "tuned.gguf", device="cpu")
    torch.testing.assert_close(packed("Hé, you"), lm("Hé, you"), rtol=1e-5, atol=1e-5)
    assert packed.prompt(SAID) == lm.prompt(SAID)
    for place in ("tuned", "tuned.gguf"):
        flags = ["--message", "Hé", "--max-new-tokens", "3", "--seed", "0", "--device", "cpu"]
        main(["chat", str(tmp_path / place), *flags])
        assert "3 generated" in capsys.readouterr().err


def test_transformers_reads_it(lm: LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path / "tuned")
    theirs, tokenizer = (
        each.from_pretrained(tmp_path / "tuned") for each in (AutoModelForCausalLM, AutoTokenizer)
    )
    tokens = lm.tokens("Hé, you")
    assert tokenizer("Hé, you")["input_ids"] == tokens[0].tolist()
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, lm("Hé, you"), rtol=1e-4, atol=1e-5)
    assert tokenizer.apply_chat_template(SAID, tokenize=False) == lm.chat_template.render(SAID)
    assert (theirs.generation_config.temperature, theirs.generation_config.top_p) == (0.3, 0.8)


def test_a_model_of_numbers_is_loaded_by_their_name(tmp_path: Path) -> None:
    from glassformer.data.released_tokenizer import number_tokenizer

    lm = LanguageModel(
        "numbers",
        Decoder(DecoderConfig(10, 1, 8, 8, 1, 8)).eval(),
        number_tokenizer(10),
        None,
        (),
        0,
    )
    lm.save(tmp_path / "tuned")
    again = glassformer.load(tmp_path / "tuned", tokenizer="numbers", device="cpu")
    assert torch.equal(again("1 2 3"), lm("1 2 3"))


def test_nothing_is_replaced_or_half_written(lm: LanguageModel, tmp_path: Path) -> None:
    place = tmp_path / "tuned"
    lm.save(place)
    with refused("tuned"):
        lm.save(place)
    lm.save(place, replace=True)
    (place / "thesis.tex").write_text("words")
    with refused("thesis.tex"):
        lm.save(place, replace=True)
    assert json.loads((place / "generation_config.json").read_text())["temperature"] == 0.3
    assert [each.name for each in tmp_path.iterdir()] == ["tuned"]
