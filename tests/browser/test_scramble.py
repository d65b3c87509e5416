"""The scramble view in a browser: what a model reads is put into another order, and nothing of its
answer moves.
"""

import json
import math
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.wrapping import wrap_model
from small_models import encoder_decoder

from .conftest import Go, Open, drag_finger, screenshot, settled, showing

COURSE = {"model": "lookup-course", "view": "scramble"}
FACTS = {"model": "lookup-facts", "view": "scramble", "text": "emma"}
WORDS = ["NAME", "COLOR", "ALICE", "ITEM", "GREEN"]
GIVEN = ["ada=17", "emma=42", "leo=8", "noor=99", "otto=42", "zoe=3"]


show = showing(".answers dd:last-of-type:has-text('%')")


def answers(page: Page) -> Locator:
    """Of the source before it was edited, where it was; as it is given; and in the other order."""
    return page.locator(".answers dd")


def cards(page: Page) -> Locator:
    return page.get_by_role("list", name="The order in which the model reads").locator(".card")


def order(page: Page) -> list[str]:
    return cards(page).locator(".word").all_text_contents()


def shares(page: Page, lists: str) -> dict[str, str]:
    """What the answer reads of each thing, by its name."""
    pairs: list[tuple[str, str]] = page.evaluate(
        """(lists) => [...document.querySelectorAll(lists)].map((card) => {
          const word = card.querySelector('.word');
          return [word.value ?? word.textContent, card.querySelector('.bar-of').style.width];
        })""",
        lists,
    )
    return dict(pairs)


def title(page: Page) -> Locator:
    return page.locator(".outcome h2")


def drag(page: Page, name: str, onto: str) -> None:
    start, end = (
        cards(page).nth(order(page).index(each)).locator(".grip").bounding_box()
        for each in (name, onto)
    )
    page.mouse.move(start["x"] + 8, start["y"] + 20)
    page.mouse.down()
    for step in range(1, 6):
        page.mouse.move(start["x"] + 8, start["y"] + 20 + (end["y"] - start["y"]) * step / 5)
    page.mouse.up()


def test_facts_are_dragged_into_another_order_and_nothing_moves(page: Page, show: Go) -> None:
    show(page, **FACTS)
    assert order(page) == GIVEN
    expect(title(page)).to_have_text("Does the order matter?")
    before = shares(page, ".given .card")
    drag(page, "emma=42", "otto=42")
    assert order(page) == ["ada=17", "leo=8", "noor=99", "otto=42", "emma=42", "zoe=3"]
    expect(title(page)).to_have_text("Nothing moved")
    settled(page)
    expect(answers(page)).to_have_text(["42, 100 %", "42, 100 %"])
    expect(page.locator(".change")).to_contain_text("Tokens changed0")
    # The bars went with their cards.
    after = shares(page, ".cards:not(.given) .card")
    assert before.keys() == after.keys()
    for name, width in before.items():
        assert float(after[name].rstrip("%")) == pytest.approx(float(width.rstrip("%")), abs=0.02)
    assert max(before, key=lambda name: float(before[name].rstrip("%"))) == "emma=42"
    screenshot(page, "scramble")


def test_the_numbers_are_those_of_the_model(page: Page, show: Go, backend: Any) -> None:
    places = [4, 2, 0, 3, 1]
    show(page, **COURSE, order=json.dumps(places))
    expect(title(page)).to_have_text("Nothing moved")
    settled(page)
    loaded = backend.model("lookup-course")
    with torch.inference_mode():
        given = loaded.model(loaded.source_tokens(WORDS), loaded.target(""))
        other = loaded.model(
            loaded.source_tokens([WORDS[place] for place in places]), loaded.target("")
        )
    answer = loaded.word(int(given[0, -1].argmax()))
    assert int(given[0, -1].argmax()) == int(other[0, -1].argmax())
    for told in answers(page).all_text_contents():
        assert told.startswith(f"{answer}, {100 * float(given[0, -1].softmax(-1).max()):.1f}")
    change = float((given - other).abs().max())
    told = page.locator(".change dd").first.text_content() or ""
    assert float(told.replace("\u2212", "-")) == pytest.approx(change, rel=0.1)


def test_cards_are_moved_by_keyboard_and_each_step_is_announced(page: Page, show: Go) -> None:
    show(page, **COURSE)
    told = page.locator(".scramble [aria-live=assertive]")
    first = cards(page).first
    first.focus()
    page.keyboard.press("Space")
    expect(told).to_contain_text("NAME lifted from place 1 of 5")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(told).to_have_text("NAME at place 3 of 5.")
    assert order(page) == ["COLOR", "ALICE", "NAME", "ITEM", "GREEN"]
    expect(cards(page).nth(2)).to_be_focused()
    # Nothing is decided yet: Escape puts it back, where the focus goes too.
    page.keyboard.press("Escape")
    expect(told).to_have_text("NAME is back at place 1.")
    assert order(page) == WORDS
    expect(first).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("End")
    page.keyboard.press("Space")
    expect(told).to_have_text("NAME dropped at place 5 of 5.")
    assert order(page) == [*WORDS[1:], "NAME"]
    expect(title(page)).to_have_text("Nothing moved")
    # Arrows alone go from card to card.
    page.keyboard.press("ArrowUp")
    expect(cards(page).nth(3)).to_be_focused()
    assert order(page) == [*WORDS[1:], "NAME"]


def test_shuffle_and_as_it_was(page: Page, show: Go) -> None:
    show(page, **FACTS)
    page.get_by_role("button", name="Shuffle").click()
    assert sorted(order(page)) == sorted(GIVEN)
    assert order(page) != GIVEN
    expect(title(page)).to_have_text("Nothing moved")
    page.get_by_role("button", name="As it was").click()
    assert order(page) == GIVEN
    expect(page.get_by_role("button", name="As it was")).to_be_disabled()
    # The browser's back button undoes.
    page.go_back()
    expect(title(page)).to_have_text("Nothing moved")
    assert order(page) != GIVEN


def test_every_order_is_tried(page: Page, show: Go) -> None:
    show(page, **COURSE)
    page.get_by_role("button", name="Try every order").click()
    found = page.get_by_role("region", name="Every order")
    expect(found).to_contain_text("No order changes anything")
    expect(found).to_contain_text(
        f"All {math.factorial(5)} orders of 5 cards were read. No token changed."
    )
    screenshot(page, "scramble-every-order")
    found.get_by_role("button", name="Show that order").click()
    assert order(page) != WORDS
    expect(title(page)).to_have_text("Nothing moved")


LOOKS = """() => {
  const wanted = 'width color backgroundColor borderColor boxShadow fontWeight opacity transform'.split(' ');
  const cards = document.querySelector('.scramble .cards:not(.given)');
  return [...cards.querySelectorAll('.card, .card *')].map((each) => {
    const style = getComputedStyle(each);
    return [each.className, ...wanted.map((name) => style[name])].join(' ');
  });
}"""
"""How every card and all within it is drawn."""


def test_cards_that_changed_places_look_as_if_they_had_always_been_there(
    page: Page, open_page: Open, show: Go
) -> None:
    show(page, **FACTS)
    cards(page).nth(1).focus()
    for key in ("Space", "End", "Space"):
        page.keyboard.press(key)
    drag(page, "ada=17", "noor=99")
    expect(title(page)).to_have_text("Nothing moved")
    settled(page)
    page.locator(".about").click()
    page.evaluate("document.activeElement.blur()")
    other = open_page()
    other.goto(page.url)
    expect(title(other)).to_have_text("Nothing moved")
    settled(other)
    other.locator(".about").click()
    assert order(other) == order(page)
    assert other.evaluate(LOOKS) == page.evaluate(LOOKS)


def test_of_very_many_orders_some_are_tried(page: Page, show: Go) -> None:
    show(page, **FACTS, source=json.dumps([*GIVEN, "tim=1", "kim=2"]))
    page.get_by_role("button", name="Try every order").click()
    expect(page.get_by_role("region", name="Every order")).to_contain_text(
        "drawn at random, of 8 cards were read"
    )


def test_another_value_does_change_the_answer(page: Page, show: Go) -> None:
    show(page, **FACTS, order="[5, 4, 3, 2, 1, 0]")
    page.get_by_label("Place 2 of the source").fill("emma=77")
    expect(answers(page)).to_have_count(3)
    expect(answers(page).nth(0)).to_contain_text("42")
    expect(answers(page).nth(1)).to_contain_text("77")
    expect(answers(page).nth(1)).to_contain_text("the words differ, and so does the answer")
    expect(answers(page).nth(2)).to_contain_text("77")
    # That is another source, in which the order matters as little.
    expect(title(page)).to_have_text("Nothing moved")
    assert order(page) == ["zoe=3", "otto=42", "noor=99", "leo=8", "emma=77", "ada=17"]
    screenshot(page, "scramble-edited")
    page.get_by_role("button", name="Back to the first source").click()
    expect(answers(page)).to_have_text(["42, 100 %", "42, 100 %"])


def test_facts_are_added_and_taken_out(page: Page, show: Go) -> None:
    show(page, **FACTS, order="[1, 0, 2, 3, 4, 5]")
    page.get_by_role("button", name="Add a fact").click()
    expect(cards(page)).to_have_count(7)
    page.get_by_label("Place 7 of the source").fill("tim=5")
    assert order(page) == ["emma=42", "ada=17", *GIVEN[2:], "tim=5"]
    page.get_by_label("Text", exact=True).or_(page.get_by_label("Question", exact=True)).fill("tim")
    expect(answers(page).last).to_contain_text("5, ")
    page.get_by_role("button", name="Take out tim=5").click()
    expect(answers(page).last).to_contain_text("none")
    page.get_by_role("button", name="Take out ada=17").click()
    assert order(page) == ["emma=42", *GIVEN[2:]]
    expect(page.locator(".fault")).to_have_count(0)


def test_what_is_no_fact_is_refused_with_the_reason(page: Page, show: Go, watch: Any) -> None:
    watch.forgive("status of 4")
    show(page, **FACTS)
    page.get_by_label("Place 1 of the source").fill("ada=")
    expect(page.locator(".fault")).to_contain_text("the fact 'ada='")
    expect(page.locator(".fault")).to_have_count(1)
    page.get_by_label("Place 1 of the source").fill("ada=18")
    expect(page.locator(".fault")).to_have_count(0)


def test_a_source_that_cannot_be_read_has_no_verdict(page: Page, show: Go, watch: Any) -> None:
    watch.forgive("status of 4")
    show(page, **FACTS, order="[5, 4, 3, 2, 1, 0]")
    every = page.get_by_role("button", name="Try every order")
    every.click()
    expect(page.locator(".every h2")).to_contain_text("changes anything")
    expect(title(page)).to_have_text("Nothing moved")
    # What was found of the source before holds for that one alone.
    page.get_by_label("Place 1 of the source").fill("ada=")
    expect(page.locator(".fault").first).to_contain_text("the fact 'ada='")
    expect(title(page)).to_have_text("Does the order matter?")
    expect(page.locator(".fault")).to_have_count(1)
    every.click()
    settled(page)
    expect(page.locator(".every")).to_have_count(0)
    page.get_by_label("Place 1 of the source").fill("ada=18")
    expect(title(page)).to_have_text("Nothing moved")


def test_the_view_may_be_left_before_the_first_answer_is_there(page: Page, served: str) -> None:
    # What is given and what is shown are then one question, of which the view gives up its half.
    page.add_init_script(
        """const real = fetch;
        window.fetch = async (...asked) => {
          if (String(asked[0]).endsWith('run')) await new Promise((go) => setTimeout(go, 1000));
          return real(...asked);
        };"""
    )
    page.goto(f"{served}#model=lookup-course&view=scramble")
    page.get_by_role("tab", name="Attention").click()
    expect(page.locator(".said")).to_have_text("GREEN, 98.7 %")
    expect(page.locator(".fault")).to_have_count(0)


def test_a_finger_drags_by_the_handle(phone: Page, show: Go) -> None:
    show(phone, **COURSE)
    grip = cards(phone).first.locator(".grip")
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    assert min(box["width"], box["height"]) >= 24
    drag_finger(
        phone, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, across=0, down=100
    )
    expect(title(phone)).to_have_text("Nothing moved")
    assert order(phone) == ["COLOR", "ALICE", "NAME", "ITEM", "GREEN"]


@pytest.mark.parametrize(("seed", "moved"), [(0, "answer"), (1, "logits")])
def test_an_order_that_matters_is_said_to_move_what_it_moves(
    page: Page, serve: Any, seed: int, moved: str
) -> None:
    torch.manual_seed(seed)
    model = wrap_model(
        encoder_decoder(vocab_size=14, source_positions="learned"), [1], source=[1, 2, 3]
    )
    page.goto(f"{serve(Backend([model])).address}#model=given&view=scramble&order=[2,1,0]")
    expect(title(page)).to_have_text(f"The {moved} moved")
    page.get_by_role("button", name="Try every order").click()
    expect(page.locator(".every h2")).to_have_text(f"Some orders change the {moved}")


def test_no_bars_are_drawn_of_weights_that_are_not_finite(
    page: Page, serve: Any, watch: Any
) -> None:
    watch.forgive("status of 422")
    torch.manual_seed(0)
    model = wrap_model(encoder_decoder(vocab_size=14), [1], source=[1, 2, 3])
    with torch.no_grad():
        model.model.source_embeddings[0].weight[5] = torch.nan
    page.goto(f"{serve(Backend([model])).address}#model=given&view=scramble&order=[2,1,0]")
    expect(page.locator(".card .number")).to_have_count(6)
    page.get_by_label("Place 1 of the source").fill("5")
    expect(answers(page).last).to_have_text("logits that are not finite")
    settled(page)
    # Those of the source before stay nowhere.
    expect(page.locator(".card .number")).to_have_count(0)
    assert set(shares(page, ".card").values()) == {"0%"}
    expect(page.locator(".board")).not_to_contain_text("NaN")


def test_the_keyboard_keeps_its_place_when_a_button_goes_or_is_disabled(
    page: Page, show: Go
) -> None:
    show(page, **COURSE, order="[4, 3, 2, 1, 0]")
    page.get_by_role("button", name="Try every order").press("Enter")
    expect(page.locator(".every")).to_be_visible()
    expect(page.get_by_role("button", name="Try every order")).to_be_focused()
    page.get_by_role("button", name="As it was").press("Enter")
    expect(page.get_by_role("button", name="As it was")).to_be_disabled()
    expect(page.get_by_role("group", name="Order")).to_be_focused()
    page.get_by_role("button", name="Take out GREEN").press("Enter")
    expect(page.get_by_role("button", name="Take out GREEN")).to_have_count(0)
    expect(page.get_by_role("list", name="The source as it is given")).to_be_focused()
    page.get_by_role("button", name="Back to the first source").press("Enter")
    expect(page.get_by_role("button", name="Take out GREEN")).to_be_visible()
    expect(page.get_by_role("group", name="Cards")).to_be_focused()
