"""The console script: finding commands, and what people see when something is wrong."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from glassformer import __version__
from glassformer.cli import main as cli
from glassformer.errors import InputError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[str], str], int]], None]:
    """Put a command named ``probe`` in the registry whose main is the given function."""

    def register(function: Callable[[list[str], str], int]) -> None:
        module = ModuleType("probe_command")
        module.Flags = SimpleNamespace(parse=lambda args, prog: (args, prog))
        module.main = lambda flags: function(*flags)
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("for this test", "probe_command.Flags", "probe_command"))

    return register


def test_help_names_every_command_and_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert any(line.split(maxsplit=1) == [name, entry.summary] for line in shown.splitlines())
    assert all(option in shown for option in cli.OPTIONS)


def test_no_arguments_shows_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == cli.help_text()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"glassformer {__version__}\n"


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
def test_a_misspelt_word_gets_the_right_one(wrong: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    seen: list[object] = []

    def probe(arguments: list[str], prog: str) -> int:
        seen.extend([arguments, prog])
        return 7

    command(probe)
    assert cli.main(["probe", "--flag", "--debug", "-h"]) == 7
    assert seen == [["--flag", "--debug", "-h"], "glassformer probe"]


def refuse(arguments: list[str], prog: str) -> int:
    """A command whose input is always wrong."""
    raise InputError("top_p = 2.0", "a number in [0, 1]", "Pass top_p between 0 and 1.")


def interrupt(arguments: list[str], prog: str) -> int:
    """A command that is always interrupted."""
    raise KeyboardInterrupt


def test_bad_input_is_one_line_and_status_2(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)
    command(refuse)
    assert cli.main(["probe"]) == 2
    shown = capsys.readouterr()
    expected = "got top_p = 2.0; expected a number in [0, 1]. Pass top_p between 0 and 1."
    assert (shown.out, shown.err) == ("", f"glassformer: error: {expected}\n")


@pytest.mark.parametrize("kind", [lambda text: InputError(text, "a name", "Mend it."), OSError])
def test_what_steers_a_terminal_is_written_as_numbers(
    kind: Callable[[str], Exception],
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(arguments: list[str], prog: str) -> int:
        raise kind("unknown \x1b]0;owned\x07\x1b[2J\nin é.safetensors")

    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)
    command(fail)
    assert cli.main(["probe"]) in (cli.EXIT_INPUT, cli.EXIT_FAILED)
    shown = capsys.readouterr().err
    assert r"unknown \x1b]0;owned\x07\x1b[2J in é.safetensors" in shown
    assert shown.endswith("\n")
    assert shown[:-1].isprintable()


def test_an_interruption_is_one_line_and_status_130(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)
    command(interrupt)
    assert cli.main(["probe"]) == 130
    assert capsys.readouterr().err == "glassformer: interrupted\n"


def fill_the_disk(arguments: list[str], prog: str) -> int:
    """A command that finds no space."""
    raise OSError(28, "No space left on device", "runs/x")


def test_a_failure_of_the_system_is_one_line_and_status_1(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)
    command(fill_the_disk)
    assert cli.main(["probe"]) == 1
    assert capsys.readouterr().err == "glassformer: error: [Errno 28] No space left on device: 'runs/x'\n"


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
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"word\n"
    process.stdout.close()
    complaints = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), complaints) == (1, b"")


@pytest.mark.parametrize(
    ("function", "kind"), [(refuse, InputError), (interrupt, KeyboardInterrupt), (fill_the_disk, OSError)]
)
def test_debug_lets_the_error_through(
    function: Callable[..., int],
    kind: type[BaseException],
    command: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command(function)
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)
    with pytest.raises(kind):
        cli.main(["--debug", "probe"])
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "1")
    with pytest.raises(kind):
        cli.main(["probe"])
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "0")
    assert cli.main(["probe"]) in (1, 2, 130)


def test_help_answers_without_loading_torch() -> None:
    script = (
        "import sys; from glassformer.cli.main import main; status = main(['--help']);"
        "heavy = {'torch', 'numpy', 'tyro', 'matplotlib'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: glassformer")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_a_command_loads_no_heavy_library(name: str) -> None:
    script = f"""if True:
        import sys
        from glassformer.cli.main import main
        try:
            status = main([{name!r}, "--help"])
        finally:
            libraries = {{"torch", "numpy", "matplotlib", "accelerate", "jaxtyping", "pydantic", "glassformer.labs"}}
            heavy = libraries & set(sys.modules)
            if heavy:
                sys.exit(f"loaded {{heavy}}")
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: glassformer {name}" in done.stdout


def test_every_command_has_a_module_that_can_run_it() -> None:
    for entry in cli.COMMANDS.values():
        module, _, flags = entry.flags.rpartition(".")
        assert dataclasses.is_dataclass(getattr(importlib.import_module(module), flags))
        assert callable(importlib.import_module(entry.module).main)
