"""Texts that are programs, right and wrong for the exercises of the page, and texts that are none."""

import random
from collections.abc import Sequence

from glassformer.explorer.loading.bundled import CARDS
from glassformer.programs.language import Value

FILLED = {
    "histogram": ["operator.eq"],
    "reverse": ["length - indices - 1", "-(indices - length + 1)", "(2 * length - 2 * indices) / 2 - 1"],
    "sort": ["select(indices, indices, operator.lt)", "~select(indices, indices, operator.ge)"],
    "sort-by-frequency": ["select(frequency, frequency, operator.gt)", "select(-frequency, -frequency, operator.lt)"],
    "dyck-1": ["opened < closed", "closed - opened >= 1"],
    "detect": [
        "aggregate(select(indices, indices - 2, operator.eq), tokens)",
        "pick(select(indices, indices - 1, operator.eq), one_before, default=None)",
    ],
    "parity": ['tokens == "1"', '~(tokens == "0")', '(tokens != "0") | (tokens == "1")'],
    "induction": ["select(number, count, operator.eq)"],
}
WRONG = {
    "histogram": ["operator.ne", "operator.le"],
    "reverse": ["length - indices", "indices", "length - indices - 2"],
    "sort": ["everything", "select(indices, indices, operator.le)"],
    "sort-by-frequency": ["select(frequency, frequency, operator.ge)", "everything"],
    "dyck-1": ["opened <= closed", "opened > closed", "opened == closed"],
    "detect": ["one_before", "tokens", "aggregate(select(indices, indices - 3, operator.eq), tokens)"],
    "parity": ['tokens == "0"', "always", "indices"],
    "induction": ["everything", "select(count, number, operator.ne)"],
}

UNREADABLE = (
    *("", "   ", "# nothing", "___", "select(tokens, tokens, ___)", "1", "None", "operator.eq", "everything"),
    *("tokens tokens", "import os", "__import__('os').system('touch hostile')", "tokens.label", "tokens[0]"),
    *("lambda: 1", "tokens and indices", "while True: pass", "tokens = 3", "operator = 3", "a := 3", "f'{tokens}'"),
    *("1.5 + indices", "b'a' == tokens", "...", "'a' * 999999999", "'%99999999s' % tokens", "9 ** 9 ** 9", "9 * 9"),
    *("indices ** 9", "indices * indices", "1 / indices"),
    *("tokens == everything", "operator.eq == tokens", "True & tokens", "everything | tokens"),
    *("select", "tokens('abc')", "select(tokens, tokens, 5)", "select(tokens, tokens, tokens)"),
    *("5 % indices", "1 & indices", "selector_width(*indices)", "selector_width(**indices)", "selector_width(tokens)"),
    *("select(tokens)", "-everything", "everything | 1", "selector_width(everything, label=tokens)", "(yield)"),
    *("await tokens", "indices + " + "9" * 1900, "(" * 1000, "[" * 1000, "~" * 1900 + "tokens", "-" * 1900 + "1"),
    *("tokens" + " + 1" * 480, "\x00", "\ud800", "tokens\\", "x" * 2001, "\n" * 1990 + "'a"),
    *("\N{ARABIC-INDIC DIGIT FIVE}", "'\\d' == tokens"),
)

WITHOUT_VALUE = (
    "tokens + 1",
    "tokens % 3",
    "tokens < 2",
    "indices // 0",
    "aggregate(everything, tokens)",
    "pick(everything, indices)",
)


def blank(name: str) -> str:
    text: str = CARDS["programs"][name]["blank"]
    assert text.count("___") == 1
    return text


SIGNS = ["+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", "&", "|"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


class Writer:
    """Random texts: most are programs, and many of those have no value for some sequence."""

    def __init__(self, draw: random.Random, vocabulary: Sequence[Value]) -> None:
        self.draw = draw
        self.variables, self.selectors = ["tokens", "indices", "indices"], ["everything"]
        self.constants = [repr(token) for token in vocabulary] + ["0", "1", "-2", "3", "None", "True", "False"]

    def text(self) -> str:
        lines = []
        for name in "abcde"[: self.draw.randrange(6)]:
            kind = self.draw.choice(("variables", "variables", "selectors"))
            lines.append(f"{name} = {self.variable(2) if kind == 'variables' else self.selector(2)}")
            getattr(self, kind).append(name)
        return "\n".join([*lines, self.variable(2)])

    def variable(self, depth: int) -> str:
        kind = self.draw.randrange(8) if depth else 0
        if kind <= 1:
            return self.draw.choice(self.variables[-3:] if self.draw.random() < 0.7 else self.variables)
        if kind <= 4:
            sides = [self.variable(depth - 1), self.draw.choice((self.variable(depth - 1), *self.constants))]
            if self.draw.random() < 0.2:
                sides.reverse()
            return f"({f' {self.draw.choice(SIGNS)} '.join(sides)})"
        if kind == 5:
            return f"{self.draw.choice('-~')}{self.variable(depth - 1)}"
        selector = self.selector(depth - 1)
        if kind == 6:
            return f"selector_width({selector})"
        default = self.draw.choice(("", ", 0", ", default=1", f", {self.draw.choice(self.constants)}"))
        return f"{self.draw.choice(('aggregate', 'pick'))}({selector}, {self.variable(depth - 1)}{default})"

    def selector(self, depth: int) -> str:
        kind = self.draw.randrange(6) if depth else 0
        if kind == 0:
            return self.draw.choice(self.selectors)
        if kind == 1:
            return f"~{self.selector(depth - 1)}"
        if kind == 2:
            return f"({self.selector(depth - 1)} {self.draw.choice('&|')} {self.selector(depth - 1)})"
        keys, queries = self.variable(depth - 1), self.variable(depth - 1)
        return f"select({keys}, {queries}, operator.{self.draw.choice(COMPARISONS)})"
