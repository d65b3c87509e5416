"""The console script: finding commands, and what people see when something is wrong."""

import dataclasses
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import get_args
from unittest.mock import Mock

import pytest

from glassformer.cli import flags
from glassformer.cli import main as cli
from glassformer.cli.commands import lab
from glassformer.data import harmony
from glassformer.errors import InputError
from glassformer.explorer import messages
from glassformer.handcraft.tasks import TASKS
from processes import printed
from refusals import Refuses


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[str], str], int]], None]:
    """Put a command named ``probe`` in the registry whose main is the given function."""

    def register(function: Callable[[list[str], str], int]) -> None:
        module = ModuleType("probe_command")
        module.Flags = SimpleNamespace(parse=lambda args, prog: (args, prog))
        module.main = lambda flags: function(*flags)
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setitem(
            cli.COMMANDS,
            "probe",
            cli.Command("for this test", "probe_command.Flags", "probe_command"),
        )

    return register


def test_help_names_every_command_and_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert any(line.split(maxsplit=1) == [name, entry.summary] for line in shown.splitlines())
    assert all(option in shown for option in cli.OPTIONS)


def test_threads_wait_awake_for_long_only_in_training_or_as_asked(
    command: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    command(lambda *_: found.append(os.environ.get("GOMP_SPINCOUNT")) or 0)
    monkeypatch.setitem(cli.COMMANDS, "train", cli.COMMANDS["probe"])
    for name, given in (("train", {}), ("probe", {"OMP_WAIT_POLICY": "active"}), ("probe", {})):
        for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in given.items():
            monkeypatch.setenv(variable, value)
        assert cli.main([name]) == 0
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert cli.main(["probe"]) == 0
    assert found == [None, None, "2000", "7"]


def test_no_arguments_shows_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == cli.help_text()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("labb", "'lab'"),
        ("trian", "'train'"),
        ("generation", "'generate'"),
        ("--verson", "'--version'"),
        ("--hlep", "'--help'"),
    ],
)
def test_a_misspelt_word_gets_the_right_one(
    wrong: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([wrong]) == 2
    shown = capsys.readouterr().err
    assert f"'{wrong}'" in shown
    assert f"Did you mean {right}?" in shown
    assert shown.count("\n") == 1


def test_a_word_unlike_any_command_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xyzzy"]) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in cli.COMMANDS)


def test_a_command_gets_the_rest_and_its_status_is_ours(command: Callable[..., None]) -> None:
    probe = Mock(return_value=7)
    command(probe)
    assert cli.main(["probe", "--flag", "--debug", "-h"]) == 7
    probe.assert_called_once_with(["--flag", "--debug", "-h"], "glassformer probe")


REFUSAL = InputError("top_p = 2.0", "a number in [0, 1]", "Pass top_p between 0 and 1.")
FULL_DISK = OSError(28, "No space left on device", "runs/x")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            REFUSAL,
            2,
            "error: got top_p = 2.0; expected a number in [0, 1]. Pass top_p between 0 and 1.",
        ),
        (FULL_DISK, 1, "error: [Errno 28] No space left on device: 'runs/x'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_and_a_status_and_debugging_lets_it_through(
    error: BaseException,
    status: int,
    said: str,
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command(Mock(side_effect=error))
    assert cli.main(["probe"]) == status
    assert capsys.readouterr() == ("", f"glassformer: {said}\n")
    with pytest.raises(type(error)):
        cli.main(["--debug", "probe"])
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "1")
    with pytest.raises(type(error)):
        cli.main(["probe"])
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "0")
    assert cli.main(["probe"]) == status


@pytest.mark.parametrize("kind", [lambda text: InputError(text, "a name", "Mend it."), OSError])
def test_what_steers_a_terminal_is_written_as_numbers(
    kind: Callable[[str], Exception],
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(Mock(side_effect=kind("unknown \x1b]0;owned\x07\x1b[2J\nin é.safetensors")))
    assert cli.main(["probe"]) in (cli.EXIT_INPUT, cli.EXIT_FAILED)
    shown = capsys.readouterr().err
    assert r"unknown \x1b]0;owned\x07\x1b[2J in é.safetensors" in shown
    assert shown.endswith("\n")
    assert shown[:-1].isprintable()


def test_too_little_memory_is_one_line(command: Callable[..., None], refuses: Refuses) -> None:
    for error in (
        MemoryError("rows_blocks"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ):
        command(Mock(side_effect=error))
        refuses(["probe"], "not enough memory", status=1)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_streams_are_no_error(closed: str, tmp_path: Path) -> None:
    sizes = "--training.steps 1 --training.warmup-steps 0 --model.num-layers 1 --model.hidden-dim 8 --seq-len 8"
    run = str(tmp_path / "run")
    lines = (
        ["train", "--data", "recurrence", "--run", run, *sizes.split()],
        ["generate", run, "1", "--max-new-tokens=1"],
    )
    script = f"import sys; from glassformer.cli.main import main; sys.exit(any(map(main, {lines})))"
    command = f"{sys.executable} -c {shlex.quote(script)} {closed}"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ("best: loss" in done.stdout) == (closed != ">&-")
    assert ("step 1/1" in done.stderr) == (closed != "2>&-")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = """if True:
        import sys, types
        from glassformer.cli import main as cli
        def talk(flags):
            while True:
                print("word", flush=True)
        flags = types.SimpleNamespace(parse=lambda args, prog: None)
        sys.modules["probe"] = types.SimpleNamespace(main=talk, Flags=flags)
        cli.COMMANDS["probe"] = cli.Command("talk", "probe.Flags", "probe")
        sys.exit(cli.main(["probe"]))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"word\n"
    process.stdout.close()
    complaints = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=600), complaints) == (1, b"")


HELP = {
    "lab": (*get_args(flags.LabName), "--quick", "--out DIR", "--seed", "--resume", "under two"),
    "train": (
        *(
            "Width of the residual stream. (default: 128)",
            "Updates of the weights in the whole run.",
        ),
        "Peak learning rate of AdamW, or of SGD.",
    ),
    "generate": (
        *(
            "MODEL",
            "TEXT",
            "--max-new-tokens",
            "--temperature",
            "--top-k",
            "--top-p",
            "--seed",
            "--stream",
        ),
        "--no-stream",
    ),
    "design": (*get_args(flags.TaskName), ".json", ".npz", "--largest-error", "--overwrite"),
    "program": ("PROGRAM is a name of the library, such as histogram", "--run-python"),
    "verify": (
        *(
            *get_args(flags.TaskName),
            ".json",
            "numpy.savez",
            "a table of examples; only these are checked",
        ),
        *(
            "a Python file that defines letters, max_len and target(sequence)",
            "Exit status 0: proved",
        ),
        *("A Python file can do anything on this computer", "run only with --run-python"),
    ),
}


_HELP = """
import io, sys
from glassformer.cli.main import main
sys.stderr = io.StringIO()
assert main(["--help"]) == 0
assert "tyro" not in sys.modules
for name in {names}:
    print(chr(0), end="")
    try:
        assert main([name, "--help"]) == 0
    except SystemExit as end:
        assert not end.code
heavy = ["torch", "numpy", "matplotlib", "accelerate", "jaxtyping", "pydantic", "glassformer.labs"]
assert not [name for name in heavy if name in sys.modules]
assert not sys.stderr.getvalue()
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of the program and of each command, in a process that loads no heavy library."""
    shown = printed(_HELP.format(names=[*cli.COMMANDS]), env={**os.environ, "COLUMNS": "120"})
    return dict(zip(["", *cli.COMMANDS], shown.split("\0"), strict=True))


def test_the_help_of_a_command_tells_its_flags(helps: dict[str, str]) -> None:
    assert helps[""].startswith("usage: glassformer")
    for name in cli.COMMANDS:
        shown = " ".join(helps[name].replace("│", " ").split())
        assert [
            words
            for words in (f"usage: glassformer {name}", *HELP.get(name, ()))
            if words not in shown
        ] == []
        assert "``" not in shown
        assert "--no-compile" not in shown


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_examples_of_a_command_are_accepted(name: str, helps: dict[str, str]) -> None:
    lines = re.findall(
        rf"^ +(glassformer {name} .*|glassformer {name})$", helps[name], re.MULTILINE
    )
    assert len(lines) == 2
    assert helps[name].index(lines[1]) < helps[name].index("╭")
    for line in lines:
        _, command, *arguments = shlex.split(line)
        cli.parse(command, arguments[: arguments.index("<")] if "<" in arguments else arguments)


def test_the_common_options_of_train_are_options(helps: dict[str, str]) -> None:
    common, _, others = helps["train"].partition("Common options:")[2].partition("╭")
    named = re.findall(r"--[a-z.-]+[a-z]", common)
    assert len(named) >= 12
    assert [flag for flag in named if f"{flag} " not in others] == []


def test_wrapped_lines_of_docstrings_flow_in_the_help() -> None:
    shown = printed(_HELP.format(names=[*cli.COMMANDS]), env={**os.environ, "COLUMNS": "1000"})
    for sentence in (
        "'recurrence': sequences from hidden rules, whose best accuracy is known.",
        "the odd ones (as in the course), the even ones (gpt-oss), or a list.",
        "a directory with such files for train, dev and test, or a data set on the Hugging Face "
        "hub. None: the bundled reviews.",
        "cut to 128 tokens, or to the encoder's maximum. With neither texts nor --file: lines",
    ):
        assert sentence in shown


@pytest.mark.parametrize(
    "words",
    [*([name] for name in cli.COMMANDS), ["course", "start"], ["course", "grade"]],
    ids=" ".join,
)
def test_a_paragraph_of_the_help_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.parse(words[0], [*words[1:], "--help"])
    shown = capsys.readouterr().out
    text, *flag_tables = re.split(r"^\W+(?:positional arguments|options)\b", shown, flags=re.M)
    assert flag_tables
    assert re.findall(r"^\S.*\n\S.*", text, re.M) == []


@pytest.mark.parametrize("columns", [1, 4])
def test_the_help_of_every_command_ends_in_the_narrowest_terminal(columns: int) -> None:
    shown = printed(
        _HELP.format(names=[*cli.COMMANDS]),
        env={**os.environ, "COLUMNS": str(columns)},
        timeout=600,
    )
    assert shown.count("--help") >= len(cli.COMMANDS)


def test_a_home_behind_the_equals_sign_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    found = cli.parse("explore", ["smollm2", "--save=~/a=b.html"])
    assert (found.run, found.save) == ("smollm2", Path("/home/ada/a=b.html"))
    assert cli.parse("generate", ["m", "~/said"]).prompt == "~/said"
    assert cli.parse("train", ["--data", "recurrence", "--run=~/run"]).run == Path("/home/ada/run")


def test_every_command_has_a_module_that_can_run_it() -> None:
    for entry in cli.COMMANDS.values():
        module, _, name = entry.flags.rpartition(".")
        assert dataclasses.is_dataclass(getattr(importlib.import_module(module), name))
        assert callable(importlib.import_module(entry.module).main)


def test_the_choices_are_those_of_the_library() -> None:
    # Written out in the flags, because the library's modules import torch.
    assert get_args(flags.View) == get_args(messages.View)
    assert get_args(flags.Effort) == get_args(harmony.Effort)
    assert get_args(flags.LabName) == tuple(lab.LABS)
    assert get_args(flags.TaskName) == tuple(TASKS)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["generate", "m", "-x"], "-x"),
        (["generate", "m", "-x y"], "'-x y'"),
        (["capture", "m", "-x"], "-x"),
        (["chat", "m", "--message", "-x"], "-x"),
        (["classify", "--run", "m", "-bad"], "-bad"),
        (["program", "histogram", "-a"], "-a"),
    ],
)
def test_a_text_that_begins_with_a_dash_is_told_where_to_stand(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert f"glassformer {arguments[0]} ... -- {text}\n" in capsys.readouterr().err


def test_texts_behind_two_dashes_or_an_equals_sign_are_read() -> None:
    assert cli.parse("generate", ["m", "--", "-x"]).prompt == "-x"
    assert cli.parse("generate", ["m", "--seed", "1", "--", "--help"]).prompt == "--help"
    assert cli.parse("chat", ["m", "--message=-x"]).message == "-x"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["generate", "m", "x", "--max-new-tokens", "0"],
            "got max_new_tokens = 0; expected at least 1.",
        ),
        (
            ["generate", "m", "x", "--temperature", "nan"],
            "got temperature = nan; expected a finite number.",
        ),
        (
            ["train", "--data", "recurrence", "--run", "r", "--seed", "-1"],
            "got seed = -1; expected at least 0.",
        ),
        (
            ["train", "--data", "recurrence", "--run", "r", "--model.head-dim", "3"],
            "got head_dim = 3;",
        ),
        (["course", "start", "lookup", "--seed", "-1"], "got seed = -1;"),
        (["chat", "m", "--context", "0"], "got context = 0;"),
    ],
)
def test_a_refused_flag_is_one_line_without_names_of_classes(
    arguments: list[str], message: str, refuses: Refuses, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(arguments, f"glassformer: error: {message}")
    assert cli.main(arguments) == 2
    assert "Flags" not in capsys.readouterr().err


def test_choices_stand_in_the_order_of_the_help(
    helps: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    choices = ["None", "F32", "F16", "BF16", "Q8_0"]
    assert f"--kind {{{','.join(choices)}}}" in helps["convert"]
    with pytest.raises(SystemExit):
        cli.parse("convert", ["a", "b.gguf", "--kind", "F64"])
    assert re.findall("'(\\w+)'", capsys.readouterr().err)[1:] == choices
    assert cli.parse("convert", ["a", "b.gguf", "--kind", "BF16"]).kind == "BF16"
    assert cli.parse("convert", ["a", "b.gguf", "--kind", "None"]).kind is None
    assert cli.parse("convert", ["a", "b.gguf"]).kind is None


def test_a_mistyped_flag_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["generate", "m", "hi", "--tmperature", "1"])
    assert "... --" not in capsys.readouterr().err
