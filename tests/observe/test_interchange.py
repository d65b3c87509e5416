"""Interchange interventions on the variables of compiled programs."""

import math
import operator

import numpy as np
import pytest
import torch

from compiled_programs import compiled
from glassformer.errors import InputError
from glassformer.observe.interchange import (
    Place,
    Tokens,
    agreement,
    exchange,
    exchange_in_program,
    places,
)
from glassformer.programs import compile_program, indices, select, selector_width, tokens
from glassformer.programs.graph import graph
from glassformer.programs.library import PROGRAMS
from glassformer.programs.model import CompiledProgram


def pairs(model: CompiledProgram, count: int = 128) -> tuple[Tokens, Tokens]:
    drawn = np.random.default_rng(0).integers(
        0, len(model.domains.vocabulary), (2, count, model.domains.max_len)
    )
    return torch.from_numpy(drawn[0]), torch.from_numpy(drawn[1])


def agreements(name: str, count: int) -> dict[str, float]:
    model = compiled(name)
    tokens, source = pairs(model, count)
    wanted = {part: exchange_in_program(model, part, tokens, source) for part in places(model)}
    found = {part: agreement(model, place, wanted[part]) for part, place in places(model).items()}
    return {part: share for part, share in found.items() if not math.isnan(share)}


@pytest.mark.parametrize("name", ["sort", "detect", "parity", "induction"])
def test_a_compiled_model_changes_as_its_program_does(name: str) -> None:
    assert set(agreements(name, 128).values()) == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_only_functions_of_the_library_are_computed_at_several_places(name: str) -> None:
    disagreeing = {part for part, share in agreements(name, 1000).items() if share < 1}
    functions = {
        str(node.part) for node in graph(PROGRAMS[name].program) if node.part.kind == "function"
    }
    assert disagreeing <= functions


def test_an_exchange_is_that_of_the_definition() -> None:
    # "abca" with the widths of "bbbc": 3 3 3 1, minus its indices.
    same = selector_width(select(tokens, tokens, operator.eq), "same")
    model = compile_program((same - indices).named("difference"), "abc", 4)
    base = torch.tensor([[0, 1, 2, 0]])
    source = torch.tensor([[1, 1, 1, 2]])
    (place,) = places(model).values()
    assert model.decode(exchange(model, place, base, source)[0].tolist()) == [3, 2, 1, -2]
    wanted = exchange_in_program(model, "same", base, source)
    assert model.decode(wanted.wanted[0].tolist()) == [3, 2, 1, -2]
    assert agreement(model, place, wanted) == 1
    same = exchange_in_program(model, "same", base, base)
    assert len(same.tokens) == 0
    assert math.isnan(agreement(model, place, same))


def test_the_wrong_place_and_broken_weights_do_not_agree() -> None:
    model = compiled("induction")
    other = compiled("induction")
    wanted = exchange_in_program(model, "tokens 1 before", *pairs(model))
    place = places(model)["tokens 1 before"]
    wrong = Place(place.time, place.coordinates[:1])
    assert agreement(model, wrong, wanted) < 0.1
    with torch.no_grad():
        other.layers[-1].attention.value.weight.neg_()
    assert agreement(other, place, wanted) < 0.1


def test_bad_input_is_refused() -> None:
    model = compiled("parity")
    tokens, source = pairs(model)
    for call in (
        lambda: exchange_in_program(model, "no such variable", tokens, source),
        lambda: exchange(model, Place(1, (0,)), tokens, source[:, 1:]),
        lambda: exchange(model, Place(0, (0,)), tokens, source),
        lambda: exchange(model, Place(1, (99,)), tokens, source),
    ):
        with pytest.raises(InputError):
            call()
    model.program = None
    with pytest.raises(InputError):
        exchange_in_program(model, "count of 1", tokens, source)
