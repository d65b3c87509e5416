"""A phone of 390 pixels: everything is in reach of a finger, and the head of the page is short."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .attention_page import state, window
from .conftest import Go, check_fits, drag_finger
from .test_page import VIEWS

pytestmark = pytest.mark.slow

SMALL = """
() => [...document.querySelectorAll(".glassformer :is(a[href], button, input, select, summary, textarea, .tick)")]
  .filter((each) => each.checkVisibility() && !(each.type === "checkbox" && each.closest(".tick")))
  .map((each) => [each.outerHTML.slice(0, 120), each.getBoundingClientRect()])
  .filter(([, { width, height }]) => width < 39.5 || height < 39.5)
  .map(([html, { width, height }]) => `${Math.round(width)} x ${Math.round(height)}: ${html}`)
"""
CUT = """
() => [...document.querySelectorAll(".glassformer *")]
  .filter((each) => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth + 1)
  .filter((each) => {
    for (let above = each.parentElement; above; above = above.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(above).overflowX)) return false;
    }
    return !each.closest("svg");
  })
  .map((each) => each.outerHTML.slice(0, 120))
"""


STATES = [
    {"model": model, "view": view} for view, model in [*VIEWS.items(), ("whatif", "lookup-facts")]
]


@pytest.mark.parametrize(
    "state", [*STATES, {}], ids=lambda state: "-".join(state.values()) or "start"
)
def test_every_control_is_as_large_as_a_finger_and_nothing_is_cut(
    state: Any, phone: Page, go: Go
) -> None:
    go(phone, **state)
    assert phone.evaluate(SMALL) == []
    assert phone.evaluate(CUT) == []
    check_fits(phone)


@pytest.mark.parametrize("model", ["sentiment", "induction", "recurrence", "identity"])
def test_the_head_of_the_page_is_short(model: str, phone: Page, go: Go) -> None:
    go(phone, model=model)
    tabs = phone.get_by_role("tablist", name="Views").bounding_box()
    assert tabs["y"] < 440
    header = phone.locator(".top").bounding_box()
    assert header["height"] < 70


def test_the_rest_of_a_description_is_a_tap_away(phone: Page, go: Go) -> None:
    go(phone, model="induction")
    about = phone.locator(".about")
    before = about.bounding_box()
    phone.get_by_role("button", name="More about this model").tap()
    after = about.bounding_box()
    assert after["height"] > 2 * before["height"]
    phone.get_by_role("button", name="Less").tap()
    expect(about).to_have_css("-webkit-line-clamp", "2")


def test_a_finger_moves_a_matrix_that_is_enlarged(phone: Page, go: Go) -> None:
    go(phone, model="induction", view="attention")
    cells = phone.locator(".cell-map").first
    cells.scroll_into_view_if_needed()
    for _ in range(3):
        phone.get_by_role("button", name="Zoom in").or_(
            phone.locator(".zoom button").first
        ).first.tap()
    before = window(state(phone, lambda words: "window" in words))
    box = cells.bounding_box()
    drag_finger(
        phone, box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"], across=64, down=64
    )
    moved = window(state(phone, lambda words: window(words) != before))
    assert (moved["query"], moved["key"]) != (before["query"], before["key"])
    assert moved["size"] == before["size"]


def test_what_a_tap_did_is_in_sight(phone: Page, go: Go) -> None:
    go(phone, model="induction", view="whatif")
    heads = phone.get_by_role("group", name="Heads to remove")
    heads.scroll_into_view_if_needed()
    heads.get_by_role("button", name="layer 1, head 1").tap()
    told = phone.locator(".moved")
    expect(told).to_contain_text("of the probability moved")
    expect(told).to_be_in_viewport()
    assert phone.locator(".prediction h2").bounding_box()["y"] < 0  # type: ignore[index]
