"""From a program to a transformer: what its plan says, written into weights."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from glassformer.errors import InputError
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP
from glassformer.programs.checker import HeadClaim, LayerClaim, LookupClaim
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import blocks
from glassformer.programs.language import Value, Variable, indices, refuse_endless, tokens
from glassformer.programs.model import CompiledProgram, Coordinate, make_block
from glassformer.programs.plan import SHARPNESS, Head, Lookup, Plan, Stored, Sum

_RUN = 1_000
"""Sequences that are run in a dtype narrower than float32."""


def compile_program(
    program: Variable,
    vocabulary: Sequence[Value],
    max_len: int,
    *,
    causal: bool = False,
    dtype: torch.dtype = torch.float64,
) -> CompiledProgram:
    """The transformer that computes ``program`` for sequences of 1 to ``max_len`` tokens of
    ``vocabulary``.

    Args:
        program: See :mod:`glassformer.programs.language`.
        causal: Let selectors choose only keys up to the query's own position.
        dtype: Of the weights. In one that is narrower than float32 the 1,000 shortest sequences are
            run, and a program that gives another value is refused.

    Example:
        >>> import operator
        >>> from glassformer.programs import select, selector_width, tokens, verify_program
        >>> histogram = selector_width(select(tokens, tokens, operator.eq))
        >>> verify_program(compile_program(histogram, "abc", max_len=4)).verdict
        'holds'
    """
    if not isinstance(program, Variable):
        raise InputError(
            got=f"program = {program!r}",
            expected="a variable",
            fix="Build it from tokens and indices.",
        )
    ok = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if not ok:
        raise InputError(
            got=f"dtype = {dtype}",
            expected="a floating-point dtype",
            fix="Use torch.float32.",
        )
    domains = Domains(vocabulary, max_len, causal)
    plan = Plan(domains)
    with refuse_endless(program):
        result = plan.read(program)
    num_layers = (max([each.born for each in plan.stored.values()], default=0) + 1) // 2
    result.read_at(2 * num_layers + 1)
    layers = [
        _Layer(
            end,
            [head for head in plan.heads.values() if head.time == end - 1],
            [lookup for lookup in plan.lookups.values() if lookup.time == end],
        )
        for end in range(2, 2 * num_layers + 2, 2)
    ]
    place = _place(list(plan.stored.values()), {stored for stored, _ in result.terms})
    with torch.random.fork_rng(devices=[]):  # modules are made with random weights
        model = CompiledProgram(
            program, domains, place.width, [_block(each, place, causal) for each in layers]
        )
    for stored, coordinates in place.of.items():
        stored.coordinates = coordinates
    with torch.no_grad():
        _write_ends(model.double(), plan, result)
        for block, layer in zip(model.blocks, layers, strict=True):
            _write_attention(block, layer.heads, place.width)
            _write_functions(block, layer.lookups, place.erased.get(layer.end, []), place.width)
    model.coordinates = tuple(sorted(_describe(plan), key=lambda each: (each.index, each.born)))
    model.heads = tuple(tuple(str(head.selector) for head in layer.heads) for layer in layers)
    model.claims = tuple(map(_claim, layers))
    values = domains.of(program)
    if values is not None:
        code = plan.code(program)
        model.codes = sorted(((code(value), value) for value in values), key=lambda each: each[0])
    _require_apart(model, plan, dtype)
    model = model.to(dtype).eval()
    if torch.finfo(dtype).eps > torch.finfo(torch.float32).eps:
        _require_right(model, program, dtype)
    return model


@torch.inference_mode()
def _require_right(model: CompiledProgram, program: Variable, dtype: torch.dtype) -> None:
    """Refuse a dtype in which one of the shortest sequences is read as another value."""
    if model.codes is None:  # the output is the number itself, which has an error in any dtype
        return
    for block in blocks(len(model.domains.vocabulary), model.domains.max_len, _RUN):
        batch = model.batch(block)
        outputs = model(torch.from_numpy(block)).double().numpy()
        places, values = batch.column(program)
        wrong = model.misread(outputs, places, values) & batch.defined[:, None]
        for row, at in np.argwhere(wrong)[:1].tolist():
            sequence = [model.domains.vocabulary[token] for token in block[row].tolist()]
            read = model.codes[int(model.nearest(outputs)[row, at])][1]
            raise InputError(
                got=(
                    f"{dtype}, in which {sequence} gives {read!r} for "
                    f"{values[places[row, at]]!r} at position {at}"
                ),
                expected="a dtype that tells the program's numbers apart",
                fix="Use torch.float32.",
            )


def _require_apart(model: CompiledProgram, plan: Plan, dtype: torch.dtype) -> None:
    """Refuse a program in float64 whose numbers are the same in ``dtype``, or next to one another,
    by two values.
    """
    name = str(dtype).removeprefix("torch.")
    step = torch.finfo(dtype).eps
    fix = "Subtract what they have in common, scale them, or choose a wider dtype."

    def check(what: str, near: Sequence[tuple[float, Value]]) -> None:
        size = max((abs(number) for number, _ in near), default=0.0)
        pairs = sorted(
            itertools.pairwise(near), key=lambda pair: -max(abs(pair[0][0]), abs(pair[1][0]))
        )
        for (low, one), (high, other) in pairs:
            apart = high - low > step * size
            if not apart:
                raise InputError(
                    got=f"{what} {one!r} and {other!r} as the numbers {low:.17g} and {high:.17g}",
                    expected=f"numbers that {name} tells apart",
                    fix=fix,
                )

    check(f"{model.name}, which can be", model.codes or [])
    for each in plan.lookups.values():
        values = each.stored.domain or ()
        for (low, before), (high, after) in itertools.pairwise(each.points):
            if before != after:
                check(
                    f"{each.stored.name}, which is", [(low, values[before]), (high, values[after])]
                )
    for token, rows in ((True, model.embedding.weight), (False, model.positions.weight)):
        seen: dict[bytes, int] = {}
        kept = rows.detach().to(dtype).double()
        if not bool(kept.isfinite().all()):
            raise InputError(
                got=f"numbers up to {float(rows.detach().abs().max()):.3g}",
                expected=name,
                fix=fix,
            )
        for place, row in enumerate(kept.numpy()):
            first = seen.setdefault(row.tobytes(), place)
            pair = [model.domains.vocabulary[each] if token else each for each in (first, place)]
            got = f"{'tokens' if token else 'indices'} {pair[0]!r} and {pair[1]!r}"
            if not bool((rows[first] == rows[place]).all()):
                raise InputError(
                    got=got,
                    expected=f"numbers that {name} tells apart",
                    fix=fix,
                )


class _Layer(NamedTuple):
    """What one layer of a plan computes, until the time ``end``."""

    end: int
    heads: list[Head]
    lookups: list[Lookup]


class _Places(NamedTuple):
    """The coordinates of every variable, how many there are, and which are erased when."""

    width: int
    of: dict[Stored, list[int]]
    erased: dict[int, list[int]]


def _write_ends(model: CompiledProgram, plan: Plan, result: Sum) -> None:
    for part, table in ((tokens, model.embedding), (indices, model.positions)):
        stored = plan.stored.get(part)
        if stored is not None:
            rows = model.domains.places(
                part, model.domains.vocabulary if part is tokens else range(len(table.weight))
            )
            for column, feature in zip(stored.coordinates, stored.features, strict=True):
                table.weight[:, column] = torch.from_numpy(feature[rows])
    row, constant = _row(result, model.embedding.embedding_dim)
    model.output.weight[0], model.output.bias[0] = torch.from_numpy(row), constant


def _describe(plan: Plan) -> Iterator[Coordinate]:
    for variable, stored in enumerate(plan.stored.values()):
        for place, feature in zip(stored.coordinates, stored.features, strict=True):
            values = None
            if stored.free and stored.domain is not None:
                values = tuple(zip(stored.domain, feature.tolist(), strict=True))
            yield Coordinate(place, stored.name, variable, stored.born, stored.read, values)


def _place(stored: list[Stored], outputs: set[Stored]) -> _Places:
    """Give every variable its coordinates, those of variables that are read no more first.

    Those of the outputs are not erased by the network that writes them: the sum with what is erased
    would be rounded.
    """
    width = 0
    erased = dict[int, list[int]]()
    places: dict[Stored, list[int]] = {}
    unused: list[tuple[int, int]] = []  # from which time it can be erased, coordinate
    for each in sorted(stored, key=lambda each: each.born):
        places[each] = []
        last = each.born - (each in outputs)
        for _ in each.features:
            ready = next((one for one in unused if one[0] <= last), None)
            if ready is None:
                places[each].append(width)
                width += 1
            else:
                unused.remove(ready)
                erased.setdefault(ready[0], []).append(ready[1])
                places[each].append(ready[1])
        unused += [
            (max((each.read + 1) // 2, each.born // 2 + 1) * 2, place) for place in places[each]
        ]
        unused.sort()
    return _Places(max(width, 1), places, erased)


def _row(total: Sum, width: int) -> tuple[Float[np.ndarray, " hidden_dim"], float]:
    """A sum as weights on the residual stream, and a constant."""
    row = np.zeros(width)
    constant = total.constant
    for stored, wanted in total.terms:
        if isinstance(wanted, np.ndarray):
            found = stored.solve(wanted)
            assert found is not None
            row[stored.coordinates] += found[0]
            constant += found[1]
        else:
            row[stored.coordinates] += wanted
    return row, constant


def _claim(layer: _Layer) -> LayerClaim:
    """What the heads and units of a layer are for, in the order in which they are written."""
    heads = [
        HeadClaim(
            head.selector, tuple(stored.part for stored in head.writes for _ in stored.copied)
        )
        for head in layer.heads
    ]
    lookups = []
    unit = 0
    for each in layer.lookups:
        count = 2 * len(_steps(each))
        lookups.append(LookupClaim(each.stored.part, each.parts, unit, unit + count))
        unit += count
    return LayerClaim(tuple(heads), tuple(lookups))


def _block(layer: _Layer, places: _Places, causal: bool) -> Block:
    heads = layer.heads
    size = max(
        [
            1,
            *(
                max(len(head.queries), sum(len(each.copied) for each in head.writes))
                for head in heads
            ),
        ]
    )
    units = 2 * (
        sum(len(_steps(each)) for each in layer.lookups) + len(places.erased.get(layer.end, []))
    )
    sinks = any(head.sink is not None for head in heads)
    return make_block(places.width, max(1, len(heads)), size, units, causal=causal, sinks=sinks)


def _write_attention(block: Block, heads: list[Head], width: int) -> None:
    attention = block.attention
    size = attention.head_dim
    for number, head in enumerate(heads):
        first = number * size
        for place, (query, key) in enumerate(zip(head.queries, head.keys, strict=True)):
            factors = (attention.query, -SHARPNESS * size**0.5, query), (attention.key, 1.0, key)
            for linear, factor, side in factors:
                row, constant = _row(side, width)
                linear.weight[first + place] = torch.from_numpy(row * factor)
                linear.bias[first + place] = constant * factor
        if attention.sinks is not None:
            attention.sinks[number] = -1e4 if head.sink is None else head.sink
        place = first
        for stored in head.writes:
            for target, copied, default in zip(
                stored.coordinates, stored.copied, stored.defaults, strict=True
            ):
                row, constant = _row(copied, width)
                attention.value.weight[place], attention.value.bias[place] = (
                    torch.from_numpy(row),
                    constant,
                )
                attention.output.weight[target, place] = 1.0
                attention.output.bias[target] += default
                place += 1


def _steps(lookup: Lookup) -> list[tuple[float, float, int, int]]:
    """Where the result changes: from, to, and the indices of the values before and after."""
    return [
        (low, high, i, j)
        for (low, i), (high, j) in itertools.pairwise(lookup.points)
        if any(feature[i] != feature[j] for feature in lookup.stored.features)
    ]


def _write_functions(block: Block, lookups: list[Lookup], erased: list[int], width: int) -> None:
    if not isinstance(block.ffn, MLP):
        return
    up = block.ffn.up
    down = block.ffn.down
    unit = 0
    for lookup in lookups:
        stored, (row, constant) = lookup.stored, _row(lookup.sum, width)
        first = lookup.points[0][1]
        for target, feature in zip(stored.coordinates, stored.features, strict=True):
            down.bias[target] += float(feature[first])
        for low, high, i, j in _steps(lookup):
            start = low + (high - low) / 4
            length = (high - low) / 2
            for shift, sign in ((0.0, 1.0), (1.0, -1.0)):
                up.weight[unit] = torch.from_numpy(row / length)
                up.bias[unit] = (constant - start) / length - shift
                for target, feature in zip(stored.coordinates, stored.features, strict=True):
                    down.weight[target, unit] += sign * float(feature[j] - feature[i])
                unit += 1
    for place in erased:  # x = relu(x) - relu(-x), without rounding
        for sign in (1.0, -1.0):
            up.weight[unit, place], down.weight[place, unit] = sign, -sign
            unit += 1
