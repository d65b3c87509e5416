"""Changing a model in a browser: what is clicked, what is asked, and what is shown before and
after.
"""

import json
import math
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, Route, expect

from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.saving.recorded_answers import whole_sweep
from glassformer.models import Decoder, DecoderConfig

from .attention_page import Reading, cell_at, state
from .conftest import Go, Open, Watch, eventually, settled, showing

TEXT = "1 5 2 2 0 6 3 2 3 4 4 0 5 6 4"
COUNT = len(TEXT.split())
SIZE = (COUNT, COUNT)


class Model(Reading):
    """With changes, too."""

    def what_if(self, **changes: Any) -> m.WhatIf:
        ask = m.AskWhatIf.model_validate({"ask": self.run.ask.model_dump(), **changes})
        return self.backend.answer("whatif", ask)

    def contributions(self, **asked: Any) -> m.Contributions:
        return self.backend.answer("contributions", m.AskContributions(ask=self.run.ask, **asked))


show = showing(".outcome", model="recurrence", view="whatif", text=TEXT)


@pytest.fixture
def model(backend: Any) -> Model:
    return Model(backend, "recurrence", TEXT)


def share(value: float) -> str:
    """A probability as the page shows it."""
    if 0 < value < 0.0005:
        return "<0.1 %"
    text = f"{100 * value:.1f}"
    return f"{float(text):.0f} %" if float(text) in (0, 100) else f"{text} %"


def chance(log_odds: float) -> str:
    return share(1 / (1 + math.exp(-log_odds)))


def head(page: Page, layer: int, number: int) -> Locator:
    group = page.get_by_role("group", name="Heads to remove")
    return group.get_by_role("button", name=re.compile(f"^layer {layer}, head {number}(,|:|$)"))


def take(page: Page, tool: str) -> None:
    page.get_by_role("group", name="What to look at or change").get_by_role(
        "button", name=tool
    ).click()


def chips(page: Page) -> Locator:
    return page.get_by_role("list", name="What is changed").get_by_role("button")


def slider(page: Page) -> Locator:
    return page.get_by_role("slider", name="Strength")


def press_cell(page: Page, query: int, key: int) -> None:
    page.locator(".cell-map").click(position=cell_at(page, query, key, SIZE))


def shows(page: Page, answer: m.WhatIf) -> None:
    """Wait until the bars are those of this answer."""
    for each in answer.outcomes[:6]:
        label = f"{each.name}: {share(each.before)} before, {share(each.after)} after"
        expect(page.get_by_role("radio", name=label, exact=True)).to_be_visible()


def test_nothing_is_changed_at_first(page: Page, show: Go, model: Model) -> None:
    show(page)
    answer = model.what_if()
    assert all(each.before == each.after for each in answer.outcomes)
    shows(page, answer)
    expect(page.get_by_role("region", name="Changes")).to_contain_text("Nothing is changed yet")
    expect(page.get_by_role("region", name="Before and after")).to_contain_text(
        "Nothing has changed."
    )
    expect(page.get_by_role("button", name="Undo all")).to_have_count(0)


def test_a_click_removes_a_head_and_another_one_brings_it_back(
    page: Page, show: Go, model: Model
) -> None:
    show(page)
    there = model.what_if()
    head(page, 0, 2).click()
    answer = model.what_if(removed=[{"part": "self", "layer": 0, "head": 2}])
    assert answer.distance > 0.02
    shows(page, answer)
    expect(head(page, 0, 2)).to_have_attribute("aria-pressed", "true")
    expect(chips(page)).to_have_text([re.compile("^Without layer 0, head 2")])
    # The matrix follows.
    expect(page.get_by_role("heading", name="Forbid edges of layer 0, head 2")).to_be_visible()
    head(page, 1, 1).click()
    expect(chips(page)).to_have_count(2)
    shows(
        page,
        model.what_if(removed=[{"part": "self", "layer": at, "head": 2 - at} for at in (0, 1)]),
    )
    page.go_back()
    shows(page, answer)
    head(page, 0, 2).click()
    shows(page, there)
    expect(chips(page)).to_have_count(0)


def test_a_click_on_a_cell_forbids_the_edge(page: Page, show: Go, model: Model) -> None:
    show(page, layer=0, head=2)
    edge = {"part": "self", "layer": 0, "head": 2, "query": COUNT - 1, "key": COUNT - 2}
    press_cell(page, COUNT - 1, COUNT - 2)
    answer = model.what_if(forbidden=[edge])
    assert answer.distance > 1e-3
    shows(page, answer)
    expect(chips(page)).to_have_text(
        [re.compile(r"^Edge from 4 \(14\) to 6 \(13\) forbidden in layer 0, head 2")]
    )
    # Again: it is allowed.
    press_cell(page, COUNT - 1, COUNT - 2)
    shows(page, model.what_if())
    page.get_by_role("group", name="Where a click forbids it").get_by_role(
        "button", name="Every layer"
    ).click()
    press_cell(page, COUNT - 1, COUNT - 2)
    shows(page, model.what_if(forbidden=[{**edge, "layer": None, "head": None}]))
    # It holds in every head, and can be taken back from each.
    head(page, 3, 1).focus()
    page.get_by_role("region", name="Forbid edges").get_by_role("combobox").first.select_option("3")
    press_cell(page, COUNT - 1, COUNT - 2)
    shows(page, model.what_if())
    # What the causal mask forbids cannot be forbidden again.
    press_cell(page, 2, 9)
    page.wait_for_timeout(200)
    expect(chips(page)).to_have_count(0)


def test_the_strength_steers_and_a_drag_is_one_step(page: Page, show: Go, model: Model) -> None:
    show(page)
    take(page, "Steering")
    panel = page.get_by_role("region", name="Steer")
    target = model.what_if().target
    toward = next(each.id for each in model.what_if().outcomes if each.id != target)
    panel.get_by_label("Towards").select_option(str(toward))
    panel.get_by_label("After layer").select_option("2")
    steer = {"layer": 2, "toward": toward, "away": None, "strength": 1.0}
    slider(page).evaluate(
        """(slider) => {
          for (const value of [0.2, 0.5, 0.8, 1]) {
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
          }
          slider.dispatchEvent(new Event("change", { bubbles: true }));
        }"""
    )
    answer = model.what_if(steer=steer)
    assert answer.distance > 0.1
    shows(page, answer)
    expect(slider(page)).to_have_attribute("aria-valuetext", "1 times the stream's length")
    page.get_by_label("Strength, exact").fill("-3.5")
    shows(page, model.what_if(steer={**steer, "strength": -3.5}))
    expect(chips(page)).to_have_text(
        [re.compile("^After layer 2: \u22123.5 times the stream's length towards ")]
    )
    page.go_back()
    shows(page, answer)
    page.go_back()
    # Before the drag.
    expect(page.get_by_role("region", name="Steer")).to_be_visible()
    expect(slider(page)).to_have_attribute("aria-valuetext", "0 times the stream's length")


def test_of_a_quick_drag_the_newest_is_asked_and_the_last_is_shown(
    page: Page, show: Go, model: Model
) -> None:
    show(page)
    asked: list[float] = []

    def slowly(route: Route) -> None:
        steer = json.loads(route.request.post_data or "{}")["steer"]
        asked.append(steer["strength"])
        time.sleep(0.15)
        route.continue_()

    page.route("**/api/whatif", slowly)
    take(page, "Steering")
    second = model.what_if().outcomes[1].id
    slider(page).evaluate(
        """async (slider) => {
          for (let at = 1; at <= 20; at += 1) {
            slider.value = -at / 20;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
            await new Promise((done) => setTimeout(done, 10));
          }
        }"""
    )
    shows(page, model.what_if(steer={"layer": 2, "toward": second, "away": None, "strength": -1.0}))
    assert asked[0] == -0.05
    assert asked[-1] == -1
    assert len(asked) < 8


def test_what_was_answered_before_a_refusal_is_not_shown(page: Page, show: Go, watch: Any) -> None:
    watch.forgive("422")
    swaps = [{"layer": 3, "expert": expert, "instead": None} for expert in range(3)]
    show(page, swaps=json.dumps(swaps))
    expect(page.locator(".moved")).to_contain_text("of the probability moved")
    choices = page.get_by_role("group", name="Which attention is shown")
    expect(choices).to_be_visible()
    take(page, "Experts")
    page.get_by_role("button", name=re.compile("^layer 3, expert D")).click()
    expect(page.locator(".fault")).to_contain_text("leaves no expert")
    expect(page.locator(".results")).to_have_css("opacity", "0")
    expect(page.locator(".moved")).to_have_count(0)
    expect(choices).to_have_count(0)


def test_experts_are_forbidden_and_replaced(page: Page, show: Go, model: Model) -> None:
    show(page)
    take(page, "Experts")
    group = page.get_by_role("group", name="Experts to forbid")
    chosen = group.get_by_role("button", name=re.compile("^layer 3, expert ., chosen here")).first
    letter = (chosen.get_attribute("aria-label") or "")[len("layer 3, expert ")]
    expert = "ABCD".index(letter)
    chosen.click()
    answer = model.what_if(swaps=[{"layer": 3, "expert": expert, "instead": None}])
    assert answer.distance > 1e-3
    shows(page, answer)
    expect(chips(page)).to_have_text([re.compile(f"^Layer 3: no expert {letter}")])
    other = (expert + 1) % 4
    instead = page.get_by_role("region", name="Swap experts").get_by_role("combobox")
    instead.select_option(str(other))
    shows(page, model.what_if(swaps=[{"layer": 3, "expert": expert, "instead": other}]))
    expect(chips(page)).to_have_text([re.compile(f"^Layer 3: expert {'ABCD'[other]} for {letter}")])
    instead.select_option("own")
    shows(page, model.what_if())


def test_the_sweep_shows_each_head_and_opens_the_strongest(
    page: Page, show: Go, model: Model
) -> None:
    show(page)
    sweep = whole_sweep(model.backend, m.AskSweep(ask=model.run.ask))
    group = page.get_by_role("group", name="Heads to remove")
    for layer, row in enumerate(sweep.stacks[0].after):
        for number, after in enumerate(row):
            sign = "" if after <= sweep.before else r"\+"
            label = re.compile(
                rf"^layer {layer}, head {number}: {sign}.*, {chance(sweep.before)} to {chance(after)}$"
            )
            expect(group.get_by_role("button", name=label)).to_have_count(1)
    effects = {
        (layer, number): after - sweep.before
        for layer, row in enumerate(sweep.stacks[0].after)
        for number, after in enumerate(row)
    }
    (layer, number), *_ = sorted(effects, key=lambda place: -abs(effects[place]))
    panel = page.get_by_role("region", name="What each head does")
    without = f"goes from {chance(sweep.before)} to {chance(sweep.before + effects[layer, number])}"
    expect(panel).to_contain_text(
        f"Layer {layer}, head {number} does most: without it, {sweep.name} {without}."
    )
    strongest = page.get_by_role("list", name="The heads with the largest effects").get_by_role(
        "button"
    )
    expect(strongest).to_have_count(min(10, len(effects)))
    # The pictures of what each head reads are a click away.
    shown = page.get_by_role("group", name="What is shown of each head")
    shown.get_by_role("button", name="Attention").click()
    expect(
        group.get_by_role("button", name=f"layer {layer}, head {number}", exact=True)
    ).to_be_visible()
    strongest.first.click()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Attention")
    words = state(page, lambda words: words.get("view") == "attention")
    assert (words.get("layer"), words.get("head")) == (str(layer), str(number))
    page.go_back()
    expect(page.get_by_role("tab", selected=True)).to_have_text("What if")


def test_until_a_sweep_ends_estimates_stand_apart_and_no_head_does_most(
    page: Page, show: Go, model: Model
) -> None:
    whole = whole_sweep(model.backend, m.AskSweep(ask=model.run.ask))
    exact = [[layer == 0 for _ in row] for layer, row in enumerate(whole.stacks[0].exact)]
    stack = whole.stacks[0].model_copy(update={"exact": exact})
    part = whole.model_copy(update={"stacks": [stack], "done": len(exact[0])})
    held: list[Route] = []

    def first_in_part(route: Route) -> None:
        if json.loads(route.request.post_data or "{}")["done"] is None:
            route.fulfill(body=part.model_dump_json(), content_type="application/json")
        else:
            held.append(route)

    page.route("**/api/sweep", first_in_part)
    show(page)
    panel = page.get_by_role("region", name="What each head does")
    expect(panel).to_contain_text(f"{part.done} of {part.total} heads computed")
    expect(panel).to_contain_text("Estimates, exact values follow")
    expect(panel).not_to_contain_text("does most")
    estimates = panel.get_by_role("list", name="Estimates").get_by_role("button")
    for text in estimates.all_inner_texts():
        assert re.fullmatch(r"[1-9]\.\d: about [+\u2212]?[\d.]+", text)
    expect(estimates).not_to_have_count(0)
    eventually(page, lambda: len(held) == 1)
    held.pop().fulfill(body=whole.model_dump_json(), content_type="application/json")
    expect(panel).to_contain_text("does most")
    expect(estimates).to_have_count(0)


def test_the_lens_is_a_table_of_layers_and_positions(page: Page, show: Go, model: Model) -> None:
    show(page)
    take(page, "Layers")
    lens = model.backend.answer("lens", m.AskLens(ask=model.run.ask))
    table = page.get_by_role("region", name="The logit lens").get_by_role("table")
    rows = table.locator("tbody tr")
    expect(rows).to_have_count(len(lens.stages))
    # The last layer is at the top.
    for row, stage in enumerate(reversed(range(len(lens.stages)))):
        assert rows.nth(row).locator("td").all_inner_texts() == lens.names[stage]
    page.get_by_role("group", name="What the colours show").get_by_role("button").nth(1).click()
    texts = rows.first.locator("td").all_inner_texts()
    for text, value in zip(texts, lens.targets[-1], strict=True):
        assert text == ("<1" if value < 0.005 else f"{100 * value:.0f}")
    # A click asks for what follows that token.
    rows.first.locator("td button").nth(6).click()
    shows(page, model.what_if(place=6))
    assert state(page, lambda words: "place" in words)["place"] == "6"


def test_contributions_sum_to_the_logit(page: Page, show: Go, model: Model) -> None:
    show(page)
    truth = model.contributions()
    panel = page.get_by_role("region", name="What adds to the logit")
    expect(panel.locator(".total .number")).to_have_text(two_decimals(truth.total))
    panel.get_by_role("button", name=re.compile("^Show all")).click()
    values = [number(text) for text in panel.locator("li:not(.total) .number").all_inner_texts()]
    assert len(values) == len(truth.parts)
    assert sum(values) == pytest.approx(truth.total, abs=0.01)
    other = next(each.id for each in model.what_if().outcomes if each.id != truth.target)
    page.locator(".about-fields select").select_option(str(other))
    expect(panel.locator(".total .number")).to_have_text(
        two_decimals(model.contributions(other=other).total)
    )


def short(value: float) -> str:
    return f"{'+' if value > 0 else chr(0x2212)}{float(f'{abs(value):.3g}'):g}"


def two_decimals(value: float) -> str:
    return f"{value:+.2f}".replace("-", "\u2212")


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def test_another_token_can_be_the_target(page: Page, show: Go, model: Model) -> None:
    show(page)
    second = model.what_if().outcomes[1]
    page.get_by_role("radio", name=re.compile(f"^{second.name}: ")).click()
    expect(page.get_by_role("heading", name=f"What adds to {second.name}")).to_be_visible()
    expect(page.get_by_role("heading", name=f"Each head alone, for {second.name}")).to_be_visible()
    truth = model.contributions(target=second.id)
    expect(page.locator(".contributions .total .number")).to_have_text(two_decimals(truth.total))
    field = page.get_by_label("Any token", exact=True)
    field.fill("3")
    field.press("Enter")
    expect(page.get_by_role("radio", name=re.compile("^3: "))).to_have_attribute(
        "aria-checked", "true"
    )


def test_everything_by_keyboard(page: Page, show: Go, model: Model) -> None:
    show(page)
    head(page, 0, 0).focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    expect(head(page, 1, 1)).to_be_focused()
    expect(page.get_by_role("heading", name="Forbid edges of layer 1, head 1")).to_be_visible()
    page.keyboard.press("Space")
    shows(page, model.what_if(removed=[{"part": "self", "layer": 1, "head": 1}]))
    page.keyboard.press("Enter")
    shows(page, model.what_if())
    matrix = page.get_by_role("application")
    matrix.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(chips(page)).to_have_text(
        [re.compile(r"^Edge from 5 \(1\) to 1 \(0\) forbidden in layer 1, head 1")]
    )
    chips(page).first.focus()
    page.keyboard.press("Enter")
    expect(chips(page)).to_have_count(0)
    outcomes = page.get_by_role("radiogroup", name="Next tokens, before and after")
    outcomes.get_by_role("radio", checked=True).focus()
    page.keyboard.press("ArrowDown")
    expect(outcomes.get_by_role("radio").nth(1)).to_be_checked()


def test_a_link_shows_the_same_changes(page: Page, open_page: Open, show: Go, model: Model) -> None:
    show(page)
    head(page, 0, 2).click()
    press_cell(page, COUNT - 1, COUNT - 2)
    take(page, "Steering")
    slider(page).fill("0.5")
    expect(chips(page)).to_have_count(3)
    state(page, lambda words: {"removed", "forbidden", "steer"} <= set(words))
    other = open_page()
    other.goto(page.url)
    expect(chips(other)).to_have_text(chips(page).all_inner_texts())
    page.get_by_role("button", name="Undo all").click()
    shows(page, model.what_if())
    page.go_back()
    expect(chips(page)).to_have_count(3)


def test_what_does_not_exist_is_said_and_can_be_taken_back(
    page: Page, go: Go, model: Model, watch: Any
) -> None:
    watch.forgive("422")
    removed = json.dumps([{"part": "self", "layer": 9, "head": 0}])
    go(page, model="recurrence", view="whatif", text=TEXT, removed=removed)
    expect(page.get_by_role("alert")).to_contain_text("9")
    chips(page).click()
    expect(page.get_by_role("alert")).to_have_count(0)
    shows(page, model.what_if())


def test_typing_keeps_heads_and_drops_edges(page: Page, show: Go, backend: Any) -> None:
    show(page)
    head(page, 0, 2).click()
    press_cell(page, COUNT - 1, COUNT - 2)
    expect(chips(page)).to_have_count(2)
    page.get_by_label("Text", exact=True).fill("1 2 3")
    expect(chips(page)).to_have_text([re.compile("^Without layer 0, head 2")])
    shows(
        page,
        Model(backend, "recurrence", "1 2 3").what_if(
            removed=[{"part": "self", "layer": 0, "head": 2}]
        ),
    )


def test_a_classifier(page: Page, show: Go, backend: Any) -> None:
    text = "a fine film"
    show(page, model="sentiment", text=text)
    model = Model(backend, "sentiment", text)
    shows(page, model.what_if())
    head(page, 0, 1).click()
    answer = model.what_if(removed=[{"part": "self", "layer": 0, "head": 1}])
    assert answer.distance > 1e-3
    shows(page, answer)
    expect(page.get_by_role("button", name="Experts")).to_have_count(0)
    expect(page.get_by_label(re.compile("^After token"))).to_have_count(0)
    take(page, "Layers")
    expect(page.get_by_role("region", name="The logit lens").locator("tbody tr")).to_have_count(4)


def test_without_the_edge_to_its_fact_the_answer_goes(page: Page, show: Go, backend: Any) -> None:
    show(page, model="lookup-facts", text="emma", part="cross")
    model = Model(backend, "lookup-facts", "emma")
    page.get_by_role("group", name="Where a click forbids it").get_by_role(
        "button", name="Every layer"
    ).click()
    stack = next(each for each in model.run.attentions if each.part == "cross")
    page.locator(".cell-map").click(position=cell_at(page, 0, 1, (stack.queries, stack.keys)))
    answer = model.what_if(
        forbidden=[{"part": "cross", "layer": None, "head": None, "query": 0, "key": 1}]
    )
    assert answer.distance > 0.9
    shows(page, answer)
    told = r"^Edge from emma \(0\) to emma=42 \(1\) forbidden in every head of cross-attention"
    expect(chips(page)).to_have_text([re.compile(told)])


def test_a_long_text_shows_the_lens_in_pages(page: Page, show: Go) -> None:
    show(page, text=" ".join(str((3 * at * at + at) % 7) for at in range(200)), tool="lens")
    pages = page.get_by_role("group", name="Part of the text")
    columns = (
        page.get_by_role("region", name="The logit lens").locator("tbody tr").first.locator("td")
    )
    # The answer's own column is in sight, and as many as fit; none is cut off.
    expect(pages).to_contain_text("Tokens 192 to 199 of 0 to 199")
    expect(columns).to_have_count(8)
    seen = set(range(192, 200))
    earlier = pages.get_by_role("button", name="Earlier")
    while earlier.is_enabled():
        before = pages.inner_text()
        earlier.click()
        expect(pages).not_to_have_text(before, use_inner_text=True)
        first, last = (int(number) for number in re.findall(r"\d+", pages.inner_text())[:2])
        expect(columns).to_have_count(last + 1 - first)
        assert last >= min(seen) - 1 >= first
        seen |= set(range(first, last + 1))
    assert seen == set(range(200))
    expect(pages).to_contain_text("Tokens 0 to ")


def test_nothing_stale_is_shown_as_current(page: Page, show: Go) -> None:
    show(page)
    panel = page.get_by_role("region", name="Before and after")
    status = panel.get_by_role("status")
    expect(status).to_have_text("Nothing has changed.")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/api/whatif", hold)
    head(page, 0, 0).click()
    # While the answer is under way, nothing is said of it, and the answer before is dimmed.
    expect(status).to_have_text("Computing\u2026")
    expect(panel).to_have_attribute("data-busy", "true")
    held.pop().continue_()
    page.unroute("**/api/whatif", hold)
    expect(status).to_contain_text("of the probability moved")
    # Of another text, neither probabilities nor pictures stand beside this one.
    page.route("**/api/whatif", hold)
    page.get_by_label("Text").fill("4 4 4 4")
    expect(page.locator(".said")).not_to_have_attribute("data-busy", "true")
    expect(page.locator(".results")).to_have_attribute("data-foreign", "true")
    expect(page.locator(".results")).to_have_css("opacity", "0")
    box = page.locator(".outcome").first.bounding_box()
    on_top = page.evaluate("({ x, y }) => document.elementFromPoint(x + 5, y + 5).className", box)
    assert on_top == "results", "a click reaches none"
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator(".outcome").first).to_be_hidden()
    held.pop().continue_()
    page.unroute("**/api/whatif", hold)
    expect(page.locator(".results")).to_have_css("opacity", "1")
    expect(page.locator(".outcome").first).to_be_visible()


def test_one_difference_is_what_all_panels_are_about(page: Page, show: Go, model: Model) -> None:
    show(page)
    truth = model.what_if()
    target = truth.outcomes[0]
    other = next(each for each in truth.outcomes if each.name == "3" and each.id != target.id)
    field = page.get_by_label("Minus any token")
    field.fill("3")
    field.press("Enter")
    about = f"{target.name} over 3"
    expect(page.get_by_role("heading", name=f"Each head alone, for {about}")).to_be_visible()
    expect(page.get_by_role("heading", name=f"What adds to {target.name} minus 3")).to_be_visible()
    odds = math.log(target.before / other.before)
    expect(page.locator(".over")).to_contain_text(
        f"{about}, log-odds: {short(odds)} before, {short(odds)} after"
    )
    count = sum(stack.layers * stack.heads for stack in model.run.attentions)
    largest = page.get_by_role("list", name="The heads with the largest effects").get_by_role(
        "listitem"
    )
    expect(largest).to_have_count(min(10, count))
    take(page, "Layers")
    page.get_by_role("button", name="over \u201c3\u201d").click()
    shown = page.locator(".lens tbody tr").first.locator("td").last
    assert number(shown.inner_text()) == pytest.approx(odds, abs=0.06)
    page.get_by_role("radio", name=re.compile("^3: ")).click()  # nothing is subtracted from itself
    expect(page.get_by_role("heading", name="What adds to 3", exact=True)).to_be_visible()
    expect(page.locator(".over")).to_have_count(0)
    expect(page.get_by_role("button", name="over \u201c3\u201d")).to_have_count(0)


@pytest.mark.parametrize(
    ("state", "view", "click"),
    [
        (
            {
                "model": "induction",
                "text": "ABCAB",
                "written": "[4]",
                "place": 5,
                "edge": ("self", 5, 2),
            },
            "Sampling",
            "Undo a step",
        ),
        (
            {"model": "lookup-facts", "text": "emma", "edge": ("cross", 0, 5)},
            "Scramble",
            "Take out ada=17",
        ),
        ({"model": "lookup-facts", "text": "emma", "edge": ("cross", 0, 1)}, "Scramble", "Shuffle"),
    ],
)
def test_places_are_not_those_of_what_was_read_before(
    page: Page, show: Go, state: dict[str, Any], view: str, click: str
) -> None:
    """A forbidden edge would go to another fact, or to none, which is refused."""
    part, query, key = state.pop("edge")
    edge = {"part": part, "layer": 0, "head": 0, "query": query, "key": key}
    show(page, **state, forbidden=json.dumps([edge]))
    expect(page.locator(".changes li")).to_have_count(1)
    page.get_by_role("tab", name=view).click()
    page.get_by_role("button", name=click, exact=True).click()
    page.get_by_role("tab", name="What if").click()
    expect(page.locator(".outcome").first).to_be_visible()
    expect(page.locator(".changes li")).to_have_count(0)
    expect(page.locator(".fault")).to_have_count(0)


def test_a_link_to_a_place_or_token_that_is_not_there_has_a_way_back(
    page: Page, go: Go, watch: Watch
) -> None:
    watch.forgive("422")
    for wrong in ({"place": 400}, {"target": 400}, {"other": 400}):
        go(page, model="recurrence", view="whatif", **wrong)
        expect(page.locator(".fault")).to_contain_text("= 400")
        page.get_by_role("button", name="Show the likeliest outcome").click()
        expect(page.locator(".what-if .results")).to_contain_text("98.2 %")
        expect(page.locator(".fault")).to_have_count(0)
    go(page, model="recurrence", view="patch", text="1 2 3 5 1", second="1 2 3 4 1", target=400)
    expect(page.locator(".fault")).to_contain_text("= 400")
    page.get_by_role("button", name="Show the likeliest outcome").click()
    expect(page.locator(".patches")).to_contain_text("−1.33 after the second")
    # Texts that differ too little have no table in which another place could be chosen.
    go(
        page,
        model="recurrence",
        view="patch",
        text="1 2 3 5 1",
        second="1 2 3 5 1 ",
        spot='{"layer":0,"position":99}',
    )
    expect(page.locator(".fault")).to_contain_text("position = 99")
    page.get_by_role("button", name="Choose no place").click()
    expect(page.locator(".fault")).to_have_count(0)
    assert "spot" not in page.url


@pytest.mark.parametrize("name", [re.compile("^Take back"), "Undo all"])
def test_the_focus_stays_where_a_change_was_taken_back(page: Page, go: Go, name: Any) -> None:
    go(page, model="sentiment", view="whatif", removed='[{"part":"self","layer":0,"head":0}]')
    page.get_by_role("button", name=name).press("Enter")
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    expect(page.get_by_role("region", name="Changes")).to_be_focused()


def test_the_focus_stays_beside_the_second_text_when_a_sample_is_taken(page: Page, go: Go) -> None:
    go(page, model="induction", view="patch")
    panel = page.get_by_role("region", name="The second text")
    expect(panel.get_by_role("button")).to_have_count(0)  # it begins with the sample
    panel.get_by_role("textbox").fill(page.get_by_label("Text", exact=True).input_value())
    panel.get_by_role("button").press("Enter")
    expect(panel.get_by_role("button")).to_have_count(0)
    expect(panel).to_be_focused()


@pytest.fixture(scope="module")
def deep(serve: Callable[[Any], Any]) -> str:
    """The address of a decoder with as many layers and heads as SmolLM2 has, and a text of 14
    tokens.
    """
    config = DecoderConfig(
        vocab_size=12, num_layers=30, hidden_dim=36, ff_dim=36, num_heads=9, head_dim=4
    )
    torch.manual_seed(0)
    model = wrap_model(Decoder(config).eval(), [each % 12 for each in range(14)])
    return str(serve(Backend([model])).address)


@pytest.mark.slow
def test_a_model_of_thirty_layers_fits_with_its_answer_in_sight(deep: str, open_page: Open) -> None:
    page = open_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{deep}#view=whatif")
    settled(page)
    expect(page.get_by_role("list", name="The heads with the largest effects")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") <= 1600
    expect(page.locator(".outcome").first).to_be_in_viewport()
    take(page, "Layers")
    settled(page)
    assert page.evaluate("document.documentElement.scrollHeight") <= 1800
    for frame in page.locator(".head-grid, .cell-table").all():
        assert frame.evaluate("frame => frame.scrollWidth <= frame.clientWidth")


@pytest.mark.slow
@pytest.mark.parametrize("view", ["attention", "whatif"])
def test_on_a_phone_every_head_of_thirty_layers_is_in_reach(
    view: str, deep: str, open_page: Open
) -> None:
    phone = open_page(phone=True)
    phone.goto(f"{deep}#view={view}")
    settled(phone)
    grid = phone.locator(".head-grid").last
    # No frame within the page scrolls, in either direction.
    assert grid.evaluate(
        "grid => grid.scrollWidth <= grid.clientWidth && grid.scrollHeight <= grid.clientHeight"
    )
    buttons = grid.get_by_role("button" if view == "whatif" else "radio")
    expect(buttons).to_have_count(270)
    for button in (buttons.first, buttons.nth(8), buttons.last):
        button.scroll_into_view_if_needed()
        expect(button).to_be_in_viewport(ratio=1)
