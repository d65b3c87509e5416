"""The compiler: it plans a transformer for a program and writes its weights."""

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

_FIX = "Subtract what they have in common, scale them, or choose a wider dtype."
_RUN = 1_000
"""Number of sequences that are run in a dtype narrower than float32."""


def compile_program(
    program: Variable,
    vocabulary: Sequence[Value],
    max_len: int,
    *,
    causal: bool = False,
    dtype: torch.dtype = torch.float64,
) -> CompiledProgram:
    """Compile a program into a transformer that computes it.

    Args:
        program: See :mod:`glassformer.programs.language`.
        vocabulary: The tokens of its sequences.
        max_len: The largest number of tokens of a sequence, of which there is at least one.
        causal: Let selectors choose only keys up to the query's own position.
        dtype: Dtype of the weights. In a dtype narrower than float32 the 1,000 shortest sequences
            are run, and a program that gives another value is refused.

    Example:
        >>> import operator
        >>> from glassformer.programs import select, selector_width, tokens, verify_program
        >>> histogram = selector_width(select(tokens, tokens, operator.eq))
        >>> verify_program(compile_program(histogram, "abc", max_len=4)).verdict
        'holds'
    """
    _check_request(program, dtype)
    domains = Domains(vocabulary, max_len, causal)
    plan = Plan(domains)
    with refuse_endless(program):
        result = plan.read(program)
    layers = _layers(plan)
    result.read_at(2 * len(layers) + 1)
    outputs = {stored for stored, _ in result.terms}
    places = _place(list(plan.stored.values()), outputs)
    with torch.random.fork_rng(devices=[]):  # modules are made with random weights
        blocks_of_layers = [_block(layer, places, causal) for layer in layers]
        model = CompiledProgram(program, domains, places.width, blocks_of_layers)
    for stored, coordinates in places.of.items():
        stored.coordinates = coordinates
    with torch.no_grad():
        _write_ends(model.double(), plan, result)
        for block, layer in zip(model.blocks, layers, strict=True):
            erased = places.erased.get(layer.end, [])
            _write_attention(block, layer.heads, places.width)
            _write_functions(block, layer.lookups, erased, places.width)
    named = sorted(_describe(plan), key=lambda coordinate: (coordinate.index, coordinate.born))
    model.coordinates = tuple(named)
    model.heads = tuple(tuple(str(head.selector) for head in layer.heads) for layer in layers)
    model.claims = tuple(map(_claim, layers))
    values = domains.of(program)
    if values is not None:
        code = plan.code(program)
        pairs = [(code(value), value) for value in values]
        model.codes = sorted(pairs, key=lambda pair: pair[0])
    _require_apart(model, plan, dtype)
    model = model.to(dtype).eval()
    if torch.finfo(dtype).eps > torch.finfo(torch.float32).eps:
        _require_right(model, program, dtype)
    return model


def _check_request(program: object, dtype: object) -> None:
    """Refuse a program that is no variable, and a dtype that is not a floating-point one."""
    if not isinstance(program, Variable):
        raise InputError(
            got=f"program = {program!r}",
            expected="a variable",
            fix="Build it from tokens and indices.",
        )
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(
            got=f"dtype = {dtype}",
            expected="a floating-point dtype",
            fix="Use torch.float32.",
        )


def _layers(plan: Plan) -> list["_Layer"]:
    """Return the heads and lookups of each layer of a plan."""
    last = max([stored.born for stored in plan.stored.values()], default=0)
    num_layers = (last + 1) // 2
    layers = []
    for end in range(2, 2 * num_layers + 2, 2):
        heads = [head for head in plan.heads.values() if head.time == end - 1]
        lookups = [lookup for lookup in plan.lookups.values() if lookup.time == end]
        layers.append(_Layer(end, heads, lookups))
    return layers


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
        for row, position in np.argwhere(wrong)[:1].tolist():
            sequence = [model.domains.vocabulary[token] for token in block[row].tolist()]
            read = model.codes[int(model.nearest(outputs)[row, position])][1]
            raise InputError(
                got=(
                    f"{dtype}, in which {sequence} gives {read!r} for "
                    f"{values[places[row, position]]!r} at position {position}"
                ),
                expected="a dtype that tells the program's numbers apart",
                fix="Use torch.float32.",
            )


def _require_apart(model: CompiledProgram, plan: Plan, dtype: torch.dtype) -> None:
    """Refuse a float64 model with two values whose numbers ``dtype`` does not tell apart."""
    _require_codes_apart(f"{model.name}, which can be", model.codes or [], dtype)
    for lookup in plan.lookups.values():
        name = f"{lookup.stored.name}, which is"
        values = lookup.stored.domain or ()
        for (low, before), (high, after) in itertools.pairwise(lookup.points):
            if before != after:
                codes = [(low, values[before]), (high, values[after])]
                _require_codes_apart(name, codes, dtype)
    vocabulary = model.domains.vocabulary
    _require_rows_apart("tokens", vocabulary, model.embedding.weight, dtype)
    positions = range(len(model.positions.weight))
    _require_rows_apart("indices", positions, model.positions.weight, dtype)


def _require_codes_apart(
    name: str,
    codes: Sequence[tuple[float, Value]],
    dtype: torch.dtype,
) -> None:
    """Refuse neighbouring codes that are less than the step of ``dtype`` apart."""
    size = max((abs(number) for number, _ in codes), default=0.0)
    pairs = sorted(
        itertools.pairwise(codes), key=lambda pair: -max(abs(pair[0][0]), abs(pair[1][0]))
    )
    for (low, low_value), (high, high_value) in pairs:
        apart = high - low > torch.finfo(dtype).eps * size
        if not apart:
            numbers = f"{low:.17g} and {high:.17g}"
            raise InputError(
                got=f"{name} {low_value!r} and {high_value!r} as the numbers {numbers}",
                expected=f"numbers that {_name(dtype)} tells apart",
                fix=_FIX,
            )


def _require_rows_apart(
    kind: str,
    values: Sequence[Value],
    rows: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    """Refuse embeddings of two values that are different, but the same in ``dtype``."""
    rounded = rows.detach().to(dtype).double()
    if not bool(rounded.isfinite().all()):
        raise InputError(
            got=f"numbers up to {float(rows.detach().abs().max()):.3g}",
            expected=f"numbers within the range of {_name(dtype)}",
            fix=_FIX,
        )
    seen: dict[bytes, int] = {}
    for place, row in enumerate(rounded.numpy()):
        first = seen.setdefault(row.tobytes(), place)
        if not bool((rows[first] == rows[place]).all()):
            raise InputError(
                got=f"{kind} {values[first]!r} and {values[place]!r}",
                expected=f"numbers that {_name(dtype)} tells apart",
                fix=_FIX,
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Layer(NamedTuple):
    """The heads and lookups of one layer, which ends at the time ``end``."""

    end: int
    heads: list[Head]
    lookups: list[Lookup]


class _Places(NamedTuple):
    """The coordinates of every variable, their number, and the erased ones by time."""

    width: int
    of: dict[Stored, list[int]]
    erased: dict[int, list[int]]


def _write_ends(model: CompiledProgram, plan: Plan, result: Sum) -> None:
    """Write the weights of the embeddings and of the output."""
    num_positions = len(model.positions.weight)
    inputs = (
        (tokens, model.domains.vocabulary, model.embedding),
        (indices, range(num_positions), model.positions),
    )
    for part, values, table in inputs:
        stored = plan.stored.get(part)
        if stored is not None:
            rows = model.domains.places(part, values)
            for column, feature in zip(stored.coordinates, stored.features, strict=True):
                table.weight[:, column] = torch.from_numpy(feature[rows])
    row, constant = _row(result, model.embedding.embedding_dim)
    model.output.weight[0] = torch.from_numpy(row)
    model.output.bias[0] = constant


def _describe(plan: Plan) -> Iterator[Coordinate]:
    """Yield a description of every coordinate of the stream."""
    for variable, stored in enumerate(plan.stored.values()):
        for place, feature in zip(stored.coordinates, stored.features, strict=True):
            values = None
            if stored.free and stored.domain is not None:
                values = tuple(zip(stored.domain, feature.tolist(), strict=True))
            yield Coordinate(place, stored.name, variable, stored.born, stored.read, values)


def _place(stored: list[Stored], outputs: set[Stored]) -> _Places:
    """Give every variable its coordinates; those of variables that are read no more are reused.

    An output is not written by the network that erases its coordinates: its sum with the erased
    number would be rounded.
    """
    width = 0
    erased = dict[int, list[int]]()
    places: dict[Stored, list[int]] = {}
    unused: list[tuple[int, int]] = []  # the time from which it can be erased, the coordinate
    for variable in sorted(stored, key=lambda variable: variable.born):
        places[variable] = []
        last = variable.born - (variable in outputs)
        for _ in variable.features:
            ready = next((entry for entry in unused if entry[0] <= last), None)
            if ready is None:
                places[variable].append(width)
                width += 1
            else:
                unused.remove(ready)
                time, coordinate = ready
                erased.setdefault(time, []).append(coordinate)
                places[variable].append(coordinate)
        layer = max((variable.read + 1) // 2, variable.born // 2 + 1)
        unused += [(2 * layer, coordinate) for coordinate in places[variable]]
        unused.sort()
    return _Places(max(width, 1), places, erased)


def _row(total: Sum, width: int) -> tuple[Float[np.ndarray, " hidden_dim"], float]:
    """Return a sum as weights on the residual stream, and a constant."""
    row = np.zeros(width)
    constant = total.constant
    for stored, factors in total.terms:
        if isinstance(factors, np.ndarray):
            solution = stored.solve(factors)
            assert solution is not None
            weights, offset = solution
            row[stored.coordinates] += weights
            constant += offset
        else:
            row[stored.coordinates] += factors
    return row, constant


def _claim(layer: _Layer) -> LayerClaim:
    """Return the purpose of a layer's heads and units, in the order in which they are written."""
    heads = []
    for head in layer.heads:
        writes: list[Variable] = []
        for stored in head.writes:
            writes += [stored.part] * len(stored.copied)
        heads.append(HeadClaim(head.selector, tuple(writes)))
    lookups = []
    unit = 0
    for lookup in layer.lookups:
        count = 2 * len(_steps(lookup))
        lookups.append(
            LookupClaim(
                variable=lookup.stored.part,
                parts=lookup.parts,
                first=unit,
                last=unit + count,
            )
        )
        unit += count
    return LayerClaim(tuple(heads), tuple(lookups))


def _block(layer: _Layer, places: _Places, causal: bool) -> Block:
    """Return a block with as many heads and units as a layer needs."""
    heads = layer.heads
    head_dim = 1
    for head in heads:
        num_copied = sum(len(stored.copied) for stored in head.writes)
        head_dim = max(head_dim, len(head.queries), num_copied)
    num_steps = sum(len(_steps(lookup)) for lookup in layer.lookups)
    num_erased = len(places.erased.get(layer.end, []))
    return make_block(
        places.width,
        max(1, len(heads)),
        head_dim,
        2 * (num_steps + num_erased),
        causal=causal,
        sinks=any(head.sink is not None for head in heads),
    )


def _write_attention(block: Block, heads: list[Head], width: int) -> None:
    """Write the weights of a layer's heads."""
    attention = block.attention
    size = attention.head_dim
    for number, head in enumerate(heads):
        first = number * size
        for place, (query, key) in enumerate(zip(head.queries, head.keys, strict=True)):
            sides = (
                (attention.query, -SHARPNESS * size**0.5, query),
                (attention.key, 1.0, key),
            )
            for linear, factor, side in sides:
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
                attention.value.weight[place] = torch.from_numpy(row)
                attention.value.bias[place] = constant
                attention.output.weight[target, place] = 1.0
                attention.output.bias[target] += default
                place += 1


def _steps(lookup: Lookup) -> list[tuple[float, float, int, int]]:
    """Return the changes of the result: from, to, and the places of the values before and after."""
    return [
        (low, high, before, after)
        for (low, before), (high, after) in itertools.pairwise(lookup.points)
        if any(feature[before] != feature[after] for feature in lookup.stored.features)
    ]


def _write_functions(block: Block, lookups: list[Lookup], erased: list[int], width: int) -> None:
    """Write the weights of a layer's ReLU network."""
    if not isinstance(block.ffn, MLP):
        return
    up = block.ffn.up
    down = block.ffn.down
    unit = 0
    for lookup in lookups:
        stored = lookup.stored
        row, constant = _row(lookup.sum, width)
        first = lookup.points[0][1]
        for target, feature in zip(stored.coordinates, stored.features, strict=True):
            down.bias[target] += float(feature[first])
        for low, high, before, after in _steps(lookup):
            start = low + (high - low) / 4
            length = (high - low) / 2
            for shift, sign in ((0.0, 1.0), (1.0, -1.0)):
                up.weight[unit] = torch.from_numpy(row / length)
                up.bias[unit] = (constant - start) / length - shift
                for target, feature in zip(stored.coordinates, stored.features, strict=True):
                    down.weight[target, unit] += sign * float(feature[after] - feature[before])
                unit += 1
    for place in erased:  # x = relu(x) - relu(-x), without rounding
        for sign in (1.0, -1.0):
            up.weight[unit, place] = sign
            down.weight[place, unit] = -sign
            unit += 1
