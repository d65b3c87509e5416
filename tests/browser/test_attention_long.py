"""The attention view of long texts, with windows and sinks: what is fetched, and how one moves
about.
"""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from playwright.sync_api import Page, Request, Route, expect

from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.models import Decoder, DecoderConfig

from .attention_page import Reading, address, cell_at, hover_cell, shown_value, state, window
from .conftest import check_look, eventually, settled

pytestmark = pytest.mark.slow

WINDOW = 16


@pytest.fixture(scope="session")
def long_explorer() -> Backend:
    """A decoder of 4,096 words with a window in every other layer and with sinks."""
    torch.manual_seed(0)
    config = DecoderConfig(11, 2, 32, 32, 2, 16, window=WINDOW, sinks=True, max_seq_len=4096)
    model = Decoder(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("attention.query.weight"):
                weight.mul_(5.0)
    return Backend([wrap_model(model, numbers(12))])


@pytest.fixture(scope="session")
def long_served(serve: Callable[[Any], Any], long_explorer: Backend) -> str:
    address: str = serve(long_explorer).address
    return address


@pytest.fixture
def go_long(long_served: str) -> Callable[..., None]:
    """``go_long(page, 600, layer=1)``: as ``go``, of the long decoder with a text of so many
    tokens.
    """

    def go_long(page: Page, tokens: int, **state: object) -> None:
        page.goto("about:blank")
        page.goto(
            f"{long_served}#{urlencode({'model': 'given', 'text': numbers(tokens), **state})}"
        )
        settled(page)

    return go_long


def numbers(count: int) -> str:
    return " ".join(str((at * at * 3 + at) % 11) for at in range(count))


def test_the_share_of_a_sink_and_the_border_of_windows_are_told(
    page: Page, go_long: Any, long_explorer: Any
) -> None:
    go_long(page, 24, layer=1, pin=20)
    asked = Reading(long_explorer, "given", numbers(24))
    assert asked.stack().windows == [None, WINDOW]
    share = 100 * (1 - float(asked.rows(20)[1, 0].sum()))
    told = page.locator(".sink .number")
    told.wait_for()
    assert float(told.inner_text().removesuffix(" %")) == pytest.approx(share, abs=0.06)
    hover_cell(page, 20, 20 - WINDOW + 1, (24, 24))
    assert shown_value(page) == pytest.approx(
        asked.rows(20)[1, 0, 20 - WINDOW + 1], rel=0.006, abs=1e-7
    )
    hover_cell(page, 20, 20 - WINDOW, (24, 24))
    expect(page.locator(".readout strong")).to_have_text("masked")


def test_of_4096_tokens_only_what_is_visible_is_fetched(page: Page, go_long: Any) -> None:
    tiles: list[dict[str, Any]] = []

    def asked(request: Request) -> None:
        if request.url.endswith("/api/weights"):
            tiles.append(json.loads(request.post_data or "{}"))

    page.on("request", asked)
    go_long(page, 4096, layer=1)
    assert tiles, "nothing was fetched"
    assert all(each["level"] > 0 for each in tiles), "single weights of a whole that shows none"
    assert len(tiles) < 32
    tiles.clear()
    cells = page.get_by_role("application")
    # The window's diagonal, where there is something to see.
    cells.hover(position=cell_at(page, 2000, 2000, (4096, 4096)))
    for _ in range(8):
        page.get_by_role("button", name="Zoom in").click()
        cells.hover(position=cell_at(page, 2048, 2048, (4096, 4096)))
    eventually(page, lambda: any(each["level"] == 0 for each in tiles))
    seen = window(state(page, lambda words: (window(words) or {"size": 4096})["size"] < 100))
    assert seen["size"] < 100
    assert len(tiles) < 64, "16 x 16 tiles are the whole matrix"
    expect(page.locator(".overview")).to_be_visible()


@pytest.mark.parametrize("fault", ["gone", "busy", "failed"])
def test_a_row_that_nobody_answered_is_asked_for_again(
    page: Page, go_long: Any, long_explorer: Backend, watch: Any, fault: str
) -> None:
    watch.forgive("ERR_CONNECTION_REFUSED|status of 50[03]")
    asked: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            return  # answered below, once the fault was seen
        if fault == "gone":
            route.abort("connectionrefused")
        elif fault == "failed":
            route.fulfill(status=500, body="Internal Server Error")
        else:
            busy = {"got": "more than 64 requests at once", "expected": "fewer", "fix": "Wait."}
            route.fulfill(status=503, json=busy)

    page.route("**/api/rows", answer)
    # Too long for single weights to be fetched, which the row would be made of.
    go_long(page, 1500, pin=400)
    expect(page.locator(".fault")).to_have_count(1)
    eventually(page, lambda: len(asked) > 1)
    asked[1].continue_()
    expect(page.locator(".reads li")).not_to_have_count(0)
    expect(page.locator(".fault")).to_have_count(0)
    assert len(asked) == 2
    best = int(Reading(long_explorer, "given", numbers(1500)).rows(400)[0, 0].argmax())
    expect(page.locator(".reads li sub").first).to_have_text(str(best))


def test_a_row_that_nobody_wants_any_more_is_no_fault(page: Page, go_long: Any, watch: Any) -> None:
    watch.forgive("ERR_CONNECTION_REFUSED")
    page.route("**/api/rows", lambda route: route.abort("connectionrefused"))
    go_long(page, 1500, pin=400)
    expect(page.locator(".fault")).to_have_count(1)
    page.get_by_role("application").press("Escape")
    expect(page.locator(".reads")).to_have_count(0)
    expect(page.locator(".fault")).to_have_count(0)


def test_a_tile_that_is_refused_is_not_asked_for_again(
    page: Page, go_long: Any, watch: Any
) -> None:
    watch.forgive("status of 422")
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.post_data or "")
        route.fulfill(
            status=422, json={"got": "a tile", "expected": "none", "fix": "Ask for none."}
        )

    page.route("**/api/weights", refuse)
    go_long(page, 24)
    expect(page.locator(".fault")).to_contain_text("Ask for none.")
    page.wait_for_timeout(2600)
    assert asked
    assert len(asked) == len(set(asked))


def test_wheel_drag_keys_and_overview_move_the_part_that_is_seen(page: Page, go_long: Any) -> None:
    go_long(page, 600)
    cells = page.get_by_role("application")
    cells.hover(position=cell_at(page, 300, 300, (600, 600)))
    page.mouse.wheel(0, -1000)
    first = window(state(page, lambda words: "window" in words))
    assert first["size"] < 300
    box = cells.bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 400)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 330, steps=4)
    page.mouse.up()
    dragged = window(state(page, lambda words: window(words) != first))
    assert dragged["key"] > first["key"]
    assert dragged["query"] > first["query"]
    page.wait_for_timeout(500)
    assert "pin" not in address(page), "a drag is no click"
    cells.focus()
    page.keyboard.press("Shift+ArrowLeft")
    moved = window(state(page, lambda words: window(words) != dragged))
    assert moved["key"] < dragged["key"]
    assert moved["query"] == dragged["query"]
    page.locator(".overview").click(position={"x": 8, "y": 8})
    corner = window(state(page, lambda words: window(words) != moved))
    assert (corner["query"], corner["key"]) == (0, 0)
    page.reload()
    page.get_by_role("button", name="Show all").click()
    assert "window" not in state(page, lambda words: "window" not in words)


def test_long_texts_scroll_in_lines_and_text(page: Page, go_long: Any) -> None:
    go_long(page, 900, shape="lines")
    words = page.locator(".column-query .column-word")
    assert words.count() < 80, "only what is in sight is on the page"
    page.get_by_role("listbox", name="Queries: tokens that read").focus()
    page.keyboard.press("End")
    last = page.locator(".column-query [data-place='899']")
    expect(last).to_be_visible()
    expect(page.locator(".column-key [data-place='899']")).to_be_visible()
    page.get_by_role("button", name="Text").click()
    page.get_by_role("listbox").focus()
    page.keyboard.press("End")
    expect(page.locator(".token-text [data-place='899']")).to_be_in_viewport()


@pytest.mark.parametrize("look", ["wide", "dark", "phone"])
def test_4096_tokens_are_accessible_and_fit(open_page: Any, go_long: Any, look: str) -> None:
    page = open_page(phone=look == "phone", dark=look == "dark")
    go_long(page, 4096, layer=1)
    check_look(page, f"attention-4096-{look}")
