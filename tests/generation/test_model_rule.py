"""Where a model's sampling rule comes from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import glassformer
from glassformer.checkpoints.decoders import save_decoder
from glassformer.checkpoints.store import KNOWN, open_model
from glassformer.generation.model_rule import (
    DEFAULT_RULE,
    RULES,
    find_rule,
    generation_config,
    gguf_sampling,
    in_words,
    overridden,
    rule_of,
)
from glassformer.generation.sampling import SamplingRule
from glassformer.models import Decoder, DecoderConfig

FILE = "generation_config.json"


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"do_sample": True}, SamplingRule()),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, SamplingRule(0.6, top_p=0.9)),
        ({"top_k": 64, "top_p": 0.95}, SamplingRule(top_k=64, top_p=0.95)),
        ({"do_sample": True, "top_k": 0, "min_p": 0.05}, SamplingRule(min_p=0.05)),
        ({"do_sample": False}, SamplingRule(temperature=0)),
        ({"do_sample": False, "repetition_penalty": 1.1}, SamplingRule(0, repetition_penalty=1.1)),
        ({"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1}, SamplingRule(0)),
        (
            {"do_sample": True, "temperature": 1, "repetition_penalty": 1.05},
            SamplingRule(repetition_penalty=1.05),
        ),
        ({"general.sampling.temp": 0.6, "general.sampling.top_k": 20}, SamplingRule(0.6, 20)),
        ({"general.sampling.penalty_repeat": 1.2}, replace(DEFAULT_RULE, repetition_penalty=1.2)),
    ],
)
def test_files_name_a_rule(settings: dict[str, Any], rule: SamplingRule) -> None:
    found = find_rule({"eos_token_id": 2, **settings}, FILE, short_name=SamplingRule(0.1))
    assert (found.rule, found.source, found.fault) == (rule, FILE, None)


@pytest.mark.parametrize("settings", [{}, {"eos_token_id": [1, 2]}, {"temperature": None}])
def test_files_without_a_rule_leave_it_to_the_short_name_and_the_default(
    settings: dict[str, Any],
) -> None:
    assert find_rule(settings, FILE).rule == DEFAULT_RULE
    assert find_rule(settings, FILE).source == "the default"
    assert find_rule(settings, FILE, SamplingRule(0.3)).rule == SamplingRule(0.3)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": "hot"}, "temperature = 'hot'"),
        ({"temperature": True}, "temperature = True"),
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_k": 2.5}, "top_k = 2.5"),
        ({"top_p": 3}, "top_p = 3"),
        ({"repetition_penalty": [1]}, "repetition_penalty = [1]"),
        ({"do_sample": "yes"}, "do_sample = 'yes'"),
        ({"do_sample": False, "top_p": 0.9}, "do_sample = false and top_p = 0.9"),
        ({"do_sample": False, "temperature": 0.7}, "do_sample = false and temperature = 0.7"),
        ({"general.sampling.min_p": "x"}, "general.sampling.min_p = 'x'"),
    ],
)
def test_a_rule_that_is_malformed_or_contradicts_itself_is_named_and_left(
    settings: dict[str, Any], named: str
) -> None:
    found = find_rule(settings, FILE)
    assert found.rule == DEFAULT_RULE
    assert found.fault is not None
    assert named in found.fault
    assert FILE in found.fault
    assert "\n" not in found.fault


@pytest.mark.parametrize(
    "rule", [SamplingRule(0.6, 20, 0.9, min_p=0.1, repetition_penalty=1.1), SamplingRule(0.0)]
)
def test_a_written_rule_is_read_again(rule: SamplingRule) -> None:
    assert find_rule(generation_config(rule), FILE).rule == rule
    assert find_rule(gguf_sampling(rule), "model.gguf").rule == rule


def test_what_a_user_says_goes_before() -> None:
    model = SamplingRule(0.2, top_p=0.9, repetition_penalty=1.1)
    assert overridden(model, {"temperature": None, "seed": 3}) == SamplingRule(
        0.2, None, 0.9, 3, 0.0, 1.1
    )
    assert overridden(model, {"temperature": 1.0}) == SamplingRule(1.0, repetition_penalty=1.1)
    assert overridden(model, {"repetition_penalty": 1.0}) == SamplingRule(0.2, top_p=0.9)


def test_rules_in_words() -> None:
    assert (
        in_words(SamplingRule(0.2, 40, 0.9, min_p=0.1))
        == "temperature 0.2, top-k 40, top-p 0.9, min-p 0.1"
    )
    assert (
        in_words(SamplingRule(0, repetition_penalty=1.1))
        == "always the most likely token, repetition penalty 1.1"
    )
    assert in_words(SamplingRule()) == "temperature 1"


def test_each_short_name_has_a_rule() -> None:
    assert RULES.keys() == KNOWN.keys()


def test_a_directory_brings_its_rule(byte_engine: Tokenizer, tmp_path: Path) -> None:
    place = tmp_path / "model"
    save_decoder(Decoder(DecoderConfig(280, 1, 8, 8, 1, 8)), place)
    byte_engine.save(str(place / "tokenizer.json"))
    (place / FILE).write_text(json.dumps({"do_sample": True, "top_k": 7}))
    assert rule_of(open_model(place)).rule == SamplingRule(top_k=7)
    (place / FILE).write_text(json.dumps({"do_sample": True, "top_k": -7}))
    assert "top_k" in str(rule_of(open_model(place)).fault)
    assert glassformer.load(place, device="cpu").rule == DEFAULT_RULE
