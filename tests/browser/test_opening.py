"""The head with which a decoder's text is shown, and the way to the tour."""

from typing import Any

from playwright.sync_api import Page, expect

from .attention_page import Reading, address, state
from .conftest import Go, Open, check_accessible, check_fits, settled

TEXT = "GLASSFORMERGLASSF"


def test_a_decoder_opens_on_the_head_that_stands_out_with_its_sentence(
    page: Page, go: Go, backend: Any
) -> None:
    go(page, model="induction", text=TEXT)
    weight = Reading(backend, "induction", TEXT).rows(17)[1, 1, 7]
    sentence = page.locator(".told")
    expect(sentence).to_contain_text(
        f"Layer 1 head 1 at F17 reads O7 with {100 * weight:.0f} % of its weight."
    )
    expect(sentence).to_contain_text("to the logit of O")
    expect(page.get_by_label("Query, 0–17")).to_have_value("17")
    assert address(page) == {"model": "induction", "text": TEXT}
    # What is chosen then begins with what is shown.
    page.get_by_role("combobox", name="Head", exact=True).select_option("2")
    expect(sentence).to_have_count(0)
    now = state(page, lambda words: "head" in words)
    assert (now["layer"], now["head"], now["pin"]) == ("1", "2", "17")
    page.go_back()
    page.get_by_role("button", name="Remove layer 1, head 1 in What if").click()
    settled(page)
    expect(page.locator(".changes")).to_contain_text("Without layer 1, head 1")


def test_a_text_without_such_a_head_opens_on_flow_and_says_so(page: Page, go: Go) -> None:
    go(page, model="induction", text="ABC")
    expect(page.get_by_role("tab", selected=True)).to_have_text("Flow")
    expect(page.locator(".flow")).to_contain_text("No head stands out for this text")
    page.get_by_role("tab", name="Attention").click()
    expect(page.locator(".told")).to_contain_text("No head stands out for this text")
    expect(page.get_by_label("Query, 0–3")).to_have_value("")
    page.get_by_label("Text", exact=True).fill(TEXT)
    expect(page.locator(".told")).to_contain_text("Layer 1 head 1 at F17 reads O7")


def test_a_link_with_a_head_shows_that(page: Page, go: Go) -> None:
    go(page, model="induction", text=TEXT, layer=0, head=3)
    expect(page.get_by_role("combobox", name="Layer", exact=True)).to_have_value("0")
    expect(page.locator(".told")).to_have_count(0)
    go(page, model="sentiment")
    expect(page.locator(".told")).to_have_count(0)
    expect(page.get_by_role("combobox", name="Head", exact=True)).to_have_value("1")


def test_the_tour_stands_in_the_header(open_page: Open, served: str) -> None:
    for phone in (False, True):
        page = open_page(phone=phone)
        page.goto(f"{served}#model=induction")
        settled(page)
        check_fits(page)
        check_accessible(page)
        page.get_by_role("banner").get_by_role("link", name="Tour").click()
        expect(page.locator(".tour")).to_contain_text("1 of 10")
        expect(page.get_by_role("banner").get_by_role("link", name="Tour")).to_have_count(0)
