"""The errors that public functions raise for arguments they cannot use."""

from collections.abc import Iterator
from contextlib import contextmanager

# Characters of the argument, which may be a file of megabytes, that a message repeats.
_LONGEST = 10_000

# The extra of pyproject.toml that brings a package; glassformer does without it elsewhere.
_EXTRAS = {
    **dict.fromkeys(("anywidget", "cachetools", "fastapi", "starlette", "uvicorn"), "explore"),
    **dict.fromkeys(("datasets", "huggingface_hub"), "hub"),
    **dict.fromkeys(("jupyter_client", "nbclient", "nbformat", "pypandoc", "typst"), "hand-in"),
    "accelerate": "train",
    "matplotlib": "figures",
    "sklearn": "labs",
    "tensorboard": "tensorboard",
}


class InputError(ValueError):
    """An argument that cannot be used: what was got, what was expected, what to change.

    Every public constructor and function raises this (a ``ValueError``) and nothing else for bad
    input.

    Args:
        got: The argument with its name: ``"num_kv_heads = 3 with num_heads = 8"``. The first 10,000
            characters are kept.
        expected: What is accepted: ``"a divisor of num_heads"``.
        fix: What to change: ``"Use 1, 2, 4 or 8."``.
    """

    def __init__(self, got: str, expected: str, fix: str) -> None:
        got = got if len(got) <= _LONGEST else f"{got[:_LONGEST]}..."
        self.got = got
        self.expected = expected
        self.fix = fix
        super().__init__(f"got {got}; expected {expected}. {fix}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.got, self.expected, self.fix)


@contextmanager
def naming_extras(extra: str | None = None) -> Iterator[None]:
    """Raise :class:`InputError` for an import in the block that fails, naming the extra that brings
    the package.

    ``extra`` is one that brings all that the block needs.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _EXTRAS:
            raise
        extra = extra or _EXTRAS[package]
        fix = f"Run: pip install 'glassformer[{extra}]'."
        raise InputError(
            f"no module {package}", f"the packages of the extra {extra}", fix
        ) from error


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust has failed within itself: an error that is no :class:`Exception`.

    Each such library has a class of its own for it, which none of them exports.
    """
    return type(error).__name__ == "PanicException"


class CheckpointError(InputError):
    """A checkpoint that cannot be used: ``got`` names the file and, where it is about tensors, each
    of them.
    """


def first_line(error: BaseException) -> str:
    """The first line of an error's message without its full stop, or its type if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def require(condition: bool, got: str, expected: str, fix: str) -> None:
    """Raise :class:`InputError` with these three parts unless ``condition`` holds."""
    if not condition:
        raise InputError(got, expected, fix)


def require_positive(**sizes: int) -> None:
    """Raise :class:`InputError` naming the first of ``sizes`` that is not a whole number of at
    least 1.
    """
    for name, size in sizes.items():
        whole = isinstance(size, int) and not isinstance(size, bool)
        if not (whole and size >= 1):
            raise InputError(
                got=f"{name} = {size!r}",
                expected="a whole number of at least 1",
                fix=f"Pass {name} >= 1.",
            )


def require_probability(**probabilities: float) -> None:
    """Raise :class:`InputError` naming the first of ``probabilities`` that is not in [0, 1)."""
    for name, value in probabilities.items():
        if not 0 <= value < 1:
            raise InputError(
                got=f"{name} = {value}",
                expected="a probability in [0, 1)",
                fix="Use 0 to switch it off.",
            )


def require_above_zero(**numbers: float) -> None:
    """Raise :class:`InputError` naming the first of ``numbers`` that is not above 0 and finite."""
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise InputError(
                got=f"{name} = {number}",
                expected="a finite number above 0",
                fix=f"Pass a finite {name} above 0.",
            )


def require_heads(num_heads: int, **widths: int) -> None:
    """Raise :class:`InputError` naming the first of ``widths`` that is not a multiple of
    ``num_heads``.
    """
    for name, width in widths.items():
        if width % num_heads != 0:
            raise InputError(
                got=f"{name} = {width} with num_heads = {num_heads}",
                expected="a multiple of num_heads",
                fix=f"Each head has {name} / num_heads coordinates.",
            )


def require_groups(num_heads: int, num_kv_heads: int) -> None:
    """Raise :class:`InputError` if the heads are not in groups of one size, each with a key-value
    head.
    """
    if num_heads % num_kv_heads != 0:
        raise InputError(
            got=f"num_kv_heads = {num_kv_heads} with num_heads = {num_heads}",
            expected="a divisor of num_heads",
            fix="Each serves an equal number of heads.",
        )


def require_width(width: int, hidden_dim: int) -> None:
    """Raise :class:`InputError` if an input's last axis has another size than the layer was built
    with.
    """
    if width != hidden_dim:
        raise InputError(
            got=f"input of width {width}",
            expected=f"hidden_dim = {hidden_dim}",
            fix="Build the layer with the width of its input.",
        )
