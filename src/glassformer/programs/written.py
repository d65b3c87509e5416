"""Programs as text, for exercises: read without running them, and compared with a definition.

A text is Python in this language only: lines ``name = ...``, and the program as the last line::

    same = select(tokens, tokens, operator.eq)
    selector_width(same)
"""

import ast
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import isroutine
from typing import Any, Literal

import numpy as np

from glassformer.errors import InputError, first_line
from glassformer.processor_time import Budget
from glassformer.programs import language
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import Batch, blocks, count_sequences
from glassformer.programs.graph import graph
from glassformer.programs.language import Selector, Value, Variable, typed
from glassformer.text import short

MOST_CHARACTERS = 2_000
SECONDS = 5.0
"""Processor time after which a comparison is undecided."""

_CALLED = ("select", "selector_width", "aggregate", "pick")
_NAMES = ("tokens", "indices", "everything", *_CALLED)
_COMPARISONS = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
_SIGNS = {
    "Add": "add",
    "Sub": "sub",
    "Mult": "mul",
    "Div": "truediv",
    "Mod": "mod",
    "FloorDiv": "floordiv",
    "BitAnd": "and_",
    "BitOr": "or_",
    "Invert": "invert",
    "USub": "neg",
    **_COMPARISONS,
}
_SEQUENCES_AT_ONCE = 1 << 9


def read_written(text: str, vocabulary: Sequence[Value]) -> Variable:
    """Read the program that a text describes.

    Constants are whole numbers, True, False, None and the texts in ``vocabulary``. Variables are
    multiplied and divided only by numbers: so no number has more digits than the text.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            got=f"{len(text):,} characters",
            expected=f"at most {MOST_CHARACTERS:,}",
            fix="Shorten it.",
        )
    if "\\" in text:  # the parser would warn of it
        raise InputError(
            got="a backslash",
            expected="a text without a backslash",
            fix="Remove it.",
        )
    result = None
    reader = _Reader(vocabulary)
    try:
        for line in ast.parse(text).body:
            result = reader.line(line)
    except InputError:
        raise
    except SyntaxError as error:
        raise InputError(
            got=f"line {error.lineno}: {error.msg}",
            expected="a program of this language",
            fix="Correct it.",
        ) from None
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            got=f"a text that cannot be read: {first_line(error)}",
            expected="a program of this language",
            fix="Correct it.",
        ) from None
    if not isinstance(result, Variable):
        raise InputError(
            got=short(text.strip()[-40:]),
            expected="a variable in the last line",
            fix="End with what the program computes.",
        )
    return result


class _Reader:
    """A reader of one text, with the names that its lines have defined."""

    def __init__(self, vocabulary: Sequence[Value]) -> None:
        self.names = {name: getattr(language, name) for name in _NAMES}
        self.texts = [token for token in vocabulary if isinstance(token, str)]

    def line(self, line: ast.stmt) -> Any:
        """Return the value of a line."""
        match line:
            case ast.Expr(value=value):
                return self.value(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in (
                *_NAMES,
                "operator",
                "___",
            ):
                self.names[name] = self.value(value)
                return self.names[name]
        raise self.refusal(line, "name = ..., with a name of your own, or the program")

    def value(self, node: ast.expr) -> Any:
        """Return a part of a program, a constant, or a comparison of a key with a query."""
        match node:
            case ast.Name(id=name):
                if name not in self.names or name in _CALLED:
                    names = ", ".join(self.names)
                    raise self.refusal(node, f"a value: one of {names}, or what is made of them")
                return self.names[name]
            case ast.Attribute(value=ast.Name(id="operator"), attr=name) if (
                name in _COMPARISONS.values()
            ):
                return getattr(operator, name)
            case ast.Constant(value=value) if (
                value is None or type(value) in (bool, int) or value in self.texts
            ):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if (
                type(value) is int
            ):
                return -value
            case ast.UnaryOp(op=sign, operand=operand):
                return self.computed(node, sign, operand)
            case (
                ast.BinOp(left=left, op=sign, right=right)
                | ast.Compare(left=left, ops=[sign], comparators=[right])
            ):
                return self.computed(node, sign, left, right)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _CALLED:
                # The third argument of select is a comparison.
                comparisons: set[int | str | None] = set()
                if name == "select":
                    comparisons = {2, "predicate"}
                values = []
                for index, arg in enumerate(args):
                    values.append(self.argument(arg, index in comparisons))
                named = {}
                for keyword in keywords:
                    value = self.argument(keyword.value, keyword.arg in comparisons)
                    named[keyword.arg or "**"] = value
                return self.names[name](*values, **named)
        names = ", ".join(_NAMES)
        raise self.refusal(node, f"one of {names}, operator.eq and others, and operators")

    def argument(self, node: ast.expr, compares: bool) -> Any:
        """Return an argument of a call."""
        return self.comparison(node) if compares else self.value(node)

    def comparison(self, node: ast.expr) -> Any:
        """Return a comparison of a key with a query: one of Python's, or a name for it."""
        names = _COMPARISONS.values()
        match node:
            case ast.Attribute(value=ast.Name(id="operator"), attr=name) if name in names:
                return getattr(operator, name)
            case ast.Name(id=name) if name not in _CALLED and isroutine(self.names.get(name)):
                return self.names[name]
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in names:
                raise self.refusal(
                    node, "a comparison of module operator", f"Did you mean operator.{name}?"
                )
        listed = ", ".join(f"operator.{name}" for name in names)
        raise self.refusal(node, f"a comparison of a key with a query: one of {listed}")

    def computed(self, node: ast.expr, sign: ast.AST, *sides: ast.expr) -> Any:
        """Return the result of an operator.

        Operators of constants only are refused: their results could become large.
        """
        values = list(map(self.value, sides))
        name = type(sign).__name__
        variables = [isinstance(value, Variable) for value in values]
        selectors = [isinstance(value, Selector) for value in values]
        combines_selectors = all(selectors) and name in ("BitAnd", "BitOr", "Invert")
        fits = name in _SIGNS and any(variables)
        if any(selectors) or any(map(isroutine, values)):
            fits = False
        if name in ("Mult", "Div"):
            fits &= sum(variables) == 1
        if name in ("Div", "Mod", "FloorDiv", "BitAnd", "BitOr"):
            fits &= variables[0]
        if not fits and not combines_selectors:
            raise self.refusal(
                node,
                "an operator of two variables, of a variable and a number, or of two selectors",
            )
        return getattr(operator, _SIGNS[name])(*values)

    def refusal(
        self, node: ast.expr | ast.stmt, expected: str, fix: str = "Replace it."
    ) -> InputError:
        """Return an error that names a part of the text."""
        return InputError(f"{short(ast.unparse(node))} in line {node.lineno}", expected, fix)


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a program with a definition, wherever that has a value.

    Attributes:
        verdict: "holds" if all sequences were run, "fails" with a counterexample, or "undecided".
        num_run: Number of sequences that were run, of ``num_possible``.
        counterexample: The shortest sequence on which they differ, the position, the definition's
            value and the program's.
    """

    verdict: Literal["holds", "fails", "undecided"]
    num_run: int
    num_possible: int
    counterexample: tuple[tuple[Value, ...], int, Value, Value] | None = None


def compare(
    program: Variable, definition: Variable, domains: Domains, *, limit: int = 100_000
) -> Comparison:
    """Run both on every sequence of ``domains``, the shortest first, at most ``limit`` in all.

    Raises:
        InputError: The program has no value on a sequence on which the definition has one.
    """
    vocabulary = domains.vocabulary
    max_len = domains.max_len
    budget = Budget(SECONDS)
    possible = count_sequences(len(vocabulary), max_len)
    done = 0
    try:
        parts = [node.part for node in graph(program) if isinstance(node.part, Variable)]
        for block in blocks(len(vocabulary), max_len, limit, _SEQUENCES_AT_ONCE):
            batch = Batch(block, vocabulary, domains.causal)
            expected_batch = Batch(block, vocabulary, domains.causal)
            for part in parts:
                if budget.is_over():
                    return Comparison("undecided", done, possible)
                batch.column(part)
            places, values = batch.column(program)
            expected_places, expected_values = expected_batch.column(definition)
            numbers: dict[Any, int] = {}
            kinds = np.array([numbers.setdefault(typed(value), len(numbers)) for value in values])
            expected_kinds = np.array(
                [numbers.setdefault(typed(value), len(numbers)) for value in expected_values]
            )
            wrong = kinds[places] != expected_kinds[expected_places]
            wrong |= ~batch.defined[:, None]
            wrong &= expected_batch.defined[:, None]
            if wrong.any():
                row = int(wrong.any(1).argmax())
                position = int(wrong[row].argmax())
                sequence = tuple(vocabulary[token] for token in block[row].tolist())
                program(sequence, causal=domains.causal)  # raises if there is no value
                expected = expected_values[expected_places[row, position]]
                value = values[places[row, position]]
                example = (sequence, position, expected, value)
                return Comparison("fails", done + row + 1, possible, example)
            done += len(block)
    except RecursionError:
        raise InputError(
            got="a program of hundreds of steps on one another",
            expected="fewer",
            fix="Shorten it.",
        ) from None
    if done == possible:
        return Comparison("holds", done, possible)
    return Comparison("undecided", done, possible)
