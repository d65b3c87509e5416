"""The ``glassformer`` command: finds the sub-command, runs it, turns what went wrong into one line.

This file imports neither torch nor tyro, so that ``glassformer --help`` answers at once; a command's module is imported
when that command is called.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from glassformer import __version__
from glassformer.errors import InputError

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "GLASSFORMER_DEBUG"
OPTIONS = ("--help", "--version", "--debug")


@dataclass(frozen=True)
class Command:
    """A sub-command: the module whose ``main(arguments, prog)`` runs it, and the line that ``--help`` gives it."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "lab": Command("glassformer.cli.lab", "run a lab from start to end and write its report"),
    "train": Command("glassformer.cli.train", "train a decoder on a text file or on the recurrence"),
    "generate": Command("glassformer.cli.generate", "continue a prompt with a trained or released decoder"),
    "chat": Command("glassformer.cli.chat", "talk with gpt-oss"),
    "classify": Command("glassformer.cli.classify", "tell the class of texts, and which tokens mattered"),
    "explore": Command("glassformer.cli.explore", "look inside models in the browser, or save the page as one file"),
    "design": Command("glassformer.cli.design", "build an attention head that solves a task, with its proof"),
    "info": Command("glassformer.cli.info", "tell what a directory of weights holds and what memory it needs"),
    "convert": Command("glassformer.cli.convert", "write weights in another layout: Hugging Face's, OpenAI's, ours"),
    "random-model": Command("glassformer.cli.random_model", "write a gpt-oss of any size with random weights"),
    "verify": Command("glassformer.cli.verify", "check whether an attention head solves a task, on every sequence"),
}


def help_text() -> str:
    """What ``glassformer --help`` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return f"""usage: glassformer [--help] [--version] [--debug] COMMAND ...

Transformers you can see through: design, train, look inside and run attention models.

commands:
{commands}

options:
  --help, -h   show this help and exit; 'glassformer COMMAND --help' tells about one command
  --version    show the version and exit
  --debug      show the whole traceback of an error (so does {DEBUG_VARIABLE}=1)
"""


def suggestion(word: str, known: Sequence[str]) -> str:
    """A sentence that says which of ``known`` the misspelt ``word`` may have meant, or lists them all."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"Did you mean '{close[0]}'?" if close else f"'glassformer --help' lists them: {', '.join(known)}."


def run(arguments: Sequence[str]) -> int:
    """Run the sub-command named first in ``arguments`` with the rest of them; return its exit status.

    Raises:
        InputError: No such command or option.
    """
    if not arguments:
        print(help_text(), file=sys.stderr, end="")
        return EXIT_INPUT
    first, *rest = arguments
    if first in ("--help", "-h"):
        print(help_text(), end="")
        return 0
    if first == "--version":
        print(f"glassformer {__version__}")
        return 0
    if first not in COMMANDS:
        kind, known = ("option", OPTIONS) if first.startswith("-") else ("command", tuple(COMMANDS))
        raise InputError(f"'{first}'", f"a known {kind}", suggestion(first, known))
    module = importlib.import_module(COMMANDS[first].module)
    status: int = module.main(rest, prog=f"glassformer {first}")
    return status


def _shown(error: Exception) -> str:
    """Its message on one line: names in a stranger's file may hold what steers a terminal."""
    text = str(error)
    if text.isprintable():
        return text
    from glassformer.text import one_line  # takes a while, and few messages need it

    return one_line(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: run ``arguments`` (by default the process's own) and return the exit status.

    Status 0 is success, 1 a failure of the system (no space, no permission) or of the command, 2 an argument that
    cannot be used, 130 an interruption from the keyboard; one line on standard error says why. ``--debug`` as the first
    argument, or ``GLASSFORMER_DEBUG=1``, lets errors through with their traceback.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    if arguments[:1] == ["--debug"]:
        debug, arguments = True, arguments[1:]
    try:
        return run(arguments)
    except InputError as error:
        if debug:
            raise
        print(f"glassformer: error: {_shown(error)}", file=sys.stderr)
        return EXIT_INPUT
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does; Python would complain again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        if debug:
            raise
        print(f"glassformer: error: {_shown(error)}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        if debug:
            raise
        print("glassformer: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
