"""What the parts of a program and of its transformer are called, and the values that the stream is
decoded to.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.errors import InputError
from glassformer.observe.capture import capture
from glassformer.programs import compile_program, tokens
from glassformer.programs import library as lib
from glassformer.programs.domains import Domains
from glassformer.programs.graph import draw_graph, graph
from glassformer.programs.library import read_program, tokens_in
from glassformer.programs.parts import describe, stages, stream_variables, written_by
from refusals import refused
from sorting import sorting

MINE = """
import operator
from glassformer.programs import select, selector_width, tokens

program = selector_width(select(tokens, tokens, operator.eq), "histogram")
vocabulary, max_len = "ab", 3
"""


def test_a_graph_lists_every_part_after_its_sources() -> None:
    for example in lib.PROGRAMS.values():
        nodes = graph(example.program)
        assert nodes[-1].part is example.program
        assert len({node.part for node in nodes}) == len(nodes)
        for place, node in enumerate(nodes):
            assert all(source < place for source in node.sources)
            assert len(node.name) <= 32


def test_a_graph_is_drawn_with_possible_values() -> None:
    assert draw_graph(lib.histogram(), Domains(tuple("ab"), 3)).splitlines() == [
        "0  input           tokens                    a, b",
        "1  select of 0, 0  select(tokens == tokens)",
        "2  width of 1      histogram                 1 to 3",
    ]
    assert draw_graph(tokens, Domains(tuple("abcdef"), 1)).endswith("tokens  a, b, c, d, e, f")
    assert draw_graph(tokens, Domains(tuple("abcdefg"), 1)).endswith(
        "tokens  a, b, c, d, e, f, ... (7 values)"
    )


@pytest.mark.parametrize("name", ["histogram", "reverse", "sort", "induction", "parity"])
def test_the_stream_is_decoded_to_what_the_program_says(name: str) -> None:
    example = lib.PROGRAMS[name]
    model = compile_program(
        example.program, example.vocabulary, example.max_len, causal=example.causal
    )
    sequence = (example.vocabulary * 6)[: example.max_len]
    ids = torch.tensor([[example.vocabulary.index(token) for token in sequence]])
    with (
        torch.inference_mode(),
        capture(model, what=("embedding", "residual_between", "residual")) as seen,
    ):
        model(ids)
    by_kind = {(each.what, each.layer): each.values[0] for each in seen.records}
    nodes = graph(example.program)
    names = [str(node.part) for node in nodes]
    named = {
        name: node.part for name, node in zip(names, nodes, strict=True) if names.count(name) == 1
    }
    compared = 0
    for variable in stream_variables(model):
        if variable.name not in named:
            continue
        layer, inside = divmod(variable.born - 1, 2)
        kind = (
            ("embedding", 0)
            if variable.born == 0
            else (("residual_between", "residual")[inside], layer)
        )
        wanted = named[variable.name](sequence, causal=example.causal)
        places = [each.index for each in variable.coordinates]
        for numbers, value in zip(by_kind[kind][:, places].tolist(), wanted, strict=True):
            found = variable.decode(numbers)
            assert value in found if found else abs(numbers[0] - float(value)) < 1e-9
            compared += 1
    assert compared >= len(sequence)


def test_heads_write_variables_that_are_born_there() -> None:
    model = sorting()
    assert stages(model)[:3] == ["embedding", "layer 0 attention", "layer 0 network"]
    assert model.heads[1:] == (("select(unique key < unique key)",), ("select(place == indices)",))
    assert (written_by(model, 1, 0), written_by(model, 2, 0)) == (
        ["share of place"],
        ["tokens sorted"],
    )
    text = describe(model)
    assert "  1.0  select(unique key < unique key) -> share of place" in text.splitlines()
    assert all(each.name in text for each in model.coordinates)


def test_tokens_are_characters_or_words() -> None:
    assert tokens_in("ab  a", "ab") == ["a", "b", "a"]
    assert tokens_in("a b", "ab ") == ["a", " ", "b"]
    assert tokens_in("2 41", (1, 2, 3, 4)) == [2, 4, 1]
    assert tokens_in(" 10 2 ", (2, 10)) == [10, 2]
    for text, vocabulary, named in (
        ("", "ab", "no tokens"),
        ("abx", "ab", "'x'"),
        ("1", (1, "1"), "vocabulary"),
    ):
        with refused(named):
            tokens_in(text, vocabulary)


def test_programs_are_read_from_files_on_request(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    trace = tmp_path / "trace"
    path.write_text(f"{MINE}\nopen({str(trace)!r}, 'w')")
    with refused("can do anything on this computer"):
        read_program(path)
    assert not trace.exists()
    example = read_program(path, run_python=True)
    assert (example.vocabulary, example.max_len, example.causal) == (("a", "b"), 3, False)
    assert example.program("aba") == [2, 1, 2]
    assert read_program("histogram") is lib.PROGRAMS["histogram"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("program = 3\nvocabulary, max_len = 'ab', 2", "program = '3'"),
        (MINE.replace("max_len", "length"), "no max_len"),
        (MINE + "vocabulary = 3", "vocabulary"),
        (MINE + "vocabulary = 'aa'", "vocabulary"),
        (MINE + "vocabulary = [[1], [2]]", "vocabulary"),
        (MINE + "max_len = 2.5", "max_len"),
        (MINE + "causal = 1", "causal"),
        (MINE + "1 / 0", "ZeroDivisionError"),
    ],
)
def test_files_that_define_no_program_are_refused_in_one_line(
    text: str, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_program(path, run_python=True)
    assert named in caught.value.got
    assert "mine.py" in caught.value.got
    assert "\n" not in str(caught.value)


def test_unknown_programs_are_refused() -> None:
    with refused("histogran", fix="histogram"):
        read_program("histogran")
    with refused("absent.py"):
        read_program("absent.py", run_python=True)


def test_a_stored_number_has_no_listed_values() -> None:
    model = compile_program(lib.share_so_far(tokens == "a"), tuple("ab"), 3)
    stored: Any = stream_variables(model)[-1]
    assert stored.decode([0.5]) == []
