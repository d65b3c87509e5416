"""The notebook's widget, in a page that does what a notebook does: carry messages between a cell
and the kernel.
"""

import base64
import json
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

pytest.importorskip("anywidget", reason="no anywidget: pip install 'glassformer[explore]'")

from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.backend import Backend
from glassformer.explorer.widget import ExplorerWidget

from .conftest import Open, check_look, screenshot, settled

pytestmark = pytest.mark.slow

NOTEBOOK = """
window.widgets = {};
/** What anywidget hands to `render`, with a kernel at the other end of `toKernel`. */
window.show = async (id, esm, css, state, page) => {
  if (!document.getElementById("style")) {
    const style = Object.assign(document.createElement("style"), { id: "style", textContent: css });
    document.head.append(style);
  }
  // Each widget of a notebook imports the module anew.
  const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const heard = {};
  const values = { state, _page: page };
  const changed = new Set();
  const carry = async (content) => {
    const told = JSON.parse(await toKernel(id, JSON.stringify({ method: "custom", content })));
    for (const [reply, buffers] of told) {
      const views = buffers.map((text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
      for (const callback of heard["msg:custom"] ?? []) callback(reply, views);
    }
  };
  const model = {
    get: (name) => values[name],
    set: (name, value) => ((values[name] = value), changed.add(name)),
    save_changes: () => {
      for (const name of changed) toKernel(id, JSON.stringify({ method: "update", name, value: values[name] }));
      changed.clear();
    },
    on: (event, callback) => (heard[event] ??= []).push(callback),
    off: (event, callback) => (heard[event] = (heard[event] ?? []).filter((each) => each !== callback)),
    send: (content) => {
      if (window.ended) throw new Error("Cannot send"); // JupyterLab's, after a restart of the kernel
      void carry(content);
    },
    fromKernel: (name, value) => {
      values[name] = value;
      for (const callback of heard[`change:${name}`] ?? []) callback();
    },
    listeners: () => Object.values(heard).flat().length,
  };
  const place = (key) => {
    const el = Object.assign(document.createElement("div"), { id: key });
    document.body.append(el);
    return { model, close: module.default.render({ model, el }) };
  };
  widgets[id] = { model, place };
  widgets[id].views = [place(id)];
};
"""


class Notebook:
    """A page with widgets, and the widgets themselves."""

    def __init__(self, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page = page
        self.widgets: dict[str, ExplorerWidget] = {}
        self.sent: list[tuple[Any, Any]] = []
        self.asked: list[str] = []
        self.silent = False

        def send(widget: ExplorerWidget, content: Any, buffers: Any = None) -> None:
            self.sent.append((content, buffers or []))

        monkeypatch.setattr(ExplorerWidget, "send", send)
        page.set_content(
            "<!doctype html><html lang=en><title>A notebook</title><body></body></html>"
        )
        page.expose_function("toKernel", self.hear)
        page.evaluate(f"() => {{ {NOTEBOOK} }}")

    def hear(self, name: str, text: str) -> str:
        message = json.loads(text)
        self.sent.clear()
        if message["method"] == "update":
            self.widgets[name].set_state({message["name"]: message["value"]})
        elif not self.silent:
            self.asked.append(message["content"].get("call", message["content"]["kind"]))
            self.widgets[name]._handle_custom_msg(message["content"], [])
        replies = [
            (told, [base64.b64encode(buffer).decode() for buffer in buffers])
            for told, buffers in self.sent
        ]
        return json.dumps(replies)

    def show(self, name: str, widget: ExplorerWidget) -> Locator:
        self.widgets[name] = widget
        carried = widget.get_state()
        arguments = [name, carried["_esm"], carried["_css"], carried["state"], carried["_page"]]
        self.page.evaluate("(given) => show(...given)", arguments)
        place = self.page.locator(f"#{name}")
        place.locator(".view").wait_for()
        return place

    def set(self, name: str, state: dict[str, str]) -> None:
        """As ``widget.state = state`` in a cell."""
        self.widgets[name].state = state
        self.page.evaluate(
            "([name, state]) => widgets[name].model.fromKernel('state', state)", [name, state]
        )


@pytest.fixture
def notebook(page: Page, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(page, monkeypatch)


@pytest.mark.parametrize("model", ["unique", "sentiment", "lookup-facts", "recurrence"])
def test_every_view_of_every_kind(notebook: Notebook, backend: Backend, model: str) -> None:
    place = notebook.show(
        "one", ExplorerWidget(backend, {"model": model, "text": text_of(backend, model)})
    )
    for tab in place.get_by_role("tablist", name="Views").get_by_role("tab").all():
        tab.click()
        settled(notebook.page)
        expect(place.locator(".fault")).to_have_count(0)
        screenshot(notebook.page, f"widget-{model}-{tab.inner_text().lower()}")
    assert {"models", "run"} <= set(notebook.asked)


def test_python_changes_what_is_shown(notebook: Notebook, backend: Backend) -> None:
    place = notebook.show(
        "one", ExplorerWidget(backend, {"model": "sentiment", "text": "a fine film"})
    )
    notebook.set("one", {"model": "unique", "text": "ABA", "view": "design"})
    expect(place.get_by_label("Text", exact=True)).to_have_value("ABA")
    expect(place.get_by_text("Holds").first).to_be_visible()


def test_changes_of_a_model_are_shared_with_python(notebook: Notebook, backend: Backend) -> None:
    place = notebook.show(
        "one",
        ExplorerWidget(backend, {"model": "sentiment", "text": "a fine film", "view": "whatif"}),
    )
    group = place.get_by_role("group", name="Heads to remove")
    group.get_by_role("button", name="layer 0, head 1").click()
    expect(place.get_by_role("button", name="Take back: without layer 0, head 1")).to_be_visible()
    notebook.page.wait_for_function("'removed' in widgets.one.model.get('state')")
    assert json.loads(notebook.widgets["one"].state["removed"]) == [
        {"part": "self", "layer": 0, "head": 1}
    ]
    removed = [{"part": "self", "layer": 2, "head": head} for head in range(4)]
    notebook.set(
        "one",
        {
            "model": "sentiment",
            "text": "a fine film",
            "view": "whatif",
            "removed": json.dumps(removed),
        },
    )
    expect(group.locator("[aria-pressed=true]")).to_have_count(4)
    expect(place.locator(".fault")).to_have_count(0)


def test_what_the_kernel_refuses_is_told(notebook: Notebook, backend: Backend) -> None:
    place = notebook.show("one", ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    place.get_by_label("Text", exact=True).fill("XYZ")
    expect(place.locator(".fault").first).to_be_visible()


def test_typing_is_answered_by_the_kernel_in_one_of_several_widgets(
    notebook: Notebook, backend: Backend
) -> None:
    one = notebook.show(
        "one", ExplorerWidget(backend, {"model": "sentiment", "text": "a fine film"})
    )
    other = notebook.show("other", ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    one.get_by_label("Text", exact=True).fill("a dull film")
    expect(one.locator(".said")).to_contain_text("negative")
    notebook.page.wait_for_function("widgets.one.model.get('state').text === 'a dull film'")
    assert notebook.widgets["one"].state["text"] == "a dull film"
    expect(other.get_by_label("Text", exact=True)).to_have_value("ABA")
    assert notebook.widgets["other"].state == {"model": "unique", "text": "ABA"}
    ids = notebook.page.locator("[id]").evaluate_all("(found) => found.map((each) => each.id)")
    assert len(set(ids)) == len(ids)


def test_the_colours_of_several_widgets_change_together(
    notebook: Notebook, backend: Backend
) -> None:
    one = notebook.show("one", ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    other = notebook.show("other", ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    for place, shade in ((one, "light"), (other, "dark"), (one, "auto")):
        place.get_by_role("button", name="Colours").click()
        for each in (one, other):
            button = each.get_by_role("button", name="Colours")
            expect(button).to_have_attribute("aria-label", f"Colours: {shade}. Change")
            expect(each.locator(".glassformer:has(main)")).to_have_attribute("data-shade", shade)


def test_the_notebook_does_not_take_the_keys_of_a_widget(
    notebook: Notebook, backend: Backend
) -> None:
    place = notebook.show(
        "one", ExplorerWidget(backend, {"model": "sentiment", "text": "a fine film"})
    )
    # As JupyterLab's shortcuts: of the element that has the focus, whatever is around it.
    notebook.page.evaluate(
        "document.addEventListener('keydown', ({ key }) => (window.taken ??= []).push(key))"
    )
    place.get_by_role("tab", name="Attention").press("d")
    place.get_by_role("button", name="Compare with another head").press("Enter")
    expect(place.get_by_role("button", name="End comparison")).to_be_visible()
    assert notebook.page.evaluate("window.taken ?? []") == []
    place.get_by_role("button", name="End comparison").press("Control+s")
    assert notebook.page.evaluate("window.taken") == ["Control", "s"]


def test_widgets_share_the_code_of_the_page(notebook: Notebook, backend: Backend) -> None:
    for name in ("one", "other", "third"):
        notebook.show(name, ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    assert notebook.asked.count("code") == 1
    carried = notebook.widgets["one"].get_state()
    assert len(carried["_esm"]) < 4000
    assert notebook.page.evaluate("glassformerPages.size") == 1


def test_a_widget_without_a_kernel_says_so(notebook: Notebook, backend: Backend) -> None:
    notebook.silent = True
    carried = ExplorerWidget(backend, {"model": "unique", "text": "ABA"}).get_state()
    notebook.widgets["one"] = ExplorerWidget(backend, {})
    arguments = ["one", *(carried[name] for name in ("_esm", "_css", "state", "_page"))]
    notebook.page.evaluate("(given) => show(...given)", arguments)
    expect(notebook.page.locator("#one [role=status]")).to_contain_text(
        "No answer yet from the notebook"
    )
    notebook.page.evaluate("widgets.one.views[0].close()")
    assert notebook.page.evaluate("widgets.one.model.listeners()") == 0
    notebook.silent = False
    place = notebook.show("other", ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    expect(place.get_by_role("status").first).to_be_empty()


def test_a_forgotten_run_is_read_anew(
    notebook: Notebook, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = notebook.show(
        "one", ExplorerWidget(backend, {"model": "sentiment", "text": "a fine film"})
    )
    settled(notebook.page)
    monkeypatch.setattr(backend, "runs", Runs(backend.model))
    place.get_by_role("radiogroup", name="Head").get_by_role("radio").last.click()
    place.get_by_role("button", name="Layers", exact=True).click()
    settled(notebook.page)
    expect(place.locator(".tops li")).not_to_have_count(0)
    expect(place.locator(".fault")).to_have_count(0)


def test_two_places_of_one_widget_show_the_same(notebook: Notebook, backend: Backend) -> None:
    notebook.show("one", ExplorerWidget(backend, {"model": "sentiment", "text": "a fine film"}))
    notebook.page.evaluate("widgets.one.views.push(widgets.one.place('again'))")
    again = notebook.page.locator("#again")
    again.locator(".view").wait_for()
    notebook.set("one", {"model": "sentiment", "text": "a dull film"})
    for place in (notebook.page.locator("#one"), again):
        expect(place.get_by_label("Text", exact=True)).to_have_value("a dull film")
        expect(place.locator(".said")).to_contain_text("negative")


def test_a_kernel_that_does_not_answer(notebook: Notebook, backend: Backend) -> None:
    widget = ExplorerWidget(backend, {"model": "unique", "text": "ABA"})
    place = notebook.show("one", widget)
    status = place.get_by_role("status").first
    notebook.silent = True
    place.get_by_label("Text", exact=True).fill("ABC")
    expect(status).to_contain_text("No answer yet from the notebook's kernel")
    notebook.silent = False
    place.get_by_label("Text", exact=True).fill("AB")
    expect(status).to_be_empty()
    expect(place.locator(".fault")).to_have_count(0)


def test_a_restarted_kernel_is_named(notebook: Notebook, backend: Backend) -> None:
    place = notebook.show("one", ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    settled(notebook.page)
    notebook.page.evaluate("window.ended = true")
    place.get_by_label("Text", exact=True).fill("ABC")
    expect(place.locator(".fault")).to_contain_text("the notebook's kernel, which has ended")
    expect(place.locator(".fault")).to_contain_text("Run this cell again.")


def test_a_closed_place_hears_nothing_more(notebook: Notebook, backend: Backend) -> None:
    notebook.show("one", ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    assert notebook.page.evaluate("widgets.one.model.listeners()") > 0
    notebook.page.evaluate("widgets.one.views[0].close()")
    assert notebook.page.evaluate("widgets.one.model.listeners()") == 0
    expect(notebook.page.locator("#one *")).to_have_count(0)


@pytest.mark.parametrize(("theme", "dark"), [("false", True), ("true", False)])
def test_it_is_as_dark_as_the_notebook(
    open_page: Open, backend: Backend, monkeypatch: pytest.MonkeyPatch, theme: str, dark: bool
) -> None:
    # The system's setting is the opposite.
    notebook = Notebook(open_page(dark=not dark), monkeypatch)
    notebook.page.evaluate("(theme) => document.body.dataset.jpThemeLight = theme", theme)
    place = notebook.show("one", ExplorerWidget(backend, {"model": "unique", "text": "ABA"}))
    paper = place.locator(".glassformer[data-within]").evaluate(
        "(page) => getComputedStyle(page).backgroundColor"
    )
    red = int(paper.removeprefix("rgb(").split(",")[0])
    assert (red < 100) == dark


def test_it_fits_a_narrow_cell_and_everyone(
    open_page: Open, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = Notebook(open_page(phone=True), monkeypatch)
    notebook.show("one", ExplorerWidget(backend, {"model": "sentiment", "text": "a fine film"}))
    check_look(notebook.page, "widget-phone")


def text_of(backend: Backend, model: str) -> str:
    return next(card.text for card in backend.catalogue().models if card.name == model)
