"""The common interface of results: the largest values, a table, a figure and a short print."""

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
        axes: Name and labels of each axis of the columns, such as "layer" and the layers.
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
        """Return a column on the CPU, in float64."""
        known = tuple(self.columns)
        if column not in known:
            raise InputError(
                got=f"kind = {column!r}",
                expected=f"one of {', '.join(known)}",
                fix="Choose one of these.",
            )
        return self.columns[column].detach().cpu().double()

    def place(self, index: int) -> tuple[Label, ...]:
        """Return the labels of a place, from its index in a flattened column."""
        place: list[Label] = []
        for labels in reversed([*self.axes.values()]):
            index, coordinate = divmod(index, len(labels))
            place.insert(0, labels[coordinate])
        return tuple(place)

    def top(self, column: str, count: int) -> Places:
        """Return the ``count`` places with the largest absolute values, the largest first.

        Places without a value (NaN) are left out.
        """
        require_positive(count=count)
        values = self.values(column).flatten()
        sizes = values.abs().nan_to_num(-1.0, posinf=math.inf)
        order = sizes.argsort(descending=True, stable=True)[:count].tolist()
        place_type = _place_type((*self.axes, "value"))
        return Places(
            place_type(*self.place(index), float(values[index]))
            for index in order
            if not math.isnan(values[index])
        )


class Places(list[Any]):
    """Places with their values, which print as a table.

    They are named tuples such as ``(layer, head, value)``.
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
        """Return the values by place."""
        raise NotImplementedError

    def about(self) -> str:
        """Return a description of the result in a line or two, without its values."""
        return f"{type(self).__name__}: {self.table().shape}"

    def top(self, count: int = 5, kind: str | None = None) -> Places:
        """Return the places with the largest absolute values, the largest first::

            sweep.top(1)[0].layer, sweep.top(1)[0].head, sweep.top(1)[0].value

        Args:
            count: At most so many places; those whose value is NaN are left out.
            kind: Which values of several, by the names of :meth:`to_pandas`; the first when None.

        Returns:
            Named tuples of a place's labels and its value, such as ``(layer, head, value)``, which
            print as a table.
        """
        table = self.table()
        if kind is None:
            kind = table.ranked[0]
        return table.top(kind, count)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each place: its labels and its values.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            pandas: Any = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise InputError(
                got="no module pandas", expected="pandas", fix="Run: pip install pandas."
            ) from error
        table = self.table()
        places = list(product(*table.axes.values()))
        columns: dict[str, Any] = {}
        for axis, name in enumerate(table.axes):
            columns[name] = [place[axis] for place in places]
        for name in table.columns:
            columns[name] = table.values(name).flatten().numpy()
        return pandas.DataFrame(columns)

    def plot(self, kind: str | None = None, **options: Any) -> Any:
        """Draw the values by place.

        :func:`~glassformer.figures.places.plot_places` takes the options.

        Needs the extra ``figures``.
        """
        with naming_extras("figures"):
            # Found by name, as figures imports observe.
            plot = pkgutil.resolve_name("glassformer.figures.places:plot_places")
        table = self.table()
        if kind is None:
            kind = table.ranked[0]
        return plot(table, kind, **options)

    def __repr__(self) -> str:
        table = self.table()
        lines = [self.about()]
        for column, places in _shown(table):
            if len(table.ranked) > 1:
                lines.append(f" {column}")
            rows = [(*_place_labels(place, table), f"{place[-1]:+.4g}") for place in places]
            lines += [f"  {line}" for line in aligned(rows)] or ["  no values"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = self.table()
        parts = [f"<p>{html.escape(line)}</p>" for line in self.about().splitlines()]
        for column, places in _shown(table):
            parts.append(_html_table((*table.axes, column), places))
        return "\n".join(parts)


def counted(count: int, name: str) -> str:
    """Return a number and a name, which is given in the singular: ``"9 heads"``."""
    name = name.replace("_", " ")
    if count == 1:
        return f"1 {name}"
    ending = {"query": "queries", "forward pass": "forward passes"}.get(name, f"{name}s")
    return f"{count:,} {ending}"


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the last column is aligned right, the others left."""
    listed = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    lines = []
    for *labels, value in listed:
        left = " ".join(label.ljust(width) for label, width in zip(labels, widths, strict=False))
        lines.append(f"{left}  {value:>{widths[-1]}}")
    return lines


def _shown(table: Table) -> list[tuple[str, Places]]:
    """Return the places that are printed, by column."""
    count = _SHOWN if len(table.ranked) == 1 else _SHOWN_OF_EACH
    return [(column, table.top(column, count)) for column in table.ranked]


def _place_labels(place: Any, table: Table) -> list[str]:
    """Return the labels of a place, numbers with the name of their axis.

    Axes with a single label are left out, unless all axes are such.
    """
    differs = [len(labels) > 1 for labels in table.axes.values()]
    texts: list[str] = []
    for name, label, is_shown in zip(table.axes, place, differs, strict=False):
        if is_shown or not any(differs):
            texts.append(label if isinstance(label, str) else f"{name.replace('_', ' ')} {label}")
    return texts


def _html_table(names: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table whose last column are numbers."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = ""
    for *labels, value in rows:
        cells = [*map(str, labels), f"{value:+.4g}"]
        body += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@functools.cache
def _place_type(names: tuple[str, ...]) -> Any:
    """Return the named tuple with these fields."""
    make: Any = namedtuple  # as Any, because a type checker wants literal fields
    place_type = make("Place", names)
    # Pickling would not find this type by its name: store the fields, and make the type again.
    place_type.__reduce__ = lambda self: (_place, (names, tuple(self)))
    return place_type


def _place(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _place_type(names)(*values)
