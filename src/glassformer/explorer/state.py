"""Define the state of the page: its fields, their types, bounds and defaults, and its address.

An address holds one word for each field that differs from its default, under the field's JSON name.
The page reads addresses by the JSON schema of :class:`State`, which ``make page`` writes to
``web/src/contract.json``. Layers, heads and tokens are counted from 0.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from glassformer.errors import InputError
from glassformer.explorer import messages as m

CELL = r"(Km|Qm|Vm|pos)\.(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})"
"""Address of a cell of a head's matrices: name, row, column."""
SIZE = r"0|[1-9][0-9]{0,2}"
"""Number of rows or columns, as it is typed."""
NUMBER = r"[ \t]*[+\u2212-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+\u2212-]?[0-9]+)?[ \t]*"
"""Number as it is typed in a cell, perhaps with a true minus sign."""
MOST_DIGITS = 40
MOST_PINNED = 6


def _encodable(text: str) -> str:
    text.encode()
    return text


Encodable = Annotated[str, AfterValidator(_encodable)]
"""Text without half a surrogate pair, which no message can carry."""


class HeadPlace(m.Message):
    """A head of the stack that is shown."""

    layer: m.Index
    head: m.Index


class Window(m.Message):
    """The part of a matrix that is seen: its first query and key, and how many of each."""

    query: m.Index
    key: m.Index
    size: Annotated[int, Field(ge=1, le=m.MOST_TOKENS), m.WHOLE]


class Spot(m.Message):
    """A place of the residual stream."""

    layer: m.Index
    position: m.Index


class State(m.Message):
    """What the page shows."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, serialize_by_alias=True
    )

    model: Encodable = ""
    """Empty: the first."""
    view: m.View | None = None
    """None: the first of the model's."""
    text: Encodable | None = None
    """None: the text of the model's card."""
    source: m.Units | None = None
    """What an encoder-decoder's encoder reads. None: the source of the model's card."""
    order: m.Order | None = None
    """The order of the source. None, or an order of another number of things: as it is."""
    part: m.Part | None = None
    """The stack of attention. None: cross-attention where there is any, otherwise the only one."""
    layer: m.Index | None = None
    head: m.Index | None = None
    """The head that is shown. None: 0.

    If all of layer, head, pin, key, versus and pinned are left out, it is the head of a decoder
    that stands out for the text, otherwise that of the model's card.
    """
    versus: HeadPlace | None = None
    """A second head, compared with the first."""
    pinned: Annotated[list[HeadPlace], Field(max_length=MOST_PINNED)] = Field(default=[])
    """Heads that are shown beside the first."""
    pin: m.Index | None = None
    """The query that stays chosen when nothing is hovered."""
    key: m.Index | None = None
    """The key that stays chosen instead, in lines."""
    shape: Literal["matrix", "lines", "words", "layers", "heads"] = "matrix"
    root: bool | None = None
    """Whether colours follow the square root of a weight, which shows small ones.

    None: if there are many keys.
    """
    measure: Literal[
        "pictures",
        "entropy",
        "distance",
        "sink",
        "on_one",
        "previous",
        "first",
        "duplicate",
        "induction",
    ] = "pictures"
    """What the grid of heads shows of each head."""
    passed: bool = False
    """Whether cells show weight times size of the value, as shares, instead of weights."""
    across: Literal["average", "chosen", "all"] = "average"
    """Which heads are shown where a query is followed through all layers."""
    window: Window | None = None
    """None: the whole matrix."""
    cells: dict[Encodable, Encodable] = Field(default={})
    """Edits of a hand-designed head: an address (:data:`CELL`) and the number as typed.

    ``size.qk``, ``size.pos`` and ``size.len`` are numbers of columns of keys and queries, of
    columns of pos (0: no positions), and of rows of pos.
    """
    exercise: bool = False
    """Whether the page shows an exercise: a head that begins with zeros, a program with a blank."""
    attempt: Encodable | None = None
    """What was typed for a program's exercise. None: the text of its card, with the blank."""
    temperature: m.Temperature = 1.0
    top_k: m.TopK | None = None
    top_p: m.TopP = 1.0
    seed: m.Seed = 0
    written: list[Annotated[int, Field(ge=0, le=m.MOST_CHARACTERS), m.WHOLE]] = Field(default=[])
    """Where in the text each token begins that was generated on the page, in characters."""
    expert_layer: m.Index = 0
    removed: m.Removed = Field(default=[])
    """The heads that are removed in the view What if."""
    forbidden: m.Forbidden = Field(default=[])
    steer: m.Steering | None = None
    swaps: m.Replaced = Field(default=[])
    tool: Literal["heads", "steering", "experts", "lens"] = "heads"
    """What can be changed or looked at beside the answer in the view What if."""
    place: m.Index | None = None
    """The token whose successor is predicted.

    None: the last one, or the one before an encoder-decoder's answer.
    """
    second: Encodable | None = None
    """A second text, which is compared with the first. None: the same."""
    spot: Spot | None = None
    """The layer and the position at which the second text gets what the first has there."""
    target: m.OutcomeId | None = None
    """The token or class of sweep, lens and contributions. None: the likeliest without changes."""
    other: m.OutcomeId | None = None
    """The token or class whose logit is subtracted in the contributions; None: none."""


NAMES = MappingProxyType({name: to_camel(name) for name in State.model_fields})
"""Each field's name in Python and in an address."""
PLAIN = ("model", "view", "text", "part", "shape", "measure", "across", "attempt", "tool", "second")
"""Fields that are text: their words are the text itself, those of other fields are JSON."""


def view_of(state: State, views: Sequence[m.View]) -> m.View:
    """Return the view that is shown: the state's or, by default, the model's first view.

    Flow is skipped, since it opens on its own for models in which no head stands out.
    """
    if state.view is not None and state.view in views:
        return state.view
    return next(view for view in views if view != "flow")


def from_words(words: Mapping[str, str]) -> State:
    """Return the state that an address describes; ignore unknown names and unfit words."""
    values: dict[str, Any] = {}
    for name in NAMES.values():
        if name not in words:
            continue
        if name in PLAIN:
            values[name] = words[name]
        else:
            with suppress(ValueError, RecursionError):
                values[name] = json.loads(words[name])
    try:
        return State.model_validate(values, strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        invalid_names = {entry["loc"][0] for entry in errors}
        valid = {name: value for name, value in values.items() if name not in invalid_names}
        return State.model_validate(valid, strict=True)


def to_words(state: State) -> dict[str, str]:
    """Return the words of a state's address."""
    values = state.model_dump(mode="json", exclude_defaults=True)
    return {
        name: value if name in PLAIN else json.dumps(value, separators=(",", ":"))
        for name, value in values.items()
    }


def changed(state: State, values: Mapping[str, object]) -> State:
    """Return a state with some fields set from Python.

    Args:
        state: The state before the change.
        values: New values by their name in Python or in an address. ``versus`` may be a pair
            (layer, head), and the values of ``cells`` may be numbers. NumPy's numbers and arrays
            are converted.
    """
    fields = {address: name for name, address in NAMES.items()}
    values_by_name = {}
    for name, value in values.items():
        field = fields.get(name, name)
        if field not in NAMES:
            raise InputError(
                got=f"{name} = {value!r}",
                expected=f"one of {', '.join(NAMES)}",
                fix="Use one of these names.",
            )
        if field == "versus" and isinstance(value, Sequence) and len(value) == 2:
            value = {"layer": value[0], "head": value[1]}
        if field == "cells" and isinstance(value, Mapping):
            value = {cell: str(number) for cell, number in value.items()}
        values_by_name[field] = value
    try:
        json_values = json.loads(json.dumps(values_by_name, default=lambda value: value.tolist()))
        return State.model_validate(
            {**state.model_dump(by_alias=False), **json_values}, strict=True
        )
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ValidationError):
            name = str(error.errors()[0]["loc"][0])
            reason = error.errors()[0]["msg"]
        else:
            name = next(iter(values_by_name), "")
            reason = str(error)
        field = fields.get(name, name)
        raise InputError(
            got=f"{field} = {values_by_name.get(field)!r}",
            expected=f"a value that fits it: {reason}",
            fix="Change it.",
        ) from None
