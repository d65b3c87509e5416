"""Compares results: tensors, arrays, numbers, texts, and lists and dictionaries of them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

FLOAT64_TOLERANCE = 1e-9
SMALLEST_SCALE = 0.1
"""Lower bound of the scale of a difference, which is the largest expected magnitude."""
MOST_SHOWN = 40
"""Largest number of values of a tensor that is shown with its values."""

_KINDS = {
    "b": "truth values",
    "i": "whole numbers",
    "u": "whole numbers",
    "f": "floating-point numbers",
    "c": "complex",
}


class Difference(NamedTuple):
    """A place where two results differ."""

    part: str
    """Path of the part that differs, such as "[0]['loss']"."""
    expected: Any
    actual: Any
    text: str
    """Description of the difference."""


def difference(
    expected: Any, actual: Any, tolerance: float, same_dtype: bool = False, part: str = ""
) -> Difference | None:
    """Return the first difference in structure, shape, kind of numbers or values, or None.

    A list equals a tuple of the same values. A number equals a tensor or an array without axes.
    NaN equals NaN. A number differs if its error exceeds ``tolerance`` times the largest expected
    magnitude of its tensor. The tolerance is 1e-9 for two arrays of float64, and at least four
    times the precision of a 16-bit dtype. A tensor of float64 may be computed in float32, as
    published models compute norms and softmaxes.
    """

    def differs(text: str) -> Difference:
        return Difference(part, expected, actual, text)

    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple):
            return differs(f"expected {_several(expected)}, found {kind(actual)}")
        if len(expected) != len(actual):
            return differs(f"expected {_several(expected)}, found {len(actual)}")
        pairs = [
            (f"{part}[{i}]", *both) for i, both in enumerate(zip(expected, actual, strict=True))
        ]
    elif isinstance(expected, dict):
        if not isinstance(actual, dict) or expected.keys() != actual.keys():
            keys = list(actual) if isinstance(actual, dict) else kind(actual)
            return differs(f"expected the keys {list(expected)}, found {keys}")
        pairs = [(f"{part}[{key!r}]", expected[key], actual[key]) for key in expected]
    else:
        text = _kind_difference(expected, actual, same_dtype)
        if text is not None:
            return differs(text)
        if same_dtype and isinstance(expected, bool | int | float) and isinstance(actual, Tensor):
            text = "expected a number, found a tensor (.item() is its number)"
            return Difference(part, None, actual, text)
        if _is_numeric(expected):
            text = _value_difference(expected, actual, tolerance)
        return None if text is None else differs(text)
    for name, expected_part, actual_part in pairs:
        first = difference(expected_part, actual_part, tolerance, same_dtype, name)
        if first is not None:
            return first
    return None


_LIBRARIES: dict[type[Any], str] = {Tensor: "a PyTorch tensor", np.ndarray: "a NumPy array"}


def _kind_difference(expected: Any, actual: Any, same_dtype: bool) -> str | None:
    """Describe a difference of types or dtypes, or of two values that are no numbers."""
    if not _is_numeric(expected):
        if type(expected) is type(actual) and bool(expected == actual):
            return None
        return f"expected {kind(expected)}, found {kind(actual)}, which is another"
    for library_type, name in _LIBRARIES.items():
        is_expected = isinstance(expected, library_type) and bool(expected.ndim)
        if is_expected and not isinstance(actual, library_type):
            return f"expected {name}, found {_LIBRARIES.get(type(actual), kind(actual))}"
    if not _is_numeric(actual):
        return f"expected {kind(expected)}, found {kind(actual)}"
    both_tensors = isinstance(expected, Tensor) and isinstance(actual, Tensor)
    if same_dtype and both_tensors and expected.dtype != actual.dtype:
        return f"expected {_dtype(expected)}, found {_dtype(actual)}"
    return None


def _value_difference(expected: Any, actual: Any, tolerance: float) -> str | None:
    """Describe a difference of two numbers, tensors or arrays in shape, kind or values."""
    reference = array(expected)
    numbers = array(actual)
    if reference.shape != numbers.shape:
        return f"expected the shape {list(reference.shape)}, found {list(numbers.shape)}"
    kinds = [_KINDS.get(values.dtype.kind, "no numbers") for values in (reference, numbers)]
    # 3 is a right answer where 3.0 is expected, but a mask of 0 and 1 is no mask of truth values.
    is_strict = isinstance(expected, Tensor | np.ndarray) or "truth values" in kinds
    if is_strict and kinds[0] != kinds[1]:
        return f"expected {kinds[0]}, found {kinds[1]}"
    allowed = 0.0
    if not {"f", "c"} & {reference.dtype.kind, numbers.dtype.kind}:
        errors = wrong = np.asarray(reference != numbers)
    else:
        finite = np.abs(reference[np.isfinite(reference)])
        scale = max(SMALLEST_SCALE, float(finite.max(initial=0)))
        allowed = scale * _relative_tolerance(expected, actual, tolerance)
        with np.errstate(invalid="ignore"):
            errors = np.abs(reference.astype(np.complex128) - numbers.astype(np.complex128))
        errors = np.array(errors)
        errors[(reference == numbers) | (np.isnan(reference) & np.isnan(numbers))] = 0
        errors[np.isnan(errors)] = np.inf
        wrong = errors > allowed
    if not wrong.any():
        return None
    index = np.unravel_index(int(np.argmax(errors)), reference.shape)
    text = _two_numbers(reference[index], numbers[index])
    if _number(reference[index]) == _number(numbers[index]):
        text += f", which is off by {errors[index]:.1g} where {allowed:.1g} is allowed"
    if reference.ndim == 0:
        return text
    place = f"[{', '.join(map(str, index))}]"
    return f"{int(wrong.sum())} of {reference.size} differ, most at {place}: {text}"


def _two_numbers(expected: Any, actual: Any) -> str:
    """Describe two different numbers with as many digits as tell them apart."""
    for digits in (4, 8, 17):
        expected_text = _number(expected, digits)
        actual_text = _number(actual, digits)
        if expected_text != actual_text:
            return f"expected {expected_text}, found {actual_text}"
    return "expected , found "


def _several(values: list[Any] | tuple[Any, ...]) -> str:
    if isinstance(values, list):
        return f"a list of {len(values)}"
    return f"{len(values)} results"


def _relative_tolerance(expected: Any, actual: Any, tolerance: float) -> float:
    if isinstance(expected, Tensor) and expected.dtype in (torch.bfloat16, torch.float16):
        return max(tolerance, 4 * torch.finfo(expected.dtype).eps)
    # The dtype of an array; that of a tensor would begin with "torch.".
    dtypes = {str(getattr(values, "dtype", "")) for values in (expected, actual)}
    if dtypes <= {"float64", "complex128"}:
        return min(tolerance, FLOAT64_TOLERANCE)
    return tolerance


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, Tensor | bool | int | float | complex)


def array(value: Any) -> np.ndarray:
    """Convert a tensor, a number or a list of numbers to an array; bfloat16 becomes float32."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.float()
        return value.resolve_conj().numpy()
    return np.asarray(value)


def arrays(value: Any, name: str = "") -> Iterator[tuple[str, Tensor | np.ndarray]]:
    """Yield the tensors and arrays in a result or in arguments, with their paths."""
    if isinstance(value, Tensor | np.ndarray):
        yield name, value
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from arrays(part, f"{name}[{i}]")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from arrays(part, f"{name}.{key}" if name else str(key))


def tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of :func:`arrays`, with their paths."""
    return ((name, part) for name, part in arrays(value) if isinstance(part, Tensor))


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Copy lists, tuples and dictionaries, applying ``change`` to tensors and copying arrays."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(change, part) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(change, part) for part in value)
    if isinstance(value, dict):
        return {key: mapped(change, part) for key, part in value.items()}
    return value


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def kind(value: Any) -> str:
    """Describe a value in a few words, such as ``float32 [2, 3]``."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{_dtype(value)} {list(value.shape)}"
    text = repr(value)
    if isinstance(value, str | int | float | None) and len(text) < 60:
        return text
    return f"a {type(value).__name__}"


def show(value: Any) -> str:
    """Format a value for a student: small tensors as rounded numbers, large ones as their shape."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        numbers = array(value)
        if numbers.ndim == 0:
            return _number(numbers[()])
        if numbers.size > MOST_SHOWN or numbers.size == 0:
            return kind(value)
        while numbers.ndim > 2 and len(numbers) == 1:  # kind() gives the whole shape
            numbers = numbers[0]
        text = np.array2string(
            numbers,
            separator=", ",
            max_line_width=100,
            formatter={"all": _number},
            threshold=MOST_SHOWN + 1,
        )
        if numbers.ndim > 1:
            return f"{kind(value)}\n{text}"
        return f"{kind(value)} {text}"
    if isinstance(value, list | tuple | dict) and any(True for _ in arrays(value)):
        items: Iterable[tuple[Any, Any]]
        items = value.items() if isinstance(value, dict) else enumerate(value)
        lines = []
        for key, part in items:
            text = show(part)
            is_nested = isinstance(part, list | tuple | dict) and "\n" in text
            text = ("\n" if is_nested else " ") + text
            lines.append(f"[{key}]" + text.replace("\n", "\n  "))
        return "\n".join(lines)
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def one_line(value: Any, width: int) -> str:
    """Format a value in one line: its numbers if they fit, otherwise its kind."""
    text = " ".join(show(value).split())
    if isinstance(value, list | tuple) and any(True for _ in arrays(value)):
        text = f"[{', '.join(one_line(part, width) for part in value)}]"
    if len(text) <= width:
        return text
    if isinstance(value, list | tuple):
        parts = f"[{', '.join(map(kind, value))}]"
        if len(parts) <= width:
            return parts
        return f"a list of {len(value)}"
    if isinstance(value, Tensor | np.ndarray):
        return kind(value)
    return f"{text[: width - 3]}..."


def _number(value: Any, digits: int = 4) -> str:
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, float | np.floating):
        return f"{value:.{digits}g}"
    return str(value)
