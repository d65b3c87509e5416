"""OpenAI's package renders the same tokens as glassformer; without it, glassformer renders them."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from glassformer.data.harmony import Message, Renderer, ReplyReader, Setting, render, renderer
from glassformer.data.released_tokenizer import HARMONY_SPECIALS, ReleasedTokenizer, from_json, read_tokenizer

VOCABULARY = Path(os.environ.get("TIKTOKEN_ENCODINGS_BASE", "nowhere")) / "o200k_base.tiktoken"
SETTING = Setting("low", "2025-06-28", "Be brief.")
MESSAGES = [Message("user", "What is 2 + 2?"), Message("assistant", "4", "final"), Message("user", "And 3?")]


@pytest.fixture(scope="module")
def tokenizer(harmony_engine: Tokenizer) -> ReleasedTokenizer:
    """With o200k_harmony's special tokens and few others."""
    return replace(from_json(harmony_engine.to_str()), specials=HARMONY_SPECIALS)


def test_without_the_package_ours_renders(tokenizer: ReleasedTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    ours, name = renderer(tokenizer)
    assert name == "glassformer"
    assert ours(SETTING, MESSAGES) == render([*SETTING.messages(), *MESSAGES], tokenizer)


def test_without_its_vocabulary_ours_renders(tokenizer: ReleasedTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise RuntimeError("error downloading or loading vocab file")

    package = SimpleNamespace(
        load_harmony_encoding=load, HarmonyEncodingName=SimpleNamespace(HARMONY_GPT_OSS="HarmonyGptOss")
    )
    monkeypatch.setitem(sys.modules, "openai_harmony", package)
    assert renderer(tokenizer)[1] == "glassformer"


def test_another_vocabulary_is_noticed(tokenizer: ReleasedTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(
        load_harmony_encoding=lambda name: SimpleNamespace(encode=lambda text: [0]),
        HarmonyEncodingName=SimpleNamespace(HARMONY_GPT_OSS="HarmonyGptOss"),
    )
    monkeypatch.setitem(sys.modules, "openai_harmony", package)
    assert renderer(tokenizer)[1] == "glassformer"


def test_other_special_tokens_do_not_even_load_it(harmony_engine: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(load_harmony_encoding=lambda name: pytest.fail("loaded"))
    monkeypatch.setitem(sys.modules, "openai_harmony", package)
    assert renderer(from_json(harmony_engine.to_str()))[1] == "glassformer"


@pytest.fixture(scope="module")
def real() -> ReleasedTokenizer:
    pytest.importorskip("openai_harmony")
    pytest.importorskip("tiktoken")
    if not VOCABULARY.is_file():
        pytest.skip("no o200k_base.tiktoken in $TIKTOKEN_ENCODINGS_BASE")
    return read_tokenizer(VOCABULARY)


@pytest.fixture(scope="module")
def theirs(real: ReleasedTokenizer) -> Renderer:
    render_with_package, name = renderer(real)
    assert name == "openai-harmony"
    return render_with_package


@pytest.fixture(scope="module")
def encoding(real: ReleasedTokenizer) -> Any:
    """The package's own."""
    package = pytest.importorskip("openai_harmony")
    return package.load_harmony_encoding(package.HarmonyEncodingName.HARMONY_GPT_OSS)


TEXT = st.text(max_size=30)
MESSAGE = st.one_of(
    st.builds(Message, st.just("user"), TEXT),
    st.builds(Message, st.just("assistant"), TEXT, st.sampled_from(["analysis", "commentary", "final"])),
    st.builds(
        Message,
        st.just("assistant"),
        TEXT,
        st.just("commentary"),
        st.just("functions.weather"),
        st.sampled_from([None, "code", "<|constrain|>json"]),
    ),
    st.builds(Message, st.just("tool"), TEXT, st.just("commentary"), st.just("assistant"), name=st.just("functions.x")),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    setting=st.builds(Setting, st.sampled_from(["low", "medium", "high"]), st.sampled_from([None, "2025-06-28"]), TEXT),
    messages=st.lists(MESSAGE, max_size=5),
)
def test_the_package_and_ours_agree(
    setting: Setting, messages: list[Message], real: ReleasedTokenizer, theirs: Renderer
) -> None:
    assert theirs(setting, messages) == render([*setting.messages(), *messages], real)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(messages=st.lists(MESSAGE.filter(lambda each: each.role == "assistant"), min_size=1, max_size=4))
def test_both_read_the_same_reply(messages: list[Message], real: ReleasedTokenizer, encoding: Any) -> None:
    package = pytest.importorskip("openai_harmony")
    tokens = render(messages, real, reply=False)[2:]
    reader = ReplyReader(real)
    theirs = package.StreamableParser(encoding, role=package.Role.ASSISTANT)
    for token in tokens:
        piece = reader.read(token)
        theirs.process(token)
        if piece is not None and not piece.ended:
            assert piece.text == theirs.last_content_delta
            assert piece.message.channel == theirs.current_channel
    assert [(each.role, each.content, each.channel, each.recipient, each.content_type) for each in reader.messages] == [
        (each.author.role.value, each.content[0].text, each.channel, each.recipient, each.content_type)
        for each in theirs.messages
    ]
    assert {token for name, token in HARMONY_SPECIALS.items() if name in ("<|return|>", "<|call|>")} == set(
        encoding.stop_tokens_for_assistant_actions()
    )
