"""A program as a list of its parts, each after the parts that it is made of."""

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
        """Its name in at most 32 characters."""
        return one_line(str(self.part), _LONGEST_NAME)


def graph(program: Variable) -> list[Node]:
    """The parts of a program, the inputs first, the program last."""
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
    """A value on one line: numbers in six digits, tuples without quotation marks."""
    if isinstance(value, tuple):
        return f"({', '.join(map(value_in_words, value))})"
    if isinstance(value, float):
        return f"{value:.6g}"
    return one_line(str(value), _LONGEST_VALUE)


def values_in_words(domain: tuple[Value, ...] | None) -> str:
    """The values that a variable can have, such as "1 to 5" or "None, a, b"."""
    if domain is None:
        return "numbers"
    whole = all(type(value) is int for value in domain)
    if whole and len(domain) > 2 and domain == tuple(range(domain[0], domain[0] + len(domain))):
        return f"{domain[0]} to {domain[-1]}"
    shown = [value_in_words(value) for value in domain[:_MOST_VALUES]]
    if len(domain) > _MOST_VALUES:
        more = [f"... ({len(domain)} values)"]
    else:
        more = []
    return ", ".join([*shown, *more])


def draw_graph(program: Variable, domains: Domains) -> str:
    """A line for each part: its number, what it computes from which others, its name, and its
    possible values.
    """
    rows = []
    for place, node in enumerate(graph(program)):
        if node.sources:
            origin = f"{node.part.kind} of {', '.join(map(str, node.sources))}"
        else:
            origin = node.part.kind
        if isinstance(node.part, Variable):
            known = values_in_words(domains.of(node.part))
        else:
            known = ""
        rows.append((str(place), origin, node.name, known))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}".rstrip()
        for row in rows
    )
