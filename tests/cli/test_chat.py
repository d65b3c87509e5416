"""``glassformer chat``: what appears where, commands, Ctrl-C, and a small random model from end to end."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from glassformer.checkpoints.decoders import load_decoder
from glassformer.cli.commands import chat as command
from glassformer.cli.conversation import Conversation
from glassformer.cli.main import main
from glassformer.data.harmony import Message, ReplyReader, Setting, render
from glassformer.data.released_tokenizer import from_json, read_tokenizer
from glassformer.generation import SamplingRule, generate
from glassformer.layers.blocks import Block
from scripted import Script

REPLY = "<|channel|>analysis<|message|>hm\nhm<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"
CALL = '<|channel|>commentary to=functions.x <|constrain|>json<|message|>{"a": 1}<|call|>'

Talk = Callable[..., Conversation]


@pytest.fixture
def conversation(byte_engine: Tokenizer) -> Talk:
    """A conversation whose replies are given."""

    def make(*replies: str) -> Conversation:
        tokenizer = from_json(byte_engine.to_str())
        stops = tuple(map(tokenizer.special, ("<|return|>", "<|call|>")))
        return Conversation(Script(byte_engine, replies, room=2000), tokenizer, Setting(), stop_tokens=stops)

    return make


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Standard input is a pipe with this in it."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_answers_go_to_standard_output_alone(conversation: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    command.Screen(speed=False).show(conversation(REPLY.format("Four.")), "2 + 2?")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("Four.\n", "")


def test_reasoning_is_shown_on_demand_beside_the_answer(conversation: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    command.Screen(show_reasoning=True, speed=False).show(conversation(REPLY.format("Four.")), "2 + 2?")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("Four.\n", "[analysis] hm\nhm\n")


def test_a_terminal_shows_reasoning_dimmed(
    conversation: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, "stderr")
    command.Screen(show_reasoning=True, speed=False).show(conversation(REPLY.format("Four.")), "2 + 2?")
    said = capsys.readouterr()
    assert said.out == "Four.\n"
    assert said.err.replace("\x1b[0m\x1b[2m", "") == "\x1b[2mhm\nhm\x1b[0m\n"


def test_a_terminal_shows_that_the_model_reasons_and_tidies_up(
    conversation: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


def test_calls_of_tools_are_told(conversation: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    command.Screen(speed=False).show(conversation(CALL), "x")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", '[the model calls functions.x, which is not here: {"a": 1}]\n')


def test_the_speed_is_said(conversation: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    command.Screen().show(conversation(REPLY.format("Four.")), "x")
    assert "tokens read in" in capsys.readouterr().err


def test_a_conversation_from_a_pipe(
    conversation: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
        *("Reasoning: high.", "A new conversation.", "Reasoning is shown.", *command.HELP.splitlines()),
        *("[analysis] hm", "hm"),
    ]
    assert [message.content for message in talk.messages] == ["three", "c", "four", "d"]
    assert talk.setting.effort == "high"


SLASHES = ["/usr/bin/env is missing", "/newer than that?", "/new york", "/effort is a fine word", "/effort hgih", "/"]


def test_from_a_pipe_what_is_no_command_is_a_message(
    conversation: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = conversation(*(REPLY.format(answer) for answer in "abcdef"))
    typed(monkeypatch, "\n".join([*SLASHES, '"""/new"""']) + "\n")
    command.talk(talk, command.Screen(speed=False))
    sent = [message.content for message in talk.messages if message.role == "user"]
    assert sent == [*(each for each in SLASHES if each != "/effort hgih"), "/new"]
    assert capsys.readouterr().err.splitlines() == command.HELP.splitlines()


def test_on_a_terminal_what_is_nearly_a_command_is_not_sent(
    conversation: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = conversation(*(REPLY.format(answer) for answer in "abc"))
    typed(monkeypatch, "\n".join([*SLASHES, "/nwe", "/qiut", '"""/nwe"""']) + "\n")
    on_a_terminal(monkeypatch, "stdin")
    command.talk(talk, command.Screen(speed=False))
    sent = [message.content for message in talk.messages if message.role == "user"]
    assert sent == [SLASHES[0], "/", "/nwe"]
    assert capsys.readouterr().err.count(command.HELP) == 6


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
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "Conversation", lambda *_, **__: conversation(reply))
    assert main(["chat", str(tiny_gpt_oss), "--message", "2 + 2?", "--no-speed"]) == (0 if answered else 1)
    said = capsys.readouterr()
    assert ("the reply holds no answer" in said.err) is not answered
    assert said.out.strip() == ("Four." if answered else "")


def test_speculation_is_asked_for(conversation: Talk, tiny_gpt_oss: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(command, "Continuation", lambda *_, speculate, **__: asked.append(speculate))
    monkeypatch.setattr(command, "Conversation", lambda *_, **__: conversation(REPLY.format("Four.")))
    assert main(["chat", str(tiny_gpt_oss), "--message", "2 + 2?", "--speculate", "7"]) == 0
    assert asked == [7]


def test_the_end_of_the_input_ends_a_message_of_several_lines(
    conversation: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = conversation(REPLY.format("a"))
    typed(monkeypatch, '"""two\nlines')
    command.talk(talk, command.Screen())
    assert talk.messages[0].content == "two\nlines"


def test_ctrl_c_stops_the_reply_and_not_the_chat(
    conversation: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = conversation("<|channel|>final<|message|>hal^C", REPLY.format("whole"))
    typed(monkeypatch, "one\ntwo\n")
    command.talk(talk, command.Screen(speed=False))
    said = capsys.readouterr()
    assert said.out.replace("\n", "") == "halwhole"
    assert "[the reply is cut: it was interrupted]" in said.err
    assert [message.content for message in talk.messages] == ["one", "hal", "two", "whole"]


def test_ctrl_c_at_the_prompt_says_how_to_leave(
    conversation: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


def test_a_full_context_is_told_and_the_chat_goes_on(
    conversation: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "x" * 2000 + "\nshort\n")
    command.talk(conversation(REPLY.format("a")), command.Screen(speed=False))
    said = capsys.readouterr()
    assert said.out == "a\n"
    assert "expected less than --context 2000" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("effort", ["low", "high"])
def test_one_message_from_end_to_end(effort: str, tiny_gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--message", "Hi", "--effort", effort, "--instructions", "Be brief.", "--max-new-tokens", "30"]
    status = main(["chat", str(tiny_gpt_oss), *flags, "--temperature", "0.7", "--seed", "4", "--device", "cpu"])
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
    answers = [each.content for each in reader.messages if each.channel in ("final", None) and each.recipient is None]
    assert status == (0 if any(answers) else 1)
    assert said.out == "".join(f"{answer}\n" for answer in answers)
    assert f"{len(prompt)} tokens read" in said.err


def test_a_piped_conversation_reads_only_what_is_new(
    tiny_gpt_oss: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "a\nb\n/new\nc\n")
    assert main(["chat", str(tiny_gpt_oss), "--context", "500", "--max-new-tokens", "2", "--seed", "1"]) == 0
    read = [int(line[1:].split()[0]) for line in capsys.readouterr().err.splitlines() if "tokens read" in line]
    assert len(read) == 3
    assert read[1] < 60 < 200 < read[0]
    # The system's message stands in every prompt, but what it was read with is gone.
    assert read[2] == read[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--context", "100", "--message", "x"], "expected less than --context 100"),
        (["--device", "gpu", "--message", "x"], "device = 'gpu', which torch does not know"),
        (["--context", "1000000", "--message", "x"], "got --context 1000000; expected at most the"),
        (["--tokenizer", "missing.json"], "missing.json (No such file or directory)"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    flags: list[str], message: str, tiny_gpt_oss: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", str(tiny_gpt_oss), *flags]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("flags", [["--effort", "extreme"], ["--context", "0"], ["--max-new-tokens", "0"]])
def test_wrong_flags_are_told(flags: list[str], tiny_gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["chat", str(tiny_gpt_oss), *flags])
    assert stopped.value.code == 2
    assert flags[0] in capsys.readouterr().err or flags[0] != "--effort"


def test_a_sampling_flag_out_of_range_is_refused(tiny_gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(tiny_gpt_oss), "--top-p", "2"]) == 2
    assert "top_p = 2.0" in capsys.readouterr().err


def test_a_signal_amid_a_step_stops_the_reply(
    tiny_gpt_oss: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "a\nc\n/quit\n")
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    calls: list[int] = []
    block = Block.forward

    def interrupted(self: Block, x: torch.Tensor, **more: Any) -> torch.Tensor:
        calls.append(x.shape[1])
        # The second block of the fourth token: the first has written to its cache.
        if len(calls) == 8:
            signal.raise_signal(signal.SIGINT)
        return block(self, x, **more)

    monkeypatch.setattr(Block, "forward", interrupted)
    flags = ["--context", "500", "--max-new-tokens", "7", "--temperature", "0", "--no-speed", "--device", "cpu"]
    assert main(["chat", str(tiny_gpt_oss), *flags]) == 0
    signal.signal(signal.SIGINT, handler)
    said = capsys.readouterr()
    assert said.err.count("[the reply is cut: it was interrupted]") == 1
    assert said.err.count("[the reply is cut: --max-new-tokens 7 is reached]") == 1
    assert calls.count(1) == 6 + 2 * 6
