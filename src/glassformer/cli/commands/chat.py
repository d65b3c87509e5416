"""``glassformer chat``: talk with a language model, in a terminal or one message at a time."""

import contextlib
import datetime
import difflib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import get_args

from glassformer.checkpoints.store import Stored, build, open_model
from glassformer.cli.conversation import CONTEXT, ContextFull, Conversation, is_answer, require_chat
from glassformer.cli.flags import ChatFlags
from glassformer.cli.sampling import chosen_rule
from glassformer.cli.terminal import text_or_input, write
from glassformer.data.harmony import Effort, Piece, Setting
from glassformer.errors import InputError
from glassformer.generation.decoding import Continuation

HELP = """\
/new            begin a new conversation
/effort LEVEL   reason more or less: low, medium, high
/reasoning      show the reasoning, or hide it
/quit           end; so does Ctrl-D
Ctrl-C stops a reply. Three quotation marks (\"\"\") begin and end a message of several lines,
or one that begins as a command does."""

_HINT = "/quit ends, /help lists the commands."
_COMMANDS = ("/new", "/effort", "/reasoning", "/quit", "/help")

_QUOTES = '"""'
REPLY_LIMIT = 1024
"""Maximum tokens of a reply without --max-new-tokens."""
REASONING_LIMIT = 8192
"""Maximum tokens of a reply without --max-new-tokens, for models that reason before they answer."""
_DIM = "\x1b[2m"
_PLAIN = "\x1b[0m"
_ERASE = "\r\x1b[K"


@dataclass
class Screen:
    """Shows replies: answers on standard output, the rest on standard error."""

    show_reasoning: bool = False
    """Print the reasoning too; otherwise a terminal only shows that the model reasons."""
    speed: bool = True
    """Print the speed of each reply."""

    def show(self, conversation: Conversation, text: str) -> bool:
        """Send ``text`` and show the reply as it comes; return whether it has an answer."""
        with contextlib.closing(conversation.say(text)) as pieces:
            try:
                answered = self._show(pieces, conversation)
            except KeyboardInterrupt:
                self._note("")
                raise
        self.end(conversation)
        return answered

    def end(self, conversation: Conversation) -> None:
        """Print notes after a reply, however it ended."""
        if conversation.cut is not None:
            self._note(f"[the reply is cut: {conversation.cut}]")
        if self.speed and (line := str(conversation.stopwatch)):
            self._note(f"[{line}]")

    def _show(self, pieces: Iterable[Piece], conversation: Conversation) -> bool:
        answering = reasoning = answered = False
        for piece in pieces:
            if is_answer(piece):
                if not answering:
                    self._erase_status()
                answering = True
                answered = answered or bool(piece.text.strip())
                write(piece.text)
                if piece.ended:
                    write("\n")
            elif piece.message.recipient is not None:
                if piece.ended:
                    self._erase_status()
                    self._note(
                        f"[the model calls {piece.message.recipient}, which is not here: "
                        f"{piece.message.content}]"
                    )
            elif self.show_reasoning:
                self._reason(piece, begins=not reasoning)
                reasoning = not piece.ended
            elif _styled():
                status = (
                    f"{_ERASE}{_DIM}reasoning, {conversation.stopwatch.generated} tokens{_PLAIN}"
                )
                print(status, end="", file=sys.stderr, flush=True)
        self._erase_status()
        return answered

    def _reason(self, piece: Piece, begins: bool) -> None:
        styled = _styled()
        if begins and not styled:
            write(f"[{piece.message.channel}] ", sys.stderr)
        # Each piece is dimmed separately, so that Ctrl-C never leaves a dim terminal.
        if styled:
            print(_DIM, end="", file=sys.stderr)
        write(piece.text, sys.stderr)
        if styled:
            print(_PLAIN, end="", file=sys.stderr, flush=True)
        if piece.ended:
            write("\n", sys.stderr)

    def _erase_status(self) -> None:
        if _styled() and not self.show_reasoning:
            print(_ERASE, end="", file=sys.stderr, flush=True)

    def _note(self, text: str) -> None:
        write(f"{text}\n", sys.stderr)


def talk(conversation: Conversation, screen: Screen) -> None:
    """Answer messages from standard input until the input ends or ``/quit``."""
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives the arrow keys their meaning
        print(_HINT, file=sys.stderr)
    while True:
        try:
            message = _ask()
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("\nCtrl-D or /quit ends.", file=sys.stderr)
            continue
        if message is None:
            return
        text, quoted = message
        if text.startswith("/") and not quoted:
            if text == "/quit":
                return
            response = _obey(text, conversation, screen)
            if response is None and interactive and _resembles_command(text):
                response = _help(conversation)
            if response is not None:
                print(response, file=sys.stderr)
                continue
        if not quoted and text.lower() in ("exit", "quit", "help"):
            print(_HINT, file=sys.stderr)
            continue
        if not text:
            continue
        try:
            screen.show(conversation, text)
        except ContextFull as error:
            print(f"glassformer: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            screen.end(conversation)


def main(flags: ChatFlags) -> int:
    """Load the model and talk; return the exit status."""
    message = None if flags.message is None else text_or_input(flags.message)
    stored = open_model(flags.model, tokenizer=flags.tokenizer)
    sampling = chosen_rule(flags, stored)
    in_harmony = (
        stored.chat_template is None or "<|channel|>" in stored.require_tokenizer().specials
    )
    if in_harmony:
        tokenizer = require_chat(stored)
        template = None
        reply_limit = REASONING_LIMIT
    else:
        tokenizer = stored.require_tokenizer()
        template = stored.chat_template
        reply_limit = REPLY_LIMIT
    if not in_harmony and flags.effort != "medium":
        raise InputError(
            got=f"--effort {flags.effort} for {stored.name}",
            expected="a model whose prompts say it: gpt-oss",
            fix="Leave it out.",
        )
    context = _context(flags, stored)
    model = build(stored, device=flags.device, pack=flags.pack)
    conversation = Conversation(
        Continuation(model, context, rule=sampling.rule),
        tokenizer,
        Setting(flags.effort, datetime.date.today().isoformat(), flags.instructions),
        template=template,
        stop_tokens=stored.stop_tokens,
        max_new_tokens=flags.max_new_tokens or reply_limit,
        end_loops=flags.end_loops,
    )
    screen = Screen(flags.show_reasoning, flags.speed)
    if message is None:
        print(
            f"Sampling: {sampling}. --temperature 0 always takes the most likely token.",
            file=sys.stderr,
        )
        talk(conversation, screen)
    elif not screen.show(conversation, message):
        print(
            "glassformer: the reply holds no answer. --show-reasoning prints what came instead.",
            file=sys.stderr,
        )
        return 1
    return 0


def _context(flags: ChatFlags, stored: Stored) -> int:
    """Return the number of tokens of the conversation's context."""
    longest = stored.config.max_seq_len
    if flags.context is None:
        return min(CONTEXT, longest)
    if flags.context > longest:
        raise InputError(
            got=f"--context {flags.context}",
            expected=f"at most the {longest} tokens that {stored.path} can read",
            fix="Pass less, or leave it out.",
        )
    return flags.context


def _ask() -> tuple[str, bool] | None:
    """Return the next message and whether it is quoted; None at the end of the input."""
    line = _line("> ")
    if line is None:
        return None
    if not line.startswith(_QUOTES):
        return line, False
    lines = [line.removeprefix(_QUOTES)]
    while not lines[-1].endswith(_QUOTES):
        line = _line("... ")
        if line is None:
            break
        lines.append(line)
    return "\n".join(lines).removesuffix(_QUOTES).strip(), True


def _line(prompt: str) -> str | None:
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            return input(prompt).strip()
        line = sys.stdin.readline()
    except EOFError:
        print()
        return None
    except UnicodeDecodeError as error:
        raise InputError(
            got=f"a message with the byte {error.object[error.start]:#04x}",
            expected=f"text in {error.encoding}",
            fix="Convert it, for example with iconv.",
        ) from error
    return line.strip() if line else None


def _obey(command: str, conversation: Conversation, screen: Screen) -> str | None:
    """Run a command line that starts with /; return what to print, or None if it is no command."""
    name, _, rest = command.partition(" ")
    if name == "/new" and not rest:
        conversation.messages = []
        return "A new conversation."
    if name == "/effort" and rest.strip() in get_args(Effort) and conversation.template is None:
        effort = rest.strip()
        setting = replace(conversation.setting, effort=effort)  # type: ignore[arg-type]
        conversation.setting = setting
        return f"Reasoning: {effort}."
    if name == "/reasoning" and not rest:
        screen.show_reasoning = not screen.show_reasoning
        return "Reasoning is shown." if screen.show_reasoning else "Reasoning is hidden."
    # A missing or unknown effort is a slip; "/effort is a fine word" is a message.
    slip = name == "/effort" and len(rest.split()) < 2
    if slip and conversation.template is not None:
        return "/effort is for gpt-oss: this model's prompts do not say it."
    if slip or command == "/help":
        return _help(conversation)
    return None


def _resembles_command(text: str) -> bool:
    return bool(difflib.get_close_matches(text.split()[0], _COMMANDS, n=1))


def _help(conversation: Conversation) -> str:
    """Return the list of commands; a model with a template has none for reasoning."""
    if conversation.template is None:
        return HELP
    return "\n".join(
        line for line in HELP.splitlines() if not line.startswith(("/effort", "/reasoning"))
    )


def _styled() -> bool:
    """Return whether standard error is a terminal that supports colours, without NO_COLOR."""
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
