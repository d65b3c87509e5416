"""What the tests of the attention view share: what the server answers, and where a cell lies on the
page.
"""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import numpy as np
from playwright.sync_api import Page, Position, expect

from glassformer.explorer import messages as m

from .conftest import eventually


class Reading:
    """What the server answers for a text: the independent side of what the page shows."""

    def __init__(self, backend: Any, model: str, text: str) -> None:
        self.backend = backend
        self.run = backend.answer("run", m.Ask(model=model, text=text))

    def stack(self, part: str | None = None) -> m.Attention:
        return next(each for each in self.run.attentions if part in (None, each.part))

    def rows(self, query: int, part: str | None = None, passed: bool = False) -> np.ndarray:
        """[layer, head, key]."""
        stack = self.stack(part)
        answer = self.backend.answer(
            "rows", m.AskRows(run=self.run.run, part=stack.part, query=query, passed=passed)
        )
        return np.frombuffer(answer, "<f4").reshape(stack.layers, stack.heads, stack.keys)


def address(page: Page) -> dict[str, str]:
    """What stands in the page's address now. What is chosen is written there a moment later: see
    ``state``.
    """
    return {
        name: values[0]
        for name, values in parse_qs(page.evaluate("location.hash.slice(1)")).items()
    }


def state(page: Page, so: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """What stands in the page's address, once it is so."""
    eventually(page, lambda: so(address(page)))
    return address(page)


def window(words: dict[str, str]) -> dict[str, int] | None:
    """The part of the matrix that is seen; None: all of it."""
    found: dict[str, int] | None = json.loads(words["window"]) if "window" in words else None
    return found


def cell_at(page: Page, query: int, key: int, size: tuple[int, int], which: int = 0) -> Position:
    """Where a cell of a whole matrix of (queries, keys) lies within its map."""
    cells = page.locator(".cell-map").nth(which)
    box = cells.bounding_box()
    left = float(cells.get_attribute("data-left") or 0)
    top = float(cells.get_attribute("data-top") or 0)
    across = (box["width"] - left - 2) / size[1]
    down = (box["height"] - top - 2) / size[0]
    return {"x": left + (key + 0.5) * across, "y": top + (query + 0.5) * down}


def hover_cell(page: Page, query: int, key: int, size: tuple[int, int], which: int = 0) -> None:
    page.locator(".cell-map").nth(which).hover(position=cell_at(page, query, key, size, which))


def shown_value(page: Page) -> float:
    """The value of the cell that is read, once it has arrived."""
    told = page.locator(".readout .number")
    expect(told).not_to_have_text("\u2026")
    return float(told.inner_text().replace("\u2212", "-"))
