"""Texts that repeat themselves without end."""

from collections.abc import Callable

LONGEST_PERIOD = 64
"""Longest period of a loop, in tokens."""
FEWEST_TOKENS = 48
"""Tokens that a loop lasts before it counts as one."""
FEWEST_REPETITIONS = 4
"""Repetitions of its period before a loop counts as one."""
FEWEST_OF_A_LIST = 8
"""Words of an item, and items, before a list whose items differ only in numbers is a loop."""


class LoopDetector:
    """Detects that a text has become a loop: its newest tokens are one sequence, over and over.

    A loop of period n has lasted for at least 48 tokens and four periods; n is at most 64. A list
    whose items differ in one token is no loop, unless that token is a number. A list is a loop if
    eight items of eight or more words are the same but for their numbers.

    Args:
        is_number: Function that says whether a token is a number, or a part of one.
    """

    def __init__(self, is_number: Callable[[int], bool] = lambda token: False) -> None:
        self._is_number = is_number
        self._all = _Repetition(1, FEWEST_REPETITIONS)
        self._words = _Repetition(FEWEST_OF_A_LIST, FEWEST_OF_A_LIST)

    def add(self, token: int) -> bool:
        """Add the newest token; return whether the text is in a loop now."""
        repeats = self._all.add(token)
        if self._is_number(token):
            return repeats
        return self._words.add(token) or repeats


class _Repetition:
    """Detects that the newest tokens of a sequence are one sequence, over and over.

    Args:
        shortest_period: Least number of tokens of that sequence.
        fewest_repetitions: Least number of its repetitions.
    """

    def __init__(self, shortest_period: int, fewest_repetitions: int) -> None:
        self._shortest_period = shortest_period
        self._fewest_repetitions = fewest_repetitions
        self._tokens: list[int] = []
        self._matches = [0] * (LONGEST_PERIOD + 1)
        """Number of newest tokens that equal the token one period before, by period."""

    def add(self, token: int) -> bool:
        """Add the newest token; return whether the newest tokens repeat.

        The length of the shortest period that has lasted long enough decides.
        """
        newest_first = self._tokens[: -LONGEST_PERIOD - 1 : -1]
        for period, earlier in enumerate(newest_first, start=1):
            if earlier == token:
                self._matches[period] += 1
            else:
                self._matches[period] = 0
        self._tokens.append(token)
        for period in range(1, len(newest_first) + 1):
            shortest_loop = max(FEWEST_TOKENS, self._fewest_repetitions * period)
            if self._matches[period] + period >= shortest_loop:
                return period >= self._shortest_period
        return False
