"""Sampling in a browser: the next token's distribution, the rule that cuts it, and writing on step
by step.
"""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, Route, expect

from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import last_logits
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.generation.sampling import SamplingRule
from small_models import decoder

from .conftest import Go, Open, showing

TEXT = "1 5 2 2 0 6 3 2 3 4 4 0 5 6 4"


show = showing(".candidate >> nth=6", model="recurrence", view="sampling", text=TEXT)


def rows(page: Page) -> Locator:
    return page.locator(".candidate")


def slide(page: Page, label: str, value: float) -> None:
    page.get_by_role("slider", name=label, exact=True).fill(str(value))


def shown(page: Page) -> dict[str, tuple[str, str]]:
    """What stands in each row: the token, with its probability before and after the rule."""
    parts = "(rows) => rows.map((row) => [...row.querySelectorAll('.text, .chance')].map((part) => part.textContent))"
    return {token: (before, after) for token, before, after in rows(page).evaluate_all(parts)}


def written(page: Page) -> str:
    return page.get_by_label("Text", exact=True).input_value()


def test_the_likeliest_token_comes_first_and_the_rule_of_the_numbers_is_told(
    page: Page, show: Go
) -> None:
    show(page)
    shares = [float(before.strip("<").split()[0]) for before, _ in shown(page).values()]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.5)
    expect(page.locator(".recurrence")).to_contain_text("x[t]")
    marks = page.locator(".candidate .obeys").all_text_contents()
    assert len(marks) == 7
    assert set(marks) == {"\u2713", "\u2717"}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, None, 1.0),
        (0.5, None, 1.0),
        (2.5, 5, 0.7),
        (1.35, 3, 1.0),
        (0.0, None, 1.0),
        (1.0, None, 0.0),
    ],
)
def test_what_stands_there_is_what_the_library_computes(
    page: Page, show: Go, backend: Any, temperature: float, top_k: int | None, top_p: float
) -> None:
    show(page)
    slide(page, "Temperature", temperature)
    slide(page, "Top-p", top_p)
    if top_k is not None:
        slide(page, "Top-k", top_k)
    loaded = backend.model("recurrence")
    with torch.no_grad():
        logits = last_logits(loaded, loaded.encode(TEXT)).double()
    expected = SamplingRule(temperature=temperature, top_k=top_k, top_p=top_p).distribution(logits)
    kept = int((expected > 0).sum())
    expect(page.locator(".summary")).to_contain_text(f"{kept} of 7")
    for token, (_, after) in shown(page).items():
        share = float(expected[int(token)])
        if share == 0:
            assert re.fullmatch("temperature|top-k|top-p", after), (token, after)
        else:
            told = f"{100 * share:.1f} %".replace("100.0", "100")
            assert after == ("<0.1 %" if share < 0.0005 else told)


def test_sliders_say_by_what_a_token_is_cut(page: Page, show: Go) -> None:
    show(page, temperature=2)
    slide(page, "Top-k", 5)
    expect(page.locator(".candidate em")).to_have_text(["top-k", "top-k"])
    slide(page, "Top-p", 0.3)
    expect(page.locator(".candidate em").last).to_have_text("top-k")
    assert "top-p" in page.locator(".candidate em").all_text_contents()
    expect(page.locator(".reached .limit")).to_have_count(1)
    expect(page.locator(".ranks")).to_have_text("top-k 5")
    slide(page, "Temperature", 0)
    expect(page.locator(".candidate em")).to_have_text(["temperature"] * 6)
    page.get_by_role("button", name="Without a rule").click()
    expect(page.locator(".candidate em")).to_have_count(0)


def test_a_drag_redraws_at_once_and_is_one_step_back(page: Page, show: Go) -> None:
    show(page, temperature=2)
    slider = page.get_by_role("slider", name="Temperature", exact=True)
    before = shown(page)
    slider.focus()
    page.evaluate(
        """() => {
          const slider = document.activeElement;
          for (const value of ["1.5", "1", "0.5", "0.2"]) {
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
          }
          slider.dispatchEvent(new Event("change", { bubbles: true }));
        }"""
    )
    expect(page.get_by_label("Temperature, exact")).to_have_value("0.2")
    assert shown(page) != before
    expect(page).to_have_url(re.compile(r"temperature=0\.2"))
    page.go_back()
    expect(page.get_by_label("Temperature, exact")).to_have_value("2")
    expect(rows(page).first).to_contain_text(next(iter(before.values()))[1])


def test_numbers_can_be_typed_and_wrong_ones_are_marked(page: Page, show: Go) -> None:
    show(page)
    exact = page.get_by_label("Top-p, exact")
    exact.fill("0.123")
    expect(page).to_have_url(re.compile(r"topP=0\.123"))
    for wrong in ("7", ""):
        exact.fill(wrong)
        expect(exact).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Top-k, exact").fill("2")
    expect(page.locator(".ranks")).to_have_text("top-k 2")
    expect(exact).to_have_value("0.123")


def test_tokens_are_written_one_by_one_and_taken_back(page: Page, show: Go) -> None:
    show(page)
    page.get_by_role("button", name="Write one").click()
    expect(page.locator(".trail li")).to_have_count(1)
    one = written(page)
    assert one.startswith(TEXT)
    assert len(one) > len(TEXT)
    page.get_by_role("button", name="Write ten").click()
    expect(page.locator(".trail li")).to_have_count(11)
    expect(page.locator(".trail li .number").filter(has_text="%")).to_have_count(11)
    expect(page.locator(".count")).to_contain_text("11 generated")
    expect(page.locator(".count")).to_contain_text("obey the recurrence")
    page.get_by_role("button", name="Undo a step").click()
    expect(page.locator(".trail li")).to_have_count(10)
    page.get_by_role("button", name="Undo all").click()
    expect(page.locator(".trail li")).to_have_count(0)
    assert written(page) == TEXT


def test_what_is_written_is_read_once_when_it_is_done(page: Page, show: Go) -> None:
    """Each token longer under way than the wait after typing, as of a large model."""
    show(page)
    runs: list[str] = []

    def later(route: Route) -> None:
        time.sleep(0.1)
        route.continue_()

    page.route("**/api/steps", later)
    page.on(
        "request",
        lambda request: runs.append(request.url) if request.url.endswith("/api/run") else None,
    )
    page.get_by_role("button", name="Write ten").click()
    expect(page.locator(".writing .count")).to_contain_text("10 generated")
    expect(page.locator(".said")).to_have_attribute("data-busy", "false")
    assert len(runs) == 1


@pytest.mark.slow
def test_the_same_seed_writes_the_same_and_another_one_another(page: Page, show: Go) -> None:
    texts = []
    for seed in (1, 1, 2):
        show(page, seed=seed, temperature=3)
        page.get_by_role("button", name="Write ten").click()
        expect(page.locator(".trail li")).to_have_count(10)
        texts.append(written(page))
    assert texts[0] == texts[1] != texts[2]


def test_a_candidate_can_be_chosen_by_hand_even_one_that_is_cut(page: Page, show: Go) -> None:
    show(page, topK=1)
    token = rows(page).nth(6).locator(".text").text_content()
    expect(rows(page).nth(6)).to_contain_text("top-k")
    rows(page).nth(6).click()
    expect(page.locator(".trail li")).to_have_count(1)
    assert written(page) == f"{TEXT} {token}"
    expect(page.locator(".trail li")).to_contain_text("0 %")


def test_hovering_a_candidate_tells_its_numbers(page: Page, show: Go) -> None:
    show(page, temperature=2)
    rows(page).nth(2).hover()
    told = page.locator(".candidates .details")
    expect(told).to_contain_text("rank 3")
    expect(told).to_contain_text("logit")
    expect(told).to_contain_text("with temperature")


def test_candidates_are_reached_and_written_with_the_keyboard(page: Page, show: Go) -> None:
    show(page)
    rows(page).first.focus()
    page.keyboard.press("ArrowDown")
    expect(rows(page).nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(rows(page).nth(6)).to_be_focused()
    expect(page.locator(".candidates .details")).to_contain_text("rank 7")
    token = rows(page).nth(6).locator(".text").text_content()
    page.keyboard.press("Enter")
    expect(page.locator(".trail li")).to_have_count(1)
    assert written(page) == f"{TEXT} {token}"


def test_a_fault_while_writing_is_told(page: Page, show: Go) -> None:
    show(page)
    page.route("**/api/steps", lambda route: route.fulfill(json={}))
    page.get_by_role("button", name="Write one").click()
    expect(page.locator(".fault")).to_contain_text("A fault of this page")


@pytest.mark.slow
def test_a_link_shows_the_rule_and_what_was_written(page: Page, open_page: Open, show: Go) -> None:
    show(page, seed=3)
    slide(page, "Top-p", 0.8)
    page.get_by_role("button", name="Write ten").click()
    expect(page.locator(".trail li")).to_have_count(10)
    expect(page).to_have_url(re.compile(r"written=%5B\d+(%2C\d+){9}%5D"))
    trail = page.locator(".trail li").all_text_contents()
    other = open_page()
    other.goto(page.url)
    expect(other.locator(".trail li .number").filter(has_text="%")).to_have_count(10)
    assert other.locator(".trail li").all_text_contents() == trail
    expect(other.get_by_label("Top-p, exact")).to_have_value("0.8")
    assert shown(other) == shown(page)


def test_typing_a_text_forgets_what_was_written(page: Page, show: Go) -> None:
    show(page)
    page.get_by_role("button", name="Write one").click()
    expect(page.locator(".trail li")).to_have_count(1)
    page.get_by_label("Text", exact=True).fill("1 2 3")
    expect(page.locator(".trail li")).to_have_count(0)


def test_the_rule_is_read_aloud_as_it_is(page: Page, serve: Callable[[Any], Any]) -> None:
    large = serve(Backend([wrap_model(decoder(vocab_size=200))]))
    page.goto(f"{large.address}#model=given&view=sampling&topK=100&topP=0.999")
    for label, said in (("Top-k", "the 100 most likely"), ("Top-p", "99.9 %")):
        expect(page.get_by_role("slider", name=label, exact=True)).to_have_attribute(
            "aria-valuetext", said
        )
