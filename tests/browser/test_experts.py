"""A mixture of experts in a browser: where every token went, one token through the layers, and the
load.
"""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from glassformer.explorer.messages import Ask, AskExperts, Experts

from .conftest import Go, Open, showing

TEXT = "1 5 2 2 0 6 3 2 3 4 4 0 5 6 4"
COUNT = len(TEXT.split())


show = showing(".experts .place", model="recurrence", view="experts", text=TEXT)


@pytest.fixture
def truth(backend: Any) -> Experts:
    """What the page should show of ``TEXT``."""
    run = backend.answer("run", Ask(model="recurrence", text=TEXT)).run
    return backend.answer("experts", AskExperts(run=run))


def strip(page: Page) -> Locator:
    return page.get_by_role("slider", name="Token to follow")


def cells(page: Page, token: int) -> Locator:
    return page.locator(f".place[data-token='{token}'] .cell")


def letter(expert: int) -> str:
    return "ABCDEFGH"[expert]


def test_every_token_shows_its_first_expert_in_every_layer(
    page: Page, show: Go, truth: Experts
) -> None:
    show(page)
    expect(page.locator(".place")).to_have_count(COUNT)
    assert page.locator(".place > .word").all_text_contents() == TEXT.split()
    for layer in truth.layers:
        there = [cells(page, token).nth(layer.layer).inner_text() for token in range(COUNT)]
        assert there == [letter(choice[0]) for choice in layer.choices]


def test_hovering_a_cell_tells_second_choice_and_shares(
    page: Page, show: Go, truth: Experts
) -> None:
    show(page)
    cells(page, 4).nth(2).hover()
    (first, second), shares = truth.layers[2].choices[4], truth.layers[2].shares[4]
    told = f"{letter(first)} {100 * shares[0]:.0f} %, {letter(second)} {100 * shares[1]:.0f} %"
    expect(page.locator(".experts .details")).to_have_text(f"Token 4, 0, in layer 2: {told}")
    # The panel below shows the same token, without it being chosen.
    expect(page.get_by_role("heading", name="Token 4")).to_be_visible()
    page.get_by_role("heading", name="Load of each expert").hover()
    expect(page.get_by_role("heading", name=f"Token {COUNT - 1}")).to_be_visible()


def test_a_token_is_followed_through_the_layers(page: Page, show: Go, truth: Experts) -> None:
    show(page)
    cells(page, 6).nth(1).click()
    page.get_by_role("heading", name="Load of each expert").hover()
    expect(page.get_by_role("heading", name="Token 6")).to_be_visible()
    charts = page.get_by_role("region", name="One token through the layers").locator("figure")
    expect(charts).to_have_count(len(truth.layers))
    for layer in truth.layers:
        expected = ", ".join(
            f"{letter(at)} {100 * each:.0f} %" for at, each in enumerate(layer.probabilities[6])
        )
        expect(charts.nth(layer.layer).get_by_role("img")).to_have_attribute(
            "aria-label", re.compile(expected + "$")
        )
        filled = (
            charts.nth(layer.layer)
            .locator(".column:has([data-filled=true]) .letter")
            .all_text_contents()
        )
        assert sorted(filled) == sorted(map(letter, layer.choices[6]))
    page.get_by_role("button", name="Let go of token 6").click()
    expect(page.get_by_role("heading", name=f"Token {COUNT - 1}")).to_be_visible()


def test_of_a_text_without_probabilities_the_choices_are_told(
    page: Page, show: Go, truth: Experts
) -> None:
    told = truth.model_dump(mode="json")
    for layer in told["layers"]:
        layer["probabilities"] = []
    page.route("**/api/experts", lambda route: route.fulfill(json=told))
    show(page, pin=6)
    panel = page.get_by_role("region", name="One token through the layers")
    expect(panel).to_contain_text("probabilities are not shown")
    expect(panel.locator("figure")).to_have_count(len(truth.layers))
    for layer in truth.layers:
        (first, second), shares = layer.choices[6], layer.shares[6]
        expected = (
            f"{letter(first)} {100 * shares[0]:.0f} %, {letter(second)} {100 * shares[1]:.0f} %"
        )
        expect(panel.locator("figcaption .number").nth(layer.layer)).to_have_text(expected)
    expect(panel.locator(".columns")).to_have_count(0)


def test_the_load_is_shown_beside_the_even_share(page: Page, show: Go, truth: Experts) -> None:
    show(page)
    panel = page.get_by_role("region", name="Load of the experts")
    expect(panel).to_contain_text("the even share, 25 %")
    judged = 0
    for layer in truth.layers:
        expected = ", ".join(
            f"{letter(at)} {100 * each:.0f} %" for at, each in enumerate(layer.load)
        )
        chart = panel.get_by_role("img", name=f"Load in layer {layer.layer}")
        expect(chart).to_have_attribute("aria-label", f"Load in layer {layer.layer}: {expected}")
        heights = [each.bounding_box()["height"] for each in chart.locator(".size").all()]  # type: ignore[index]
        assert heights.index(max(heights)) == layer.load.index(max(layer.load))
        line = chart.locator(".even").bounding_box()
        bars = [each.bounding_box() for each in chart.locator(".size").all()]
        for bar, load in zip(bars, layer.load, strict=True):
            # Nearer to the line, a pixel decides.
            if abs(load - 0.25) > 0.04:
                assert (bar["y"] < line["y"]) == (load > 0.25)
                judged += 1
    assert judged


def test_the_tallest_column_leaves_room_above_it(page: Page, show: Go) -> None:
    show(page, pin=6)
    for chart in page.locator(".experts .columns").all():
        room = chart.locator(".room").first.bounding_box()
        tops = [box["y"] for each in chart.locator(".size").all() if (box := each.bounding_box())]
        assert min(tops) >= room["y"] + 4


def test_the_keyboard_moves_between_tokens_and_layers(page: Page, show: Go, truth: Experts) -> None:
    show(page)
    strip(page).focus()
    page.keyboard.press("Home")
    expect(strip(page)).to_have_attribute("aria-valuetext", re.compile("^token 0, 1, layer 0: "))
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    first = letter(truth.layers[1].choices[2][0])
    expect(strip(page)).to_have_attribute(
        "aria-valuetext", re.compile(f"^token 2, 2, layer 1: {first} ")
    )
    expect(page.get_by_role("heading", name="Token 2")).to_be_visible()
    page.keyboard.press("End")
    expect(strip(page)).to_have_attribute("aria-valuenow", str(COUNT - 1))


def test_a_link_shows_the_same_token_and_layer(page: Page, open_page: Open, show: Go) -> None:
    show(page)
    cells(page, 3).nth(2).click()
    page.get_by_role("heading", name="Load of each expert").hover()
    other = open_page()
    expect(page).to_have_url(re.compile("pin=3.*expertLayer=2"))
    other.goto(page.url)
    expect(other.get_by_role("heading", name="Token 3")).to_be_visible()
    expect(other.locator(".experts .details")).to_have_text(
        page.locator(".experts .details").inner_text()
    )
    page.go_back()
    expect(page.get_by_role("heading", name=f"Token {COUNT - 1}")).to_be_visible()


def test_4096_tokens_draw_only_what_is_seen(page: Page, show: Go) -> None:
    numbers = [(3 * place * place + place) % 7 for place in range(4096)]
    show(page, text=" ".join(map(str, numbers)))
    expect(page.locator(".experts .overview canvas")).to_be_visible()
    assert page.locator(".experts .place").count() < 120
    expect(page.locator(".place[data-token='4095']")).to_be_visible()
    strip(page).focus()
    page.keyboard.press("Home")
    expect(page.locator(".place[data-token='0']")).to_be_visible()
    expect(page.locator(".place[data-token='4095']")).to_have_count(0)
    # The overview brings the middle of the text into sight.
    page.locator(".experts .overview").click()
    expect(page.locator(".place[data-token='2048'] > .word")).to_have_text(str(numbers[2048]))
    assert page.locator(".experts .place").count() < 120


def test_the_keyboard_stays_in_the_strip_when_its_token_is_let_go(page: Page, show: Go) -> None:
    show(page, pin=3)
    page.get_by_role("button", name="Let go of token 3").press("Enter")
    expect(strip(page)).to_be_focused()
    expect(page.get_by_role("button", name="Let go")).to_have_count(0)
