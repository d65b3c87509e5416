"""Configurations: frozen dataclasses with strict types, checked on creation, from and to JSON."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Le, Lt

from glassformer.errors import InputError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

Size = Annotated[int, Ge(1)]
"""A whole number of at least 1."""
Count = Annotated[int, Ge(0)]
"""A whole number of at least 0."""
Seed = Annotated[int, Ge(0), Lt(2**63)]
"""A seed that every generator takes."""
Positive = Annotated[float, Gt(0)]
"""A number above 0."""
NonNegative = Annotated[float, Ge(0)]
"""A number of at least 0."""
Fraction = Annotated[float, Ge(0), Le(1)]
"""A number in [0, 1]."""
Probability = Annotated[float, Ge(0), Lt(1)]
"""A number in [0, 1)."""

_Class = TypeVar("_Class")
_PLAIN = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
"""Our words for pydantic's bounds."""
_BRANCHES = ("bool", "int", "float", "str")


@dataclass_transform(frozen_default=True)
def config(cls: type[_Class]) -> type[_Class]:
    """Make a frozen dataclass that checks its fields against their annotations.

    Nothing is converted: ``True`` is no number, ``1`` no boolean and ``"1"`` neither. NaN and
    infinity are refused. Bounds are annotations such as :data:`Size`. A ``__post_init__`` checks
    combinations of fields.

    Raises (when an instance is made):
        InputError: If a field is unknown, missing, of another type or outside its bounds.
    """
    frozen = dataclasses.dataclass(frozen=True)(cls)
    settings = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
    frozen.__pydantic_config__ = settings  # type: ignore[attr-defined]

    @functools.wraps(frozen.__init__)
    def checked(self: Any, *args: Any, **fields: Any) -> None:
        from pydantic_core import ArgsKwargs

        arguments = ArgsKwargs(args, fields)
        _checked(
            frozen,
            lambda adapter: adapter.validator.validate_python(arguments, self_instance=self),
        )

    frozen.__init__ = checked  # type: ignore[method-assign]
    return frozen


class Config:
    """JSON methods of a configuration; use with the decorator :func:`config`."""

    def to_json(self) -> str:
        """Return the configuration as a JSON object, one field a line."""
        return json.dumps(dataclasses.asdict(self), indent=2)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls: type[_Class], text: str) -> _Class:
        """Return the configuration that :meth:`to_json` wrote."""
        return _checked(cls, lambda adapter: adapter.validate_json(text))


@functools.cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    # Imported with the first instance: flags of a command are configurations, and --help makes
    # none.
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _checked(cls: type, validate: Callable[[TypeAdapter[Any]], Any]) -> Any:
    from pydantic_core import ValidationError

    try:
        return validate(_adapter(cls))
    except ValidationError as error:
        raise _input_error(cls, error) from None


def _input_error(cls: type, error: ValidationError) -> InputError:
    """Return the first fault that pydantic found; all tried types of a union are one fault."""
    first, *others = error.errors(include_url=False)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    fields = {field.name for field in dataclasses.fields(cls)}
    path = [part for part in first["loc"] if not _is_branch(part)]
    if path and isinstance(path[0], int):  # a positional argument
        path[0] = dataclasses.fields(cls)[path[0]].name
    name = ".".join(map(str, path))
    kind = first["type"]
    value = first["input"]
    if kind == "missing":
        return InputError(f"no {name}", "every required field", f"Pass {name}.")
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        known = ", ".join(sorted(fields))
        close = difflib.get_close_matches(name, fields, n=1)
        fix = f"Did you mean {close[0]}?" if close else f"Remove {name}."
        return InputError(f"the unknown field {name}", f"the fields {known}", fix)
    if not path:
        return InputError(
            got=f"{value!r}",
            expected="a configuration as a JSON object",
            fix=f"Correct it: {first['msg']}.",
        )
    of_field = [first, *(fault for fault in others if fault["loc"][:1] == first["loc"][:1])]
    types = [fault["msg"].removeprefix("Input should be ") for fault in of_field]
    expected = " or ".join(dict.fromkeys(types))
    for long, plain in _PLAIN.items():
        expected = expected.replace(long, plain)
    return InputError(f"{name} = {value!r}", expected, f"Pass another {name}.")


def _is_branch(part: int | str) -> bool:
    """Return whether a part of pydantic's path names a branch of a union, and no field.

    Branches are called "tuple[int, ...]", "bool" or "Yarn", for example.
    """
    if isinstance(part, int):
        return False
    return part in _BRANCHES or not part.isidentifier() or not part.islower()
