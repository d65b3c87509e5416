"""What each part of a language model adds to its answer, in a browser: the drawing, and what its
parts open.
"""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.wrapping import wrap_model
from small_models import decoder

from .attention_page import Reading, state
from .conftest import LOOKS, Go, Open, check_fits, check_look, settled

TEXT = "1 5 2 2 0 6 3 2 3 4 4 0 5 6 4"


@pytest.fixture(scope="module")
def dense(serve: Any) -> tuple[Backend, str]:
    """A decoder with dense feed-forward networks."""
    backend = Backend([wrap_model(decoder().eval(), [3, 1, 4, 1, 5, 9, 2, 6])])
    return backend, serve(backend).address


def test_heads_open_their_attention_and_other_answers_are_explained(
    page: Page, go: Go, backend: Any
) -> None:
    go(page, model="recurrence", text=TEXT, view="flow")
    expect(page.get_by_role("tab", selected=True)).to_have_text("Flow")
    reading = Reading(backend, "recurrence", TEXT)
    found = backend.answer("contributions", m.AskContributions(ask=reading.run.ask))
    assert sum(part.value for part in found.parts) == pytest.approx(found.total, abs=1e-4)
    sentence = page.locator(".flow [role=status]")
    expect(sentence).to_contain_text(f"\u201c{found.name}\u201d gets ")
    expect(sentence).to_contain_text(f"of its logit of {found.total:.1f} from")
    best = max(
        (part for part in found.parts if part.kind == "head"), key=lambda part: abs(part.value)
    )
    head = page.get_by_role("group", name="Attention heads").get_by_role(
        "button", name=re.compile(f"^Head {best.number} of layer {best.layer}: ")
    )
    expect(page.locator("svg .line").first).to_be_attached()
    second = page.get_by_role("group", name="The next token").get_by_role("button").nth(1)
    expect(second).to_have_attribute("aria-pressed", "false")
    second.click()
    expect(second).to_have_attribute("aria-pressed", "true")
    settled(page)
    assert "target" in state(page, lambda words: "target" in words)
    page.go_back()
    head.press("Enter")
    expect(page.get_by_role("tab", selected=True)).to_have_text("Attention")
    words = state(page, lambda words: words.get("view") == "attention")
    assert (int(words.get("layer", 0)), int(words.get("head", 0))) == (best.layer, best.number)
    assert int(words["pin"]) == len(TEXT.split()) - 1


@pytest.mark.parametrize("look", LOOKS)
def test_a_network_shows_its_tokens_and_neurons_by_keyboard(
    look: str, open_page: Open, dense: Any
) -> None:
    backend, address = dense
    page = open_page(phone="phone" in look, dark="dark" in look)
    page.goto(f"{address}#view=flow")
    settled(page)
    networks = page.get_by_role("group", name="MLPs and the other parts")
    strongest = networks.locator("[tabindex='0']")
    strongest.focus()
    page.keyboard.press("Home")
    top = networks.get_by_role("button", name=re.compile("^MLP of layer 3: "))
    expect(top).to_be_focused()
    page.keyboard.press("Enter")
    panel = page.get_by_role("region", name="The MLP of layer 3")
    expect(panel).to_be_focused()
    ask = m.Ask(model="given", text="3 1 4 1 5 9 2 6")
    found = backend.answer("ffn", m.AskFfn(ask=ask, layer=3))
    lists = panel.get_by_role("list")
    for which, rows in enumerate((found.raised, found.lowered)):
        expect(lists.nth(which).locator(".word")).to_have_text([row.name for row in rows])
    expect(lists.nth(2).get_by_role("listitem").first).to_contain_text(str(found.neurons[0].number))
    check_look(page, f"flow-{look}")
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(top).to_be_focused()


def test_a_model_without_such_a_sum_says_so(page: Page, serve: Any, watch: Any) -> None:
    watch.forgive("422")
    backend = Backend([wrap_model(decoder(logit_cap=20.0).eval(), [3, 1, 4])])
    page.goto(f"{serve(backend).address}#view=flow")
    settled(page)
    expect(page.locator(".flow")).to_contain_text("needs logits that are a sum over the parts")
    check_fits(page)
    page.get_by_role("button", name="Show attention").click()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Attention")
