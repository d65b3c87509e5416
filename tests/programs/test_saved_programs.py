"""Compiled programs in files: every bit and name comes back, and a hostile file costs one line and
no memory.
"""

import enum
import json
import operator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from compiled_programs import compiled
from glassformer.errors import InputError
from glassformer.kernels.pattern import Pattern
from glassformer.programs import (
    CompiledProgram,
    Variable,
    aggregate,
    compile_program,
    elementwise,
    indices,
    saved,
    select,
    tokens,
    verify_program,
)
from glassformer.programs import library as lib
from glassformer.programs.saved import FORMAT, is_program_file, load_program, save_program
from refusals import refused


def check_same(found: CompiledProgram, wanted: CompiledProgram) -> None:
    ours = found.state_dict()
    theirs = wanted.state_dict()
    assert list(ours) == list(theirs)
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype
        assert torch.equal(ours[name], theirs[name]), name
    assert (found.coordinates, found.heads, found.name) == (
        wanted.coordinates,
        wanted.heads,
        wanted.name,
    )
    for one, other in (
        (found.codes, wanted.codes),
        (found.domains.vocabulary, wanted.domains.vocabulary),
    ):
        assert one == other
        assert repr(one) == repr(other)  # 1, 1.0 and True are equal
    assert (found.domains.max_len, found.domains.causal) == (
        wanted.domains.max_len,
        wanted.domains.causal,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["histogram", "reverse", "sort", "detect", "induction"])
def test_every_bit_and_name_comes_back(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = compiled(name).to(dtype)
    path = tmp_path / "model.json"
    save_program(model, path)
    assert is_program_file(path)
    found = load_program(path)
    check_same(found, model)
    assert found.program is None
    sequence = (lib.PROGRAMS[name].vocabulary * 6)[: model.domains.max_len]
    assert found.run(sequence) == model.run(sequence)
    save_program(found, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


VALUES: list[tuple[Variable, tuple[Any, ...]]] = [
    (elementwise(lambda token: (token, None, 0.25), tokens), ("a", "\x1b\n\u2603")),
    (elementwise(lambda token: Fraction(token, 3), tokens), (1, 2, 3)),
    (aggregate(select(indices, indices, operator.lt), tokens), (True, False)),
    (aggregate(select(tokens, tokens, operator.le), tokens), (0.5, 1.5)),
    (tokens, (("a", 1), ("a", 2), ((1, 2), "b"))),
    (elementwise(lambda token: (token,), tokens), (True, 1, 1.0, "1")),
]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_every_kind_of_value_comes_back(number: int, tmp_path: Path) -> None:
    program, vocabulary = VALUES[number]
    model = compile_program(program, vocabulary, 3)
    save_program(model, tmp_path / "model.json")
    found = load_program(tmp_path / "model.json")
    check_same(found, model)
    assert (
        repr(found.run(vocabulary[:3]))
        == repr(model.run(vocabulary[:3]))
        == repr(program(vocabulary[:3]))
    )


def test_a_loaded_model_is_verified_with_its_program(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    save_program(compiled("parity"), path)
    model = load_program(path)
    with refused("without its program"):
        verify_program(model)
    model.program = lib.PROGRAMS["parity"].program
    certificate = verify_program(model)
    assert (certificate.verdict, certificate.bound < 1e-9) == ("holds", True)
    # Without claims of its own, it is given those of a compiler.
    assert (model.claims, verify_program(model, limit=1).rests_on) == (None, "the bound")
    model.program = lib.count(tokens, "1")
    assert verify_program(model).verdict == "fails"


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    model = compiled("histogram")
    with refused("model.npz"):
        save_program(model, tmp_path / "model.npz")
    with refused("2", expected="2\\^53"):
        save_program(compile_program(tokens, (2**60, 1), 2), tmp_path / "model.json")
    with torch.no_grad():
        model.output.bias.fill_(float("nan"))
    with refused("not finite"):
        save_program(model, tmp_path / "model.json")
    assert list(tmp_path.iterdir()) == []


class Sign(enum.IntEnum):
    PLUS = 1


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize("value", [Pair(1, 2), (np.sqrt(2), 1), np.str_("a"), Sign.PLUS])
def test_values_that_a_file_would_change_are_not_saved(value: Any, tmp_path: Path) -> None:
    model = compile_program(
        elementwise(lambda token: value if token == "b" else "c", tokens), "ab", 2
    )
    with refused("of type (Pair|float64|str_|Sign)"):
        save_program(model, tmp_path / "model.json")


def test_settings_that_a_file_does_not_hold_are_not_saved(tmp_path: Path) -> None:
    model = compiled("histogram")
    path = tmp_path / "model.json"
    for name, value in (("pattern", Pattern(causal=True)), ("scale", 3.0)):
        kept = getattr(model.layers[0].attention, name)
        setattr(model.layers[0].attention, name, value)
        with refused("settings of attention"):
            save_program(model, path)
        setattr(model.layers[0].attention, name, kept)
    with refused("float16"):
        save_program(model.half(), path)
    assert not path.exists()


def test_a_file_is_as_large_as_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.json"
    save_program(compiled("histogram"), path)
    entries = path.read_text().count(",") + 1
    monkeypatch.setattr(saved, "MAX_NUMBERS", entries)
    save_program(compiled("histogram"), path)
    monkeypatch.setattr(saved, "MAX_NUMBERS", entries - 1)
    with refused(f"{entries:,} entries"):
        save_program(compiled("histogram"), path)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("saved") / "model.json"
    save_program(compiled("histogram"), path)
    made: dict[str, Any] = json.loads(path.read_text())
    return made


def edit(*path: str | int, to: Any) -> Any:
    """A change of one entry; ``...`` removes it."""

    def change(content: Any) -> None:
        *way, last = path
        for each in way:
            content = content[each]
        if to is ...:
            del content[last]
        else:
            content[last] = to

    return change


QUERY = "layers.0.attention.query.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (edit("format", to="glassformer program 9"), "program 9"),
        (edit("format", to=...), "None"),
        (edit("code", to="print(1)"), "code"),
        (edit("weights", to=...), "weights"),
        (edit("weights", QUERY, to=...), QUERY),
        (edit("weights", "layers.0.attention.key.bias", to=...), "key.bias"),
        (edit("weights", "layers.1.attention.key.bias", to=[1.0]), "layers.1"),
        (edit("weights", "__class__", to=[1.0]), "__class__"),
        (edit("weights", QUERY, to=[[1.0], [1.0]]), "attention.key.bias"),
        (edit("weights", QUERY, to=[[1.0, 2.0], [1.0]]), "rows of"),
        (edit("weights", QUERY, to=[]), "rows of"),
        (edit("weights", QUERY, to="x"), "weights"),
        (edit("weights", "positions.weight", to=[[0.0]] * 5), "positions.weight"),
        (edit("weights", "output.bias", to=[1.0, 2.0]), "output.bias"),
        (edit("weights", "embedding.weight", 0, 0, to="1"), "weights"),
        (edit("vocabulary", to=["a", "a", "b", "c"]), "vocabulary"),
        (edit("vocabulary", to=["a", "b", "c"]), "embedding.weight"),
        (edit("vocabulary", 0, to={"eval": "1"}), "eval"),
        (edit("vocabulary", 0, to={"fraction": [1, 0]}), "fraction"),
        (edit("vocabulary", 0, to={"fraction": [10**400, 1]}), "1000"),
        (edit("vocabulary", 0, to=0.5), "0.5"),
        (edit("vocabulary", 0, to="\ud800"), "half a character"),
        (edit("max_len", to=10**9), "max_len"),
        (edit("max_len", to=0), "max_len"),
        (edit("max_len", to=2.5), "max_len"),
        (edit("causal", to=1), "causal"),
        (edit("dtype", to="float8"), "dtype"),
        (edit("num_heads", to=[0]), "num_heads"),
        (edit("num_heads", to=[7]), "num_heads"),
        (edit("num_heads", to=[1] * 100_000), "layers.1.attention"),
        (edit("heads", to=[["a"], ["b"]]), "heads"),
        (edit("heads", to=[["a", "b", "c"]]), "heads"),
        (edit("codes", 0, 0, to=9.0), "codes"),
        (edit("codes", to=[]), "codes"),
        (edit("codes", 0, to=[1.0]), "codes"),
        (edit("coordinates", 0, 0, to=99), "coordinate 99"),
        (edit("coordinates", 0, 0, to=-1), "coordinates.0.0 = -1"),
        (edit("coordinates", 0, 4, to=9), "time"),
        (edit("coordinates", 0, 1, to="x" * 5000), "coordinates.0.1"),
        (edit("coordinates", 0, to=[0, "a", 0, 0, 1, None, 1]), "coordinates"),
        (edit("coordinates", 0, to=3), "coordinates"),
        (edit("name", to="x" * 5000), "name"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_one_line(
    change: Any, named: str, content: dict[str, Any], tmp_path: Path
) -> None:
    damaged = json.loads(json.dumps(content))
    path = tmp_path / "model.json"
    change(damaged)
    path.write_text(json.dumps(damaged))
    with pytest.raises(InputError) as caught:
        load_program(path)
    assert named in f"{caught.value.got} {caught.value.expected}"
    assert "model.json" in caught.value.got
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_hostile_file_takes_no_memory(content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    wide = json.loads(json.dumps(content))
    wide["weights"]["embedding.weight"] = [[0.0] * 100_000] * 4  # with the positions 3 GB
    wide["max_len"], wide["weights"]["positions.weight"] = 4096, [[0.0]] * 4096
    path.write_text(json.dumps(wide))
    with refused("attention.key.weight"):
        load_program(path)
    for text in (
        "",
        "[]",
        "{",
        '{"format": "' + FORMAT + '", "vocabulary": ' + "[" * 100_000,
        "[" + "1," * 2_000_000 + "1]",
    ):
        path.write_text(text)
        with pytest.raises(InputError):
            load_program(path)
