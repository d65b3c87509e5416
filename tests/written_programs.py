"""Texts that are programs, right and wrong for the exercises of the page, and texts that are none."""

from glassformer.explorer.loading.bundled import CARDS

FILLED = {
    "histogram": ["operator.eq"],
    "reverse": [
        "length - indices - 1",
        "-(indices - length + 1)",
        "(2 * length - 2 * indices) / 2 - 1",
    ],
    "sort": ["select(indices, indices, operator.lt)", "~select(indices, indices, operator.ge)"],
    "sort-by-frequency": [
        "select(frequency, frequency, operator.gt)",
        "select(-frequency, -frequency, operator.lt)",
    ],
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
    "detect": [
        "one_before",
        "tokens",
        "aggregate(select(indices, indices - 3, operator.eq), tokens)",
    ],
    "parity": ['tokens == "0"', "always", "indices"],
    "induction": ["everything", "select(count, number, operator.ne)"],
}

UNREADABLE = (
    *(
        "",
        "   ",
        "# nothing",
        "___",
        "select(tokens, tokens, ___)",
        "1",
        "None",
        "operator.eq",
        "everything",
    ),
    *(
        "tokens tokens",
        "import os",
        "__import__('os').system('touch hostile')",
        "tokens.label",
        "tokens[0]",
    ),
    *(
        "lambda: 1",
        "tokens and indices",
        "while True: pass",
        "tokens = 3",
        "operator = 3",
        "a := 3",
        "f'{tokens}'",
    ),
    *(
        "1.5 + indices",
        "b'a' == tokens",
        "...",
        "'a' * 999999999",
        "'%99999999s' % tokens",
        "9 ** 9 ** 9",
        "9 * 9",
    ),
    *("indices ** 9", "indices * indices", "1 / indices"),
    *("tokens == everything", "operator.eq == tokens", "True & tokens", "everything | tokens"),
    *("select", "tokens('abc')", "select(tokens, tokens, 5)", "select(tokens, tokens, tokens)"),
    *(
        "5 % indices",
        "1 & indices",
        "selector_width(*indices)",
        "selector_width(**indices)",
        "selector_width(tokens)",
    ),
    *(
        "select(tokens)",
        "-everything",
        "everything | 1",
        "selector_width(everything, label=tokens)",
        "(yield)",
    ),
    *(
        "await tokens",
        "indices + " + "9" * 1900,
        "(" * 1000,
        "[" * 1000,
        "~" * 1900 + "tokens",
        "-" * 1900 + "1",
    ),
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
