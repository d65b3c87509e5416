"""Configurations: frozen dataclasses with strict types, checked when they are made, JSON both ways."""

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
"""pydantic's words for bounds, and ours."""
_BRANCHES = ("bool", "int", "float", "str")


@dataclass_transform(frozen_default=True)
def config(cls: type[_Class]) -> type[_Class]:
    """Make a frozen dataclass whose fields are checked against their annotations, without
    conversions.

    ``True`` is no number, ``1`` no boolean and ``"1"`` neither; NaN and infinity are refused;
    bounds are annotations such as :data:`Size`. A ``__post_init__`` checks what concerns several
    fields.

    Raises (when an instance is made):
        InputError: A field that is unknown, missing or of another type, or outside its bounds.
    """
    made = dataclasses.dataclass(frozen=True)(cls)
    made.__pydantic_config__ = {"strict": True, "extra": "forbid", "allow_inf_nan": False}  # type: ignore[attr-defined]

    @functools.wraps(made.__init__)
    def checked(self: Any, *args: Any, **fields: Any) -> None:
        from pydantic_core import ArgsKwargs

        given = ArgsKwargs(args, fields)
        _checked(made, lambda adapter: adapter.validator.validate_python(given, self_instance=self))

    made.__init__ = checked  # type: ignore[method-assign]
    return made


class Config:
    """What every configuration can do; use with the decorator :func:`config`."""

    def to_json(self) -> str:
        """The configuration as a JSON object, one field a line."""
        return json.dumps(dataclasses.asdict(self), indent=2)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls: type[_Class], text: str) -> _Class:
        """The configuration that :meth:`to_json` wrote."""
        return _checked(cls, lambda adapter: adapter.validate_json(text))


@functools.cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    # Imported for the first instance: the flags of a command are configurations, and --help needs
    # no instance.
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _checked(cls: type, validate: Callable[[TypeAdapter[Any]], Any]) -> Any:
    from pydantic_core import ValidationError

    try:
        return validate(_adapter(cls))
    except ValidationError as error:
        raise _input_error(cls, error) from None


def _input_error(cls: type, error: ValidationError) -> InputError:
    """The first fault that pydantic found; all types of a union that were tried belong to one
    fault.
    """
    first, *others = error.errors(include_url=False)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    fields = {field.name for field in dataclasses.fields(cls)}
    # pydantic's path also names the branches of a union, such as "tuple[int, ...]", "bool" or
    # "Yarn".
    path = [
        part
        for part in first["loc"]
        if isinstance(part, int) or (part.isidentifier() and part not in _BRANCHES)
    ]
    path = [part for part in path if isinstance(part, int) or part.islower()]
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
        if close:
            fix = f"Did you mean {close[0]}?"
        else:
            fix = f"Remove {name}."
        return InputError(f"the unknown field {name}", f"the fields {known}", fix)
    if not path:
        return InputError(
            f"{value!r}", "a configuration as a JSON object", f"Correct it: {first['msg']}."
        )
    messages = [
        first["msg"],
        *(each["msg"] for each in others if each["loc"][:1] == first["loc"][:1]),
    ]
    expected = " or ".join(
        dict.fromkeys(each.removeprefix("Input should be ") for each in messages)
    )
    for long, plain in _PLAIN.items():
        expected = expected.replace(long, plain)
    return InputError(f"{name} = {value!r}", expected, f"Pass another {name}.")
