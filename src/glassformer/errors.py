"""The errors that public functions raise for arguments they cannot use."""

from collections.abc import Iterator
from contextlib import contextmanager

# Maximum characters of the argument, which may be a file of megabytes, in a message.
_LONGEST = 10_000

# Extras of pyproject.toml by package; glassformer works without them elsewhere.
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
    """An argument that cannot be used, with the expected value and a fix.

    Every public constructor and function raises this (a ``ValueError``) and nothing else for bad
    input.

    Args:
        got: The argument with its name: ``"num_kv_heads = 3 with num_heads = 8"``; cut to 10,000
            characters.
        expected: Accepted values: ``"a divisor of num_heads"``.
        fix: The change to make: ``"Use 1, 2, 4 or 8."``.
    """

    def __init__(self, got: str, expected: str, fix: str) -> None:
        if len(got) > _LONGEST:
            got = f"{got[:_LONGEST]}..."
        self.got = got
        self.expected = expected
        self.fix = fix
        super().__init__(f"got {got}; expected {expected}. {fix}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.got, self.expected, self.fix)


@contextmanager
def naming_extras(extra: str | None = None) -> Iterator[None]:
    """Raise :class:`InputError` for a missing package in the block, and name its extra.

    ``extra`` is an extra with all packages of the block; None: the extra of the missing package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _EXTRAS:
            raise
        extra = extra or _EXTRAS[package]
        raise InputError(
            got=f"no module {package}",
            expected=f"the packages of the extra {extra}",
            fix=f"Run: pip install 'glassformer[{extra}]'.",
        ) from error


def is_panic(error: BaseException) -> bool:
    """Return whether ``error`` is a panic of a library in Rust, which is no :class:`Exception`.

    Each such library has its own class of panics, and none exports it.
    """
    return type(error).__name__ == "PanicException"


class CheckpointError(InputError):
    """A checkpoint that cannot be used; ``got`` names the file and the tensors at fault."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop, or the error's type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def require_positive(**sizes: int) -> None:
    """Refuse ``sizes`` that are not whole numbers of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(
                got=f"{name} = {size!r}",
                expected="a whole number of at least 1",
                fix=f"Pass {name} >= 1.",
            )


def require_probability(**probabilities: float) -> None:
    """Refuse ``probabilities`` that are not in [0, 1)."""
    for name, value in probabilities.items():
        if not 0 <= value < 1:
            raise InputError(
                got=f"{name} = {value}",
                expected="a probability in [0, 1)",
                fix="Use 0 to switch it off.",
            )


def require_above_zero(**numbers: float) -> None:
    """Refuse ``numbers`` that are not finite and above 0."""
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise InputError(
                got=f"{name} = {number}",
                expected="a finite number above 0",
                fix=f"Pass a finite {name} above 0.",
            )


def require_heads(num_heads: int, **widths: int) -> None:
    """Refuse ``widths`` that are not multiples of ``num_heads``."""
    for name, width in widths.items():
        if width % num_heads != 0:
            raise InputError(
                got=f"{name} = {width} with num_heads = {num_heads}",
                expected="a multiple of num_heads",
                fix=f"Each head has {name} / num_heads coordinates.",
            )


def require_groups(num_heads: int, num_kv_heads: int) -> None:
    """Refuse heads that do not form groups of one size, each with a key-value head."""
    if num_heads % num_kv_heads != 0:
        raise InputError(
            got=f"num_kv_heads = {num_kv_heads} with num_heads = {num_heads}",
            expected="a divisor of num_heads",
            fix="Each serves an equal number of heads.",
        )


def require_width(width: int, hidden_dim: int) -> None:
    """Refuse an input whose last axis has another size than the layer was built with."""
    if width != hidden_dim:
        raise InputError(
            got=f"input of width {width}",
            expected=f"hidden_dim = {hidden_dim}",
            fix="Build the layer with the width of its input.",
        )
