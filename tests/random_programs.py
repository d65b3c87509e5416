"""Programs of parts on one another, at random."""

import operator
import random
import zlib
from typing import Any

from glassformer.programs import (
    Selector,
    Variable,
    aggregate,
    elementwise,
    indices,
    pick,
    select,
    selector_width,
    tokens,
)

NUMBERS = (0, 1, 2, 3)
LETTERS = ("a", "b", "c", "d")


class RandomPrograms:
    """Programs of parts on one another, with numbers or letters as values."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.vocabulary = self.draw.choice([NUMBERS, LETTERS])[: self.draw.randrange(2, 4)]

    def variable(self, depth: int, *, letters: bool) -> Variable:
        if depth == 0:
            given = (
                tokens
                if letters == isinstance(self.vocabulary[0], str)
                else self.function(letters, tokens)
            )
            return given if letters else self.draw.choice([given, indices])
        kind = self.draw.randrange(6)
        if kind <= 1:
            return self.function(
                letters,
                *(self.variable(self.lower(depth), letters=self.flip()) for _ in range(kind + 1)),
            )
        if kind == 2 and not letters:
            first, second = (self.variable(self.lower(depth), letters=False) for _ in range(2))
            return self.draw.choice([first + second, first - second, 2 * first - 1])
        selector = self.selector(depth - 1)
        if kind == 3 and not letters:
            return selector_width(selector)
        default = self.draw.choice([None, "a"] if letters else [None, 0, 1])
        values = self.variable(self.lower(depth), letters=letters)
        return self.draw.choice([aggregate, aggregate, pick])(selector, values, default)

    def selector(self, depth: int) -> Selector:
        kind = self.draw.random()
        if kind < 0.3 and depth > 0:
            first = self.selector(depth - 1)
            second = self.selector(depth - 1)
            return first & second if kind < 0.2 else first | second
        if kind < 0.4:
            return ~self.selector(max(depth - 1, 0))
        letters = self.flip()
        keys, queries = (self.variable(max(depth - 1, 0), letters=letters) for _ in range(2))
        predicates = [operator.eq, operator.ne, self.table((False, False, True))]
        if not letters:
            predicates += [operator.lt, operator.le, lambda key, query: key == query + 1]
        return select(keys, queries, self.draw.choice(predicates))

    def function(self, letters: bool, *sources: Variable) -> Variable:
        results = (LETTERS if letters else NUMBERS)[: self.draw.randrange(2, 5)]
        return elementwise(self.table((*results, *self.draw.choice([(), (None,)]))), *sources)

    def table(self, results: tuple[Any, ...]) -> Any:
        salt = self.draw.randrange(1000)
        return lambda *values: results[zlib.crc32(repr((salt, values)).encode()) % len(results)]

    def lower(self, depth: int) -> int:
        return self.draw.choice([depth - 1, depth - 1, 0])

    def flip(self) -> bool:
        return self.draw.random() < 0.5
