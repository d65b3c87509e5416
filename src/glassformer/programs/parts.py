"""Descriptions of compiled programs: their stages, the variables in their stream, their heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from glassformer.programs.graph import draw_graph
from glassformer.programs.language import Value, typed
from glassformer.programs.model import CompiledProgram, Coordinate
from glassformer.text import one_line

_LONGEST_NAME = 60
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class StreamVariable:
    """A variable in the residual stream.

    Attributes:
        born: The time from which it is there; see :class:`~glassformer.programs.model.Coordinate`.
        read: The time of its last reader.
    """

    name: str
    born: int
    read: int
    coordinates: tuple[Coordinate, ...]

    def decode(self, numbers: Sequence[float]) -> list[Value]:
        """Return the values whose coordinates are nearest to these numbers.

        There are several where the stream does not tell them apart, and none where the variable is
        stored as a number.
        """
        tables = [
            coordinate.values for coordinate in self.coordinates if coordinate.values is not None
        ]
        if len(tables) < len(self.coordinates) or not tables:
            return []
        distances = []
        for row, (value, _) in enumerate(tables[0]):
            distance = max(
                abs(table[row][1] - number) for table, number in zip(tables, numbers, strict=True)
            )
            distances.append((value, distance))
        least = min(distance for _, distance in distances)
        return [value for value, distance in distances if distance <= least + 1e-6]


def stream_variables(model: CompiledProgram) -> list[StreamVariable]:
    """Return the variables in the stream of a model, the earliest first."""
    groups: dict[int, list[Coordinate]] = {}
    for coordinate in model.coordinates:
        groups.setdefault(coordinate.variable, []).append(coordinate)
    variables = []
    for group in groups.values():
        first = group[0]
        variables.append(StreamVariable(first.name, first.born, first.read, tuple(group)))
    return sorted(variables, key=lambda variable: (variable.born, variable.coordinates[0].index))


def stages(model: CompiledProgram) -> list[str]:
    """Return the names of the times 0 to 2 L + 1.

    They are the embedding, the attention and the network of each layer, and the output.
    """
    names = ["embedding"]
    for layer in range(len(model.layers)):
        names += [f"layer {layer} attention", f"layer {layer} network"]
    return [*names, "output"]


def written_by(model: CompiledProgram, layer: int, head: int) -> list[str]:
    """Return the names of the variables that a head writes, by its output weights."""
    attention = model.blocks[layer].attention
    columns = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    written = set(attention.output.weight[:, columns].any(1).nonzero()[:, 0].tolist())
    time = 2 * layer + 1
    names = [
        coordinate.name
        for coordinate in model.coordinates
        if coordinate.born == time and coordinate.index in written
    ]
    return list(dict.fromkeys(names))


def agree(model: CompiledProgram, found: Value, wanted: Value) -> bool:
    """Return whether an output is the definition's value.

    An output that is read as a number may differ by 0.001.
    """
    if model.codes is None:
        return abs(found - float(wanted)) < _TOLERANCE
    return typed(found) == typed(wanted)


def describe(model: CompiledProgram) -> str:
    """Return a text about a model: its sizes, heads and coordinates.

    The parts of the program are described, too, if the model has its program.
    """
    domains = model.domains
    dtype = str(model.output.weight.dtype).removeprefix("torch.")
    keys = "only keys up to the query" if domains.causal else "all keys"
    vocabulary = ", ".join(map(str, domains.vocabulary))
    lines = [
        one_line(model.name, _LONGEST_NAME),
        f"  input       1 to {domains.max_len} tokens of {vocabulary}; queries see {keys}",
        f"  layers      {len(model.layers)}",
        f"  heads       {sum(map(len, model.heads))}",
        f"  width       {model.embedding.embedding_dim}",
        f"  parameters  {model.num_parameters:,} ({dtype})",
    ]
    if model.program is not None:
        lines += ["", "parts of the program: number, what it is computed from, name, values"]
        lines += [f"  {line}" for line in draw_graph(model.program, domains).splitlines()]
    caution = ""
    if model.claims is None:
        caution = ", as the file says; nothing checks these names"
    lines += ["", f"heads: what each selects, and the variable that it writes{caution}"]
    lines += _head_lines(model)
    lines += [
        "",
        f"residual stream: coordinates, variable, from when, and its last reader{caution}",
    ]
    lines += _stream_lines(model)
    return "\n".join(lines)


def _head_lines(model: CompiledProgram) -> list[str]:
    """Return a line for each head: its selector and the variables that it writes."""
    lines = []
    for layer, names in enumerate(model.heads):
        for head, name in enumerate(names):
            selector = one_line(name, _LONGEST_NAME)
            variables = written_by(model, layer, head)
            written = ", ".join(one_line(variable, _LONGEST_NAME) for variable in variables)
            lines.append(f"  {layer}.{head}  {selector} -> {written or 'nothing'}")
    return lines


def _stream_lines(model: CompiledProgram) -> list[str]:
    """Return a line for each variable in the stream."""
    names = stages(model)
    rows = []
    for variable in stream_variables(model):
        indices = _ranges([coordinate.index for coordinate in variable.coordinates])
        name = one_line(variable.name, _LONGEST_NAME)
        rows.append((indices, name, f"{names[variable.born]} to {names[variable.read]}"))
    indices_width = max((len(row[0]) for row in rows), default=0)
    name_width = max((len(row[1]) for row in rows), default=0)
    return [
        f"  {indices:>{indices_width}}  {name:<{name_width}}  {times}"
        for indices, name, times in rows
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: "0-2, 5"."""
    consecutive = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    texts = []
    for _, pairs in consecutive:
        run = [number for _, number in pairs]
        if len(run) == 1:
            texts.append(f"{run[0]}")
        else:
            texts.append(f"{run[0]}-{run[-1]}")
    return ", ".join(texts)
