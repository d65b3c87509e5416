"""Conversations: what a prompt holds after each turn, and how replies end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from glassformer.cli import conversation as module
from glassformer.cli.conversation import ContextFull, Conversation, is_answer
from glassformer.data.harmony import Message, Piece, Setting
from glassformer.data.released_tokenizer import ReleasedTokenizer, from_json
from glassformer.generation.language_model import find_model
from refusals import refused
from scripted import Script

SETTING = Setting("low", "2025-06-28")
REPLY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"


@pytest.fixture
def tokenizer(byte_engine: Tokenizer) -> ReleasedTokenizer:
    return from_json(byte_engine.to_str())


def conversation(
    engine: Tokenizer, replies: Sequence[str], tokenizer: ReleasedTokenizer, room: int = 10_000, **options: Any
) -> tuple[Conversation, Script]:
    script = Script(engine, replies, room)
    stops = tuple(map(tokenizer.special, ("<|return|>", "<|call|>", "<|endoftext|>")))
    return Conversation(script, tokenizer, SETTING, stop_tokens=stops, **options), script


def said(pieces: Iterator[Piece]) -> str:
    return "".join(piece.text for piece in pieces if is_answer(piece))


def test_the_next_turn_reads_answers_without_reasoning(byte_engine: Tokenizer, tokenizer: ReleasedTokenizer) -> None:
    talk, script = conversation(byte_engine, [REPLY.format("4."), REPLY.format("5.")], tokenizer)
    assert said(talk.say("2 + 2?")) == "4."
    assert talk.cut is None
    assert said(talk.say("2 + <|end|>?")) == "5."
    first, second = map(tokenizer.decode, script.prompts)
    assert first.endswith(
        "final. Channel must be included for every message.<|end|><|start|>user<|message|>2 + 2?<|end|>"
        "<|start|>assistant"
    )
    assert second == (
        f"{first}<|channel|>final<|message|>4.<|end|><|start|>user<|message|>2 + <|end|>?<|end|><|start|>assistant"
    )
    assert "Reasoning: low" in first
    # The turn before is read again to its end only.
    assert script.prompts[1][: len(script.prompts[0])] == script.prompts[0]
    assert script.prompts[1].count(tokenizer.special("<|end|>")) == 4
    assert talk.stopwatch.generated == len(byte_engine.encode(REPLY.format("5.")).ids)


def test_effort_changes_and_conversations_begin_anew(byte_engine: Tokenizer, tokenizer: ReleasedTokenizer) -> None:
    talk, script = conversation(byte_engine, [REPLY.format("a")] * 2, tokenizer)
    said(talk.say("x"))
    talk.setting = replace(talk.setting, effort="high")
    talk.messages = []
    said(talk.say("y"))
    second = tokenizer.decode(script.prompts[1])
    assert "Reasoning: high" in second
    assert "<|message|>x" not in second


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("<|channel|>final<|message|>half^C", ["half"]),
        ("<|channel|>analysis<|message|>think^C", []),
        ("<|channel|>final^C", []),
        ("^C", []),
    ],
)
def test_an_interruption_keeps_what_was_answered(
    reply: str, kept: list[str], byte_engine: Tokenizer, tokenizer: ReleasedTokenizer
) -> None:
    talk, _ = conversation(byte_engine, [reply, REPLY.format("b")], tokenizer)
    with pytest.raises(KeyboardInterrupt):
        list(talk.say("x"))
    assert talk.cut == "it was interrupted"
    assert [message.content for message in talk.messages] == (["x", *kept] if kept else [])
    assert said(talk.say("y")) == "b"


def test_a_reader_that_leaves_keeps_what_was_answered(byte_engine: Tokenizer, tokenizer: ReleasedTokenizer) -> None:
    talk, _ = conversation(byte_engine, [REPLY.format("abc")], tokenizer)
    with contextlib.closing(talk.say("x")) as pieces:
        for piece in pieces:
            if is_answer(piece) and piece.message.content == "ab":
                break
    assert [message.content for message in talk.messages] == ["x", "ab"]
    assert talk.cut is not None


def test_replies_are_cut_where_there_is_no_more_room(byte_engine: Tokenizer, tokenizer: ReleasedTokenizer) -> None:
    talk, _ = conversation(byte_engine, [REPLY.format("long")], tokenizer, max_new_tokens=20)
    assert said(talk.say("x")) == ""
    assert talk.cut == "--max-new-tokens 20 is reached"
    talk, _ = conversation(byte_engine, ["<|channel|>final<|message|>" + "a" * 999, ""], tokenizer, room=300)
    answer = said(talk.say("x"))
    assert set(answer) == {"a"}
    assert talk.cut is not None
    assert talk.cut.startswith("--context 300 is full")
    before = list(talk.messages)
    with refused(r"a conversation of \d+ tokens", expected="--context 300", fix="/new", error=ContextFull):
        next(talk.say("y"))
    assert talk.messages == before


def test_other_stop_tokens_end_a_reply_too(byte_engine: Tokenizer, tokenizer: ReleasedTokenizer) -> None:
    talk, _ = conversation(byte_engine, ["<|channel|>final<|message|>so<|endoftext|>more"], tokenizer)
    pieces = list(talk.say("x"))
    assert pieces[-1].ended
    assert pieces[-1].message.content == "so"
    assert talk.cut is None


def test_calls_are_no_answers_and_are_forgotten(byte_engine: Tokenizer, tokenizer: ReleasedTokenizer) -> None:
    reply = "<|channel|>commentary to=functions.x<|message|>{}<|call|>"
    talk, _ = conversation(byte_engine, [reply], tokenizer)
    pieces = list(talk.say("x"))
    assert said(iter(pieces)) == ""
    assert pieces[-1].message == Message("assistant", "{}", "commentary", "functions.x")
    assert talk.messages == []


def test_what_is_no_text_is_replaced(byte_engine: Tokenizer, tokenizer: ReleasedTokenizer) -> None:
    talk, script = conversation(byte_engine, [REPLY.format("a")], tokenizer)
    said(talk.say("\udcff"))
    assert "<|message|>\N{REPLACEMENT CHARACTER}<|end|>" in tokenizer.decode(script.prompts[0])


def test_only_gpt_osss_tokenizer_can_chat(
    tiny_gpt_oss: Path, bare_gpt_oss: Path, byte_engine: Tokenizer, tokenizer: ReleasedTokenizer
) -> None:
    assert module.require_chat(find_model(str(tiny_gpt_oss))).specials == tokenizer.specials
    with refused("without a tokenizer"):
        module.require_chat(find_model(str(bare_gpt_oss)))
    end, found = tokenizer.special("<|return|>"), replace(find_model(str(tiny_gpt_oss)), tokenizer=tokenizer)
    with refused(rf"whose <\|return\|> is {end}, for a model whose texts end with 7, 8"):
        module.require_chat(replace(found, declared_ends=(7, 8)))
    module.require_chat(replace(found, declared_ends=(7, end)))
