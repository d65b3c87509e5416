"""Export a compiled program into a saved page, where ``web/src/engine/program.ts`` runs it.

The export holds the model's weights and, for each part of the program's definition, the table from
which the page computes that part.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import InputError
from glassformer.explorer.answers.programs import heads_of
from glassformer.explorer.answers.words import json_text, part_name, words_of
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
"""Largest number of entries in the table of one part."""
_LARGEST = 2**20
"""Largest number whose means the page computes."""


class _TooLarge(Exception):
    """A table or a number of the definition is too large for the page."""


@dataclass(frozen=True)
class _Rule:
    """How the page computes a part of the definition.

    Attributes:
        name: The kind of computation.
        reads: The parts whose values select an entry.
        entries: The table in row-major order: values for a variable, 0 or 1 for a selector.
        means: The means that an aggregate can compute; None if it never averages.
    """

    name: str
    reads: Sequence[Variable | Selector]
    entries: Sequence[Value]
    means: dict[str, Any] | None = None


def saved_program(loaded: LoadedProgram) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Return the program as data, with its weights and tables.

    Return None for a program that the page cannot run:

    - its dtype is not float64, or its output is neither codes nor numbers;
    - two of its tokens are written alike;
    - it was changed after it was compiled;
    - a variable of its definition has too many values.
    """
    model = loaded.model
    definition: dict[str, Any] | None = None
    tables: dict[str, Tensor] = {}
    try:
        require_as_built(model, CompiledProgram)
        network_of(model)
        model.require_codes()
        if model.program is not None:
            definition, tables = _definition(model, model.program)
    except (InputError, _TooLarge):
        return None
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if any(tensor.dtype != torch.float64 for tensor in weights.values()):
        return None
    vocabulary = [str(token) for token in model.domains.vocabulary]
    if len(set(vocabulary)) < len(vocabulary):
        return None
    heads = heads_of(model)
    data: dict[str, Any] = {
        "vocabulary": [json_text(token) for token in vocabulary],
        "max_len": model.domains.max_len,
        "causal": model.domains.causal,
        "num_heads": [block.attention.num_heads for block in model.blocks],
        "num_parameters": model.num_parameters,
        "stages": stages(model),
        "heads": heads,
        "variables": [
            {
                "name": part_name(variable.name),
                "born": variable.born,
                "read": variable.read,
                "coordinates": [coordinate.index for coordinate in variable.coordinates],
                **_values(variable.coordinates),
            }
            for variable in stream_variables(model)
        ],
        "codes": None,
        "definition": definition,
    }
    if model.codes:
        codes = _sorted_codes(model.codes)
        data["codes"] = {
            "numbers": [code for code, _ in codes],
            "words": words_of([value for _, value in codes]),
        }
    return {"kind": "program", "program": data}, weights | tables


def _sorted_codes(codes: Sequence[tuple[float, Value]]) -> list[tuple[float, Value]]:
    return sorted(codes, key=lambda code: code[0])


def _values(coordinates: Sequence[Coordinate]) -> dict[str, Any]:
    """Return a variable's values in words, and for each coordinate the numbers that encode them.

    There are none if the variable is stored as a number.
    """
    encodings = [coordinate.values for coordinate in coordinates if coordinate.values is not None]
    if len(encodings) < len(coordinates):
        return {"words": [], "tables": None}
    words = words_of([value for value, _ in encodings[0]])
    return {"words": words, "tables": [[number for _, number in pairs] for pairs in encodings]}


def _definition(
    model: CompiledProgram, program: Variable
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the parts of the program as data, and the table of each part."""
    nodes = graph(program)
    places = {node.part: place for place, node in enumerate(nodes)}
    values_of = {
        node.part: model.domains.listed(node.part)
        for node in nodes
        if isinstance(node.part, Variable)
    }
    rules = [_rule(node.part, model.domains, values_of) for node in nodes]
    parts = []
    tables = {}
    for place, (node, rule) in enumerate(zip(nodes, rules, strict=True)):
        table = rule.entries
        domain = ""
        words: list[str] = []
        if isinstance(node.part, Variable):
            values = values_of[node.part]
            domain = values_in_words(values)
            words = words_of(values)
            index_of = {typed(value): index for index, value in enumerate(values)}
            # A value that the variable never has is -1.
            table = [index_of.get(typed(entry), -1) for entry in rule.entries]
        data: dict[str, Any] = {
            "name": part_name(node.part),
            "kind": node.part.kind,
            "sources": list(node.sources),
            "domain": domain,
            "words": words,
            "computes": rule.name,
            "reads": [places[part] for part in rule.reads],
        }
        if isinstance(node.part, Aggregate):
            data["default"] = index_of.get(typed(node.part.default), -1)
            data["means"] = rule.means
        tables[f"table.{place}"] = torch.tensor(table, dtype=torch.float32)
        parts.append(data)
    outputs = values_of[program]
    if model.codes is None:
        numbers = [float(value) if is_number(value) else None for value in outputs]
        return {"parts": parts, "codes": None, "numbers": numbers}, tables
    index_of = {typed(value): index for index, value in enumerate(outputs)}
    codes = [index_of.get(typed(value), -1) for _, value in _sorted_codes(model.codes)]
    return {"parts": parts, "codes": codes, "numbers": None}, tables


def _rule(
    part: Variable | Selector,
    domains: Domains,
    values_of: Mapping[Variable, tuple[Value, ...]],
) -> _Rule:
    """Return how the page computes a part; ``values_of`` holds the values of every variable."""
    if part is tokens:
        return _Rule("tokens", (), domains.vocabulary)
    if part is indices:
        return _Rule("indices", (), range(domains.max_len))
    if isinstance(part, Elementwise):
        reads = min(
            domains.roots(part),
            tuple(dict.fromkeys(part.sources)),
            key=lambda sources: math.prod(len(values_of[source]) for source in sources),
        )
        domain_sets = [values_of[source] for source in reads]
        if math.prod(map(len, domain_sets)) > _MOST_ENTRIES:
            raise _TooLarge
        combinations = itertools.product(*domain_sets)
        results = [
            domains.value(part, dict(zip(reads, values, strict=True))) for values in combinations
        ]
        return _Rule("function", reads, results)
    if isinstance(part, Select):
        if len(values_of[part.queries]) * len(values_of[part.keys]) > _MOST_ENTRIES:
            raise _TooLarge
        selected = domains.table(part).astype(int)
        return _Rule("select", (part.keys, part.queries), selected.ravel().tolist())
    if isinstance(part, Combined):
        bits = itertools.product((False, True), repeat=len(part.parts))
        return _Rule("combined", part.parts, [int(bool(part.function(*row))) for row in bits])
    if isinstance(part, Width):
        return _Rule("width", (part.selector,), range(domains.max_len + 1))
    assert isinstance(part, Aggregate)
    values = values_of[part.values]
    means = None
    if domains.averaged(part):
        summands = [value if is_number(value) else None for value in values]
        results = [value if type(value) in (int, Fraction) else None for value in values_of[part]]
        means = {"of": _multiples(summands), "found": _multiples(results)}
    return _Rule("aggregate", (part.selector, part.values), values, means)


def _multiples(values: Sequence[Any]) -> dict[str, Any]:
    """Return numbers as integer multiples of 1 / scale, which float64 adds exactly."""
    fractions = [None if value is None else Fraction(value) for value in values]
    scale = math.lcm(*(number.denominator for number in fractions if number is not None))
    multiples = [None if number is None else int(number * scale) for number in fractions]
    if any(number is not None and abs(number) > _LARGEST for number in [scale, *multiples]):
        raise _TooLarge
    return {"scale": scale, "numbers": multiples}
