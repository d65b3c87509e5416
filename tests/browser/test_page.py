"""The whole page in a browser: every model, every view, the address, colours, a phone, the
keyboard, a lost server.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import Go, Open, check_accessible, check_fits, check_look, eventually, settled

pytestmark = pytest.mark.slow

Check = Callable[[Page], None]

VIEWS = {
    **{
        "attention": "sentiment",
        "design": "identity",
        "program": "program-sort",
        "scramble": "lookup-course",
    },
    **{
        "flow": "induction",
        "sampling": "recurrence",
        "experts": "recurrence",
        "whatif": "sentiment",
        "patch": "sentiment",
    },
}
"""A model for each view."""

TAB_STOPS = """
() => {
  const kinds = "a[href], button, input, select, textarea, summary, [tabindex]";
  const inside = [...document.querySelectorAll(`.glassformer :is(${kinds})`)];
  const stops = inside.filter((each) => each.tabIndex >= 0 && !each.disabled && each.checkVisibility()
    && !(each.type === "radio" && !each.checked && document.querySelector(`[name="${each.name}"]:checked`)));
  stops.forEach((each, at) => { each.dataset.stop = at; });
  return stops.map((each) => `${each.dataset.stop} ${each.outerHTML.slice(0, 120)}`);
}
"""
FOCUSED = """
() => {
  const here = document.activeElement;
  const style = getComputedStyle(here);
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  const box = here.getBoundingClientRect();
  const seen = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  return { stop: here.dataset.stop ?? null, visible: seen && (outlined || style.boxShadow !== "none"),
    html: here.outerHTML.slice(0, 120) };
}
"""


def open_view(go: Go, page: Page, view: str, **state: object) -> None:
    go(page, model=VIEWS[view], view=view, **state)
    expect(page.get_by_role("tab", selected=True)).to_have_text(title(view))


def title(view: str) -> str:
    return {"whatif": "What if", "patch": "Two texts"}.get(view, view.capitalize())


def text_field(page: Page) -> Any:
    return page.locator(".reading .field").locator("input, textarea")


@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
def test_every_model_opens_in_every_of_its_views(
    phone: bool, open_page: Open, served: str, backend: Any
) -> None:
    page = open_page(phone=phone)
    page.goto(served)
    for card in backend.catalogue().models:
        page.locator(".model select").select_option(card.name)
        expect(page.locator(".about")).to_have_text(card.about)
        for view in card.views:
            page.get_by_role("tab", name=title(view)).click()
            expect(page.get_by_role("tabpanel", name=title(view))).to_be_visible()
            settled(page)
            expect(page.locator(".view")).not_to_be_empty()
            expect(page.locator(".fault")).to_have_count(0)
            check_fits(page)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_looks_right_in_light_and_dark_and_on_a_phone(
    view: str, open_page: Open, go: Go
) -> None:
    papers = set()
    for kind in ("light", "dark", "phone-light", "phone-dark"):
        page = open_page(phone="phone" in kind, dark="dark" in kind)
        open_view(go, page, view)
        check_look(page, f"page-{view}-{kind}")
        papers.add(
            page.evaluate(
                "getComputedStyle(document.querySelector('.glassformer')).backgroundColor"
            )
        )
    assert len(papers) == 2


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_explains_its_words(view: str, page: Page, go: Go) -> None:
    open_view(go, page, view)
    page.get_by_text("Words", exact=True).click()
    assert page.locator(".words dt").count() >= 1
    expect(page.locator(".words dd").last).to_be_visible()
    check_fits(page)
    check_accessible(page)


@pytest.mark.parametrize("view", VIEWS)
def test_a_copied_link_shows_the_same(view: str, open_page: Open, go: Go) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    open_view(go, page, view, pin=1, layer=0, temperature=0.7, topP=0.9)
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert f"view={view}" in link
    other = open_page()
    other.goto(link)
    settled(other)
    expect(other.locator(".view")).to_have_text(
        page.locator(".view").inner_text(), use_inner_text=True
    )
    assert text_field(other).input_value() == text_field(page).input_value()


def test_back_undoes(page: Page, go: Go) -> None:
    open_view(go, page, "sampling")
    text = text_field(page).input_value()
    page.get_by_role("tab", name="Experts").click()
    page.locator(".model select").select_option("sentiment")
    expect(text_field(page)).not_to_have_value(text)
    page.go_back()
    expect(text_field(page)).to_have_value(text)
    expect(page.get_by_role("tab", selected=True)).to_have_text("Experts")
    page.go_back()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Sampling")
    page.go_forward()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Experts")


def test_an_address_that_makes_no_sense_shows_the_start_page(page: Page, served: str) -> None:
    page.goto(
        f"{served}#view=nowhere&layer=-1&window=[]&topP=NaN&cells=%00&__proto__=1&tour=first&step=99"
    )
    expect(page.locator(".start .card").first).to_be_visible()
    expect(page.locator(".fault")).to_have_count(0)


def test_a_model_that_is_not_here_is_told_of_and_the_address_stays(page: Page, served: str) -> None:
    page.goto(f"{served}#model=nope&text=hello&layer=3")
    expect(page.locator(".fault")).to_contain_text("Unknown model \u201cnope\u201d")
    page.wait_for_timeout(500)
    assert page.url == f"{served}#model=nope&text=hello&layer=3"
    expect(page.locator(".view")).to_have_count(0)
    page.locator(".model select").select_option("sentiment")
    settled(page)
    expect(page.locator(".fault")).to_have_count(0)
    expect(page.locator(".model select")).to_have_value("sentiment")


def test_back_undoes_what_was_typed(page: Page, go: Go) -> None:
    go(page, model="sentiment", text="a fine film")
    field = text_field(page)
    field.click()
    field.press("End")
    field.press_sequentially(" and long")
    expect(field).to_have_value("a fine film and long")
    page.locator(".sample").first.click()
    sample = field.input_value()
    page.go_back()
    expect(field).to_have_value("a fine film and long")
    page.go_back()
    expect(field).to_have_value("a fine film")
    settled(page)
    assert re.search(r"[#&]text=a\+fine\+film(&|$)", page.url)
    page.go_forward()
    expect(field).to_have_value("a fine film and long")
    page.go_forward()
    expect(field).to_have_value(sample)


@pytest.mark.parametrize(
    "state",
    [
        {"model": "recurrence", "text": "9", "view": "experts"},
        {"model": "recurrence", "text": "9 9"},
        {"model": "program-sort", "text": "29"},
        {"model": "unique", "text": "ZZZ", "view": "attention"},
    ],
)
def test_nothing_seems_to_be_read_under_a_refusal(
    page: Page, go: Go, watch: Any, state: dict[str, str]
) -> None:
    watch.forgive("status of 422")
    go(page, **state)
    expect(page.locator(".fault")).to_have_count(1)
    expect(page.locator(".glassformer")).not_to_contain_text("Reading\u2026")
    expect(page.locator(".view")).to_contain_text("Nothing to show yet")
    text_field(page).fill("A" if state["model"] == "unique" else "1")
    expect(page.locator(".fault")).to_have_count(0)
    expect(page.locator(".view")).not_to_contain_text("Nothing to show yet")


@pytest.mark.parametrize("order", ["[0,0,0]", "[1,0,2]", "[0,0,1,2,3,4]", "[5]"])
def test_an_order_that_is_none_is_passed_over(page: Page, go: Go, order: str) -> None:
    go(page, model="lookup-facts", order=order)
    expect(page.locator(".said")).to_contain_text("42")
    expect(page.locator(".fault")).to_have_count(0)


@pytest.mark.parametrize(("model", "view"), [("sentiment", "attention"), ("recurrence", "experts")])
def test_a_page_goes_on_with_a_server_that_was_started_anew(
    page: Page,
    go: Go,
    watch: Any,
    backend: Any,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    view: str,
) -> None:
    from glassformer.explorer.answers.runs import Runs

    watch.forgive("status of 404")
    go(page, model=model, view=view)
    # A new server knows no run.
    monkeypatch.setattr(backend, "runs", Runs(backend.model))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.get_by_role("tab", name="Attention").click()
    page.get_by_role("radiogroup", name="Head").get_by_role("radio").last.click()
    page.get_by_role("button", name="Layers", exact=True).click()
    settled(page)
    expect(page.locator(".tops li")).not_to_have_count(0)
    expect(page.locator(".fault")).to_have_count(0)
    assert asked.count("run") >= 1
    page.get_by_role("button", name="Matrix", exact=True).click()
    settled(page)
    expect(page.locator(".fault")).to_have_count(0)


def test_colours_can_be_chosen_and_stay(page: Page, go: Go) -> None:
    def paper() -> str:
        return str(
            page.evaluate(
                "getComputedStyle(document.querySelector('.glassformer')).backgroundColor"
            )
        )

    open_view(go, page, "attention")
    light = paper()
    button = page.get_by_role("button", name=re.compile("^Colours"))
    button.click()
    assert paper() == light
    button.click()
    expect(button).to_have_text(re.compile("Dark"))
    expect(page.locator(".glassformer")).to_have_attribute("data-shade", "dark")
    dark = paper()
    assert dark != light
    page.reload()
    settled(page)
    assert paper() == dark


@pytest.mark.parametrize("view", VIEWS)
def test_the_keyboard_alone_reaches_every_control(view: str, page: Page, go: Go) -> None:
    open_view(go, page, view)
    stops = page.evaluate(TAB_STOPS)
    assert len(stops) > 5
    reached = set()
    unseen = []
    for _ in range(2 * len(stops)):  # some stops are not counted, such as what scrolls
        page.keyboard.press("Tab")
        here = page.evaluate(FOCUSED)
        if here["stop"] is not None:
            reached.add(here["stop"])
            if not here["visible"]:
                unseen.append(here["html"])
    assert [stop for stop in stops if stop.split()[0] not in reached] == []
    assert unseen == []


def test_a_server_that_has_gone_is_told_until_it_is_back(
    page: Page, serve: Any, backend: Any, watch: Any
) -> None:
    watch.forgive(
        "ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_SOCKET_NOT_CONNECTED"
    )
    server = serve(backend)
    page.goto(server.address)
    page.locator(".model select").select_option("sentiment")
    settled(page)
    server.stop()
    text_field(page).fill("a good film")
    expect(page.locator(".fault").first).to_contain_text("No answer from glassformer")
    expect(page.locator(".fault").first).to_contain_text("Start it again")
    expect(page.locator(".fault").first).to_contain_text("continues by itself")
    said = page.locator(".said").inner_text()
    server.start()
    expect(page.locator(".fault")).to_have_count(0)
    settled(page)
    expect(page.locator(".said")).not_to_have_text(said)


def test_what_is_not_in_sight_waits_for_the_server_until_it_is(
    page: Page, serve: Any, backend: Any, watch: Any
) -> None:
    watch.forgive(
        "ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_SOCKET_NOT_CONNECTED"
    )
    server = serve(backend)
    page.goto(f"{server.address}#model=sentiment")
    settled(page)
    server.stop()
    page.evaluate(
        "Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true "
        "})"
    )
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    text_field(page).fill("a good film")
    expect(page.locator(".fault").first).to_contain_text("No answer from glassformer")

    def silent() -> bool:
        asked.clear()
        page.wait_for_timeout(3000)
        return asked == []

    eventually(page, silent)  # the text makes some calls later than the first, by their own waits
    server.start()
    page.evaluate(
        "delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))"
    )
    expect(page.locator(".fault")).to_have_count(0)
    assert asked != []


def test_an_address_without_a_text_means_that_of_the_model(
    page: Page, go: Go, backend: Any, watch: Any
) -> None:
    watch.forgive("status of 422")  # an empty text is none that most models can read
    for card in backend.catalogue().models:
        go(page, model=card.name)
        expect(text_field(page)).to_have_value(card.text)
        go(page, model=card.name, text="")
        expect(text_field(page)).to_have_value("")


def test_every_view_begins_with_the_head_of_its_card(page: Page, served: str) -> None:
    page.goto(served)
    page.locator(".model select").select_option("sentiment")
    settled(page)
    expect(page.get_by_role("radio", name="layer 0, head 1")).to_be_checked()
    page.locator(".model select").select_option("lookup-facts")
    expect(page.get_by_role("button", name="Cross-attention")).to_have_attribute(
        "aria-pressed", "true"
    )


def test_a_button_that_does_nothing_now_looks_so(page: Page, go: Go) -> None:
    look = "(each) => { const { color, backgroundColor } = getComputedStyle(each); return [color, backgroundColor]; }"
    go(page, model="lookup-course", view="scramble", source='["NAME"]')
    shuffle = page.get_by_role("button", name="Shuffle")
    expect(shuffle).to_be_disabled()
    assert shuffle.evaluate(look) == page.get_by_role("button", name="As it was").evaluate(look)
    go(page, model="lookup-course", view="scramble")
    expect(shuffle).to_be_enabled()
    assert shuffle.evaluate(look) != page.get_by_role("button", name="As it was").evaluate(look)


def test_an_answer_that_is_awaited_can_still_be_read(page: Page, go: Go) -> None:
    go(page, model="sentiment")
    look = (
        "(each) => { const { color, opacity } = getComputedStyle(each); return [color, opacity]; }"
    )
    said = page.locator(".said")
    said.evaluate("(each) => { each.dataset.stale = 'true'; }")
    # The colour of quiet text, whose contrast is checked with every view.
    assert said.evaluate(look) == page.locator(".about").evaluate(look)
