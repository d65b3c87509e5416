"""Saved pages: one file each, opened from the disk with the network cut."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.saving import saved_model
from glassformer.explorer.saving.page_state import edited
from glassformer.explorer.saving.saved_page import save, save_all
from glassformer.explorer.state import State, changed

from .attention_page import shown_value
from .conftest import Go, Open, Watch, check_look, screenshot, settled

pytestmark = pytest.mark.slow

MODELS = ["unique", "sentiment", "lookup-course", "lookup-facts", "recurrence", "program-induction"]


@pytest.fixture
def opened(open_page: Open, backend: Backend, tmp_path: Path) -> Open:
    """``opened(model=..., ...)``: a page in this state, saved, and opened as a file without
    network.
    """

    def opened(*, phone: bool = False, dark: bool = False, **state: Any) -> Page:
        path = save(backend, changed(State(), state), tmp_path / "saved.html")
        page = open_page(phone=phone, dark=dark, offline=True)
        page.goto(path.as_uri())
        settled(page)
        return page

    return opened


def tabs(page: Page) -> Iterator[str]:
    for tab in page.get_by_role("tablist", name="Views").get_by_role("tab").all():
        tab.click()
        yield tab.inner_text()


def data_in(text: str) -> Any:
    found = re.search(
        r'<script type="application/json" id="glassformer-saved">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(found[1])


@pytest.mark.parametrize("model", MODELS)
def test_every_view_of_every_kind_opens_without_network(
    opened: Open, backend: Backend, model: str
) -> None:
    page = opened(model=model)
    card = next(card for card in backend.catalogue().models if card.name == model)
    seen = []
    for title in tabs(page):
        settled(page)
        expect(page.locator(".fault")).to_have_count(0)
        seen.append({"What if": "whatif", "Two texts": "patch"}.get(title, title.lower()))
        screenshot(page, f"saved-{model}-{seen[-1]}")
    assert seen == card.views
    expect(page.get_by_role("complementary", name="About this file")).to_contain_text(
        "Saved with glassformer"
    )


def test_heads_are_chosen_and_cells_read(opened: Open, backend: Backend) -> None:
    page = opened(model="sentiment", text="a fine film", layer=0, head=0)
    matrix = page.get_by_role("application")
    run = backend.answer("run", m.Ask(model="sentiment", text="a fine film"))
    for layer, head in ((0, 0), (2, 3)):
        page.get_by_role("radiogroup", name="Head").get_by_role("radio").nth(
            4 * layer + head
        ).click()
        matrix.focus()
        for key in ("Escape", "ArrowRight", "ArrowRight"):
            matrix.press(key)
        answer = backend.answer(
            "weights", m.AskTile(run=run.run, part="self", layer=layer, head=head)
        )
        told = shown_value(page)
        assert told == float(f"{np.frombuffer(answer, '<f4')[1]:.3g}")


def test_the_changes_of_a_model_that_is_recorded_stand_as_they_were(
    opened: Open, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_model, "MOST_MODEL_BYTES", 1000)
    removed = [{"part": "self", "layer": 0, "head": 2}]
    forbidden = [{"part": "self", "layer": None, "head": None, "query": 3, "key": 2}]
    text = "1 5 2 2 0 6 3"
    page = opened(
        model="recurrence", view="whatif", text=text, removed=removed, forbidden=forbidden, place=3
    )
    ask = m.Ask(model="recurrence", text=text)
    edits = {"removed": removed, "forbidden": forbidden}
    answer = backend.answer(
        "whatif", m.AskWhatIf.model_validate({"ask": ask.model_dump(), "place": 3, **edits})
    )
    assert answer.distance > 1e-3
    page.get_by_role("button", name="Show 1 more").click()
    shown = page.locator(".outcome .number:last-child").all_inner_texts()
    assert shown == [
        f"{100 * each.after:.1f} %"
        for each in sorted(answer.outcomes, key=lambda each: -each.before)
    ]
    expect(page.get_by_role("button", name=re.compile("^Take back"))).to_have_count(2)
    for region in ("What each head does", "What adds to the logit"):
        expect(page.get_by_role("region", name=region).locator("ol").first).to_be_visible()
    # Nothing can be changed, and what was not shown is not there.
    expect(page.locator(".fault")).to_have_count(0)
    page.get_by_role("group", name="Heads to remove").get_by_role(
        "button", name="layer 1, head 1"
    ).click()
    expect(page.get_by_role("heading", name="Forbid edges of layer 1, head 1")).to_be_visible()
    expect(page.locator(".fault")).to_contain_text("layer 1, head 1, which this file does not hold")
    expect(page.get_by_role("button", name=re.compile("^Take back"))).to_have_count(2)
    expect(page.get_by_role("button", name="Undo all")).to_be_disabled()
    page.get_by_role("button", name="Layers").click()
    expect(page.get_by_role("region", name="The logit lens")).to_contain_text("Not in this file")
    page.get_by_role("button", name="Steering").click()
    expect(page.get_by_role("slider", name="Strength")).to_be_disabled()
    expect(page.locator(".fault")).to_have_count(0)


TEXTS = {"recurrence": "1 5 2 2 0 6 3 4", "sentiment": "not a bad film", "lookup-facts": "ada"}


@pytest.mark.parametrize(("model", "text"), TEXTS.items())
def test_its_model_is_changed(opened: Open, backend: Backend, model: str, text: str) -> None:
    page = opened(model=model, view="whatif")
    page.evaluate(
        f"location.hash = '#model={model}&view=whatif&text=' + encodeURIComponent('{text}')"
    )
    settled(page)
    page.get_by_role("group", name="Heads to remove").get_by_role(
        "button", name="layer 0, head 1"
    ).click()
    settled(page)
    card = next(card for card in backend.catalogue().models if card.name == model)
    ask = m.Ask(model=model, text=text, source=card.source)
    edits = {
        "removed": [{"part": "cross" if model == "lookup-facts" else "self", "layer": 0, "head": 1}]
    }
    answer = backend.answer(
        "whatif", m.AskWhatIf.model_validate({"ask": ask.model_dump(), **edits})
    )
    for each in sorted(answer.outcomes, key=lambda each: -each.after)[:2]:
        share = (
            "<0.1 %" if each.after < 5e-4 else f"{100 * each.after:.1f} %".replace("100.0", "100")
        )
        row = page.locator(".outcome").filter(has=page.get_by_text(each.name, exact=True)).first
        expect(row.locator(".number").last).to_have_text(share)
    expect(
        page.get_by_role("region", name="What each head does").locator("ol").first
    ).to_be_visible()
    page.get_by_role("button", name="Layers").click()
    expect(page.get_by_role("region", name="The logit lens").get_by_role("table")).to_be_visible()
    # Only decoders' texts consist of the tokens that they generate.
    expect(page.get_by_label("Any token", exact=True)).to_have_count(int(card.kind == "decoder"))
    expect(page.locator("progress")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("^Take back"))).to_have_count(1)
    expect(page.locator(".fault")).to_have_count(0)
    screenshot(page, f"saved-changes-{model}")


def test_a_head_is_edited_proved_and_read(opened: Open, backend: Backend) -> None:
    page = opened(model="unique", text="ABA", cells={"Vm.0.0": "5"})
    expect(page.get_by_text("Fails").first).to_be_visible()
    page.get_by_role("button", name="Back to the design").click()
    settled(page)
    expect(page.get_by_text("Holds").first).to_be_visible()
    changed_text(page, "ABCA")
    design = backend.answer("head", m.AskHead(model="unique"))
    cells = {"Vm.1.0": "0.25", "Qm.0.0": "3"}
    page.evaluate(
        f"location.hash = '#text=ABCA&cells=' + encodeURIComponent('{json.dumps(cells)}')"
    )
    page.wait_for_timeout(200)
    settled(page)
    check = backend.answer(
        "check", m.AskCheck(model="unique", text="ABCA", weights=edited(design.weights, cells))
    )
    certificate = check.certificate
    assert certificate.verdict == "fails"
    expect(page.get_by_text("Fails").first).to_be_visible()
    expect(
        page.get_by_text(f"{certificate.num_right} of {certificate.num_outputs}")
    ).to_be_visible()
    expect(
        page.get_by_role("button", name=f"Show {certificate.counterexample.sequence}")
    ).to_be_visible()
    screenshot(page, "saved-computes-design")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["Vm"][1] == [0.25]
    page.get_by_role("tab", name="Attention").click()
    settled(page)
    expect(page.locator(".fault")).to_have_count(0)
    page.get_by_label("Text", exact=True).fill("ABX")
    expect(page.locator(".fault").first).to_contain_text("the letter 'X' at place 3")


def test_its_address_counts_before_what_was_saved(
    backend: Backend, open_page: Open, tmp_path: Path
) -> None:
    path = save(backend, State(model="sentiment", text="a fine film"), tmp_path / "x.html")
    page = open_page(offline=True)
    page.add_init_script("navigator.clipboard.writeText = async (text) => (window.copied = text)")
    page.goto(f"{path.as_uri()}#layer=2&head=3")
    settled(page)
    page.get_by_role("button", name="Copy link").click()
    assert page.evaluate("window.copied") == f"{path.as_uri()}#layer=2&head=3"
    expect(page.get_by_role("radio", name="layer 2, head 3")).to_be_checked()
    expect(page.get_by_label("Text", exact=True)).to_have_value("a fine film")
    page.evaluate("location.hash = '#layer=1'")
    expect(page.get_by_role("radio", name="layer 1, head 0")).to_be_checked()
    expect(page.locator(".fault")).to_have_count(0)
    page.evaluate("location.hash = '#model=nope'")
    expect(page.locator(".fault")).to_contain_text("Unknown model")


def test_its_address_follows(opened: Open) -> None:
    page = opened(model="sentiment", text="a fine film", layer=0, head=0)
    assert "#" not in page.url
    heads = page.get_by_role("radiogroup", name="Head").get_by_role("radio")
    heads.nth(5).click()
    assert page.url.endswith("#layer=1&head=1")
    page.get_by_role("tab", name="What if").click()
    assert "view=whatif" in page.url
    page.go_back()
    expect(page.get_by_role("tab", name="Attention")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("radio", name="layer 1, head 1")).to_be_checked()
    page.go_back()
    expect(page.get_by_role("radio", name="layer 0, head 0")).to_be_checked()
    page.go_forward()
    expect(page.get_by_role("radio", name="layer 1, head 1")).to_be_checked()
    page.reload()
    settled(page)
    expect(page.get_by_role("radio", name="layer 1, head 1")).to_be_checked()
    expect(page.get_by_label("Text", exact=True)).to_have_value("a fine film")


def test_a_folder_of_pages_leads_from_one_to_another(open_page: Open, tmp_path: Path) -> None:
    names = ["identity", "lookup-facts", "induction"]
    backend = Backend([entry for entry in bundled() if entry.card.name in names])
    assert list(save_all(backend, tmp_path / "site")) == names
    page = open_page(offline=True)
    page.goto((tmp_path / "site/index.html").as_uri())
    page.get_by_role("link", name="Which letter comes next?").click()
    expect(page).to_have_url(re.compile(r"/induction\.html#"))
    settled(page)
    changed_text(page, "BANANABANAN")
    expect(page.get_by_text("next: A,")).to_be_visible()
    page.get_by_label("Model", exact=True).select_option("lookup-facts")
    page.wait_for_url("**/lookup-facts.html*")
    settled(page)
    page.get_by_role("link", name="glassformer").click()
    expect(page.get_by_role("heading", name="All 3 models")).to_be_visible()
    page.goto((tmp_path / "site/identity.html").as_uri() + "#tour=first&step=9")
    page.get_by_role("button", name="Do it for me").click()
    expect(page.get_by_text("Every one of 6,015 outputs")).to_be_visible()
    expect(page.get_by_text("Fails").first).to_be_visible()
    expect(page.locator(".fault")).to_have_count(0)
    page.goto((tmp_path / "site/induction.html").as_uri() + "#tour=first&step=10")
    page.get_by_role("button", name="Finish").click()
    page.wait_for_url("**/site/index.html*")


SHOWN: list[tuple[str, dict[str, Any]]] = [
    ("induction", {"view": "flow", "text": "ABCDABC"}),
    ("induction", {"view": "attention", "shape": "layers", "pin": 3}),
    (
        "induction",
        {
            "view": "attention",
            "shape": "lines",
            "layer": 1,
            "head": 2,
            "pinned": [{"layer": 9, "head": 0}],
        },
    ),
    ("lookup-course", {"view": "attention", "versus": (0, 1), "order": [4, 3, 2, 1, 0]}),
    ("lookup-course", {"view": "scramble", "order": [4, 3, 2, 1, 0]}),
    ("recurrence", {"view": "experts"}),
    ("recurrence", {"view": "whatif", "tool": "experts", "target": 2, "other": 3}),
    ("sentiment", {"view": "whatif"}),
    ("recurrence", {"view": "whatif", "tool": "lens", "target": 2, "other": 3}),
    ("identity", {"view": "design", "cells": {"Vm.0.0": "5"}}),
    ("identity", {"view": "attention", "cells": {"Vm.0.0": "5"}}),
    ("program-sort", {"view": "program"}),
]


@pytest.mark.parametrize(
    ("model", "state"), SHOWN, ids=[f"{model}-{state['view']}" for model, state in SHOWN]
)
def test_a_file_without_its_model_holds_what_its_view_shows(
    opened: Open, monkeypatch: pytest.MonkeyPatch, model: str, state: dict[str, Any]
) -> None:
    monkeypatch.setattr(saved_model, "MOST_MODEL_BYTES", 1)
    page = opened(model=model, **state)
    expect(page.locator(".fault")).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text(
        re.compile("[Nn]ot in this file|does not hold")
    )
    expect(page.get_by_role("complementary", name="About this file")).to_contain_text(
        "nothing new is computed"
    )
    screenshot(page, f"saved-without-{model}-{state['view']}")


def test_a_file_without_its_model_says_what_it_does_not_hold(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_model, "MOST_MODEL_BYTES", 1)
    page = opened(model="induction", view="attention", layer=0, head=0)
    page.get_by_role("application").focus()
    for key in ("Escape", "ArrowRight", "ArrowDown"):
        page.get_by_role("application").press(key)
    assert shown_value(page) > 0
    for title in tabs(page):
        if title != "Attention":
            expect(page.locator("main")).to_contain_text("This file does not hold this view")
    page.get_by_role("tab", name="Attention").click()
    expect(page.locator(".fault")).to_have_count(0)
    page.get_by_role("radiogroup", name="Head").get_by_role("radio").nth(1).click()
    expect(page.locator(".fault")).to_contain_text("layer 0, head 1, which this file does not hold")


def test_a_model_that_is_too_large_is_recorded(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_model, "MOST_MODEL_BYTES", 1000)
    page = opened(model="recurrence", view="sampling", top_k=2, temperature=0.5)
    note = page.get_by_role("complementary", name="About this file")
    expect(note).to_contain_text("its weights take 500,776 bytes, more than 1,000.")
    expect(page.locator(".fault")).to_have_count(0)
    expect(page.get_by_text(re.compile(r"Kept\s*2\s*of 7"))).to_be_visible()
    expect(page.get_by_role("button", name="Write one")).to_be_disabled()
    assert page.get_by_label("Text", exact=True).get_attribute("readonly") is not None


def changed_text(page: Page, text: str) -> None:
    page.get_by_label("Text", exact=True).fill(text)
    page.wait_for_timeout(200)  # typing is awaited
    settled(page)


@pytest.mark.parametrize("workers", [True, False])
def test_its_model_reads_other_texts_and_writes(
    backend: Backend, open_page: Open, tmp_path: Path, workers: bool
) -> None:
    text = "3 1 4 1 5 2 6 5 3"
    path = save(backend, State(model="recurrence"), tmp_path / "x.html")
    page = open_page(offline=True, dark=not workers)
    if not workers:
        page.add_init_script("delete window.Worker")
    page.goto(path.as_uri())
    settled(page)
    expect(page.get_by_role("complementary", name="About this file")).to_contain_text(
        "It holds the model"
    )
    changed_text(page, text)
    assert len(page.workers) == workers
    run = backend.answer("run", m.Ask(model="recurrence", text=text))
    expect(page.locator(".said")).to_have_text(run.said.headline)
    page.get_by_role("radiogroup", name="Head").get_by_role("radio").nth(9).click()
    settled(page)
    screenshot(page, f"saved-computes-attention-{'light' if workers else 'dark'}")
    matrix = page.get_by_role("application")
    matrix.focus()
    for key in ("Escape", "ArrowDown", "ArrowDown", "ArrowDown"):
        matrix.press(key)
    answer = backend.answer("weights", m.AskTile(run=run.run, part="self", layer=2, head=1))
    seen = shown_value(page)
    assert seen in [float(f"{weight:.3g}") for weight in np.frombuffer(answer, "<f4")]
    page.get_by_role("tab", name="Experts").click()
    settled(page)
    expect(page.locator(".fault")).to_have_count(0)
    page.get_by_role("tab", name="Sampling").click()
    page.get_by_label("Seed").fill("11")
    page.get_by_role("button", name="Write ten").click()
    steps = backend.answer("steps", m.AskSteps(model="recurrence", text=text, seed=11, steps=10))
    expect(page.get_by_label("Text", exact=True)).to_have_value(steps.text)
    screenshot(page, f"saved-computes-sampling-{'light' if workers else 'dark'}")
    expect(page.locator(".fault")).to_have_count(0)
    changed_text(page, "3 1 9")
    expect(page.locator(".fault").first).to_contain_text("'9' at place 3")
    changed_text(page, text)
    page.get_by_role("tab", name="What if").click()
    settled(page)
    expect(page.locator(".fault")).to_have_count(0)
    screenshot(page, f"saved-computes-what-if-{'light' if workers else 'dark'}")


def test_changed_weights_leave_what_was_recorded(
    backend: Backend, open_page: Open, tmp_path: Path
) -> None:
    path = save(backend, State(model="induction"), tmp_path / "x.html")
    weights = data_in(path.read_text(encoding="utf-8"))["model"]["weights"]
    other = weights[:-9] + ("B" if weights[-9] == "A" else "A") + weights[-8:]
    path.write_text(path.read_text(encoding="utf-8").replace(weights, other), encoding="utf-8")
    page = open_page(offline=True)
    page.goto(path.as_uri())
    settled(page)
    note = page.get_by_role("complementary", name="About this file")
    expect(note).to_contain_text(
        "Weights in this file that were changed: what was recorded is shown."
    )
    assert page.get_by_label("Text", exact=True).get_attribute("readonly") is not None
    for _ in tabs(page):
        settled(page)
        expect(page.locator(".fault")).to_have_count(0)
    screenshot(page, "saved-changed-weights")


def test_the_button_saves_what_is_seen(
    page: Page, go: Go, open_page: Open, backend: Backend, tmp_path: Path
) -> None:
    go(page, model="sentiment", text="a dull film", view="attention", layer=1, head=2)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save page").click()
    assert download.value.suggested_filename == "glassformer-sentiment.html"
    path = tmp_path / "downloaded.html"
    download.value.save_as(path)
    held = data_in(path.read_text(encoding="utf-8"))["state"]
    assert (held["text"], held["layer"], held["head"]) == ("a dull film", "1", "2")
    alone = open_page(offline=True)
    alone.goto(path.as_uri())
    settled(alone)
    expect(alone.get_by_label("Text", exact=True)).to_have_value("a dull film")
    assert alone.locator(".said").inner_text() == page.locator(".said").inner_text()


def test_nothing_can_be_fetched_from_it(opened: Open, watch: Watch) -> None:
    page = opened(model="unique")
    watch.forgive("Content Security Policy|violates|asked for https://example|ERR_")
    page.context.set_offline(False)
    fetched = page.evaluate("fetch('https://example.org/').then(() => 'fetched', () => 'refused')")
    ran = page.evaluate(
        """new Promise((done) => {
            const script = document.createElement("script");
            script.textContent = "window.taken = 1";
            document.body.append(script);
            setTimeout(() => done(window.taken ?? "refused"), 50);
        })"""
    )
    assert (fetched, ran) == ("refused", "refused")
    assert not [fault for fault in watch.faults if fault.startswith("asked for")]


@pytest.mark.parametrize("model", ["unique", "sentiment", "recurrence"])
def test_it_fits_a_phone_and_everyone(opened: Open, model: str) -> None:
    for dark in (False, True):
        page = opened(model=model, phone=True, dark=dark)
        check_look(page, f"saved-{model}-phone-{'dark' if dark else 'light'}")
