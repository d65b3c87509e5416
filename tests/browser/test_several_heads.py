"""What a head passes on, heads pinned beside each other, and attention after an edit."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from glassformer.explorer import messages as m

from .attention_page import Reading, hover_cell, shown_value, state
from .conftest import check_accessible, eventually

TEXT = "GLASSFORMERGLASSF"


@pytest.fixture
def reading(backend: Any) -> Reading:
    return Reading(backend, "induction", TEXT)


def test_cells_show_what_is_passed_on(
    page: Page, go: Callable[..., None], reading: Reading
) -> None:
    go(page, model="induction", text=TEXT, layer=1, head=1, pin=17)
    weights = reading.rows(17)[1, 1]
    passed = reading.rows(17, passed=True)[1, 1]
    key = int(np.abs(weights - passed).argmax())
    assert abs(weights[key] - passed[key]) > 0.02
    size = (len(weights), len(weights))
    hover_cell(page, 17, key, size)
    eventually(page, lambda: abs(shown_value(page) - weights[key]) < 6e-4)
    page.get_by_label("Weight \u00d7 value").check()
    hover_cell(page, 17, key, size)
    eventually(page, lambda: abs(shown_value(page) - passed[key]) < 6e-4)
    expect(page.get_by_text("Share of weight")).to_be_visible()
    assert state(page, lambda words: "passed" in words)["passed"] == "true"
    page.get_by_role("button", name="Layers", exact=True).click()
    expect(page.get_by_text("Share of weight")).to_be_visible()


def test_a_head_that_rests_on_one_token_can_be_cut(
    page: Page, go: Callable[..., None], reading: Reading
) -> None:
    measures = reading.backend.answer("measures", m.AskMeasures(run=reading.run.run, part="self"))
    shares = np.array(measures.on_one)
    layer, head = (int(each) for each in np.unravel_index(shares.argmax(), shares.shape))
    assert shares[layer, head] > 0.5
    removed = json.dumps([{"part": "self", "layer": 0, "head": 0}])
    go(
        page,
        model="induction",
        text=TEXT,
        layer=layer,
        head=head,
        measure="on_one",
        removed=removed,
        place=0,
    )
    first = page.get_by_role("list", name="The heads with most").get_by_role("button").first
    expect(first).to_have_accessible_name(
        f"layer {layer}, head {head}, {100 * shares[layer, head]:.0f} %"
    )
    note = page.get_by_role("region", name="On one token")
    expect(note).to_contain_text(f"{100 * shares[layer, head]:.0f} % of its attention rests on")
    expect(note).to_contain_text(
        f"{100 * measures.passed[layer][head]:.0f} % of what it passes on comes from there"
    )
    note.get_by_role("button").click()
    # The edge alone, for what comes last.
    expect(page.get_by_label("What is changed").get_by_role("listitem")).to_have_count(1)
    expect(page.get_by_label("What is changed")).to_contain_text(
        f"forbidden in layer {layer}, head {head}"
    )
    expect(page.get_by_label("After token")).to_have_value("")
    weakest = np.unravel_index(shares.argmin(), shares.shape)
    go(page, model="induction", text=TEXT, layer=int(weakest[0]), head=int(weakest[1]))
    expect(note).to_have_count(0)


def test_heads_are_pinned_beside_each_other(page: Page, go: Callable[..., None]) -> None:
    go(page, model="induction", text=TEXT, layer=0, head=3, pin=17)
    pin = page.get_by_role("button", name="Pin this head")
    pin.click()
    expect(page.locator(".cell-map")).to_have_count(1)
    for head in (1, 2):
        page.get_by_role("radio", name=f"layer 1, head {head}:").click()
        if head == 1:
            pin.click()
    expect(page.locator(".cell-map")).to_have_count(3)
    expect(page.locator(".reads")).to_have_count(3)
    words = state(page, lambda words: words.get("head") == "2")
    assert words["pinned"] == '[{"layer":0,"head":3},{"layer":1,"head":1}]'
    check_accessible(page)
    page.get_by_role("button", name="Lines", exact=True).click()
    expect(page.locator(".token-shapes figure")).to_have_count(3)
    page.locator("figcaption").get_by_role("button", name="Layer 0, head 3", exact=True).click()
    # the chosen head is the first of them
    expect(page.locator(".token-shapes figure")).to_have_count(2)
    page.get_by_role("button", name="Unpin layer 1, head 1").click()
    expect(page.locator(".token-shapes figure")).to_have_count(1)
    page.get_by_role("button", name="Unpin this head").click()
    state(page, lambda words: "pinned" not in words)


def test_attention_after_an_edit_is_shown(
    page: Page, go: Callable[..., None], reading: Reading
) -> None:
    removed = [m.RemovedHead(part="self", layer=0, head=3)]
    words = json.dumps([each.model_dump() for each in removed])
    go(page, model="induction", text=TEXT, view="whatif", layer=1, head=1, removed=words)
    shown = page.get_by_role("group", name="Which attention is shown")
    ask = m.Ask(model="induction", text=TEXT, changes=m.Changes(removed=removed))
    again = Reading(reading.backend, "induction", TEXT)
    again.run = reading.backend.answer("run", ask)
    before, after = (each.rows(17)[1, 1] for each in (reading, again))
    key = int(np.abs(before - after).argmax())
    assert abs(before[key] - after[key]) > 0.1
    hover_cell(page, 17, key, (len(before), len(before)))
    readout = page.locator(".readout strong")
    expect(readout).to_contain_text("after")
    told = readout.inner_text().replace("\u2212", "-").replace(",", "").split()
    numbers = [float(each) for each in told if each[-1:].isdigit()]
    np.testing.assert_allclose(
        numbers, [after[key], before[key], after[key] - before[key]], atol=6e-4
    )
    shown.get_by_role("button", name="Difference").click()
    expect(page.get_by_text("After minus before")).to_be_visible()
    page.get_by_role("button", name="Undo all").click()
    expect(shown).to_have_count(0)


def test_a_key_is_pinned_as_a_key(page: Page, go: Callable[..., None]) -> None:
    go(page, model="induction", text=TEXT, layer=1, head=1, shape="lines")
    key = (
        page.get_by_role("listbox", name="Keys: tokens that are read").get_by_role("option").nth(7)
    )
    key.click()
    page.mouse.move(5, 5)
    expect(page.get_by_role("region", name="What reads the key most")).to_contain_text(
        "is read most by"
    )
    expect(key).to_have_attribute("aria-selected", "true")
    words = state(page, lambda words: "key" in words)
    assert words["key"] == "7"
    assert "pin" not in words
    page.get_by_role("listbox", name="Queries: tokens that read").get_by_role("option").nth(
        9
    ).click()
    assert "key" not in state(page, lambda words: words.get("pin") == "9")


def test_places_of_a_second_text(page: Page, go: Callable[..., None], backend: Any) -> None:
    second = "GLASSXORMERGLASSX"
    go(page, model="induction", text=TEXT, view="patch")
    field = page.get_by_role("textbox", name="Second text")
    # The example is there before anything is typed; the first text itself is another choice, which
    # offers it again.
    expect(field).to_have_value("GLASSFXRMERGLASSF")
    field.fill(TEXT)
    page.get_by_role("region", name="The second text").get_by_role(
        "button", name="GLASSFXRMERGLASSF"
    ).click()
    expect(field).to_have_value("GLASSFXRMERGLASSF")
    field.fill("GLASS")
    expect(page.get_by_text("6 tokens; the first text has 18.")).to_be_visible()
    field.fill(second)
    wanted = m.AskPatches(ask=m.Ask(model="induction", text=TEXT), second=second, done=2**31 - 1)
    plain = backend.answer("whatif", m.AskWhatIf(ask=m.Ask(model="induction", text=second)))
    other = max(plain.outcomes, key=lambda each: each.before).id
    target = backend.answer("whatif", m.AskWhatIf(ask=m.Ask(model="induction", text=TEXT))).target
    answer = backend.answer(
        "patches", wanted.model_copy(update={"other": None if other == target else other})
    )
    shares = (np.array(answer.patched) - answer.second) / (answer.first - answer.second)
    places = page.get_by_role(
        "table", name="The share of the difference that each place brings back"
    )
    layer, position = (
        int(each) for each in np.unravel_index(np.abs(shares).argmax(), shares.shape)
    )
    cell = places.get_by_role(
        "button", name=f"Layer {layer}, {answer.tokens[position]} ({position}):"
    )
    expect(cell).to_have_accessible_name(
        f"Layer {layer}, {answer.tokens[position]} ({position}): "
        f"{100 * shares[layer, position]:.0f} %"
    )
    cell.click()
    patch = m.PatchedPlace(text=TEXT, layer=layer, position=position)
    told = backend.answer(
        "whatif", m.AskWhatIf(ask=m.Ask(model="induction", text=second), target=target, patch=patch)
    )
    name = next(each for each in told.outcomes if each.id == target)
    row = page.get_by_role("region", name="What the place does").get_by_role(
        "radio", name=f"{name.name}:"
    )
    expect(row).to_have_accessible_name(
        f"{name.name}: {100 * name.before:.1f} % before, {100 * name.after:.1f} % after"
    )
    assert state(page, lambda words: "spot" in words)["second"] == second
    check_accessible(page)
