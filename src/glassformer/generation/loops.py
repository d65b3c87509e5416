"""Texts that repeat themselves without end."""

from collections.abc import Callable

LONGEST_PERIOD = 64
"""Of a loop, in tokens."""
FEWEST_TOKENS = 48
"""That a loop lasts before it counts as one."""
FEWEST_REPETITIONS = 4
"""Of its period before it counts as one."""
FEWEST_OF_A_LIST = 8
"""Of a list whose items differ in their numbers alone: the words of an item, and the items, before
it is a loop.
"""


class LoopDetector:
    """Tells when a text has become a loop: when its newest tokens are one sequence, over and over.

    A loop of period n has lasted for at least 48 tokens and four periods; n is at most 64. A list
    whose items differ in one token is none, unless that token is a number: a list is a loop if
    eight items of eight or more words are the same but for their numbers.

    Args:
        is_number: Whether a token is a number, or a part of one.
    """

    def __init__(self, is_number: Callable[[int], bool] = lambda token: False) -> None:
        self._is_number = is_number
        self._all = _Repetition(1, FEWEST_REPETITIONS)
        self._words = _Repetition(FEWEST_OF_A_LIST, FEWEST_OF_A_LIST)

    def add(self, token: int) -> bool:
        """Whether the text is in a loop with this token."""
        repeats = self._all.add(token)
        if self._is_number(token):
            return repeats
        return self._words.add(token) or repeats


class _Repetition:
    """Tells when the newest tokens of a sequence are one sequence, over and over.

    Args:
        shortest_period: Tokens of that sequence at least.
        fewest_repetitions: How often it has to stand there.
    """

    def __init__(self, shortest_period: int, fewest_repetitions: int) -> None:
        self._shortest_period = shortest_period
        self._fewest_repetitions = fewest_repetitions
        self._tokens: list[int] = []
        self._lasted = [0] * (LONGEST_PERIOD + 1)
        """How many of the newest tokens equal the one a period before, by period."""

    def add(self, token: int) -> bool:
        """Whether the newest tokens repeat: the shortest period that has lasted decides, by its
        length.
        """
        newest_first = self._tokens[: -LONGEST_PERIOD - 1 : -1]
        for period, earlier in enumerate(newest_first, start=1):
            self._lasted[period] = self._lasted[period] + 1 if earlier == token else 0
        self._tokens.append(token)
        for period in range(1, len(newest_first) + 1):
            if self._lasted[period] + period >= max(
                FEWEST_TOKENS, self._fewest_repetitions * period
            ):
                return period >= self._shortest_period
        return False
