"""Results compared: tensors, arrays, numbers, texts, and lists, tuples and dictionaries of them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

FLOAT64_TOLERANCE = 1e-9
SMALLEST_SCALE = 0.1
"""Differences are relative to the largest expected magnitude, or to this where all are smaller."""
MOST_SHOWN = 40
"""Numbers of a tensor that is shown with its values."""

_KINDS = {
    "b": "truth values",
    "i": "whole numbers",
    "u": "whole numbers",
    "f": "floating-point numbers",
    "c": "complex",
}


class Difference(NamedTuple):
    """Where two results differ: the part, its expected and found value, and in words how."""

    part: str
    expected: Any
    found: Any
    text: str


def difference(
    expected: Any, found: Any, tolerance: float, same_dtype: bool = False, part: str = ""
) -> Difference | None:
    """The first difference of two results in structure, shape, kind of numbers or values, or None.

    Lists and tuples are alike, and so are a number, a tensor of no axes and an array of none. A
    number differs if it is off by more than ``tolerance`` (1e-9 where both are arrays of float64,
    four times its precision for 16 bits) times the largest expected magnitude of its tensor. NaN
    equals NaN. A tensor of float64 may be computed in float32, as published models compute norms
    and softmaxes.
    """

    def differs(text: str) -> Difference:
        return Difference(part, expected, found, text)

    if isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple):
            return differs(f"expected {_several(expected)}, found {kind(found)}")
        if len(expected) != len(found):
            return differs(f"expected {_several(expected)}, found {len(found)}")
        pairs = [
            (f"{part}[{i}]", *both) for i, both in enumerate(zip(expected, found, strict=True))
        ]
    elif isinstance(expected, dict):
        if not isinstance(found, dict) or expected.keys() != found.keys():
            names: object
            if isinstance(found, dict):
                names = list(found)
            else:
                names = kind(found)
            return differs(f"expected the keys {list(expected)}, found {names}")
        pairs = [(f"{part}[{key!r}]", expected[key], found[key]) for key in expected]
    else:
        return _leaf_difference(expected, found, tolerance, same_dtype, differs)
    for name, one, other in pairs:
        if (first := difference(one, other, tolerance, same_dtype, name)) is not None:
            return first
    return None


def _leaf_difference(
    expected: Any,
    found: Any,
    tolerance: float,
    same_dtype: bool,
    differs: Callable[[str], Difference],
) -> Difference | None:
    if not _numeric(expected):
        same = type(expected) is type(found) and bool(expected == found)
        if same:
            return None
        return differs(f"expected {kind(expected)}, found {kind(found)}, which is another")
    for wanted, name in ((Tensor, "a PyTorch tensor"), (np.ndarray, "a NumPy array")):
        if isinstance(expected, wanted) and expected.ndim and not isinstance(found, wanted):
            what = {Tensor: "a PyTorch tensor", np.ndarray: "a NumPy array"}.get(
                type(found), kind(found)
            )
            return differs(f"expected {name}, found {what}")
    if not _numeric(found):
        return differs(f"expected {kind(expected)}, found {kind(found)}")
    if (
        same_dtype
        and isinstance(expected, Tensor)
        and isinstance(found, Tensor)
        and expected.dtype != found.dtype
    ):
        return differs(f"expected {_dtype(expected)}, found {_dtype(found)}")
    if same_dtype and isinstance(expected, bool | int | float) and isinstance(found, Tensor):
        return differs("expected a number, found a tensor (.item() is its number)")._replace(
            expected=None
        )
    one = array(expected)
    other = array(found)
    if one.shape != other.shape:
        return differs(f"expected the shape {list(one.shape)}, found {list(other.shape)}")
    kinds = [_KINDS.get(each.dtype.kind, "no numbers") for each in (one, other)]
    # 3 is a right answer where 3.0 is expected, but a mask of 0 and 1 is no mask of truth values.
    if kinds[0] != kinds[1] and (
        isinstance(expected, Tensor | np.ndarray) or "truth values" in kinds
    ):
        return differs(f"expected {kinds[0]}, found {kinds[1]}")
    allowed = 0.0
    if not {"f", "c"} & {one.dtype.kind, other.dtype.kind}:
        off = wrong = np.asarray(one != other)
    else:
        finite = np.abs(one[np.isfinite(one)])
        allowed = max(SMALLEST_SCALE, float(finite.max(initial=0))) * _relative(
            expected, found, tolerance
        )
        with np.errstate(invalid="ignore"):
            off = np.array(np.abs(one.astype(np.complex128) - other.astype(np.complex128)))
        off[(one == other) | (np.isnan(one) & np.isnan(other))] = 0
        off[np.isnan(off)] = np.inf
        wrong = off > allowed
    if not wrong.any():
        return None
    at = np.unravel_index(int(np.argmax(off)), one.shape)
    # Two numbers that look alike are shown with all their digits.
    texts = next(
        (
            pair
            for digits in (4, 8, 17)
            if len(set(pair := [_number(each[at], digits) for each in (one, other)])) > 1
        ),
        ["", ""],
    )
    text = f"expected {texts[0]}, found {texts[1]}"
    if _number(one[at]) == _number(other[at]):
        text += f", which is off by {off[at]:.1g} where {allowed:.1g} is allowed"
    if one.ndim == 0:
        return differs(text)
    where = f"[{', '.join(map(str, at))}]"
    count = f"{int(wrong.sum())} of {one.size}"
    return differs(f"{count} differ, most at {where}: {text}")


def _several(values: list[Any] | tuple[Any, ...]) -> str:
    if isinstance(values, list):
        return f"a list of {len(values)}"
    return f"{len(values)} results"


def _relative(expected: Any, found: Any, tolerance: float) -> float:
    if isinstance(expected, Tensor) and expected.dtype in (torch.bfloat16, torch.float16):
        return max(tolerance, 4 * torch.finfo(expected.dtype).eps)
    dtypes = [
        str(getattr(each, "dtype", "")) for each in (expected, found)
    ]  # a tensor's begins with "torch."
    if {*dtypes} <= {"float64", "complex128"}:
        return min(tolerance, FLOAT64_TOLERANCE)
    return tolerance


def _numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, Tensor | bool | int | float | complex)


def array(value: Any) -> np.ndarray:
    """The numbers of a tensor, an array, a number or a list of numbers; bfloat16 becomes float32."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).resolve_conj().numpy()
    return np.asarray(value)


def arrays(value: Any, name: str = "") -> Iterator[tuple[str, Tensor | np.ndarray]]:
    """The tensors and arrays in a result or in arguments, each with the path that leads to it."""
    if isinstance(value, Tensor | np.ndarray):
        yield name, value
    elif isinstance(value, list | tuple):
        for i, each in enumerate(value):
            yield from arrays(each, f"{name}[{i}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from arrays(each, f"{name}.{key}" if name else str(key))


def tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors among them."""
    return ((name, each) for name, each in arrays(value) if isinstance(each, Tensor))


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same lists, tuples and dictionaries with each tensor changed; arrays are copied."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(change, each) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(change, each) for each in value)
    if isinstance(value, dict):
        return {key: mapped(change, each) for key, each in value.items()}
    return value


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def kind(value: Any) -> str:
    """What a value is, in a few words: ``float32 [2, 3]``."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{_dtype(value)} {list(value.shape)}"
    text = repr(value)
    if isinstance(value, str | int | float | None) and len(text) < 60:
        return text
    return f"a {type(value).__name__}"


def show(value: Any) -> str:
    """A value as a student reads it: small tensors with rounded numbers, large ones by their shape."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        numbers = array(value)
        if numbers.ndim == 0:
            return _number(numbers[()])
        if numbers.size > MOST_SHOWN or numbers.size == 0:
            return kind(value)
        while numbers.ndim > 2 and len(numbers) == 1:  # the shape says it
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
        named: Iterable[tuple[Any, Any]]
        if isinstance(value, dict):
            named = value.items()
        else:
            named = enumerate(value)
        shown = ((key, show(each), isinstance(each, list | tuple | dict)) for key, each in named)
        lines = (
            (key, ("\n" if many and "\n" in text else " ") + text) for key, text, many in shown
        )
        return "\n".join(f"[{key}]" + text.replace("\n", "\n  ") for key, text in lines)
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def one_line(value: Any, width: int) -> str:
    """A value in one line: with its numbers where they fit, else what it is."""
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
