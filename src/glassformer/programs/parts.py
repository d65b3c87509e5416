"""What the parts of a compiled program are for: its stages, the variables in its stream, and its
heads.
"""

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
        """The values whose coordinates are nearest to these numbers: several where the stream does
        not tell them apart.

        None of them where the variable is stored as a number.
        """
        tables = [
            coordinate.values for coordinate in self.coordinates if coordinate.values is not None
        ]
        if len(tables) < len(self.coordinates) or not tables:
            return []
        far = [
            (
                value,
                max(
                    abs(table[row][1] - number)
                    for table, number in zip(tables, numbers, strict=True)
                ),
            )
            for row, (value, _) in enumerate(tables[0])
        ]
        least = min(distance for _, distance in far)
        return [value for value, distance in far if distance <= least + 1e-6]


def stream_variables(model: CompiledProgram) -> list[StreamVariable]:
    """The variables in the stream of a model, the earliest first."""
    groups: dict[int, list[Coordinate]] = {}
    for each in model.coordinates:
        groups.setdefault(each.variable, []).append(each)
    made = [
        StreamVariable(one[0].name, one[0].born, one[0].read, tuple(one)) for one in groups.values()
    ]
    return sorted(made, key=lambda each: (each.born, each.coordinates[0].index))


def stages(model: CompiledProgram) -> list[str]:
    """The names of the times 0 to 2 L + 1: embedding, attention and network of each layer, output."""
    inner = [
        f"layer {layer} {part}"
        for layer in range(len(model.layers))
        for part in ("attention", "network")
    ]
    return ["embedding", *inner, "output"]


def written_by(model: CompiledProgram, layer: int, head: int) -> list[str]:
    """The names of the variables that a head writes, by its output weights."""
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
    """Whether an output is the definition's value, up to 0.001 where it is read as a number."""
    if model.codes is None:
        return abs(found - float(wanted)) < _TOLERANCE
    return typed(found) == typed(wanted)


def describe(model: CompiledProgram) -> str:
    """The program's parts, if the model has its program, and the model's sizes, heads and
    coordinates, as text.
    """
    domains = model.domains
    width = model.embedding.embedding_dim
    heads = [
        (layer, head, name)
        for layer, names in enumerate(model.heads)
        for head, name in enumerate(names)
    ]
    keys = "only keys up to the query" if domains.causal else "all keys"
    lines = [
        one_line(model.name, _LONGEST_NAME),
        f"  input       1 to {domains.max_len} tokens of "
        f"{', '.join(map(str, domains.vocabulary))}; queries see {keys}",
        f"  layers      {len(model.layers)}",
        f"  heads       {len(heads)}",
        f"  width       {width}",
        f"  parameters  {model.num_parameters:,} "
        f"({str(model.output.weight.dtype).removeprefix('torch.')})",
    ]
    if model.program is not None:
        lines += ["", "parts of the program: number, what it is computed from, name, values"]
        lines += [f"  {line}" for line in draw_graph(model.program, domains).splitlines()]
    if model.claims is not None:
        told = ""
    else:
        told = ", as the file says; nothing checks these names"
    lines += ["", f"heads: what each selects, and the variable that it writes{told}"]
    for layer, head, name in heads:
        written = [one_line(each, _LONGEST_NAME) for each in written_by(model, layer, head)]
        lines.append(
            f"  {layer}.{head}  {one_line(name, _LONGEST_NAME)} -> "
            f"{', '.join(written) or 'nothing'}"
        )
    lines += ["", f"residual stream: coordinates, variable, from when, and its last reader{told}"]
    named = stages(model)
    rows = [
        (
            _ranges([each.index for each in one.coordinates]),
            one_line(one.name, _LONGEST_NAME),
            f"{named[one.born]} to {named[one.read]}",
        )
        for one in stream_variables(model)
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines += [f"  {row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]
    return "\n".join(lines)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as ranges: "0-2, 5"."""
    consecutive = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in run] for _, run in consecutive]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
