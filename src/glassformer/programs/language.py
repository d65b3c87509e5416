"""The program language: variables with a value at each position, and selectors between positions.

A program is a :class:`Variable`, built from ``tokens`` and ``indices``::

    same = select(tokens, tokens, operator.eq)
    histogram = selector_width(same)                     # "abac" -> 2 1 2 1
    before = select(indices, indices, lambda key, query: key == query - 1)
    previous = aggregate(before, tokens)                 # "abac" -> None a b a

Calling a program runs it on a sequence; that is its definition.
:mod:`glassformer.programs.compiler` turns it into the weights of a transformer.

Source: Weiss et al. 2021, "Thinking Like Transformers", arXiv 2106.06981 (RASP); Lindner et al.
2023, arXiv 2301.05062.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import wraps
from itertools import compress
from numbers import Rational
from typing import Any, ClassVar, Literal, TypeVar

from glassformer.errors import InputError, first_line

Value = Any
"""A number, a string, a tuple of values, or None where there is no value. See :func:`typed`."""
Predicate = Callable[[Value, Value], bool]
"""A condition on the value of a key and the value of a query."""
Kind = Literal["input", "function", "select", "combined", "aggregate", "width"]
"""The operation of a part."""

_Method = TypeVar("_Method", bound=Callable[..., Any])

_LONGEST_NAME = 120


def remembered(method: _Method) -> _Method:
    """Decorate a method of one argument, so that its instance remembers each result."""
    name = f"_known_{method.__name__}"

    @wraps(method)
    def look_up(self: Any, part: Any) -> Any:
        known = self.__dict__.setdefault(name, {})
        if part not in known:
            known[part] = method(self, part)
        return known[part]

    return look_up  # type: ignore[return-value]


class _Part:
    """A part of a program. Parts are compared by identity: ``==`` makes a variable."""

    label: str
    kind: ClassVar[Kind]

    def __post_init__(self) -> None:
        # Names are of limited length, because they contain the names of other parts.
        name = self.label or self._describe()
        object.__setattr__(self, "label", _shortened(name))

    def named(self, label: str) -> Any:
        """Return the part under a name, which errors, reports and pictures use."""
        return replace(self, label=label)  # type: ignore[type-var]

    @property
    def reads(self) -> tuple[Any, ...]:
        """The parts that it is made of, such as the keys and queries of a select."""
        parts: list[Any] = []
        for value in vars(self).values():
            if isinstance(value, tuple):
                parts += value
            else:
                parts.append(value)
        return tuple(part for part in parts if isinstance(part, _Part))

    def __repr__(self) -> str:
        return self.label

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self  # a copied model has the same program, whose parts are known by identity

    def _describe(self) -> str:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise InputError(
            got=f"the truth of {self}",
            expected="a program without if, and, or, not",
            fix="Use &, | and ~.",
        )


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{text[: _LONGEST_NAME - 3]}..."


def _operator(sign: str, function: Callable[[Value, Value], Value]) -> Callable[[Any, Any], Any]:
    """Return a method that applies ``function`` to a variable and another one or a constant."""

    def method(self: Variable, other: Any) -> Variable:
        if isinstance(other, Variable):
            return Elementwise(function, (self, other), label=f"({self} {sign} {other})")
        label = f"({self} {sign} {_shown(other)})"
        return Elementwise(lambda value: function(value, other), (self,), label=label)

    return method


class Variable(_Part):
    """A value at each position. Operators with variables and constants give variables.

    An operator with None gives None, as does any elementwise function.
    """

    def __call__(self, sequence: Sequence[Value], *, causal: bool = False) -> list[Value]:
        """Return the value at each position of ``sequence``.

        Args:
            sequence: At least one token.
            causal: Let selectors choose only keys up to the query's own position.
        """
        with refuse_endless(self):
            return Interpreter(sequence, causal).values(self)

    def __add__(self, other: Any) -> Variable:
        return _linear((self, 1), (other, 1))

    def __radd__(self, other: Any) -> Variable:
        return _linear((other, 1), (self, 1))

    def __sub__(self, other: Any) -> Variable:
        return _linear((self, 1), (other, -1))

    def __rsub__(self, other: Any) -> Variable:
        return _linear((other, 1), (self, -1))

    def __neg__(self) -> Variable:
        return _linear((self, -1))

    def __mul__(self, other: Any) -> Variable:
        if isinstance(other, Variable):
            return self._times(other)
        return _linear((self, other))

    def __rmul__(self, other: Any) -> Variable:
        return _linear((self, other))

    def __truediv__(self, other: Any) -> Variable:
        if isinstance(other, Variable):
            return self._over(other)
        if other == 0:
            raise InputError(
                got=f"{self} / 0",
                expected="a divisor that is not 0",
                fix="Divide by another number.",
            )
        return _linear((self, _exact(1) / _exact(other)))

    _times = _operator("*", lambda a, b: _exact(a) * _exact(b))
    _over = _operator("/", lambda a, b: _exact(a) / _exact(b))
    __mod__ = _operator("%", operator.mod)
    __floordiv__ = _operator("//", operator.floordiv)
    __lt__ = _operator("<", operator.lt)
    __le__ = _operator("<=", operator.le)
    __gt__ = _operator(">", operator.gt)
    __ge__ = _operator(">=", operator.ge)
    __eq__ = _operator("==", operator.eq)
    __ne__ = _operator("!=", operator.ne)
    __and__ = _operator("&", lambda a, b: bool(a) and bool(b))
    __or__ = _operator("|", lambda a, b: bool(a) or bool(b))

    def __invert__(self) -> Variable:
        return Elementwise(operator.not_, (self,), label=f"~({self})")

    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False, repr=False)
class Input(Variable):
    """The token, or the index of the position from 0."""

    kind = "input"
    label: str

    def named(self, label: str) -> Any:
        """Refuse to name an input: there are only two, ``tokens`` and ``indices``."""
        raise InputError(
            got=f"{self}.named({label!r})",
            expected="the result of an operation",
            fix=f"Use {self} as it is.",
        )


tokens = Input("tokens")
indices = Input("indices")


@dataclass(frozen=True, eq=False, repr=False)
class Elementwise(Variable):
    """A function of the values of one or several variables at the same position."""

    kind = "function"
    function: Callable[..., Value]
    sources: tuple[Variable, ...]
    label: str = ""
    linear: tuple[tuple[Fraction, ...], Fraction] | None = None
    """The factors and the constant of a sum of multiples of the sources; None otherwise."""
    takes_none: bool = False
    """True if the function is called where a source is None; otherwise it is None there."""

    def _describe(self) -> str:
        return f"f({', '.join(map(str, self.sources))})"


class Selector(_Part):
    """A choice of keys for each query. ``&``, ``|`` and ``~`` combine selectors."""

    def __and__(self, other: Selector) -> Selector:
        if not isinstance(other, Selector):
            raise InputError(
                got=f"{self} & {other}",
                expected="two selectors",
                fix="Use select().",
            )
        return Combined(operator.and_, (self, other), label=f"({self} & {other})")

    def __or__(self, other: Selector) -> Selector:
        if not isinstance(other, Selector):
            raise InputError(
                got=f"{self} | {other}",
                expected="two selectors",
                fix="Use select().",
            )
        return Combined(operator.or_, (self, other), label=f"({self} | {other})")

    def __invert__(self) -> Selector:
        return Combined(operator.not_, (self,), label=f"~{self}")


_SIGNS: dict[Predicate, str] = {
    operator.eq: " == ",
    operator.ne: " != ",
    operator.lt: " < ",
    operator.le: " <= ",
    operator.gt: " > ",
    operator.ge: " >= ",
}


@dataclass(frozen=True, eq=False, repr=False)
class Select(Selector):
    """The pairs of a key's and a query's value, both not None, for which a predicate holds."""

    kind = "select"
    keys: Variable
    queries: Variable
    predicate: Predicate
    label: str = ""

    def _describe(self) -> str:
        return f"select({self.keys}{_SIGNS.get(self.predicate, ', ')}{self.queries})"


@dataclass(frozen=True, eq=False, repr=False)
class Combined(Selector):
    """A boolean function of selectors: and, or, not."""

    kind = "combined"
    function: Callable[..., bool]
    parts: tuple[Selector, ...]
    label: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Aggregate(Variable):
    """The mean of the selected values; the value itself where all selected ones are equal."""

    kind = "aggregate"
    selector: Selector
    values: Variable
    default: Value = None
    label: str = ""
    single: bool = False
    """True if there is no mean of different values, not even of numbers."""

    def _describe(self) -> str:
        return f"aggregate({self.selector}, {self.values})"


@dataclass(frozen=True, eq=False, repr=False)
class Width(Variable):
    """The number of selected keys."""

    kind = "width"
    selector: Selector
    label: str = ""

    def _describe(self) -> str:
        return f"width({self.selector})"


def elementwise(function: Callable[..., Value], *sources: Variable, label: str = "") -> Variable:
    """Apply ``function`` to the values of ``sources`` at each position.

    The result is None where one of the values is None.
    """
    if not sources:
        raise InputError(
            got="no sources",
            expected="at least one variable",
            fix="Pass the variables that it is a function of.",
        )
    for source in sources:
        _require_variable("sources", source)
    return Elementwise(function, sources, label=label)


def select(keys: Variable, queries: Variable, predicate: Predicate, label: str = "") -> Selector:
    """Select the keys whose value fulfils ``predicate(key, query)``.

    A value of None is never selected and selects nothing.
    """
    _require_variable("keys", keys)
    _require_variable("queries", queries)
    if not callable(predicate) or isinstance(predicate, _Part):
        raise InputError(
            got=f"predicate = {_shown(predicate)}",
            expected="a function of a key's and a query's value",
            fix="Use operator.eq.",
        )
    return Select(keys, queries, predicate, label)


everything = Select(tokens, tokens, lambda key, query: True, "everything")
"""Selects all keys."""


def aggregate(
    selector: Selector, values: Variable, default: Value = None, label: str = ""
) -> Variable:
    """Return the mean of the selected values, or ``default`` where nothing is selected.

    Values that are no numbers have a mean only if all that are selected are equal.
    """
    _require_variable("values", values)
    if not isinstance(selector, Selector):
        raise InputError(
            got=f"selector = {selector}",
            expected="a selector",
            fix="Use select().",
        )
    require_value(default, "default =")
    return Aggregate(selector, values, default, label)


def pick(selector: Selector, values: Variable, default: Value = None, label: str = "") -> Variable:
    """Return the selected value, or ``default`` where nothing is selected.

    It is an error if different values are selected. For numbers it takes fewer parameters than
    :func:`aggregate` where the selector is not seen to choose one key.
    """
    variable = aggregate(selector, values, default, label)
    return replace(variable, single=True)  # type: ignore[type-var]


def selector_width(selector: Selector, label: str = "") -> Variable:
    """Return the number of keys that each query selects."""
    if not isinstance(selector, Selector):
        raise InputError(
            got=f"selector = {selector}",
            expected="a selector",
            fix="Use select().",
        )
    return Width(selector, label)


def _require_variable(name: str, variable: object) -> None:
    if not isinstance(variable, Variable):
        raise InputError(
            got=f"{name} = {variable}",
            expected="a variable",
            fix="Build it from tokens and indices.",
        )


def _exact(number: Any) -> Fraction:
    finite = is_number(number) and number - number == 0
    if not finite:
        raise InputError(
            got=f"{number!r} in a sum",
            expected="a finite number or a variable",
            fix="Use elementwise() for other values.",
        )
    return Fraction(number)


def _linear(*terms: tuple[Any, Any]) -> Variable:
    """Return the sum of the terms, each a variable or a number and its factor."""
    sums: dict[Variable, Fraction] = {}
    for operand, factor in terms:
        if isinstance(operand, Variable):
            sums[operand] = sums.get(operand, Fraction(0)) + _exact(factor)
    sources = tuple(sums)
    factors = tuple(sums.values())
    constants = [(number, factor) for number, factor in terms if not isinstance(number, Variable)]
    constant = sum((_exact(number) * factor for number, factor in constants), Fraction(0))
    for number in (constant, *factors):
        require_value(number, "a factor or a constant of")
    # Integers are added faster than fractions.
    start, *multiples = map(simplest, (constant, *factors))

    def function(*values: Value) -> Value:
        total = start
        for value, factor in zip(values, multiples, strict=True):
            total += (value if isinstance(value, int) else _exact(value)) * factor
        return total

    pieces = []
    for operand, factor in terms:
        sign = "-" if factor < 0 else "+"
        product = f"{operand}"
        if abs(factor) != 1:
            product = f"{abs(factor)} * {operand}"
        pieces.append(f"{sign} {product}")
    label = " ".join(pieces).removeprefix("+ ")
    return Elementwise(function, sources, label=f"({label})", linear=(factors, constant))


def typed(value: Value) -> Any:
    """Return a key that is equal for equal values of the same type only.

    True, 1, 1.0 and Fraction(1) are equal in Python, but they are different values.
    """
    if isinstance(value, tuple):
        return (type(value), *map(typed, value))
    if isinstance(value, float):
        return (type(value), repr(value))
    return (type(value), value)


def distinct(values: Iterable[Value]) -> list[Value]:
    """Return each value once, see :func:`typed`."""
    return list({typed(value): value for value in values}.values())


def is_number(value: Value) -> bool:
    """Return whether a value can be added to others."""
    return isinstance(value, int | float | Fraction)


def simplest(value: Value) -> Value:
    """Return a whole fraction as an int, and NumPy's numbers as Python's, which do not overflow.

    Other values are returned as they are.
    """
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Rational) and value.denominator == 1:
        return int(value.numerator)
    return value


def apply(part: Elementwise, values: Sequence[Value]) -> Value:
    """Call the function of ``part``.

    Raises:
        InputError: The function raised, or its result is no value, such as NaN. The error names
            the part and the values.
    """
    if not part.takes_none and any(value is None for value in values):
        return None
    try:
        result = part.function(*values)
    except InputError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__} ({first_line(error)})"
        raise InputError(
            got=f"{_call(part, values)}, which raised {problem}",
            expected="a value for all values that its sources may have",
            fix="Return None where there is none.",
        ) from error
    if isinstance(result, str) or (isinstance(result, int) and result.bit_length() < 1000):
        return result
    result = simplest(result)
    if not _is_value(result):
        require_value(result, f"{_call(part, values)} =")
    return result


def _call(part: Elementwise, values: Sequence[Value]) -> str:
    """Return a call of a part's function in words."""
    return f"{part} of {', '.join(map(_shown, values))}"


def require_value(value: Value, context: str) -> None:
    """Refuse all but texts, None, numbers that are finite in float64, and tuples of these."""
    if not _is_value(value):
        raise InputError(
            got=f"{context} {_shown(value)}",
            expected="a finite number, a string, None or a tuple of these",
            fix="Use Python's own types, and None where there is no value.",
        )


def _is_value(value: Value) -> bool:
    """Return whether :func:`require_value` accepts a value."""

    def fits(value: Value) -> bool:
        if isinstance(value, tuple):
            return all(map(fits, value))
        if value is None or isinstance(value, str):
            return True
        return is_number(value) and float(value) - float(value) == 0

    try:
        return fits(value)
    except (TypeError, OverflowError, RecursionError):
        return False


def _shown(value: Value) -> str:
    try:
        return _shortened(repr(value))
    except Exception:  # an integer of more digits than Python writes
        return f"a value of type {type(value).__name__}"


def mean(selected: Sequence[Value], part: Aggregate) -> Value:
    """Return the mean of the selected values, exact for whole numbers and fractions."""
    if not selected:
        return part.default
    first = typed(selected[0])
    if all(typed(value) == first for value in selected):
        return selected[0]
    if part.single or not all(map(is_number, selected)):
        raise InputError(
            got=f"{part}, which selects {', '.join(map(_shown, selected))}",
            expected="numbers, or a single value",
            fix="Make the selector choose one key.",
        )
    return simplest(sum(map(_exact, selected), Fraction(0)) / len(selected))


@contextmanager
def refuse_endless(program: Variable) -> Iterator[None]:
    """Refuse programs whose parts are nested deeper than Python's calls can be."""
    try:
        yield
    except RecursionError:
        raise InputError(
            got=f"{program}, with hundreds of parts on one another",
            expected="fewer",
            fix="Split the program.",
        ) from None


@dataclass
class Interpreter:
    """The values of programs on one sequence; each part is computed once."""

    sequence: Sequence[Value]
    causal: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.sequence, Sequence):
            raise InputError(
                got=f"{_shown(self.sequence)} for a sequence",
                expected="a text or a list of tokens",
                fix="Pass some tokens.",
            )
        if not self.sequence:
            raise InputError(
                got="an empty sequence",
                expected="at least one token",
                fix="Pass some tokens.",
            )

    @remembered
    def values(self, part: Variable) -> list[Value]:
        """Return the values of a variable at all positions."""
        if part is tokens:
            return list(self.sequence)
        if part is indices:
            return list(range(len(self.sequence)))
        if isinstance(part, Elementwise):
            columns = map(self.values, part.sources)
            return [apply(part, values) for values in zip(*columns, strict=True)]
        if isinstance(part, Width):
            return list(map(sum, self.selected(part.selector)))
        if not isinstance(part, Aggregate):
            raise InputError(
                got=f"{part!r}",
                expected="a variable of this language",
                fix="Build it from tokens and indices.",
            )
        column = self.values(part.values)
        return [mean([*compress(column, row)], part) for row in self.selected(part.selector)]

    def selected(self, part: Selector) -> list[list[bool]]:
        """Return which keys each query selects."""
        return [
            [chosen and (key <= query or not self.causal) for key, chosen in enumerate(row)]
            for query, row in enumerate(self._holds(part))
        ]

    @remembered
    def _holds(self, part: Selector) -> list[list[bool]]:
        """Return the pairs of a query and a key for which a selector holds, seen or not."""
        if isinstance(part, Combined):
            tables = map(self._holds, part.parts)
            rows = zip(*tables, strict=True)
            return [[bool(part.function(*bits)) for bits in zip(*row, strict=True)] for row in rows]
        assert isinstance(part, Select)
        keys = self.values(part.keys)
        queries = self.values(part.queries)
        return [[fulfils(part, key, query) for key in keys] for query in queries]


def fulfils(part: Select, key: Value, query: Value) -> bool:
    """Return whether a key's value is selected by a query's value."""
    if key is None or query is None:
        return False
    try:
        result = part.predicate(key, query)
        if result in (True, False):
            return bool(result)
        problem = f"gave {_shown(result)}"
    except Exception as error:
        problem = f"raised {first_line(error)}"
    call = f"the predicate of {part} of key {_shown(key)} and query {_shown(query)}"
    raise InputError(
        got=f"{call}, which {problem}",
        expected="True or False",
        fix="Make the predicate defined for all values.",
    )
