"""A conversation with a model: its messages, and each reply as a stream.

Prompts are written in harmony's format or by the model's chat template.
"""

import codecs
from collections.abc import Generator

from glassformer.checkpoints.store import Stored
from glassformer.cli.terminal import Stopwatch
from glassformer.data.chat_template import ChatTemplate
from glassformer.data.harmony import (
    FINAL,
    RETURN,
    STOPS,
    Message,
    Piece,
    ReplyReader,
    Setting,
    render,
    require_harmony,
    to_keep,
)
from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.data.tokenizer import whole_text
from glassformer.errors import InputError
from glassformer.generation.decoding import Continuation
from glassformer.generation.loops import LoopDetector

CONTEXT = 8192
"""Default number of tokens of a conversation: a cache of 200 MB for gpt-oss-20b."""


class ContextFull(InputError):
    """A message that does not fit into the context."""


class Conversation:
    """A conversation with a model; each reply reads only what is new.

    Harmony's reasoning is dropped once its answer is complete, as in the model's training.

    Args:
        continuation: The model, with room for the whole conversation.
        tokenizer: Its tokenizer, with harmony's special tokens unless there is a ``template``.
        setting: The system and developer messages; a ``template`` reads its instructions only.
        template: Chat template that writes the prompts; None: harmony's format.
        stop_tokens: Tokens that end a reply.
        max_new_tokens: Maximum tokens of a reply with its reasoning; None: all that fit.
        end_loops: Cut a reply that repeats itself without end.
    """

    def __init__(
        self,
        continuation: Continuation,
        tokenizer: ReleasedTokenizer,
        setting: Setting,
        *,
        template: ChatTemplate | None = None,
        stop_tokens: tuple[int, ...] = (),
        max_new_tokens: int | None = None,
        end_loops: bool = True,
    ) -> None:
        self.setting = setting
        self.template = template
        self.messages: list[Message] = []
        self.stopwatch = Stopwatch()
        """Times of the latest reply."""
        self.cut: str | None = None
        """Why the latest reply was cut; None if the model ended it."""
        self._continuation = continuation
        self._tokenizer = tokenizer
        self._stops = frozenset(stop_tokens)
        # Tokens such as <|endoftext|> end a reply but are not part of harmony's format.
        self._silent = self._stops - {tokenizer.special(name) for name in STOPS if template is None}
        self._max_new_tokens = max_new_tokens
        self._end_loops = end_loops

    def say(self, text: str) -> Generator[Piece, None, None]:
        """Send a message and yield its reply, piece by piece.

        The conversation keeps the message and the reply so far, however this ends: also when the
        iterator is closed, or at an exception such as Ctrl-C's. If the reply has no word of an
        answer, both are dropped.

        Raises:
            ContextFull: The context has no room for the message. The conversation is unchanged.
            InputError: The model's template refuses the conversation.
        """
        # Input that is not valid text becomes U+FFFD.
        request = Message("user", whole_text(text))
        prompt = self._prompt([*self.messages, request])
        room = self._continuation.max_seq_len
        if len(prompt) >= room:
            raise ContextFull(
                f"a conversation of {len(prompt)} tokens",
                f"less than --context {room}",
                "Start a new conversation with /new, write less, or start with a larger --context.",
            )
        reader: ReplyReader | _TextReader
        if self.template is None:
            reader = ReplyReader(self._tokenizer)
        else:
            reader = _TextReader(self._tokenizer)
        self.cut = "it was interrupted"
        self.stopwatch = Stopwatch(self._continuation.unread(prompt))
        tokens = self._continuation.reply(
            prompt, self._max_new_tokens, stop_tokens=tuple(self._stops)
        )
        last = -1
        loop = LoopDetector(self._tokenizer.is_number)
        repeats = False
        try:
            for last in self.stopwatch.timed(tokens):
                if last in self._silent:
                    piece = None
                else:
                    piece = reader.read(last)
                if piece is not None:
                    yield piece
                repeats = self._end_loops and loop.add(last)
                if repeats:
                    break
            if repeats:
                self.cut = "it repeats itself without end; --no-end-loops goes on"
            elif last in self._stops:
                self.cut = None
            elif self.stopwatch.generated == self._max_new_tokens:
                self.cut = f"--max-new-tokens {self._max_new_tokens} is reached"
            else:
                self.cut = (
                    f"--context {room} is full: begin anew with /new, or start with a larger one"
                )
            if (rest := reader.finish()) is not None:
                yield rest
        finally:
            reader.finish()
            stored_messages = to_keep(reader.messages)
            if any(message.content for message in stored_messages):
                self.messages += [request, *stored_messages]

    def _prompt(self, messages: list[Message]) -> list[int]:
        if self.template is None:
            return render([*self.setting.messages(), *messages], self._tokenizer)
        if self.setting.instructions:
            system = [Message("system", self.setting.instructions)]
        else:
            system = []
        fields = [
            {"role": message.role, "content": message.content} for message in [*system, *messages]
        ]
        return self.template.tokens(fields, self._tokenizer)


class _TextReader:
    """Reads a reply that is one message, as :class:`ReplyReader` reads harmony's."""

    def __init__(self, tokenizer: ReleasedTokenizer) -> None:
        self.messages: list[Message] = []
        self._tokenizer = tokenizer
        self._content = ""
        self._prefix = tokenizer.prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self, token: int) -> Piece:
        spelt = self._tokenizer.token_bytes(token).removeprefix(self._prefix)
        self._prefix = b""
        return self._piece(self._decoder.decode(spelt))

    def finish(self) -> Piece | None:
        if self.messages:
            return None
        piece = self._piece(self._decoder.decode(b"", final=True), ended=True)
        self.messages = [piece.message]
        return piece

    def _piece(self, text: str, ended: bool = False) -> Piece:
        self._content += text
        return Piece(Message("assistant", self._content), text, ended)


def require_chat(released: Stored) -> ReleasedTokenizer:
    """Return the tokenizer of a model that chats in harmony's format; refuse any other model."""
    tokenizer = released.require_tokenizer()
    if "<|channel|>" not in tokenizer.specials:
        raise InputError(
            got=f"{released.name}, which has no chat template",
            expected="a model that was trained to chat",
            fix="'glassformer generate' continues a plain text.",
        )
    require_harmony(tokenizer)
    end = tokenizer.special(RETURN)
    model_ends = released.declared_ends
    if model_ends and end not in model_ends:
        raise InputError(
            got=(
                f"{tokenizer.source}, whose {RETURN} is {end}, for a model whose texts end with "
                f"{', '.join(map(str, model_ends))}"
            ),
            expected="the tokenizer that came with the model",
            fix="Look for its tokenizer.json.",
        )
    return tokenizer


def is_answer(piece: Piece) -> bool:
    """Return whether a piece is for the user: in the final channel or in none.

    A reply that breaks harmony's format has no channel.
    """
    return piece.message.recipient is None and piece.message.channel in (FINAL, None)
