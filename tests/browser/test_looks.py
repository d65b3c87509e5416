"""Every view in a browser once it has been used: accessible, without sideways scroll, and kept as a
picture.
"""

import json
from typing import Any

import pytest
from playwright.sync_api import expect

from .conftest import LOOKS, Go, Open, check_look

NUMBERS = {"model": "recurrence", "text": "1 5 2 2 0 6 3 2 3 4 4 0 5 6 4"}
ATTENTION = NUMBERS | {"view": "attention", "layer": 1, "pin": 9}
SHAPES = {
    **dict.fromkeys(("matrix", "lines", "words"), ".reads li"),
    "layers": ".tops li",
    "heads": ".heads canvas",
}
FACTS = {"model": "lookup-facts", "text": "emma"}


def what_if(part: str = "self") -> dict[str, str]:
    """A head removed and an edge forbidden."""
    removed = json.dumps([{"part": part, "layer": 0, "head": 1}])
    forbidden = json.dumps([{"part": part, "layer": 0, "head": 0, "query": 0, "key": 0}])
    return {"view": "whatif", "part": part, "removed": removed, "forbidden": forbidden}


TWO_CHANGES = "[aria-label='What is changed'] li:nth-child(2)"
# What the address says, the button that is then pressed, and what is shown in the end.
STATES: dict[str, tuple[dict[str, Any], str | None, str]] = {
    **{
        f"attention-{shape}": (ATTENTION | {"shape": shape}, None, shown)
        for shape, shown in SHAPES.items()
    },
    "attention-compare": (
        ATTENTION | {"layer": 0, "versus": '{"layer":1,"head":0}'},
        None,
        ".reads li",
    ),
    "design": (
        {"model": "unique", "view": "design", "cells": '{"Vm.0.0":"1","Qm.0.0":"-"}'},
        None,
        ".certificate h2",
    ),
    "experts": (NUMBERS | {"view": "experts", "pin": 6, "expertLayer": 1}, None, ".experts .place"),
    "program": ({"model": "program-shuffle-dyck-2"}, None, ".proof h2"),
    "sampling": (
        NUMBERS | {"view": "sampling", "temperature": 1.6, "topK": 5, "topP": 0.85, "seed": 4},
        "Write ten",
        ".trail li:nth-child(10)",
    ),
    "scramble": (
        FACTS | {"view": "scramble", "order": "[3, 5, 1, 0, 2, 4]"},
        "Try every order",
        ".every h2",
    ),
    "what-if-decoder": (NUMBERS | what_if(), None, TWO_CHANGES),
    "what-if-encoder": ({"model": "sentiment"} | what_if(), None, TWO_CHANGES),
    "what-if-encoder-decoder": (FACTS | what_if("cross"), None, TWO_CHANGES),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", STATES)
def test_it_fits_and_is_accessible(name: str, look: str, open_page: Open, go: Go) -> None:
    state, pressed, shown = STATES[name]
    page = open_page(phone="phone" in look, dark="dark" in look)
    go(page, **state)
    if pressed:
        page.get_by_role("button", name=pressed).click()
    expect(page.locator(shown).first).to_be_visible()
    check_look(page, f"{name}-{look}")
