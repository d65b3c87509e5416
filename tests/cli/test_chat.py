"""``glassformer chat``: what appears where, commands, Ctrl-C, and a small random model from end to
end.
"""

import contextlib
import io
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from glassformer.checkpoints.decoders import load_decoder
from glassformer.checkpoints.store import open_model
from glassformer.cli.commands import chat as command
from glassformer.cli.conversation import ContextFull, Conversation, is_answer, require_chat
from glassformer.cli.main import main
from glassformer.data.chat_template import ChatTemplate
from glassformer.data.harmony import Message, Piece, ReplyReader, Setting, render
from glassformer.data.released_tokenizer import from_json, read_tokenizer
from glassformer.generation import SamplingRule, generate
from glassformer.layers.blocks import Block
from refusals import Output, Refuses, refused
from scripted import Script

REPLY = "<|channel|>analysis<|message|>hm\nhm<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"
CALL = '<|channel|>commentary to=functions.x <|constrain|>json<|message|>{"a": 1}<|call|>'

Talk = Callable[..., Conversation]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture
def conversation(byte_engine: Tokenizer) -> Talk:
    """A conversation whose replies are given."""

    def make(*replies: str, room: int = 2000, **options: Any) -> Conversation:
        tokenizer = from_json(byte_engine.to_str())
        stops = tuple(map(tokenizer.special, ("<|return|>", "<|call|>", "<|endoftext|>")))
        script = Script(byte_engine, replies, room)
        return Conversation(
            script, tokenizer, Setting("low", "2025-06-28"), stop_tokens=stops, **options
        )

    return make


def prompts(talk: Conversation) -> list[str]:
    """What the model was given."""
    return [talk._tokenizer.decode(prompt) for prompt in talk._continuation.prompts]


def typed(monkeypatch: Patch, text: str) -> None:
    """Standard input is a pipe with this in it."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def on_a_terminal(monkeypatch: Patch, stream: str) -> None:
    monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_shows_reasoning_dimmed(
    conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    on_a_terminal(monkeypatch, "stderr")
    command.Screen(show_reasoning=True, speed=False).show(
        conversation(REPLY.format("Four.")), "2 + 2?"
    )
    said = capsys.readouterr()
    assert said.out == "Four.\n"
    assert said.err.replace("\x1b[0m\x1b[2m", "") == "\x1b[2mhm\nhm\x1b[0m\n"


def test_a_terminal_shows_the_reasoning_and_tidies_up(
    conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    on_a_terminal(monkeypatch, "stderr")
    command.Screen(speed=False).show(conversation(REPLY.format("Four.")), "2 + 2?")
    said = capsys.readouterr()
    assert "reasoning, 11 tokens" in said.err
    assert said.err.endswith("\r\x1b[K")
    assert "hm" not in said.err
    monkeypatch.setenv("NO_COLOR", "1")
    command.Screen(speed=False).show(conversation(REPLY.format("Four.")), "2 + 2?")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("reply", "options", "expected"),
    [
        (REPLY.format("Four."), {}, ("Four.\n", "")),
        (REPLY.format("Four."), {"show_reasoning": True}, ("Four.\n", "[analysis] hm\nhm\n")),
        (CALL, {}, ("", '[the model calls functions.x, which is not here: {"a": 1}]\n')),
    ],
)
def test_answers_go_to_standard_output_alone_and_the_rest_beside_it(
    reply: str,
    options: dict[str, Any],
    expected: tuple[str, str],
    conversation: Talk,
    capsys: Capture,
) -> None:
    command.Screen(speed=False, **options).show(conversation(reply), "2 + 2?")
    assert capsys.readouterr() == expected
    command.Screen(**options).show(conversation(reply), "2 + 2?")
    assert "tokens read in" in capsys.readouterr().err


def test_a_message_that_is_not_utf_8_is_refused(conversation: Talk, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"h\xe9\n"), "utf-8"))
    with refused("a message with the byte 0xe9", expected="text in utf-8"):
        command.talk(conversation(), command.Screen())


def test_effort_is_refused_where_prompts_do_not_say_it(
    conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    typed(monkeypatch, "/effort high\n/effort\n")
    talk = conversation(template=ChatTemplate("{{ messages }}"))
    command.talk(talk, command.Screen())
    assert capsys.readouterr().err.count("/effort is for gpt-oss") == 2
    assert talk.setting.effort == "low"
    assert not prompts(talk)


def test_a_conversation_from_a_pipe(
    conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    talk = conversation(*(REPLY.format(answer) for answer in "abcd"))
    typed(
        monkeypatch,
        'one\n\n"""two\n  lines\n"""\n/effort high\n/new\nthree\n/reasoning\n/help\n""" four """\n/quit\nfive\n',
    )
    screen = command.Screen(speed=False)
    command.talk(talk, screen)
    said = capsys.readouterr()
    assert said.out == "a\nb\nc\nd\n"
    assert said.err.splitlines() == [
        *(
            "Reasoning: high.",
            "A new conversation.",
            "Reasoning is shown.",
            *command.HELP.splitlines(),
        ),
        *("[analysis] hm", "hm"),
    ]
    assert [message.content for message in talk.messages] == ["three", "c", "four", "d"]
    assert talk.setting.effort == "high"
    third = prompts(talk)[2]
    assert "Reasoning: high" in third
    assert "<|message|>one" not in third


SLASHES = [
    "/usr/bin/env is missing",
    "/newer than that?",
    "/new york",
    "/effort is a fine word",
    "/effort hgih",
    "/",
]


def test_from_a_pipe_what_is_no_command_is_a_message(
    conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    talk = conversation(*(REPLY.format(answer) for answer in "abcdef"))
    typed(monkeypatch, "\n".join([*SLASHES, '"""/new"""']) + "\n")
    command.talk(talk, command.Screen(speed=False))
    sent = [message.content for message in talk.messages if message.role == "user"]
    assert sent == [*(each for each in SLASHES if each != "/effort hgih"), "/new"]
    assert capsys.readouterr().err.splitlines() == command.HELP.splitlines()


def test_on_a_terminal_near_commands_are_not_sent(
    conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    talk = conversation(*(REPLY.format(answer) for answer in "abc"))
    typed(monkeypatch, "\n".join([*SLASHES, "/nwe", "/qiut", '"""/nwe"""']) + "\n")
    on_a_terminal(monkeypatch, "stdin")
    command.talk(talk, command.Screen(speed=False))
    sent = [message.content for message in talk.messages if message.role == "user"]
    assert sent == [SLASHES[0], "/", "/nwe"]
    assert capsys.readouterr().err.count(command.HELP) == 6


@pytest.mark.parametrize("interactive", [True, False])
def test_words_that_would_end_other_programs_are_not_sent(
    interactive: bool, conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    talk = conversation(REPLY.format("a"), template=ChatTemplate("{{ messages }}"))
    typed(monkeypatch, "exit\nhelp\n/help\n/quit\n")
    if interactive:
        on_a_terminal(monkeypatch, "stdin")
    command.talk(talk, command.Screen(speed=False))
    assert not prompts(talk)
    said = capsys.readouterr().err
    assert said.count("/quit ends, /help lists the commands.") == 2 + interactive
    assert "/new" in said
    assert "/effort" not in said, "this model does not reason"


@pytest.mark.parametrize(
    ("reply", "answered"),
    [
        (REPLY.format("Four."), True),
        ("<|channel|>analysis<|message|>hm<|return|>", False),
        (CALL, False),
        ("<|channel|>final<|message|><|return|>", False),
    ],
)
def test_a_message_without_an_answer_is_told(
    reply: str,
    answered: bool,
    conversation: Talk,
    tiny_gpt_oss: Path,
    output: Output,
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(command, "Conversation", lambda *_, **__: conversation(reply))
    said = output(["chat", tiny_gpt_oss, "--message", "2 + 2?", "--no-speed"], 0 if answered else 1)
    assert ("the reply holds no answer" in said.err) is not answered
    assert said.out.strip() == ("Four." if answered else "")


def test_a_dash_reads_the_message_from_standard_input(
    conversation: Talk, tiny_gpt_oss: Path, output: Output, monkeypatch: Patch
) -> None:
    talk = conversation(REPLY.format("Four."))
    monkeypatch.setattr(command, "Conversation", lambda *_, **__: talk)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"two lines\nof text\n")))
    output(["chat", tiny_gpt_oss, "--message", "-", "--no-speed"])
    assert [message.content for message in talk.messages if message.role == "user"] == [
        "two lines\nof text"
    ]


def test_the_end_of_the_input_ends_a_message_of_several_lines(
    conversation: Talk, monkeypatch: Patch
) -> None:
    talk = conversation(REPLY.format("a"))
    typed(monkeypatch, '"""two\nlines')
    command.talk(talk, command.Screen())
    assert talk.messages[0].content == "two\nlines"


def test_ctrl_c_and_a_full_context_stop_no_chat(
    conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    talk = conversation("<|channel|>final<|message|>hal^C", REPLY.format("whole"))
    typed(monkeypatch, "one\n" + "x" * 2000 + "\ntwo\n")
    command.talk(talk, command.Screen(speed=False))
    said = capsys.readouterr()
    assert said.out.replace("\n", "") == "halwhole"
    assert "[the reply is cut: it was interrupted]" in said.err
    assert "expected less than --context 2000" in said.err
    assert [message.content for message in talk.messages] == ["one", "hal", "two", "whole"]


def test_ctrl_c_at_the_prompt_says_how_to_leave(
    conversation: Talk, capsys: Capture, monkeypatch: Patch
) -> None:
    answers: list[Any] = [KeyboardInterrupt, "hello", EOFError]

    def ask(prompt: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, str):
            return answer
        raise answer

    typed(monkeypatch, "")
    for stream in ("stdin", "stdout"):
        on_a_terminal(monkeypatch, stream)
    monkeypatch.setattr("builtins.input", ask)
    command.talk(conversation(REPLY.format("Hi")), command.Screen(speed=False))
    said = capsys.readouterr()
    assert "Ctrl-D or /quit ends." in said.err
    assert said.out.startswith("Hi\n")


@pytest.mark.parametrize("effort", ["low", "high"])
def test_one_message_from_end_to_end(effort: str, tiny_gpt_oss: Path, capsys: Capture) -> None:
    flags = [
        "--message",
        "Hi",
        "--effort",
        effort,
        "--instructions",
        "Be brief.",
        "--max-new-tokens",
        "30",
    ]
    status = main(
        [
            "chat",
            str(tiny_gpt_oss),
            *flags,
            "--temperature",
            "0.7",
            "--seed",
            "4",
            "--device",
            "cpu",
        ]
    )
    said = capsys.readouterr()
    tokenizer = read_tokenizer(tiny_gpt_oss / "tokenizer.json")
    setting = Setting(effort, command.datetime.date.today().isoformat(), "Be brief.")
    prompt = render([*setting.messages(), Message("user", "Hi")], tokenizer)
    stops = [tokenizer.special(name) for name in ("<|return|>", "<|call|>", "<|endoftext|>")]
    model = load_decoder(tiny_gpt_oss).eval()
    (tokens,) = generate(model, [prompt], 30, rule=SamplingRule(0.7, seed=4), stop_tokens=stops)
    reader = ReplyReader(tokenizer)
    for token in tokens:
        reader.read(token)
    reader.finish()
    answers = [
        each.content
        for each in reader.messages
        if each.channel in ("final", None) and each.recipient is None
    ]
    assert status == (0 if any(answers) else 1)
    assert said.out == "".join(f"{answer}\n" for answer in answers)
    assert f"{len(prompt)} tokens read" in said.err


def test_a_piped_conversation_reads_only_what_is_new(
    tiny_gpt_oss: Path, output: Output, monkeypatch: Patch
) -> None:
    typed(monkeypatch, "a\nb\n/new\nc\n")
    said = output(
        ["chat", tiny_gpt_oss, "--context", "500", "--max-new-tokens", "2", "--seed", "1"]
    ).err
    read = [int(line[1:].split()[0]) for line in said.splitlines() if "tokens read" in line]
    assert len(read) == 3
    assert read[1] < 60 < 200 < read[0]
    # The system's message stands in every prompt, but what it was read with is gone.
    assert read[2] == read[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--context", "100", "--message", "x"], "expected less than --context 100"),
        (["--context", "1000000", "--message", "x"], "got --context 1000000; expected at most the"),
        (
            ["--tokenizer", "missing"],
            "got 'missing', which is no tokenizer here; expected a tokenizer.json",
        ),
        (["--top-p", "2"], "top_p = 2.0"),
        (["--effort", "extreme"], "--effort"),
        (["--context", "0"], "context = 0"),
        (["--max-new-tokens", "0"], "max_new_tokens = 0"),
    ],
)
def test_what_cannot_be_done(
    flags: list[str], message: str, tiny_gpt_oss: Path, refuses: Refuses
) -> None:
    refuses(["chat", tiny_gpt_oss, *flags], message)


def test_a_signal_amid_a_step_stops_the_reply(
    tiny_gpt_oss: Path, output: Output, monkeypatch: Patch
) -> None:
    typed(monkeypatch, "a\nc\n/quit\n")
    # a shell's background jobs ignore it
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    calls: list[int] = []
    block = Block.forward

    def interrupted(self: Block, x: torch.Tensor, **more: Any) -> torch.Tensor:
        calls.append(x.shape[1])
        # The second block of the fourth token: the first has written to its cache.
        if len(calls) == 8:
            signal.raise_signal(signal.SIGINT)
        return block(self, x, **more)

    monkeypatch.setattr(Block, "forward", interrupted)
    flags = [
        "--context",
        "500",
        "--max-new-tokens",
        "7",
        "--temperature",
        "0",
        "--no-speed",
        "--device",
        "cpu",
    ]
    said = output(["chat", tiny_gpt_oss, *flags])
    signal.signal(signal.SIGINT, handler)
    assert said.err.count("[the reply is cut: it was interrupted]") == 1
    assert said.err.count("[the reply is cut: --max-new-tokens 7 is reached]") == 1
    assert calls.count(1) == 6 + 2 * 6


# ---- conversations: what a prompt holds after each turn, and how replies end ---------------------


def said(pieces: Iterator[Piece]) -> str:
    return "".join(piece.text for piece in pieces if is_answer(piece))


def test_the_next_turn_reads_answers_without_reasoning(conversation: Talk) -> None:
    talk = conversation(REPLY.format("4."), REPLY.format("5."))
    assert said(talk.say("2 + 2?")) == "4."
    assert talk.cut is None
    assert said(talk.say("2 + <|end|>?")) == "5."
    first, second = prompts(talk)
    assert first.endswith(
        "final. Channel must be included for every message.<|end|><|start|>user<|message|>2 + "
        "2?<|end|>"
        "<|start|>assistant"
    )
    assert second == (
        f"{first}<|channel|>final<|message|>4.<|end|><|start|>user<|message|>2 + "
        "<|end|>?<|end|><|start|>assistant"
    )
    assert "Reasoning: low" in first
    assert second.count("<|end|>") == 4 + 1  # one is text
    assert talk.stopwatch.generated == len(
        talk._continuation._engine.encode(REPLY.format("5.")).ids
    )


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
    reply: str, kept: list[str], conversation: Talk
) -> None:
    talk = conversation(reply, REPLY.format("b"))
    with pytest.raises(KeyboardInterrupt):
        list(talk.say("x"))
    assert talk.cut == "it was interrupted"
    assert [message.content for message in talk.messages] == (["x", *kept] if kept else [])
    assert said(talk.say("y")) == "b"


def test_a_reader_that_leaves_keeps_what_was_answered(conversation: Talk) -> None:
    talk = conversation(REPLY.format("abc"))
    with contextlib.closing(talk.say("x")) as pieces:
        for piece in pieces:
            if is_answer(piece) and piece.message.content == "ab":
                break
    assert [message.content for message in talk.messages] == ["x", "ab"]
    assert talk.cut is not None


def test_replies_are_cut_where_there_is_no_more_room(conversation: Talk) -> None:
    talk = conversation(REPLY.format("long"), max_new_tokens=20)
    assert said(talk.say("x")) == ""
    assert talk.cut == "--max-new-tokens 20 is reached"
    repeating = "<|channel|>final<|message|>" + "a" * 999
    talk = conversation(repeating, "", room=300, end_loops=False)
    answer = said(talk.say("x"))
    assert set(answer) == {"a"}
    assert talk.cut.startswith("--context 300 is full")
    before = list(talk.messages)
    with refused(
        r"a conversation of \d+ tokens", expected="--context 300", fix="/new", error=ContextFull
    ):
        next(talk.say("y"))
    assert talk.messages == before


def test_a_reply_that_repeats_itself_is_cut(conversation: Talk) -> None:
    talk = conversation("<|channel|>final<|message|>well, " + "no. " * 99, room=2000)
    answer = said(talk.say("x"))
    assert answer.startswith("well, no. no. ")
    assert len(answer) < 100
    assert talk.cut == "it repeats itself without end; --no-end-loops goes on"
    assert [message.role for message in talk.messages] == ["user", "assistant"]


def test_other_stop_tokens_end_a_reply_too(conversation: Talk) -> None:
    talk = conversation("<|channel|>final<|message|>so<|endoftext|>more")
    pieces = list(talk.say("x"))
    assert pieces[-1].ended
    assert pieces[-1].message.content == "so"
    assert talk.cut is None


def test_calls_are_no_answers_and_are_forgotten(conversation: Talk) -> None:
    reply = "<|channel|>commentary to=functions.x<|message|>{}<|call|>"
    talk = conversation(reply)
    pieces = list(talk.say("x"))
    assert said(iter(pieces)) == ""
    assert pieces[-1].message == Message("assistant", "{}", "commentary", "functions.x")
    assert talk.messages == []


def test_what_is_no_text_is_replaced(conversation: Talk) -> None:
    talk = conversation(REPLY.format("a"))
    said(talk.say("\udcff"))
    assert "<|message|>\N{REPLACEMENT CHARACTER}<|end|>" in prompts(talk)[0]


def test_only_gpt_osss_tokenizer_can_chat(
    tiny_gpt_oss: Path, bare_gpt_oss: Path, conversation: Talk
) -> None:
    tokenizer = conversation()._tokenizer
    assert require_chat(open_model(str(tiny_gpt_oss))).specials == tokenizer.specials
    with refused("without a tokenizer"):
        require_chat(open_model(str(bare_gpt_oss)))
    end = tokenizer.special("<|return|>")
    found = replace(open_model(str(tiny_gpt_oss)), read_own_tokenizer=lambda: tokenizer)
    with refused(rf"whose <\|return\|> is {end}, for a model whose texts end with 7, 8"):
        require_chat(replace(found, declared_ends=(7, 8)))
    require_chat(replace(found, declared_ends=(7, end)))
    with refused("which has no chat template", fix="glassformer generate"):
        require_chat(replace(found, tokenizer_name="bytes"))
