"""A compiled program: a transformer with chosen weights, and what each part of it is for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.programs.checker import HeadClaim, LayerClaim, LookupClaim
from glassformer.programs.compiler import SHARPNESS, Head, Lookup, Plan, Stored, Sum
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import Batch, Column
from glassformer.programs.language import (
    Value,
    Variable,
    indices,
    is_number,
    refuse_endless,
    tokens,
    typed,
)


@dataclass(frozen=True)
class Coordinate:
    """What a coordinate of the residual stream holds."""

    index: int
    name: str
    variable: int
    """Equal for the coordinates of one variable."""
    born: int
    """The time from which: 0 the embedding, 2 l + 1 the attention of layer l, 2 l + 2 its feed-forward network."""
    read: int
    """The time of its last reader."""
    values: tuple[tuple[Value, float], ...] | None
    """Each value of its variable with what it is for it; None for the value itself."""


class CompiledProgram(nn.Module):
    """The transformer of a program: embeddings of tokens and positions, blocks without norms, one number per position.

    A block is :class:`~glassformer.layers.blocks.Block` with attention, ReLU network and residual stream. Made by
    :func:`compile_program`.

    Attributes:
        program: The program; None for a model read from a file.
        name: Its name.
        domains: Its vocabulary, greatest length and direction.
        coordinates: What each coordinate of the residual stream holds, and when.
        heads: For each layer, what each head selects.
        codes: The number that stands for each value, ascending; None if the output is the value.
        claims: What the compiler believes, for :func:`~glassformer.programs.checker.check`; None for a model
            read from a file.

    Shape: tokens ``[batch, position]``, indices into the vocabulary, to numbers ``[batch, position]``.
    """

    def __init__(self, program: Variable | None, domains: Domains, hidden_dim: int, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.program, self.domains, self.name = program, domains, str(program)
        self.embedding = nn.Embedding(len(domains.vocabulary), hidden_dim)
        self.positions = nn.Embedding(domains.max_len, hidden_dim)
        self.layers = nn.ModuleList(blocks)
        self.output = nn.Linear(hidden_dim, 1)
        self.coordinates: tuple[Coordinate, ...] = ()
        self.heads: tuple[tuple[str, ...], ...] = ()
        self.codes: list[tuple[float, Value]] | None = None
        self.claims: tuple[LayerClaim, ...] | None = None
        self.plan = Plan(domains)
        self.result = Sum()
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self, tokens: Int[Tensor, "batch position"], key_padding: Bool[Tensor, "batch position"] | None = None
    ) -> Float[Tensor, "batch position"]:
        """The number that stands for each position's value. ``key_padding`` is True where a token is real."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.layers:
            x = block(x, key_padding=key_padding)
        return self.output(x)[..., 0]

    @torch.inference_mode()
    def run(self, sequence: Sequence[Value]) -> list[Value]:
        """The value at each position: the nearest of those that the program can have, or the number itself.

        Raises:
            InputError: No tokens, more than the greatest length, or one that is not in the vocabulary.
        """
        return self.decode(self(self.encode(sequence))[0].double().tolist())

    def encode(self, sequence: Sequence[Value]) -> Int[Tensor, "one position"]:
        """The tokens of a sequence; raises as :meth:`run`."""
        most, vocabulary = self.domains.max_len, self.domains.vocabulary
        got = f"a sequence of type {type(sequence).__name__}"
        require(isinstance(sequence, Sequence), got, "a text or a list of tokens", "Pass some tokens.")
        require(1 <= len(sequence) <= most, f"{len(sequence)} tokens", f"1 to {most}", "Compile with a larger max_len.")
        places = {typed(token): place for place, token in enumerate(vocabulary)}
        unknown = [token for token in sequence if typed(token) not in places]
        require(not unknown, f"tokens {unknown}", f"those of {list(vocabulary)}", "Compile with a larger vocabulary.")
        return torch.tensor([[places[typed(token)] for token in sequence]])

    def decode(self, numbers: Sequence[float]) -> list[Value]:
        """The value that each number of :meth:`forward` stands for.

        Raises:
            InputError: Numbers or codes that are not finite.
        """
        self.require_codes()
        fits = bool(np.isfinite(numbers).all())
        require(
            fits, "outputs that are not finite", "finite numbers", "Compile the program again, or in a wider dtype."
        )
        if self.codes is None:
            return list(numbers)
        return [self.codes[place][1] for place in self.nearest(np.array(numbers)).tolist()]

    def nearest(self, numbers: Float[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """The place in ``codes`` of the nearest number to each."""
        known = np.array([number for number, _ in self.codes or ()])
        order = np.argsort(known, kind="stable")
        ends = known[order][:-1] + np.diff(known[order]) / 2
        return order[np.searchsorted(ends, numbers)]

    def batch(
        self, sequences: Int[np.ndarray, "sequence position"], given: Mapping[Variable, Column] | None = None
    ) -> Batch:
        """The program's variables on sequences of one length; see :class:`~.enumeration.Batch`."""
        return Batch(sequences, self.domains.vocabulary, self.domains.causal, given)

    def wanted(self, batch: Batch) -> Float[np.ndarray, "sequence position"]:
        """The number that stands for the program's value; NaN where it has none.

        Raises:
            InputError: A model without its program, such as one that was read from a file.
        """
        if self.program is None:
            raise InputError("a model without its program", "a program to compare it with", "Assign model.program.")
        places, values = batch.column(self.program)
        codes = None if self.codes is None else {typed(value): number for number, value in self.codes}
        numbers = np.array(
            [float(value if is_number(value) else "nan") for value in values]
            if codes is None
            else [codes.get(typed(value), np.nan) for value in values]
        )
        return np.where(batch.defined[:, None], numbers[places], np.nan)

    @property
    def allowed_error(self) -> float | None:
        """Half the least difference of two values' numbers; None where the output is the number itself."""
        if self.codes is None:
            return None
        return float(np.diff(np.sort([number for number, _ in self.codes])).min(initial=np.inf) / 2)

    def require_codes(self) -> None:
        """Raise :class:`InputError` unless ``codes`` is None or pairs of a finite number and a value."""
        expected, fix = "pairs of a finite number and a value, or None", "Compile the program again."
        try:
            ok = self.codes is None or (
                len(self.codes) > 0 and all(bool(np.isfinite(float(number))) for number, _ in self.codes)
            )
        except (TypeError, ValueError, OverflowError):
            ok = False
        require(ok, "codes of another kind, or not finite", expected, fix)

    @property
    def blocks(self) -> list[Block]:
        """Its layers."""
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def num_parameters(self) -> int:
        """All numbers in its weights."""
        return sum(each.numel() for each in self.parameters())


def compile_program(
    program: Variable,
    vocabulary: Sequence[Value],
    max_len: int,
    *,
    causal: bool = False,
    dtype: torch.dtype = torch.float64,
) -> CompiledProgram:
    """The transformer that computes ``program`` for sequences of 1 to ``max_len`` tokens of ``vocabulary``.

    Args:
        program: See :mod:`glassformer.programs.language`.
        vocabulary: All tokens.
        max_len: Tokens of the longest sequence.
        causal: Let selectors choose only keys up to the query's own position.
        dtype: Of the weights.

    Raises:
        InputError: Naming the part that cannot be compiled, and why.
    """
    require(isinstance(program, Variable), f"program = {program!r}", "a variable", "Build it from tokens and indices.")
    ok = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    require(ok, f"dtype = {dtype}", "a floating-point dtype", "Use torch.float32.")
    domains = Domains(vocabulary, max_len, causal)
    plan = Plan(domains)
    with refuse_endless(program):
        result = plan.read(program)
    num_layers = (max([each.born for each in plan.stored.values()], default=0) + 1) // 2
    result.read_at(2 * num_layers + 1)
    layers = [_Layer(plan, layer) for layer in range(num_layers)]
    outputs = {stored for stored, _ in result.terms}
    places = [_place(list(plan.stored.values()), outputs, again) for again in (True, False)]
    with torch.random.fork_rng(devices=[]):  # modules are made with random weights
        models = [
            CompiledProgram(program, domains, place.width, [_block(each, place, causal) for each in layers])
            for place in places
        ]
    model, place = min(zip(models, places, strict=True), key=lambda pair: pair[0].num_parameters)
    for stored in plan.stored.values():
        stored.place = place.of[stored]
    model.plan, model.result = plan, result
    with torch.no_grad():
        _write(model.double(), layers, place)
    model.coordinates = tuple(sorted(_describe(plan), key=lambda each: (each.index, each.born)))
    model.heads = tuple(tuple(str(head.selector) for head in layer.heads) for layer in layers)
    model.claims = tuple(_claim(layer) for layer in layers)
    values = domains.of(program)
    if values is not None:
        code = plan.code(program)
        model.codes = sorted(((code(value), value) for value in values), key=lambda each: each[0])
    require_apart(model, dtype)
    return model.to(dtype).eval()


def require_apart(model: CompiledProgram, dtype: torch.dtype) -> None:
    """Refuse a program in float64 whose numbers are the same in ``dtype``, or next to one another.

    Raises:
        InputError: Naming two values that cannot be told apart, or numbers that ``dtype`` cannot hold.
    """
    name, step = str(dtype).removeprefix("torch."), torch.finfo(dtype).eps
    fix = "Subtract what they have in common, scale them, or choose a wider dtype."

    def check(what: str, near: Sequence[tuple[float, Value]]) -> None:
        size = max((abs(number) for number, _ in near), default=0.0)
        pairs = sorted(itertools.pairwise(near), key=lambda pair: -max(abs(pair[0][0]), abs(pair[1][0])))
        for (low, one), (high, other) in pairs:
            apart = high - low > step * size
            got = f"{what} {one!r} and {other!r} as the numbers {low:.17g} and {high:.17g}"
            require(apart, got, f"numbers that {name} tells apart", fix)

    check(f"{model.name}, which can be", model.codes or [])
    for each in model.plan.lookups.values():
        values = each.stored.domain or ()
        for (low, before), (high, after) in itertools.pairwise(each.points):
            if before != after:
                check(f"{each.stored.name}, which is", [(low, values[before]), (high, values[after])])
    for token, rows in ((True, model.embedding.weight), (False, model.positions.weight)):
        seen: dict[bytes, int] = {}
        kept = rows.detach().to(dtype).double()
        require(bool(kept.isfinite().all()), f"numbers up to {float(rows.detach().abs().max()):.3g}", name, fix)
        for place, row in enumerate(kept.numpy()):
            first = seen.setdefault(row.tobytes(), place)
            pair = [model.domains.vocabulary[each] if token else each for each in (first, place)]
            got = f"{'tokens' if token else 'indices'} {pair[0]!r} and {pair[1]!r}"
            require(bool((rows[first] == rows[place]).all()), got, f"numbers that {name} tells apart", fix)


class _Layer:
    """What one layer of a plan computes."""

    def __init__(self, plan: Plan, layer: int) -> None:
        self.end = 2 * layer + 2
        self.heads = [head for head in plan.heads.values() if head.time == self.end - 1]
        self.lookups = [each for each in plan.lookups.values() if each.time == self.end]


@dataclass
class _Places:
    """The coordinates of every variable, how many there are, and which are erased when."""

    width: int
    of: dict[Stored, list[int]]
    erased: dict[int, list[int]]


def _write(model: CompiledProgram, layers: Sequence[_Layer], place: _Places) -> None:
    for block, layer in zip(model.layers, layers, strict=True):
        assert isinstance(block, Block)
        _write_attention(block, layer.heads, place.width)
        _write_functions(block, layer.lookups, place.erased.get(layer.end, []), place.width)
    vocabulary, max_len = model.domains.vocabulary, model.domains.max_len
    for part, table in ((tokens, model.embedding), (indices, model.positions)):
        stored = model.plan.stored.get(part)
        if stored is not None and stored.domain is not None:
            order = vocabulary if part is tokens else range(max_len)
            rows = model.domains.places(part, order)
            for column, feature in zip(stored.place, stored.features, strict=True):
                table.weight[:, column] = torch.from_numpy(feature[rows])
    row, constant = _row(model.result, place.width)
    model.output.weight[0], model.output.bias[0] = torch.from_numpy(row), constant


def _describe(plan: Plan) -> Iterator[Coordinate]:
    for variable, stored in enumerate(plan.stored.values()):
        for place, feature in zip(stored.place, stored.features, strict=True):
            values = None
            if stored.free and stored.domain is not None:
                values = tuple(zip(stored.domain, feature.tolist(), strict=True))
            yield Coordinate(place, stored.name, variable, stored.born, stored.read, values)


def _place(stored: list[Stored], outputs: set[Stored], reuse: bool) -> _Places:
    """Give every variable its coordinates.

    Those of the outputs are not erased by the network that writes them: the sum with what is erased would be rounded.
    """
    width, erased = 0, dict[int, list[int]]()
    places: dict[Stored, list[int]] = {}
    unused: list[tuple[int, int]] = []  # from which time it can be erased, coordinate
    for each in sorted(stored, key=lambda each: each.born):
        places[each] = []
        last = each.born - (each in outputs)
        for _ in each.features:
            ready = next((one for one in unused if one[0] <= last), None) if reuse else None
            if ready is None:
                places[each].append(width)
                width += 1
            else:
                unused.remove(ready)
                erased.setdefault(ready[0], []).append(ready[1])
                places[each].append(ready[1])
        unused += [(max((each.read + 1) // 2, each.born // 2 + 1) * 2, place) for place in places[each]]
        unused.sort()
    return _Places(max(width, 1), places, erased)


def _row(total: Sum, width: int) -> tuple[Float[np.ndarray, " hidden_dim"], float]:
    """A sum as weights on the residual stream, and a constant."""
    row, constant = np.zeros(width), total.constant
    for stored, wanted in total.terms:
        if stored.free:
            assert isinstance(wanted, np.ndarray)
            found = stored.solve(wanted)
            assert found is not None
            row[stored.place] += found[0]
            constant += found[1]
        else:
            assert isinstance(wanted, float)
            row[stored.place] += wanted
    return row, constant


def _claim(layer: _Layer) -> LayerClaim:
    """What the heads and units of a layer are for, in the order in which they are written."""
    heads = [
        HeadClaim(head.selector, tuple(stored.part for stored in head.writes for _ in stored.origins))
        for head in layer.heads
    ]
    lookups, unit = [], 0
    for each in layer.lookups:
        count = 2 * len(_steps(each))
        lookups.append(LookupClaim(each.stored.part, each.parts, unit, unit + count))
        unit += count
    return LayerClaim(tuple(heads), tuple(lookups))


def _block(layer: _Layer, places: _Places, causal: bool) -> Block:
    heads, width = layer.heads, places.width
    size = max([1, *(max(len(head.queries), sum(len(each.origins) for each in head.writes)) for head in heads)])
    sinks = any(head.sink is not None for head in heads)
    units = 2 * (sum(len(_steps(each)) for each in layer.lookups) + len(places.erased.get(layer.end, [])))
    return make_block(width, max(1, len(heads)), size, units, causal=causal, sinks=sinks)


def make_block(width: int, num_heads: int, head_dim: int, units: int, *, causal: bool, sinks: bool) -> Block:
    """A block of a compiled program, with random weights: no norms, a ReLU network if there are ``units``."""
    attention = GroupedQueryAttention(width, num_heads, head_dim, causal=causal, bias=True, sinks=sinks)
    block = Block(width, attention, MLP(width, units) if units else None, 1e-5)
    block.attention_norm = nn.Identity()
    block.ffn_norm = nn.Identity()
    return block


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
            for target, origin, default in zip(stored.place, stored.origins, stored.defaults, strict=True):
                row, constant = _row(origin, width)
                attention.value.weight[place], attention.value.bias[place] = torch.from_numpy(row), constant
                attention.output.weight[target, place] = 1.0
                attention.output.bias[target] += default
                place += 1


def _steps(lookup: Lookup) -> list[tuple[float, float, int, int]]:
    """Where the result changes: from, to, and the indices of the values before and after."""
    assert lookup.stored.domain is not None
    features = lookup.stored.features
    columns = np.column_stack(features) if features else np.zeros((len(lookup.stored.domain), 0))
    found = []
    for (low, i), (high, j) in zip(lookup.points[:-1], lookup.points[1:], strict=True):
        if (columns[i] != columns[j]).any():
            found.append((low, high, i, j))
    return found


def _write_functions(block: Block, lookups: list[Lookup], erased: list[int], width: int) -> None:
    if not isinstance(block.ffn, MLP):
        return
    up, down, unit = block.ffn.up, block.ffn.down, 0
    for lookup in lookups:
        stored, (row, constant) = lookup.stored, _row(lookup.sum, width)
        first = lookup.points[0][1]
        for target, feature in zip(stored.place, stored.features, strict=True):
            down.bias[target] += float(feature[first])
        for low, high, i, j in _steps(lookup):
            start, length = low + (high - low) / 4, (high - low) / 2
            for shift, sign in ((0.0, 1.0), (1.0, -1.0)):
                up.weight[unit] = torch.from_numpy(row / length)
                up.bias[unit] = (constant - start) / length - shift
                for target, feature in zip(stored.place, stored.features, strict=True):
                    down.weight[target, unit] += sign * float(feature[j] - feature[i])
                unit += 1
    for place in erased:  # x = relu(x) - relu(-x), without rounding
        for sign in (1.0, -1.0):
            up.weight[unit, place], down.weight[place, unit] = sign, -sign
            unit += 1
