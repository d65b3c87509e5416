"""The ``glassformer`` command: it finds the sub-command, parses its flags and runs it.

An error is printed as one line.

This module imports neither torch nor tyro, and no command's flags import torch, so that ``--help``
answers at once. A command's module is imported when its flags are parsed.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

from glassformer import __version__
from glassformer.allocator import keep_freed_memory
from glassformer.errors import InputError, first_line, naming_extras
from glassformer.files import local_path
from glassformer.text import known_name, one_line

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "GLASSFORMER_DEBUG"
OPTIONS = ("--help", "--version", "--debug")
NARROWEST = 20
"""Columns that ``--help`` fills at least: tyro does not end where it has fewer than five."""


@dataclass(frozen=True)
class Command:
    """A sub-command: its line in ``--help``, the class of its flags, the module of its main."""

    summary: str
    flags: str
    module: str


COMMANDS: dict[str, Command] = {
    name: Command(
        summary, f"glassformer.cli.{flags}", f"glassformer.cli.commands.{name.replace('-', '_')}"
    )
    for name, flags, summary in (
        ("lab", "flags.LabFlags", "run a lab from start to end and write its report"),
        (
            "course",
            "flags.CourseFlags",
            "write a lab's notebook with blanks and checks, and grade notebooks",
        ),
        ("models", "flags.ModelsFlags", "list the models with short names and the bundled ones"),
        ("train", "train_flags.TrainFlags", "train a decoder on a text file or on the recurrence"),
        ("generate", "flags.GenerateFlags", "continue a prompt with a trained or released decoder"),
        ("chat", "flags.ChatFlags", "talk with a language model"),
        ("classify", "flags.ClassifyFlags", "print the class of texts, and which tokens mattered"),
        (
            "explore",
            "flags.ExploreFlags",
            "look inside models in the browser, or save the page as one file",
        ),
        (
            "capture",
            "flags.CaptureFlags",
            "print or save what a language model computes while it reads a text",
        ),
        (
            "intervene",
            "flags.InterveneFlags",
            "change parts of a language model and print what it says then",
        ),
        (
            "design",
            "flags.DesignFlags",
            "build an attention head that solves a task, with its proof",
        ),
        (
            "program",
            "flags.ProgramFlags",
            "compile a program into a transformer, prove it, and run it on a text",
        ),
        ("info", "flags.InfoFlags", "print what a model's files contain and the memory they need"),
        (
            "convert",
            "flags.ConvertFlags",
            "write weights in another layout: Hugging Face's, OpenAI's, ours",
        ),
        (
            "verify",
            "flags.VerifyFlags",
            "check whether an attention head solves a task, on every sequence",
        ),
    )
}


def help_text() -> str:
    """Return the text of ``glassformer --help``."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(
        f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()
    )
    return f"""usage: glassformer [--help] [--version] [--debug] COMMAND ...

Transformers you can see through: design, train, look inside and run attention models.

commands:
{commands}

options:
  --help, -h   show this help and exit; 'glassformer COMMAND --help' describes one command
  --version    show the version and exit
  --debug      show the whole traceback of an error (so does {DEBUG_VARIABLE}=1)
"""


def run(arguments: Sequence[str]) -> int:
    """Run the sub-command ``arguments[0]`` with the other arguments; return its exit status."""
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
        if first.startswith("-"):
            raise InputError(f"'{first}'", "a known option", known_name(first, OPTIONS))
        raise InputError(f"'{first}'", "a known command", known_name(first, tuple(COMMANDS)))
    flags = parse(first, rest)
    if first == "explore" and sys.stderr.isatty():  # before torch is imported, which takes seconds
        source = "the models" if flags.run is None else one_line(flags.run)
        print(f"loading {source} ...", file=sys.stderr, flush=True)
    # Idle threads of GNU OpenMP spin for milliseconds, hundreds of times per token where other
    # programs interrupt one of them. Training has short products: there waking threads costs more.
    # The variable has to be set before torch is imported.
    if first not in ("train", "lab") and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    with naming_extras("labs" if first == "lab" else None):  # a lab needs several extras
        status: int = importlib.import_module(COMMANDS[first].module).main(flags)
    return status


def parse(name: str, arguments: Sequence[str]) -> Any:
    """Return the flags of the command ``name``, read from ``arguments``."""
    import tyro

    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    module, _, flags = COMMANDS[name].flags.rpartition(".")
    flags_class = getattr(importlib.import_module(module), flags)
    _check_repeated_flags(flags_class, arguments)
    read = getattr(flags_class, "parse", functools.partial(tyro.cli, flags_class))
    printed = io.StringIO()
    try:
        with flags_registry(), redirect_stderr(printed):
            flags = read(args=arguments, prog=f"glassformer {name}")
    except SystemExit as ended:
        if (refusal := _refusal(ended)) is not None:
            raise refusal from None
        print(printed.getvalue(), file=sys.stderr, end="")
        if ended.code and (texts := _read_as_flags(arguments)):
            print(
                "glassformer: A text that begins with '-' stands after '--', or behind '=' if it "
                f"belongs to a flag: glassformer {name} ... -- {shlex.quote(texts[0])}",
                file=sys.stderr,
            )
        raise
    print(printed.getvalue(), file=sys.stderr, end="")
    return flags


def _check_repeated_flags(flags_class: type, arguments: Sequence[str]) -> None:
    """Refuse a flag with several values that is repeated: tyro would keep only its last values."""
    for field in getattr(flags_class, "__dataclass_fields__", {}).values():
        if field.default != ():
            continue
        flag = f"--{field.name.replace('_', '-')}"
        times = sum(argument.partition("=")[0] == flag for argument in arguments)
        if times >= 2:
            raise InputError(
                got=f"{flag} {times} times",
                expected="it once",
                fix=f"Write all values after one {flag}.",
            )


def _refusal(ended: SystemExit) -> InputError | None:
    """Return the error of the flags' class for which tyro ends the process.

    tyro would print the name of the class with it.
    """
    error = ended.__context__
    while error is not None and not isinstance(error, InputError):
        error = error.__context__
    return error


def _read_as_flags(arguments: Sequence[str]) -> list[str]:
    """Return arguments that are read as flags by mistake: only ``-h`` has one dash."""
    if "--" in arguments:
        before = arguments[: arguments.index("--")]
    else:
        before = arguments
    return [text for text in before if re.match("-[^-]", text) and text != "-h"]


def flags_registry() -> ConstructorRegistry:
    """Return the registry of rules that tyro reads and shows flags by.

    Flags of type Path are read with ``local_path``: shells do not expand a ``~`` after ``--flag=``
    or between quotes. Choices keep their order, which tyro would shuffle. Wrapped lines of a
    flag's docstring are joined, which tyro would break in its help.
    """
    from tyro.constructors import (
        ConstructorRegistry,
        PrimitiveConstructorSpec,
        PrimitiveTypeInfo,
        StructConstructorSpec,
        StructTypeInfo,
    )

    registry = ConstructorRegistry()
    asks_tyro = False

    @registry.primitive_rule
    def read_path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
        if info.type is not Path:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="PATH",
            instance_from_str=lambda words: local_path(words[0]),
            is_instance=lambda value: isinstance(value, Path),
            str_from_instance=lambda path: [str(path)],
        )

    @registry.primitive_rule
    def read_choice_or_none(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[str | None] | None:
        kinds = {*get_args(info.type)} - {NoneType}
        if NoneType not in get_args(info.type) or len(kinds) != 1:
            return None
        names = get_args(kinds.pop())
        if not names or not all(isinstance(name, str) for name in names):
            return None
        choices = ("None", *names)
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="{" + ",".join(choices) + "}",
            choices=choices,
            instance_from_str=lambda words: None if words[0] == "None" else words[0],
            is_instance=lambda value: value is None or value in names,
            str_from_instance=lambda value: [str(value)],
        )

    @registry.struct_rule
    def join_docstrings(info: StructTypeInfo) -> StructConstructorSpec | None:
        nonlocal asks_tyro
        if asks_tyro or not is_dataclass(info.type):
            return None
        asks_tyro = True  # the call below asks this rule again
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            asks_tyro = False
        if not isinstance(spec, StructConstructorSpec):
            return None
        fields = [
            replace(field, helptext=functools.partial(_joined_lines, field.helptext))
            for field in spec.fields
        ]
        return replace(spec, fields=tuple(fields))

    return registry


def _joined_lines(docstring: str | Callable[[], str | None] | None) -> str | None:
    """Return a flag's docstring, or the one that it returns, with one line for each paragraph."""
    text = docstring() if callable(docstring) else docstring
    return None if text is None else re.sub(r"(?<!\n)\n *(?=\S)", " ", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (None: the process's own); return the exit status.

    Status 0 is success, 1 a failure of the system (no space, no permission) or of the command, 2 an
    argument that cannot be used, 130 an interruption from the keyboard; one line on standard error
    says why. ``--debug`` as the first argument, or ``GLASSFORMER_DEBUG=1``, lets errors through
    with their traceback.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    arguments = list(arguments)
    debug = os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    if arguments[:1] == ["--debug"]:
        debug = True
        arguments = arguments[1:]
    keep_freed_memory()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A closed stream's number would become that of the next file.
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - it stays open
            setattr(sys, name, stream)
    try:
        return run(arguments)
    except BrokenPipeError:
        # The reader of the output has exited, as `head` does; Python would complain again on
        # closing the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (InputError, OSError, MemoryError, RuntimeError) as error:
        if debug:
            raise
        if str(error).startswith("Symlink loop"):  # of Path.resolve()
            error = InputError(str(error), "a path that leads somewhere", "Check the path.")
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            error = OSError(
                f"not enough memory ({first_line(error)}). Choose smaller sizes, or close other "
                "programs."
            )
        if not isinstance(error, InputError | OSError):
            raise
        # The message may quote an untrusted file, which must not control the terminal.
        text = str(error)
        if not text.isprintable():
            text = one_line(text)
        print(f"glassformer: error: {text}", file=sys.stderr)
        if isinstance(error, InputError):
            return EXIT_INPUT
        return EXIT_FAILED
    except KeyboardInterrupt:
        if debug:
            raise
        print("glassformer: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
