"""The attention view: choosing a head, the matrix, lines, text, layers, and comparing two heads."""

import json
import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Position, expect

from glassformer.explorer import messages as m

from .attention_page import Reading, cell_at, hover_cell, shown_value, state

TEXT = "1 4 0 5 3 0 2 6 1 1 5 4"
MODEL = "recurrence"


@pytest.fixture(scope="session")
def reading(backend: Any) -> Reading:
    return Reading(backend, MODEL, TEXT)


def colours(page: Page, places: list[Position], which: int = 0) -> list[list[int]]:
    """The colours at some places of a map, near the upper left corner of their cells, beside the
    number in them.

    Weights arrive after the page: up to 300 frames are waited until not all the colours are the
    same.
    """
    found: list[list[int]] = page.evaluate(
        """async ([which, places]) => {
          const canvas = document.querySelectorAll(".cell-map")[which].querySelector("canvas");
          const scale = canvas.width / canvas.getBoundingClientRect().width;
          const context = canvas.getContext("2d");
          const read = () => places.map(({ x, y }) => [...context.getImageData(x * scale, y * scale, 1, 1).data]);
          const alike = () => new Set(read().map(String)).size === 1;
          for (let i = 0; i < 300 && alike(); ++i) await new Promise(requestAnimationFrame);
          return read();
        }""",
        [which, [{"x": each["x"] - 12, "y": each["y"] - 9} for each in places]],
    )
    return found


def grey(colour: list[int]) -> float:
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def reads_most(page: Page) -> list[str]:
    page.locator(".reads li").first.wait_for()
    return page.locator(".reads li .token").all_inner_texts()


def test_every_head_is_in_the_grid_and_a_click_or_the_arrow_keys_choose_one(
    page: Page, go: Any
) -> None:
    go(page, model=MODEL, view="attention", text=TEXT)
    heads = page.get_by_role("radio")
    run_heads = heads.count()
    assert run_heads > 1
    heads.nth(1).click()
    expect(heads.nth(1)).to_be_checked()
    chosen = state(page, lambda words: "layer" in words or "head" in words)
    assert (int(chosen.get("layer", "0")), int(chosen.get("head", "0"))) != (0, 0)
    page.keyboard.press("ArrowLeft" if chosen.get("head") else "ArrowUp")
    expect(heads.nth(0)).to_be_checked()
    expect(heads.nth(0)).to_be_focused()
    page.keyboard.press("ArrowRight" if chosen.get("head") else "ArrowDown")
    expect(heads.nth(1)).to_be_checked()
    # A click is a step with all that arrows did after it.
    page.go_back()
    expect(heads.nth(0)).to_be_checked()


def test_the_grid_tells_entropy_and_distance_of_each_head(
    page: Page, go: Any, reading: Reading
) -> None:
    go(page, model=MODEL, view="attention", text=TEXT)
    asked = m.AskMeasures(run=reading.run.run, part=reading.stack().part)
    entropy = reading.backend.answer("measures", asked).entropy[0][0]
    name = page.get_by_role("radio").first.get_attribute("aria-label") or ""
    told = re.search(r"entropy ([\d.]+) bits, distance ([\d.]+) tokens", name)
    assert float(told[1]) == pytest.approx(entropy, rel=0.01)
    before = page.locator(".heads canvas").screenshot()
    page.get_by_label("Show of each head").select_option("entropy")
    assert page.locator(".heads canvas").screenshot() != before
    assert state(page, lambda words: "measure" in words)["measure"] == "entropy"


def test_hovering_a_cell_tells_its_weight_and_its_words(
    page: Page, go: Any, reading: Reading
) -> None:
    go(page, model=MODEL, view="attention", text=TEXT)
    size = (reading.stack().queries, reading.stack().keys)
    for query, key in ((5, 2), (size[0] - 1, 0), (7, 7)):
        hover_cell(page, query, key, size)
        words = page.locator(".readout .token")
        tokens = reading.run.tokens
        expect(words.nth(0)).to_have_text(f"{tokens[query]}{query}")
        expect(words.nth(1)).to_have_text(f"{tokens[key]}{key}")
        assert shown_value(page) == pytest.approx(
            reading.rows(query)[0, 0, key], rel=0.006, abs=1e-7
        )


def test_larger_weights_are_darker_and_masked_ones_hatched(
    page: Page, go: Any, reading: Reading, watch: Any
) -> None:
    watch.forgive("willReadFrequently")
    go(page, model=MODEL, view="attention", text=TEXT)
    size = (reading.stack().queries, reading.stack().keys)
    row = reading.rows(size[0] - 1)[0, 0]
    order = np.argsort(row)
    faint, strong = colours(
        page, [cell_at(page, size[0] - 1, int(key), size) for key in (order[0], order[-1])]
    )
    assert grey(strong) < grey(faint) - 40
    corner = cell_at(page, 0, size[1] - 2, size)
    hatched = colours(page, [{**corner, "x": corner["x"] + shift} for shift in range(6)])
    assert len(set(map(tuple, hatched))) > 1, "one colour is no hatching"
    hover_cell(page, 0, size[1] - 1, size)
    expect(page.locator(".readout strong")).to_have_text("masked")
    expect(page.locator(".legend-hatch")).to_have_text("masked")


def test_the_matrix_is_reached_and_read_with_the_keyboard(
    page: Page, go: Any, reading: Reading
) -> None:
    go(page, model=MODEL, view="attention", text=TEXT)
    cells = page.get_by_role("application")
    cells.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert shown_value(page) == pytest.approx(reading.rows(2)[0, 0, 1], rel=0.006, abs=1e-7)
    page.keyboard.press("Enter")
    assert state(page, lambda words: "pin" in words)["pin"] == "2"
    best = int(np.argmax(reading.rows(2)[0, 0]))
    assert reads_most(page)[0] == f"{reading.run.tokens[best]}{best}"
    page.keyboard.press("Escape")
    assert "pin" not in state(page, lambda words: "pin" not in words)


def test_a_click_pins_a_query_and_the_address_keeps_it(
    page: Page, go: Any, reading: Reading
) -> None:
    go(page, model=MODEL, view="attention", text=TEXT)
    size = (reading.stack().queries, reading.stack().keys)
    page.locator(".cell-map").click(position=cell_at(page, 6, 1, size))
    assert state(page, lambda words: "pin" in words)["pin"] == "6"
    page.mouse.move(5, 5)
    page.reload()
    best = int(np.argmax(reading.rows(6)[0, 0]))
    assert reads_most(page)[0] == f"{reading.run.tokens[best]}{best}"


def test_lines_show_what_a_token_reads_and_what_reads_it(
    page: Page, go: Any, reading: Reading
) -> None:
    go(page, model=MODEL, view="attention", text=TEXT, shape="lines")
    over = page.locator(".between canvas").nth(1)
    blank = over.screenshot()
    page.locator(".column-query [data-place='9']").hover()
    row = reading.rows(9)[0, 0]
    best = int(np.argmax(row))
    assert reads_most(page)[0] == f"{reading.run.tokens[best]}{best}"
    assert over.screenshot() != blank
    strongest = page.locator(f".column-key [data-place='{best}'] > span")
    assert strongest.evaluate("element => element.style.backgroundColor") != ""
    # Keys behind the query cannot be seen by it, and are told apart.
    expect(page.locator(".column-key [data-place='10']")).to_have_attribute("data-quiet", "true")
    page.locator(".column-key [data-place='3']").hover()
    column = [reading.rows(query)[0, 0, 3] for query in range(reading.stack().queries)]
    reader = int(np.argmax(column))
    expect(page.locator(".reads.by li .token").first).to_have_text(
        f"{reading.run.tokens[reader]}{reader}"
    )


def test_in_lines_a_click_or_enter_pins_a_token(page: Page, go: Any) -> None:
    go(page, model=MODEL, view="attention", text=TEXT, shape="lines")
    page.locator(".column-query [data-place='4']").click()
    assert state(page, lambda words: "pin" in words)["pin"] == "4"
    expect(page.locator(".column-word[aria-selected=true]")).to_have_attribute("data-place", "4")
    listbox = page.get_by_role("listbox", name="Queries: tokens that read")
    listbox.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert state(page, lambda words: words.get("pin") != "4")["pin"] == "5"


def test_the_text_is_coloured_by_what_a_query_reads(page: Page, go: Any, reading: Reading) -> None:
    go(page, model=MODEL, view="attention", text=TEXT, shape="words")
    text = page.locator(".token-text")
    text.locator("[data-place='10']").hover()
    row = reading.rows(10)[0, 0]
    best = int(np.argmax(row))
    strongest = text.locator(f"[data-place='{best}']")
    expect(strongest).to_have_attribute("style", re.compile("background"))
    assert background(strongest) < min(
        background(text.locator(f"[data-place='{at}']")) for at in range(10) if at != best
    )
    expect(text.locator("[data-place='11']")).to_have_attribute("data-quiet", "true")
    text.locator("[data-place='10']").click()
    assert state(page, lambda words: "pin" in words)["pin"] == "10"


def background(word: Locator) -> float:
    """How light the ground of a word is; 255 without one."""
    found = re.findall(r"\d+", word.evaluate("element => element.style.backgroundColor"))
    return grey([int(each) for each in found]) if found else 255.0


def test_two_heads_are_compared_side_by_side_with_their_difference(
    page: Page, go: Any, reading: Reading
) -> None:
    go(page, model=MODEL, view="attention", text=TEXT)
    page.get_by_role("button", name="Compare with another head").click()
    expect(page.locator(".cell-map")).to_have_count(3)
    versus = json.loads(state(page, lambda words: "versus" in words)["versus"])
    size = (reading.stack().queries, reading.stack().keys)
    hover_cell(page, 8, 3, size, which=1)
    expect(page.locator(".readout strong")).to_contain_text("difference")
    one = reading.rows(8)[0, 0, 3]
    other = reading.rows(8)[versus["layer"], versus["head"], 3]
    told = page.locator(".readout strong").inner_text().replace("\u2212", "-")
    found = [float(each) for each in re.findall(r"[+-]?[\d.]+(?:e[+-]?\d+)?", told)]
    assert found == pytest.approx([one, other, one - other], rel=0.006, abs=1e-6)
    expect(page.get_by_role("img", name="Colours from").last).to_have_accessible_name(
        re.compile(r"Colours from \u2212[\d.]{1,5} to [\d.]{1,5}$")
    )
    page.get_by_role("button", name="End comparison").click()
    expect(page.locator(".cell-map")).to_have_count(1)


def test_one_query_is_followed_over_all_layers(page: Page, go: Any, reading: Reading) -> None:
    go(page, model=MODEL, view="attention", text=TEXT, shape="layers", pin=9)
    stack = reading.stack()
    layers = page.locator(".tops li")
    expect(layers).to_have_count(stack.layers)
    mean = reading.rows(9).mean(axis=1)
    for layer in range(stack.layers):
        best = int(np.argmax(mean[layer]))
        expect(layers.nth(layer).locator(".token").first).to_have_text(
            f"{reading.run.tokens[best]}{best}"
        )
    page.locator(".token-text [data-place='5']").hover()
    mean = reading.rows(5).mean(axis=1)
    best = int(np.argmax(mean[0]))
    expect(layers.nth(0).locator(".token").first).to_have_text(f"{reading.run.tokens[best]}{best}")
    page.get_by_role("button", name="Every head").click()
    expect(page.locator(".strip-room canvas")).to_have_count(stack.heads)


def test_a_number_stays_behind_a_token_written_from_right_to_left(
    page: Page, go: Any, reading: Reading
) -> None:
    go(page, model=MODEL, view="attention", text=TEXT, shape="layers")
    token, number = page.locator(".tops .token").first.evaluate(
        """(token) => {
          token.firstChild.data = "\u05e9\u05dc";
          const word = document.createRange();
          word.selectNode(token.firstChild);
          return [word, token.querySelector("sub")].map((each) => each.getBoundingClientRect().left);
        }"""
    )
    assert token < number


def test_encoder_decoder_and_cross_attention_are_all_reachable(
    page: Page, go: Any, backend: Any
) -> None:
    go(page, model="lookup-facts", view="attention", text="emma")
    asked = Reading(backend, "lookup-facts", "emma")
    assert {each.part for each in asked.run.attentions} == {"encoder", "decoder", "cross"}
    for stack in asked.run.attentions:
        page.get_by_role("group", name="Stack").get_by_role(
            "button", name=re.compile(stack.label, re.I)
        ).click()
        size = (stack.queries, stack.keys)
        expect(page.get_by_role("application")).to_have_attribute(
            "aria-label", f"layer 0, head 0, {stack.label}, {size[0]} queries by {size[1]} keys"
        )
    page.get_by_role("button", name="Cross-attention").click()
    stack = asked.stack("cross")
    row = asked.rows(0, "cross")[0, 0]
    best = int(np.argmax(row))
    hover_cell(page, 0, best, (stack.queries, stack.keys))
    expect(page.locator(".readout .token").nth(1)).to_have_text(f"{asked.run.source[best]}{best}")
    assert shown_value(page) == pytest.approx(row[best], rel=0.006)


def test_the_keyboard_keeps_its_place_in_the_controls(page: Page, go: Any) -> None:
    go(page, model="lookup-course", view="attention")
    for name in ("Encoder's self-attention", "Cross-attention"):
        button = page.get_by_role("button", name=name)
        button.press("Enter")
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".heads-panel h2")).to_have_text(name)
        expect(button).to_be_focused()
    page.get_by_role("button", name="Compare with another head").press("Enter")
    expect(page.get_by_role("button", name="End comparison")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Compare with another head")).to_be_focused()


def test_the_keyboard_stays_near_what_is_unpinned(page: Page, go: Any) -> None:
    pinned = [{"layer": 0, "head": 1}, {"layer": 1, "head": 0}]
    go(page, model="sentiment", view="attention", pin=2, pinned=json.dumps(pinned))
    page.locator(".query button").press("Enter")
    expect(page.get_by_role("group", name="Query")).to_be_focused()
    for name in ("Unpin layer 1, head 0", "Layer 0, head 1"):
        page.locator(".pinned").get_by_role("button", name=name, exact=True).press("Enter")
        expect(page.get_by_role("region", name="Attention", exact=True)).to_be_focused()
    expect(page.locator(".pinned")).to_have_count(0)
