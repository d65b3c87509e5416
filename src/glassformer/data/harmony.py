"""The harmony format, in which gpt-oss reads and writes conversations: messages to tokens, and a reply back.

``<|start|>{header}<|message|>{content}<|end|>``; a header is a role, and for the assistant a channel: ``analysis`` for
its reasoning, ``commentary`` for calls of tools, ``final`` for the answer. A reply ends with ``<|return|>``, or with
``<|call|>`` where a tool is asked for.

Source: OpenAI 2025, https://github.com/openai/harmony, docs/format.md.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.errors import require

Effort = Literal["low", "medium", "high"]
Role = Literal["system", "developer", "user", "assistant", "tool"]

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
RETURN, CALL, CONSTRAIN = "<|return|>", "<|call|>", "<|constrain|>"
FORMAT_TOKENS = (START, CHANNEL, MESSAGE, END, RETURN, CALL)
"""The special tokens that a tokenizer must have."""
STOPS = (RETURN, CALL)
"""With these the assistant's turn is over."""
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"


@dataclass(frozen=True)
class Setting:
    """What stands before a conversation: the system's message, and the developer's where there are instructions.

    Args:
        effort: How much the model reasons before it answers.
        date: The current date, such as ``"2025-06-28"``; None: it is not told.
        instructions: What other programs call the system prompt; empty: no developer's message.

    Raises:
        InputError: Another effort.
    """

    effort: Effort = "medium"
    date: str | None = None
    instructions: str = ""

    def __post_init__(self) -> None:
        efforts = get_args(Effort)
        require(self.effort in efforts, f"effort = {self.effort!r}", f"one of {efforts}", "Use 'medium'.")

    def messages(self) -> list[Message]:
        """The system's message and, where there are instructions, the developer's."""
        about = [IDENTITY, f"Knowledge cutoff: {KNOWLEDGE_CUTOFF}"]
        if self.date is not None:
            about.append(f"Current date: {self.date}")
        channels = ", ".join((ANALYSIS, COMMENTARY, FINAL))
        system = "\n\n".join(
            (
                "\n".join(about),
                f"Reasoning: {self.effort}",
                f"# Valid channels: {channels}. Channel must be included for every message.",
            )
        )
        told = [Message("system", system)]
        if self.instructions:
            told.append(Message("developer", f"# Instructions\n\n{self.instructions}"))
        return told


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    Args:
        role: Who speaks.
        content: What is said.
        channel: For the assistant: ``"analysis"``, ``"commentary"`` or ``"final"``.
        recipient: Whom it is for, such as the tool ``"functions.weather"``; None: everyone.
        content_type: Of what form the content is, such as ``"<|constrain|>json"``.
        name: Of the tool that speaks.

    Raises:
        InputError: A tool without a name.
    """

    role: Role
    content: str
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        require(self.role != "tool" or bool(self.name), "a tool without a name", "its name", "Pass name.")


def require_harmony(tokenizer: ReleasedTokenizer) -> None:
    """Raise :class:`~glassformer.errors.InputError` unless ``tokenizer`` has the format's special tokens."""
    missing = [name for name in FORMAT_TOKENS if name not in tokenizer.specials]
    require(
        not missing,
        f"{tokenizer.source} without {', '.join(missing)}",
        "o200k_harmony, gpt-oss's tokenizer",
        "Other models have other formats of conversation; 'glassformer generate --model' continues a plain text.",
    )


def render(messages: Iterable[Message], tokenizer: ReleasedTokenizer, *, reply: bool = True) -> list[int]:
    """The tokens of a conversation.

    Names of special tokens within a message stay text, so that nobody can end a message by writing ``<|end|>``.

    Args:
        messages: In order, the system's first. Nothing is left out; see :func:`to_keep`.
        tokenizer: gpt-oss's, or one with the same special tokens.
        reply: Whether ``<|start|>assistant`` follows, which the model continues.

    Raises:
        InputError: A tokenizer that lacks a special token.
    """
    require_harmony(tokenizer)
    tokens = [token for message in messages for token in _rendered(message, tokenizer)]
    if reply:
        tokens += [tokenizer.special(START), *tokenizer.encode("assistant")]
    return tokens


def to_keep(reply: Sequence[Message]) -> list[Message]:
    """What of a finished reply the next turn reads: what the assistant said, without its reasoning and without calls,
    which nobody answered."""
    return [
        message
        for message in reply
        if message.role == "assistant" and message.channel != ANALYSIS and message.recipient is None
    ]


@dataclass(frozen=True)
class Piece:
    """Some of a reply's text, with the header of the message that it belongs to.

    Args:
        message: The message, whose content is what was read of it up to this piece, this one included.
        text: What is new; may be empty at the end.
        ended: Whether the message ends here.
    """

    message: Message
    text: str
    ended: bool = False


@dataclass
class ReplyReader:
    """Reads a reply token by token as it is generated, after a prompt that ends with ``<|start|>assistant``.

    A reply that breaks the format is read as far as it goes: what stands in a header without its end becomes the
    content of a message of its channel, unless the reply was cut right there.

    Args:
        tokenizer: The one that rendered the prompt.
    """

    tokenizer: ReleasedTokenizer
    messages: list[Message] = field(default_factory=list, init=False)
    """The messages that have ended."""

    def __post_init__(self) -> None:
        require_harmony(self.tokenizer)
        special = self.tokenizer.special
        self._start, self._message = special(START), special(MESSAGE)
        self._ends = {special(name) for name in (END, RETURN, CALL)}
        self._header: list[int] | None = []
        self._role_known = True
        self._current: Message | None = None
        self._new_decoder()

    def read(self, token: int) -> Piece | None:
        """Take the next token; what it adds to the text of a message, None for nothing."""
        if token in self._ends:
            return self._finish(marked=True)
        if self._current is not None:
            text = self._decoder.decode(self.tokenizer.token_bytes(token))
            return self._piece(text) if text else None
        if self._header is None:
            # Between two messages only <|start|> belongs; whatever else comes is taken as a header without it.
            self._header, self._role_known = [], token != self._start
            if token == self._start:
                return None
        if token == self._message:
            self._current = _read_header(self.tokenizer.decode(self._header), self._role_known)
            self._header = None
        else:
            self._header.append(token)
        return None

    def finish(self) -> Piece | None:
        """The reply stops here: what is left of its last message, None where there is none."""
        return self._finish(marked=False)

    def _finish(self, marked: bool) -> Piece | None:
        if self._current is None:
            text = self.tokenizer.decode(self._header or [])
            # A header that <|start|> began and nothing ended is half a header and no content.
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
        self._header, self._current = None, None
        self._new_decoder()
        return Piece(piece.message, piece.text, ended=True)

    def _piece(self, text: str) -> Piece:
        assert self._current is not None
        was = self._current
        self._current = Message(was.role, was.content + text, was.channel, was.recipient, was.content_type, was.name)
        return Piece(self._current, text)

    def _new_decoder(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")


def _rendered(message: Message, tokenizer: ReleasedTokenizer) -> list[int]:
    special, text = tokenizer.special, tokenizer.encode
    tokens = [special(START), *text(message.name if message.role == "tool" and message.name else message.role)]
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
    calls = message.role == "assistant" and message.recipient is not None
    return [*tokens, special(MESSAGE), *text(message.content), special(CALL if calls else END)]


def _read_channel(header: str) -> tuple[Message, str]:
    """An empty message of the channel that a header names, and the rest of the header."""
    before, marker, after = header.partition(CHANNEL)
    if not marker:
        return Message("assistant", ""), header.strip()
    end = next((index for index, sign in enumerate(after) if sign.isspace() or sign == "<"), len(after))
    return Message("assistant", "", after[:end] or None), (before + after[end:]).strip()


def _read_header(header: str, role_known: bool) -> Message:
    """An empty message with what its header says: the recipient stands in it as ``to=NAME`` or, alone, as ``NAME``."""
    message, rest = _read_channel(header)
    words = rest.replace(CONSTRAIN, f" {CONSTRAIN}").split()
    role: Role = "assistant"
    name = None
    if words and not role_known:
        if words[0] in get_args(Role):
            role = words.pop(0)  # type: ignore[assignment]
        elif len(words) > 1:
            role, name = "tool", words.pop(0)
    elif words[:1] == ["assistant"]:
        words.pop(0)
    recipient = content_type = None
    if words and not words[-1].startswith("to=") and len(words) > 1:
        content_type = words.pop()
    if words:
        recipient = words.pop().removeprefix("to=")
    if role == "tool" and name is None:
        name = "tool"
    return Message(role, "", message.channel, recipient, content_type, name)
