"""What all results of sweeps, scores and lenses share: the largest values, a table, a figure and a
short print.
"""

from __future__ import annotations

import functools
import html
import importlib
import math
import pkgutil
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor

from glassformer.errors import InputError, naming_extras, require_positive

Label = int | str

_SHOWN = 5
"""Places that a printed result names."""
_SHOWN_OF_EACH = 3
"""Places of each column of a printed result that ranks several."""


@dataclass(frozen=True, eq=False)
class Table:
    """Values of places, in columns.

    Args:
        axes: For each axis of the columns its name, such as "layer", and the labels along it, such
            as layers.
        columns: Named tensors, all with these axes.
        ranked: The columns by which :meth:`Result.top` ranks places, the first by default.
    """

    axes: Mapping[str, Sequence[Label]]
    columns: Mapping[str, Shaped[Tensor, "*place"]]
    ranked: tuple[str, ...]

    @property
    def shape(self) -> str:
        """The number of labels of each axis, in words."""
        return " x ".join(counted(len(labels), name) for name, labels in self.axes.items())

    def values(self, column: str) -> Float[Tensor, "*place"]:
        """A column on the CPU, in float64."""
        known = tuple(self.columns)
        if column not in known:
            raise InputError(
                got=f"kind = {column!r}",
                expected=f"one of {', '.join(known)}",
                fix="Choose one of these.",
            )
        return self.columns[column].detach().cpu().double()

    def place(self, index: int) -> tuple[Label, ...]:
        """The labels of a place, from its index in a flattened column."""
        found: list[Label] = []
        for labels in reversed([*self.axes.values()]):
            index, at = divmod(index, len(labels))
            found.insert(0, labels[at])
        return tuple(found)

    def top(self, column: str, count: int) -> Places:
        """The ``count`` places with the largest absolute values, the largest first; NaN is left
        out.
        """
        require_positive(count=count)
        values = self.values(column).flatten()
        order = (
            values.abs()
            .nan_to_num(-1.0, posinf=math.inf)
            .argsort(descending=True, stable=True)[:count]
            .tolist()
        )
        named = _place_type((*self.axes, "value"))
        return Places(
            named(*self.place(at), float(values[at])) for at in order if not math.isnan(values[at])
        )


class Places(list[Any]):
    """Places with their values: named tuples such as ``(layer, head, value)``, which print as a
    table.
    """

    def __repr__(self) -> str:
        if not self:
            return "no places"
        rows = [(*map(str, place[:-1]), f"{place[-1]:+.4g}") for place in self]
        return "\n".join(aligned([self[0]._fields, *rows]))

    def _repr_html_(self) -> str:
        if not self:
            return "<p>no places</p>"
        return _html_table(self[0]._fields, self)


class Result:
    """A result with one or more values for each place; a subclass says which, in :meth:`table`."""

    def table(self) -> Table:
        """The values by place."""
        raise NotImplementedError

    def about(self) -> str:
        """What the result is, in a line or two, without its values."""
        return f"{type(self).__name__}: {self.table().shape}"

    def top(self, count: int = 5, kind: str | None = None) -> Places:
        """The places with the largest absolute values, the largest first::

            sweep.top(1)[0].layer, sweep.top(1)[0].head, sweep.top(1)[0].value

        Args:
            count: At most so many places; those whose value is NaN are left out.
            kind: Which values of several, by the names of :meth:`to_pandas`; the first when None.

        Returns:
            Named tuples of a place's labels and its value, such as ``(layer, head, value)``, which
            print as a table.
        """
        table = self.table()
        return table.top(table.ranked[0] if kind is None else kind, count)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each place: columns of its labels, and of each
        value.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            pandas: Any = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise InputError("no module pandas", "pandas", "Run: pip install pandas.") from error
        table = self.table()
        places = list(product(*table.axes.values()))
        labels = {name: [place[at] for place in places] for at, name in enumerate(table.axes)}
        columns = {name: table.values(name).flatten().numpy() for name in table.columns}
        return pandas.DataFrame({**labels, **columns})

    def plot(self, kind: str | None = None, **options: Any) -> Any:
        """Draw the values by place; see :func:`~glassformer.figures.places.plot_places`, which
        takes the options.

        Needs the extra ``figures``.
        """
        with naming_extras("figures"):
            # Found by name, as figures imports observe.
            plot = pkgutil.resolve_name("glassformer.figures.places:plot_places")
        table = self.table()
        return plot(table, table.ranked[0] if kind is None else kind, **options)

    def __repr__(self) -> str:
        table = self.table()
        lines = [self.about()]
        for column, places in _shown(table):
            title = f" {column}" if len(table.ranked) > 1 else ""
            lines += [title] if title else []
            rows = [(*_named(place, table), f"{place[-1]:+.4g}") for place in places]
            lines += [f"  {line}" for line in aligned(rows)] or ["  no values"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = self.table()
        parts = [f"<p>{html.escape(line)}</p>" for line in self.about().splitlines()]
        for column, places in _shown(table):
            parts.append(_html_table((*table.axes, column), places))
        return "\n".join(parts)


def counted(count: int, name: str) -> str:
    """A number of things of this name in the singular: ``"9 heads"``."""
    name = name.replace("_", " ")
    if count == 1:
        return f"1 {name}"
    ending = {"query": "queries", "forward pass": "forward passes"}.get(name, f"{name}s")
    return f"{count:,} {ending}"


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table: the last column, of numbers, is aligned on the right, the others on the
    left.
    """
    listed = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    lines = []
    for *labels, value in listed:
        left = " ".join(label.ljust(width) for label, width in zip(labels, widths, strict=False))
        lines.append(f"{left}  {value:>{widths[-1]}}")
    return lines


def _shown(table: Table) -> list[tuple[str, Places]]:
    """The places that are printed, by column."""
    count = _SHOWN if len(table.ranked) == 1 else _SHOWN_OF_EACH
    return [(column, table.top(column, count)) for column in table.ranked]


def _named(place: Any, table: Table) -> list[str]:
    """The labels of a place, numbers with the name of their axis; without axes of one label, of
    which all are.
    """
    several = [len(labels) > 1 for labels in table.axes.values()]
    found = []
    for name, label, differs in zip(table.axes, place, several, strict=False):
        if differs or not any(several):
            found.append(label if isinstance(label, str) else f"{name.replace('_', ' ')} {label}")
    return found


def _html_table(names: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table whose last column are numbers."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = ""
    for *labels, value in rows:
        cells = [*map(str, labels), f"{value:+.4g}"]
        body += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@functools.cache
def _place_type(names: tuple[str, ...]) -> Any:
    """The named tuple with these fields."""
    make: Any = namedtuple  # whose fields a type checker asks for in the code
    found = make("Place", names)
    # Types that are made while a program runs are not found by name; their fields make them again.
    found.__reduce__ = lambda self: (_place, (names, tuple(self)))
    return found


def _place(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _place_type(names)(*values)
