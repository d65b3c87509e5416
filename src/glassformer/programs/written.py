"""Programs as text, for exercises: read without running anything, and compared with a definition on
every sequence.

A text is Python that uses this language alone: lines ``name = ...``, and a last line that is the
program::

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

from glassformer.errors import InputError, first_line, require
from glassformer.processor_time import Budget
from glassformer.programs import language
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import Batch, blocks
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
} | {
    **{"BitAnd": "and_", "BitOr": "or_", "Invert": "invert", "USub": "neg"},
    **_COMPARISONS,
}
_SEQUENCES_AT_ONCE = 1 << 9


def read_written(text: str, vocabulary: Sequence[Value]) -> Variable:
    """The program that a text describes.

    Constants are whole numbers, True, False, None and the texts in ``vocabulary``. Variables are
    multiplied and divided by numbers alone, so that no number in a program has more digits than its
    text.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            got=f"{len(text):,} characters",
            expected=f"at most {MOST_CHARACTERS:,}",
            fix="Shorten it.",
        )
    require(
        "\\" not in text, "a backslash", "a text without", "Remove it."
    )  # of which the parser would warn
    result = None
    reader = _Reader(vocabulary)
    try:
        for line in ast.parse(text).body:
            result = reader.line(line)
    except InputError:
        raise
    except SyntaxError as error:
        raise InputError(
            f"line {error.lineno}: {error.msg}", "a program of this language", "Correct it."
        ) from None
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        expected = "a program of this language"
        raise InputError(
            f"a text that cannot be read: {first_line(error)}", expected, "Correct it."
        ) from None
    expected = "a variable in the last line"
    if not isinstance(result, Variable):
        raise InputError(
            got=short(text.strip()[-40:]),
            expected=expected,
            fix="End with what the program computes.",
        )
    assert isinstance(result, Variable)
    return result


class _Reader:
    def __init__(self, vocabulary: Sequence[Value]) -> None:
        self.names = {name: getattr(language, name) for name in _NAMES}
        self.texts = [token for token in vocabulary if isinstance(token, str)]

    def line(self, line: ast.stmt) -> Any:
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
        """A part of a program, a constant, or what compares a key with a query."""
        match node:
            case ast.Name(id=name):
                if name not in self.names or name in _CALLED:
                    raise self.refusal(
                        node, f"a value: one of {', '.join(self.names)}, or what is made of them"
                    )
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
                # The third argument of select is no value.
                if name == "select":
                    compares = {2, "predicate"}
                else:
                    compares = set()
                values = [self.argument(each, at in compares) for at, each in enumerate(args)]
                named = {
                    each.arg or "**": self.argument(each.value, each.arg in compares)
                    for each in keywords
                }
                return self.names[name](*values, **named)
        raise self.refusal(
            node, f"one of {', '.join(_NAMES)}, operator.eq and others, and operators"
        )

    def argument(self, node: ast.expr, compares: bool) -> Any:
        return self.comparison(node) if compares else self.value(node)

    def comparison(self, node: ast.expr) -> Any:
        """What compares a key with a query: one of Python's comparisons, or a name for it."""
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
        """What an operator makes of parts, not of constants: these could become large."""
        values = list(map(self.value, sides))
        name = type(sign).__name__
        variables, selectors = (
            [isinstance(each, kind) for each in values] for kind in (Variable, Selector)
        )
        fits = (
            name in _SIGNS
            and any(variables)
            and not any(selectors)
            and not any(map(isroutine, values))
        )
        if name in ("Mult", "Div"):
            fits &= sum(variables) == 1
        if name in ("Div", "Mod", "FloorDiv", "BitAnd", "BitOr"):
            fits &= variables[0]
        if not fits and not (all(selectors) and name in ("BitAnd", "BitOr", "Invert")):
            raise self.refusal(
                node,
                "an operator of two variables, of a variable and a number, or of two selectors",
            )
        return getattr(operator, _SIGNS[name])(*values)

    def refusal(
        self, node: ast.expr | ast.stmt, expected: str, fix: str = "Replace it."
    ) -> InputError:
        return InputError(f"{short(ast.unparse(node))} in line {node.lineno}", expected, fix)


@dataclass(frozen=True)
class Comparison:
    """Whether a program gives what a definition gives, wherever that has a value.

    Attributes:
        verdict: "holds" if all sequences were run, "fails" with a counterexample, or "undecided".
        num_run: Sequences that were run, of all ``num_possible`` ones.
        counterexample: The shortest sequence on which they differ, the position, what was wanted
            and what was found.
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
    most = domains.max_len
    budget = Budget(SECONDS)
    possible = sum(len(vocabulary) ** length for length in range(1, most + 1))
    done = 0
    try:
        parts = [node.part for node in graph(program) if isinstance(node.part, Variable)]
        for block in blocks(len(vocabulary), most, limit, _SEQUENCES_AT_ONCE):
            found, wanted = (Batch(block, vocabulary, domains.causal) for _ in range(2))
            for part in parts:
                if budget.is_over():
                    return Comparison("undecided", done, possible)
                found.column(part)
            (places, values), (wanted_places, wanted_values) = (
                found.column(program),
                wanted.column(definition),
            )
            kinds: dict[Any, int] = {}
            ours, theirs = (
                np.array([kinds.setdefault(typed(each), len(kinds)) for each in listed])
                for listed in (values, wanted_values)
            )
            wrong = (ours[places] != theirs[wanted_places]) | ~found.defined[:, None]
            wrong &= wanted.defined[:, None]
            if wrong.any():
                row = int(wrong.any(1).argmax())
                sequence = tuple(vocabulary[token] for token in block[row].tolist())
                at = int(wrong[row].argmax())
                program(sequence, causal=domains.causal)  # which says why there is no value
                example = (
                    sequence,
                    at,
                    wanted_values[wanted_places[row, at]],
                    values[places[row, at]],
                )
                return Comparison("fails", done + row + 1, possible, example)
            done += len(block)
    except RecursionError:
        raise InputError(
            "a program of hundreds of steps on one another", "fewer", "Shorten it."
        ) from None
    return Comparison("holds" if done == possible else "undecided", done, possible)
