"""A compiled program in a saved page, for ``web/src/engine/program.ts``, with tables of what its
definition gives.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import InputError
from glassformer.explorer.answers.forward import visible
from glassformer.explorer.answers.programs import heads_of, name_of, words_of
from glassformer.explorer.loading.loaded_model import LoadedProgram
from glassformer.handcraft.bounds import require_as_built
from glassformer.programs.certificate import network_of
from glassformer.programs.domains import Domains
from glassformer.programs.graph import graph, values_in_words
from glassformer.programs.language import (
    Aggregate,
    Combined,
    Elementwise,
    Select,
    Selector,
    Value,
    Variable,
    Width,
    indices,
    is_number,
    tokens,
    typed,
)
from glassformer.programs.model import CompiledProgram, Coordinate
from glassformer.programs.parts import stages, stream_variables

_MOST_ENTRIES = 1 << 18
"""Of the table of one part."""
_LARGEST = 2**20
"""Of numbers whose means are computed."""


class _Unlisted(Exception):
    """The definition has a part without a table."""


def saved_program(loaded: LoadedProgram) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The program as data, and its weights and tables.

    None for one in another dtype than float64, with another output than codes or numbers, whose
    tokens are written alike, that is not as it was compiled, or whose definition has variables of
    too many values.
    """
    model = loaded.model
    vocabulary = [str(token) for token in model.domains.vocabulary]
    try:
        require_as_built(model, CompiledProgram)
        network_of(model)
        model.require_codes()
        definition, tables = (None, {}) if model.program is None else _definition(model)
    except (InputError, _Unlisted):
        return None
    state = model.state_dict()
    if any(each.dtype != torch.float64 for each in state.values()) or len(set(vocabulary)) < len(
        vocabulary
    ):
        return None
    if model.codes is None:
        codes = None
    else:
        codes = sorted(model.codes, key=lambda code: code[0])
    data = {
        "vocabulary": [visible(token) for token in vocabulary],
        "max_len": model.domains.max_len,
        "causal": model.domains.causal,
        "num_heads": [block.attention.num_heads for block in model.blocks],
        "num_parameters": model.num_parameters,
        "stages": stages(model),
        "heads": heads_of(model),
        "variables": [
            {
                "name": name_of(each.name),
                "born": each.born,
                "read": each.read,
                "coordinates": [one.index for one in each.coordinates],
                **_values(each.coordinates),
            }
            for each in stream_variables(model)
        ],
        "codes": codes
        and {
            "numbers": [code for code, _ in codes],
            "words": words_of([value for _, value in codes]),
        },
        "definition": definition,
    }
    return {"kind": "program", "program": data}, {
        name: each.detach() for name, each in state.items()
    } | tables


def _values(coordinates: Sequence[Coordinate]) -> dict[str, Any]:
    """The values of a variable in words, and of each of its coordinates the number that stands for
    each.
    """
    listed = [each.values for each in coordinates if each.values is not None]
    if len(listed) < len(coordinates):
        return {"words": [], "tables": None}
    words = words_of([value for value, _ in listed[0]])
    return {"words": words, "tables": [[number for _, number in values] for values in listed]}


def _definition(model: CompiledProgram) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The parts of the program as data, and for each the table of what it is for what it reads."""
    assert model.program is not None
    domains = model.domains
    nodes = graph(model.program)
    places = {node.part: place for place, node in enumerate(nodes)}
    parts = []
    tables = {}
    for place, node in enumerate(nodes):
        computes, reads, table, more = _computes(node.part, domains)
        variable = isinstance(node.part, Variable)
        if isinstance(node.part, Variable):
            listed = _listed(domains, node.part)
        else:
            listed = ()
        parts.append(
            {
                "name": name_of(node.part),
                "kind": node.part.kind,
                "sources": list(node.sources),
                "domain": values_in_words(listed) if variable else "",
                "words": words_of(listed),
                "computes": computes,
                "reads": [places[each] for each in reads],
                **more,
            }
        )
        tables[f"table.{place}"] = torch.tensor(table, dtype=torch.float32)
    last = _listed(domains, model.program)
    of_codes = None
    if model.codes is not None:
        found = {typed(value): place for place, value in enumerate(last)}
        of_codes = [
            found.get(typed(value), -1)
            for _, value in sorted(model.codes, key=lambda code: code[0])
        ]
    if of_codes is not None:
        numbers = None
    else:
        numbers = [float(value) if is_number(value) else None for value in last]
    return {"parts": parts, "codes": of_codes, "numbers": numbers}, tables


def _computes(
    part: Variable | Selector, domains: Domains
) -> tuple[str, Sequence[Variable | Selector], list[int], dict[str, Any]]:
    """What a part computes, the parts that it reads, its table, and what else the page needs."""
    if part is tokens:
        return "tokens", (), _places(domains, tokens, domains.vocabulary), {}
    if part is indices:
        return "indices", (), _places(domains, indices, range(domains.max_len)), {}
    if isinstance(part, Elementwise):
        reads = min(
            domains.roots(part),
            tuple(dict.fromkeys(part.sources)),
            key=lambda some: _combinations(domains, some),
        )
        _require_few(_combinations(domains, reads))
        given = itertools.product(*(_listed(domains, each) for each in reads))
        results = [domains.value(part, dict(zip(reads, each, strict=True))) for each in given]
        return "function", reads, _places(domains, part, results), {}
    if isinstance(part, Select):
        _require_few(len(_listed(domains, part.queries)) * len(_listed(domains, part.keys)))
        return (
            "select",
            (part.keys, part.queries),
            domains.table(part).astype(int).ravel().tolist(),
            {},
        )
    if isinstance(part, Combined):
        bits = itertools.product((False, True), repeat=len(part.parts))
        return "combined", part.parts, [int(bool(part.function(*each))) for each in bits], {}
    if isinstance(part, Width):
        return "width", (part.selector,), _places(domains, part, range(domains.max_len + 1)), {}
    assert isinstance(part, Aggregate)
    values = _listed(domains, part.values)
    means = None
    if domains.averaged(part):
        exact = [each if type(each) in (int, Fraction) else None for each in _listed(domains, part)]
        of = [each if is_number(each) else None for each in values]
        means = {"of": _multiples(of), "found": _multiples(exact)}
    [default], table = _places(domains, part, [part.default]), _places(domains, part, values)
    return "aggregate", (part.selector, part.values), table, {"default": default, "means": means}


def _listed(domains: Domains, part: Variable) -> tuple[Value, ...]:
    found = domains.of(part)
    if found is None:
        raise _Unlisted
    return found


def _combinations(domains: Domains, parts: Sequence[Variable]) -> int:
    return math.prod(len(_listed(domains, each)) for each in parts)


def _require_few(entries: int) -> None:
    if entries > _MOST_ENTRIES:
        raise _Unlisted


def _places(domains: Domains, part: Variable, values: Iterable[Value]) -> list[int]:
    """The places of values among those that a variable may have; -1 for one that it never has."""
    found = [domains.place(part, value) for value in values]
    return [-1 if place is None else place for place in found]


def _multiples(values: Sequence[Any]) -> dict[str, Any]:
    """Numbers as whole multiples of 1 / scale, whose sums float64 adds exactly."""
    exact = [None if value is None else Fraction(value) for value in values]
    scale = math.lcm(*(each.denominator for each in exact if each is not None))
    numbers = [None if each is None else int(each * scale) for each in exact]
    if any(number is not None and abs(number) > _LARGEST for number in [scale, *numbers]):
        raise _Unlisted
    return {"scale": scale, "numbers": numbers}
