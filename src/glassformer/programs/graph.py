"""The graph of a program: a list of its parts, each after the parts that it is made of."""

from dataclasses import dataclass

from glassformer.programs.domains import Domains
from glassformer.programs.language import Selector, Value, Variable
from glassformer.text import one_line

_LONGEST_NAME = 32
_LONGEST_VALUE = 20
_MOST_VALUES = 6


@dataclass(frozen=True, eq=False)
class Node:
    """A part of a program.

    Attributes:
        sources: Places in the list of the parts that it reads.
    """

    part: Variable | Selector
    sources: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name in at most 32 characters."""
        return one_line(str(self.part), _LONGEST_NAME)


def graph(program: Variable) -> list[Node]:
    """Return the parts of a program, the inputs first, the program last."""
    places: dict[Variable | Selector, int] = {}
    nodes: list[Node] = []

    def add(part: Variable | Selector) -> int:
        if part not in places:
            sources = tuple(map(add, part.reads))
            places[part] = len(nodes)
            nodes.append(Node(part, sources))
        return places[part]

    add(program)
    return nodes


def value_in_words(value: Value) -> str:
    """Return a value on one line: numbers in six digits, tuples without quotation marks."""
    if isinstance(value, tuple):
        return f"({', '.join(map(value_in_words, value))})"
    if isinstance(value, float):
        return f"{value:.6g}"
    return one_line(str(value), _LONGEST_VALUE)


def values_in_words(domain: tuple[Value, ...] | None) -> str:
    """Return the values that a variable can have, such as "1 to 5" or "None, a, b"."""
    if domain is None:
        return "numbers"
    if len(domain) > 2 and all(type(value) is int for value in domain):
        first = domain[0]
        if domain == tuple(range(first, first + len(domain))):
            return f"{first} to {domain[-1]}"
    shown = [value_in_words(value) for value in domain[:_MOST_VALUES]]
    if len(domain) > _MOST_VALUES:
        shown.append(f"... ({len(domain)} values)")
    return ", ".join(shown)


def draw_graph(program: Variable, domains: Domains) -> str:
    """Return a line of text for each part of a program.

    A line has the part's number, its kind and sources, its name, and its possible values.
    """
    rows = []
    for place, node in enumerate(graph(program)):
        kind: str = node.part.kind
        if node.sources:
            kind = f"{kind} of {', '.join(map(str, node.sources))}"
        values = ""
        if isinstance(node.part, Variable):
            values = values_in_words(domains.of(node.part))
        rows.append((str(place), kind, node.name, values))
    width_of_place = max(len(row[0]) for row in rows)
    width_of_kind = max(len(row[1]) for row in rows)
    width_of_name = max(len(row[2]) for row in rows)
    lines = []
    for place_text, kind, name, values in rows:
        line = f"{place_text:>{width_of_place}}  {kind:<{width_of_kind}}"
        line += f"  {name:<{width_of_name}}  {values}"
        lines.append(line.rstrip())
    return "\n".join(lines)
