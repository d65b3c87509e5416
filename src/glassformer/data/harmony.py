"""The harmony format of gpt-oss's conversations: messages to tokens, and replies to messages.

A message is ``<|start|>{header}<|message|>{content}<|end|>``. A header is a role and, for the
assistant, a channel: ``analysis`` for its reasoning, ``commentary`` for tool calls, ``final`` for
the answer. A reply ends with ``<|return|>``, or with ``<|call|>`` for a tool call.

Source: OpenAI 2025, https://github.com/openai/harmony, docs/format.md.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from glassformer.config import config
from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.errors import InputError

Effort = Literal["low", "medium", "high"]
Role = Literal["system", "developer", "user", "assistant", "tool"]

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
END = "<|end|>"
RETURN = "<|return|>"
CALL = "<|call|>"
CONSTRAIN = "<|constrain|>"
FORMAT_TOKENS = (START, CHANNEL, MESSAGE, END, RETURN, CALL)
"""Special tokens that a tokenizer must have."""
STOPS = (RETURN, CALL)
"""Special tokens that end the assistant's turn."""
ANALYSIS = "analysis"
COMMENTARY = "commentary"
FINAL = "final"

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"


@config
class Setting:
    """The beginning of a conversation: the system message, and a developer message if needed."""

    effort: Effort = "medium"
    """Amount of reasoning before the answer."""
    date: str | None = None
    """Current date, such as ``"2025-06-28"``."""
    instructions: str = ""
    """Instructions of the developer message; other programs call them the system prompt."""

    def messages(self) -> list[Message]:
        """Return the system message and, if there are instructions, the developer message."""
        about = [IDENTITY, f"Knowledge cutoff: {KNOWLEDGE_CUTOFF}"]
        if self.date is not None:
            about.append(f"Current date: {self.date}")
        channels = ", ".join((ANALYSIS, COMMENTARY, FINAL))
        parts = [
            "\n".join(about),
            f"Reasoning: {self.effort}",
            f"# Valid channels: {channels}. Channel must be included for every message.",
        ]
        messages = [Message("system", "\n\n".join(parts))]
        if self.instructions:
            messages.append(Message("developer", f"# Instructions\n\n{self.instructions}"))
        return messages


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    An assistant's message has a ``channel``: ``"analysis"``, ``"commentary"`` or ``"final"``. Its
    ``recipient`` may be a tool, such as ``"functions.weather"``; None: everyone. A ``content_type``
    is for example ``"<|constrain|>json"``. A message of a tool has the tool's ``name``.
    """

    role: Role
    content: str
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.role == "tool" and not self.name:
            raise InputError(
                got="a tool without a name",
                expected="its name",
                fix="Pass name.",
            )


def require_harmony(tokenizer: ReleasedTokenizer) -> None:
    """Refuse a ``tokenizer`` without the format's special tokens."""
    missing = [name for name in FORMAT_TOKENS if name not in tokenizer.specials]
    if missing:
        raise InputError(
            got=f"{tokenizer.source} without {', '.join(missing)}",
            expected="o200k_harmony, gpt-oss's tokenizer",
            fix="Other models use other formats; 'glassformer generate' continues a plain text.",
        )


def render(
    messages: Iterable[Message], tokenizer: ReleasedTokenizer, *, reply: bool = True
) -> list[int]:
    """Return the tokens of a conversation.

    Names of special tokens within a message stay text: writing ``<|end|>`` does not end a message.
    All messages are rendered; see :func:`to_keep`. With ``reply``, ``<|start|>assistant`` follows
    them, which the model continues.
    """
    require_harmony(tokenizer)
    tokens: list[int] = []
    for message in messages:
        tokens += _rendered(message, tokenizer)
    if reply:
        tokens += [tokenizer.special(START), *tokenizer.encode("assistant")]
    return tokens


def to_keep(reply: Sequence[Message]) -> list[Message]:
    """Return the messages of a finished reply that the next turn reads.

    These are the assistant's, without reasoning and tool calls.
    """
    return [
        message
        for message in reply
        if message.role == "assistant" and message.channel != ANALYSIS and message.recipient is None
    ]


@dataclass(frozen=True)
class Piece:
    """A piece of a reply's text, which may be empty at the end of a message."""

    message: Message
    """Message of the piece, with its content up to the end of this piece."""
    text: str
    ended: bool = False
    """True if the message ends here."""


class ReplyReader:
    """Reads a reply token by token, after a prompt that ends with ``<|start|>assistant``.

    A reply that breaks the format is read as far as possible. A header without an end becomes the
    content of a message of its channel, unless the reply was cut there. Pass the tokenizer that
    rendered the prompt.
    """

    def __init__(self, tokenizer: ReleasedTokenizer) -> None:
        require_harmony(tokenizer)
        self.tokenizer = tokenizer
        special = tokenizer.special
        self.messages: list[Message] = []
        """The messages that have ended."""
        self._start = special(START)
        self._message = special(MESSAGE)
        self._ends = {special(name) for name in (END, RETURN, CALL)}
        self._header: list[int] | None = []
        self._role_known = True
        self._current: Message | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self, token: int) -> Piece | None:
        """Read the next token; return the text that it adds to a message, or None."""
        if token in self._ends:
            return self.finish(marked=True)
        if self._current is not None:
            text = self._decoder.decode(self.tokenizer.token_bytes(token))
            return self._piece(text) if text else None
        if self._header is None:
            # Between two messages there should be <|start|>; any other token begins a header
            # without it.
            self._header = []
            self._role_known = token != self._start
            if token == self._start:
                return None
        if token == self._message:
            self._current = _read_header(self.tokenizer.decode(self._header), self._role_known)
            self._header = None
        else:
            self._header.append(token)
        return None

    def finish(self, *, marked: bool = False) -> Piece | None:
        """End a message, by an end token if ``marked``, or the reply; return its rest, or None."""
        if self._current is None:
            text = self.tokenizer.decode(self._header or [])
            # A header with <|start|> and without an end is incomplete; it is not content.
            half = not self._role_known and not marked
            if half or not text.strip():
                self._header = None
                return None
            self._current, rest = _read_channel(text)
            if not self._role_known:
                rest = rest.removeprefix("assistant").lstrip()
        else:
            rest = self._decoder.decode(b"", final=True)
        piece = self._piece(rest)
        self.messages.append(piece.message)
        self._header = None
        self._current = None
        self._decoder.reset()
        return Piece(piece.message, piece.text, ended=True)

    def _piece(self, text: str) -> Piece:
        assert self._current is not None
        self._current = replace(self._current, content=self._current.content + text)
        return Piece(self._current, text)


def _rendered(message: Message, tokenizer: ReleasedTokenizer) -> list[int]:
    special = tokenizer.special
    text = tokenizer.encode
    author: str = message.role
    if message.role == "tool" and message.name:
        author = message.name
    tokens = [special(START), *text(author)]
    if message.recipient is not None:
        tokens += text(f" to={message.recipient}")
    if message.channel is not None:
        tokens += [special(CHANNEL), *text(message.channel)]
    if message.content_type is not None:
        kind = message.content_type
        if kind.startswith(CONSTRAIN):
            tokens += [*text(" "), special(CONSTRAIN), *text(kind.removeprefix(CONSTRAIN))]
        else:
            tokens += text(f" {kind}")
    calls_tool = message.role == "assistant" and message.recipient is not None
    end = special(CALL if calls_tool else END)
    return [*tokens, special(MESSAGE), *text(message.content), end]


def _read_channel(header: str) -> tuple[Message, str]:
    """Return an empty message of the header's channel, and the rest of the header."""
    before, marker, after = header.partition(CHANNEL)
    if not marker:
        return Message("assistant", ""), header.strip()
    end = 0
    while end < len(after) and not after[end].isspace() and after[end] != "<":
        end += 1
    return Message("assistant", "", after[:end] or None), (before + after[end:]).strip()


def _read_header(header: str, role_known: bool) -> Message:
    """Return an empty message with the fields of its header.

    The recipient is written ``to=NAME``, or ``NAME`` if it is the only word.
    """
    message, rest = _read_channel(header)
    words = rest.replace(CONSTRAIN, f" {CONSTRAIN}").split()
    role: Role = "assistant"
    name = None
    if words and not role_known:
        if words[0] in get_args(Role):
            role = words.pop(0)  # type: ignore[assignment]
        elif len(words) > 1:
            role = "tool"
            name = words.pop(0)
    elif words[:1] == ["assistant"]:
        words.pop(0)
    recipient = None
    content_type = None
    if words and not words[-1].startswith("to=") and len(words) > 1:
        content_type = words.pop()
    if words:
        recipient = words.pop().removeprefix("to=")
    if role == "tool" and name is None:
        name = "tool"
    return Message(role, "", message.channel, recipient, content_type, name)
