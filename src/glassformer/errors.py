"""What every public door of glassformer raises when an argument cannot be used."""

# Characters of what was got, which may be a stranger's file of megabytes, that a message repeats.
_LONGEST = 10_000


class InputError(ValueError):
    """An argument that cannot be used: what was got, what was expected, how to mend it.

    Every constructor and function that users call raises this (a ``ValueError``) and nothing else for bad input.

    Args:
        got: What was passed, with its name: ``"num_kv_heads = 3 with num_heads = 8"``. The first 10,000 characters are
            kept.
        expected: What would have been accepted: ``"a divisor of num_heads"``.
        fix: What to do: ``"Use 1, 2, 4 or 8."``.
    """

    def __init__(self, got: str, expected: str, fix: str) -> None:
        got = got if len(got) <= _LONGEST else f"{got[:_LONGEST]}..."
        self.got, self.expected, self.fix = got, expected, fix
        super().__init__(f"got {got}; expected {expected}. {fix}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.got, self.expected, self.fix)


class CheckpointError(InputError):
    """A checkpoint that cannot be used: ``got`` names the file and, where it is about tensors, each of them."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line without its full stop, fit to stand in brackets; or else its kind."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def require(condition: bool, got: str, expected: str, fix: str) -> None:
    """Raise :class:`InputError` with these three parts unless ``condition`` holds."""
    if not condition:
        raise InputError(got, expected, fix)


def require_positive(**sizes: int) -> None:
    """Raise :class:`InputError` naming the first of ``sizes`` that is not a whole number of at least 1."""
    for name, size in sizes.items():
        whole = isinstance(size, int) and not isinstance(size, bool)
        require(whole and size >= 1, f"{name} = {size!r}", "a whole number of at least 1", f"Pass {name} >= 1.")
