"""What the page shows: the one definition of its fields, their types, bounds and defaults, and of
the page's address.

An address holds one word for each field that differs from its default, under the field's JSON name.
The page reads addresses by the JSON schema of :class:`State`, which ``make page`` writes to
``web/src/contract.json``. Layers, heads and tokens are counted from 0.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from glassformer.errors import InputError
from glassformer.explorer import messages as m

CELL = r"(Km|Qm|Vm|pos)\.(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})"
"""The address of a cell of a head's matrices: name, row, column."""
SIZE = r"0|[1-9][0-9]{0,2}"
NUMBER = r"[ \t]*[+\u2212-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+\u2212-]?[0-9]+)?[ \t]*"
"""A number as it is typed in a cell, perhaps with a true minus sign."""
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
    """The head that is shown. None: 0. If all of layer, head, pin, key, versus and pinned are left
    out: the head of a decoder that stands out for the text, otherwise that of the model's card.
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
    """Whether colours follow the square root of a weight, which shows small ones. None: where there
    are many keys.
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
    """Whether cells are shares of what is passed on, weight times size of the value, instead of
    weights.
    """
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
    """Whether a hand-designed head begins with zeros instead of its design, and a program with a
    blank, to be solved on the page.
    """
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
    """The token whose successor is predicted. None: the last one, or the one before an
    encoder-decoder's answer.
    """
    second: Encodable | None = None
    """A second text, which is compared with the first. None: the same."""
    spot: Spot | None = None
    """The layer and the position at which the second text gets what the first has there."""
    target: m.OutcomeId | None = None
    """The token or class that sweep, lens and contributions are about. None: the likeliest without
    changes.
    """
    other: m.OutcomeId | None = None
    """The token or class whose logit is subtracted in the contributions; None: none."""


NAMES = MappingProxyType({name: to_camel(name) for name in State.model_fields})
"""Each field's name in Python and in an address."""
PLAIN = ("model", "view", "text", "part", "shape", "measure", "across", "attempt", "tool", "second")
"""Fields that are text: their words are the text itself, those of other fields are JSON."""


def view_of(state: State, views: Sequence[m.View]) -> m.View:
    """The view that is shown: the state's, or the model's first but Flow, which opens where no head
    stands out.
    """
    if state.view is not None and state.view in views:
        return state.view
    return next(view for view in views if view != "flow")


def from_words(words: Mapping[str, str]) -> State:
    """The state that an address describes. Unknown names and words that do not fit their field are
    ignored.
    """
    values = {}
    for name in NAMES.values():
        if name in words:
            try:
                values[name] = words[name] if name in PLAIN else json.loads(words[name])
            except (ValueError, RecursionError):
                continue
    try:
        return State.model_validate(values, strict=True)
    except ValidationError as error:
        wrong = {each["loc"][0] for each in error.errors(include_url=False, include_context=False)}
        return State.model_validate(
            {name: values[name] for name in values if name not in wrong}, strict=True
        )


def to_words(state: State) -> dict[str, str]:
    """The words of a state's address."""
    values = state.model_dump(mode="json", exclude_defaults=True)
    return {
        name: value if name in PLAIN else json.dumps(value, separators=(",", ":"))
        for name, value in values.items()
    }


def changed(state: State, values: Mapping[str, object]) -> State:
    """A state with some fields set from Python.

    Args:
        values: By name in Python or in an address. ``versus`` may be a pair (layer, head), the
            numbers of ``cells`` may be numbers; NumPy's numbers and arrays are taken as Python's.
    """
    fields = {address: name for name, address in NAMES.items()}
    given = {}
    for name, value in values.items():
        field = fields.get(name, name)
        if field not in NAMES:
            raise InputError(
                f"{name} = {value!r}", f"one of {', '.join(NAMES)}", "Use one of these names."
            )
        if field == "versus" and isinstance(value, Sequence) and len(value) == 2:
            value = {"layer": value[0], "head": value[1]}
        if field == "cells" and isinstance(value, Mapping):
            value = {cell: str(number) for cell, number in value.items()}
        given[field] = value
    try:
        plain = json.loads(json.dumps(given, default=lambda value: value.tolist()))
        return State.model_validate({**state.model_dump(by_alias=False), **plain}, strict=True)
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ValidationError):
            name = str(error.errors()[0]["loc"][0])
        else:
            name = next(iter(given), "")
        if isinstance(error, ValidationError):
            why = error.errors()[0]["msg"]
        else:
            why = str(error)
        field = fields.get(name, name)
        raise InputError(
            f"{field} = {given.get(field)!r}", f"a value that fits it: {why}", "Change it."
        ) from None
