"""What a page shows, as the words of its address: written from Python's values, and read as the page reads them.

The page itself keeps its state in ``web/src/state.ts``; what is here are its names, and what they mean for what has to
be asked. Layers, heads and tokens are counted from 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from glassformer.errors import InputError, require
from glassformer.explorer.messages import (
    MOST_CHARACTERS,
    MOST_TOKENS,
    AskPage,
    Attention,
    Index,
    ModelCard,
    Order,
    Part,
    Run,
    Units,
    View,
)
from glassformer.explorer.messages.base import WHOLE, Seed, Temperature, TopK, TopP
from glassformer.explorer.messages.unknown import UnknownName

Words = Mapping[str, str]

Shape = Literal["matrix", "lines", "words", "layers", "heads"]


class HeadPlace(BaseModel):
    """A head."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: Index
    head: Index


class Window(BaseModel):
    """The part of a matrix that is seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: Index
    key: Index
    size: Annotated[int, Field(ge=1, le=MOST_TOKENS), WHOLE]


_TYPES: dict[str, Any] = {
    "model": str,
    "view": View,
    "text": str,
    "source": Units | None,
    "order": Order | None,
    "part": Part | None,
    "layer": Index,
    "head": Index,
    "versus": HeadPlace | None,
    "pin": Index | None,
    "shape": Shape,
    "root": bool | None,
    "measure": Literal["pictures", "entropy", "distance", "sink"],
    "across": Literal["average", "chosen", "all"],
    "window": Window | None,
    "cells": dict[str, str],
    "temperature": Temperature,
    "topK": TopK | None,
    "topP": TopP,
    "seed": Seed,
    "written": list[Annotated[int, Field(ge=0, le=MOST_CHARACTERS), WHOLE]],
    "expertLayer": Index,
}
_ADAPTERS = MappingProxyType({name: TypeAdapter(kind) for name, kind in _TYPES.items()})
KEYS = tuple(_ADAPTERS)
"""Every part of the state that Python knows, by the page's names."""

_PYTHON = MappingProxyType({"top_k": "topK", "top_p": "topP", "expert_layer": "expertLayer"})
_AS_THEY_ARE = frozenset({"model", "view", "text", "shape", "measure", "across"})
"""Parts that are words already; the others are written as JSON."""


@dataclass(frozen=True)
class ViewState:
    """What decides which answers a page needs. The fields are those of ``State`` in ``web/src/state.ts``."""

    card: ModelCard
    view: View
    text: str
    source: list[str] | None = None
    order: list[int] | None = None
    part: Part | None = None
    layer: int = 0
    head: int = 0
    versus: HeadPlace | None = None
    pin: int | None = None
    cells: Mapping[str, str] = field(default_factory=dict)
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def stack(self, run: Run) -> Attention:
        """The stack of attentions of a run that is shown.

        Raises:
            InputError: The run has none.
        """
        require(len(run.attentions) > 0, f"{self.card.title}, which has no attention", "one that has", "Choose it.")
        return next((stack for stack in run.attentions if stack.part == self.part), run.attentions[0])


def ask_page(words: Words) -> AskPage:
    """The request for the page that some words name.

    Raises:
        InputError: More than a request holds, or what is no text.
    """
    try:
        return AskPage(state=dict(words))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = next((str(part) for part in first["loc"][1:] if part != "[key]"), "the state")
        got = f"{where} = {ascii(words.get(where, ''))[:60]}: {first['msg']}"
        raise InputError(got, f"text of at most {MOST_CHARACTERS:,} characters", "Mend it.") from None


def to_words(values: Mapping[str, object]) -> dict[str, str]:
    """The address's words for some values: ``{"layer": 2}`` to ``{"layer": "2"}``.

    Args:
        values: By the page's names (:data:`KEYS`) or Python's spelling of them (``top_k``). ``versus`` may be a pair
            (layer, head), the numbers of ``cells`` may be numbers.

    Raises:
        InputError: A name that there is not, or a value that does not fit it.
    """
    words = {}
    for given, value in values.items():
        value, name = _plain(value), _PYTHON.get(given, given)
        known = ", ".join(KEYS)
        require(name in _ADAPTERS, f"{given} = {value!r}", f"one of {known}", "Mend the name.")
        if name == "versus" and isinstance(value, Sequence) and len(value) == 2:
            value = {"layer": value[0], "head": value[1]}
        if name == "cells" and isinstance(value, Mapping):
            value = {cell: str(number) for cell, number in value.items()}
        if isinstance(value, tuple):
            value = list(value)
        try:
            fits = _ADAPTERS[name].validate_python(value, strict=True)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]["msg"]
            raise InputError(f"{given} = {value!r}", f"what fits it: {fault}", "Mend the value.") from None
        plain = _ADAPTERS[name].dump_python(fits)
        words[name] = plain if name in _AS_THEY_ARE else json.dumps(plain, separators=(",", ":"))
    return words


def _plain(value: object) -> object:
    """NumPy's numbers and arrays as Python's own."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def from_words(words: Words) -> dict[str, Any]:
    """The values that words tell, by the page's names; what makes no sense is passed over, as the page does."""
    values = {}
    for name, word in words.items():
        if name not in _ADAPTERS:
            continue
        try:
            if name in _AS_THEY_ARE:
                values[name] = _ADAPTERS[name].validate_python(word, strict=True)
            else:
                values[name] = _ADAPTERS[name].validate_json(word, strict=True)
        except ValidationError:
            continue
    return values


def view_state(ask: AskPage, cards: Sequence[ModelCard]) -> ViewState:
    """What a page in this state shows: what is left open is as in a page that is opened with this model.

    Raises:
        UnknownName: No model of this name.
    """
    values = from_words(ask.state)
    name = values.get("model", cards[0].name)
    card = next((each for each in cards if each.name == name), None)
    if card is None:
        known = ", ".join(each.name for each in cards)
        raise UnknownName(f"the model {name!r}", f"one of {known}", "Ask for the call 'models'.")
    view = values.get("view")
    source = values.get("source", card.source) if card.kind == "encoder_decoder" else None
    return ViewState(
        card=card,
        view=view if view in card.views else card.views[0],
        text=values.get("text", card.text),
        source=source,
        order=_order(values.get("order"), len(source or ())),
        part=values.get("part"),
        layer=values.get("layer", 0),
        head=values.get("head", 0),
        versus=values.get("versus"),
        pin=values.get("pin"),
        cells=values.get("cells", {}),
        temperature=values.get("temperature", 1.0),
        top_k=values.get("topK"),
        top_p=values.get("topP", 1.0),
    )


def _order(told: list[int] | None, count: int) -> list[int] | None:
    """The order that is told of so many things; None for things as they are, and where it is no order of theirs."""
    straight = list(range(count))
    return told if told is not None and told != straight and sorted(told) == straight else None
