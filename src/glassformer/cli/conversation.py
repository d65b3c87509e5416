"""A conversation with a model, in harmony's format or by its chat template: messages, and a reply as a stream."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from glassformer.cli.terminal import Stopwatch
from glassformer.data.harmony import (
    FINAL,
    RETURN,
    STOPS,
    Message,
    Piece,
    ReplyReader,
    Setting,
    render_prompt,
    require_harmony,
    to_keep,
)
from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.data.tokenizer import whole_text
from glassformer.errors import InputError, require
from glassformer.generation.continuation import Continuation
from glassformer.generation.language_model import FoundModel, require_tokenizer

CONTEXT = 8192
"""Default number of tokens of a conversation: a cache of 200 MB for gpt-oss-20b."""


class ContextFull(InputError):
    """A message that does not fit into the context."""


class TemplateConversation:
    """A conversation with a model whose chat template writes its prompts; each reply reads only what is new.

    Args:
        continuation: The model, with room for the whole conversation.
        found: The model, with its tokenizer and chat template.
        instructions: The system message; empty: none.
        max_new_tokens: Of each reply at most; None: until the context is full.
    """

    def __init__(
        self, continuation: Continuation, found: FoundModel, instructions: str = "", max_new_tokens: int | None = None
    ) -> None:
        self.messages: list[Message] = []
        self.stopwatch = Stopwatch(0)
        self.cut: str | None = None
        self._continuation, self._max_new_tokens = continuation, max_new_tokens
        self._tokenizer, self._stops = require_tokenizer(found), found.stop_tokens
        template = found.chat_template
        if template is None:
            fix = "Use 'glassformer generate', or a model that was trained to chat."
            raise InputError(f"{found.path} without a chat template", "a model for conversations", fix)
        self._template = template
        self._system = [{"role": "system", "content": instructions}] if instructions else []

    def say(self, text: str) -> Generator[Piece, None, None]:
        """As :meth:`Conversation.say`.

        Raises:
            ContextFull: There is no room for the message. The conversation stays as it was.
            InputError: A conversation that the model's template refuses.
        """
        asked = Message("user", whole_text(text))
        spoken = [{"role": each.role, "content": each.content} for each in [*self.messages, asked]]
        prompt, room = self._template.tokens([*self._system, *spoken], self._tokenizer), self._continuation.max_seq_len
        require_room(prompt, room)
        self.cut = "it was interrupted"
        self.stopwatch = Stopwatch(self._continuation.unread(prompt))
        tokens = self._continuation.reply(prompt, self._max_new_tokens, stop_tokens=self._stops)
        answer, last = "", -1

        def shown() -> Iterator[int]:
            nonlocal last
            for last in self.stopwatch.timed(tokens):
                if last not in self._stops:
                    yield last

        try:
            for piece in self._tokenizer.stream(shown()):
                answer += piece
                yield Piece(Message("assistant", answer), piece)
            yield Piece(Message("assistant", answer), "", ended=True)
            self.cut = None if last in self._stops else why_cut(self.stopwatch.generated, self._max_new_tokens, room)
        finally:
            if answer:
                self.messages += [asked, Message("assistant", answer)]


def require_room(prompt: Sequence[int], room: int) -> None:
    """Raise :class:`ContextFull` unless a conversation leaves room for a reply."""
    if len(prompt) >= room:
        raise ContextFull(
            f"a conversation of {len(prompt)} tokens",
            f"less than --context {room}",
            "Start a new conversation with /new, write less, or start with a larger --context.",
        )


def why_cut(generated: int, most: int | None, room: int) -> str:
    """What ended a reply that the model did not end."""
    if generated == most:
        return f"--max-new-tokens {most} is reached"
    return f"--context {room} is full: begin anew with /new, or start with a larger one"


class Conversation:
    """A conversation in harmony's format; each reply reads only what is new.

    Reasoning is dropped once its answer is complete, as in the model's training.

    Args:
        continuation: The model, with room for the whole conversation.
        tokenizer: Its tokenizer, with harmony's special tokens.
        setting: The system and developer messages.
        stop_tokens: Tokens that end a reply.
        max_new_tokens: Of each reply at most, reasoning included; None: until the context is full.
    """

    def __init__(
        self,
        continuation: Continuation,
        tokenizer: ReleasedTokenizer,
        setting: Setting,
        *,
        stop_tokens: tuple[int, ...] = (),
        max_new_tokens: int | None = None,
    ) -> None:
        self.setting = setting
        self.messages: list[Message] = []
        self.stopwatch = Stopwatch(0)
        """Of the latest reply."""
        self.cut: str | None = None
        """Why the latest reply was cut; None if the model ended it."""
        self._continuation, self._tokenizer = continuation, tokenizer
        self._stops = frozenset(stop_tokens)
        self._silent = self._stops - {tokenizer.special(name) for name in STOPS}
        self._max_new_tokens = max_new_tokens

    def say(self, text: str) -> Generator[Piece, None, None]:
        """Send a message and give its reply, piece by piece.

        The message and the reply, as far as it came, belong to the conversation however this ends: also when the
        iterator is closed or an exception, such as Ctrl-C's, passes through. A reply without any word of an answer
        leaves nothing, and its message is taken back.

        Raises:
            ContextFull: There is no room for the message. The conversation stays as it was.
        """
        # Input that is not valid text becomes U+FFFD.
        asked = Message("user", whole_text(text))
        prompt = render_prompt(self.setting, [*self.messages, asked], self._tokenizer)
        room = self._continuation.max_seq_len
        require_room(prompt, room)
        reader = ReplyReader(self._tokenizer)
        self.cut = "it was interrupted"
        self.stopwatch = Stopwatch(self._continuation.unread(prompt))
        tokens = self._continuation.reply(prompt, self._max_new_tokens, stop_tokens=tuple(self._stops))
        last = -1
        try:
            for last in self.stopwatch.timed(tokens):
                # Tokens such as <|endoftext|> end a reply but are not part of the format.
                piece = None if last in self._silent else reader.read(last)
                if piece is not None:
                    yield piece
            if last in self._stops:
                self.cut = None
            else:
                self.cut = why_cut(self.stopwatch.generated, self._max_new_tokens, room)
            if (rest := reader.finish()) is not None:
                yield rest
        finally:
            reader.finish()
            kept = to_keep(reader.messages)
            if any(message.content for message in kept):
                self.messages += [asked, *kept]


def require_chat(released: FoundModel) -> ReleasedTokenizer:
    """The model's tokenizer, if it can chat."""
    tokenizer = require_tokenizer(released)
    require_harmony(tokenizer)
    end, ends = tokenizer.special(RETURN), released.declared_ends
    require(
        not ends or end in ends,
        f"{tokenizer.source}, whose {RETURN} is {end}, for a model whose texts end with {', '.join(map(str, ends))}",
        "the tokenizer that came with the model",
        "Look for its tokenizer.json.",
    )
    return tokenizer


def is_answer(piece: Piece) -> bool:
    """Whether a piece is for the user: of the final channel, or of no channel, where a reply breaks the format."""
    return piece.message.recipient is None and piece.message.channel in (FINAL, None)
