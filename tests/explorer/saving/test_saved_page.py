import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.explorer.saving.saved_page import page, save
from glassformer.explorer.state import State, from_words
from refusals import refused

HOSTILE = [
    "</script><script>document.title='taken'</script>",
    "<!--<script>",
    "]]></SCRIPT\n><img src=x onerror=alert(1)>",
    "\u2028\u2029\x00\x1b[31m\ufeff",
    "&lt;/script&gt; \" ' ` ${x} \\",
]


class Parts(HTMLParser):
    """The elements of a page, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.within: list[str] = [""]
        self.feed(text)
        self.close()
        self.saved = json.loads(self.texts["script"][0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.within = self.texts.setdefault(tag, [])
        self.within.append("")

    def handle_endtag(self, tag: str) -> None:
        self.within = [""]

    def handle_data(self, data: str) -> None:
        self.within[-1] += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def of(backend: Backend, **state: str) -> Parts:
    return Parts(page(backend, from_words(state)))


def test_the_file_holds_the_state_and_the_answers(small_backend: Backend) -> None:
    saved = of(small_backend, model="lookup", text="4", head="1", later="unknown").saved
    assert saved["state"] == {"model": "lookup", "text": "4", "view": "scramble", "head": "1"}
    run = next(each for each in saved["answers"] if each["call"] == "run")
    assert m.Ask(**run["asked"]) == m.Ask(model="lookup", text="4", source=list("12345"))
    assert m.Run(**run["answer"]) == small_backend.answer("run", m.Ask(**run["asked"]))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_ends_its_element(small_backend: Backend, text: str) -> None:
    plain = of(small_backend, model="decoder", text="1")
    # Edits are kept as they were typed, whatever they are.
    parts = of(small_backend, model="decoder", text="1", cells=json.dumps({"Km.0.0": text}))
    assert parts.elements == plain.elements
    assert json.loads(parts.saved["state"]["cells"]) == {"Km.0.0": text}


def test_a_title_cannot_hold_markup(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    title = "</title><script>alert(1)</script>"
    hostile = replace(loaded, card=loaded.card.model_copy(update={"title": title}))
    parts = of(Backend([hostile]), model="decoder")
    assert parts.texts["title"] == [f"{title} \u2013 glassformer"]
    assert len(parts.attributes("script")) == 2


def test_nothing_but_its_own_code_may_run_and_nothing_may_be_fetched(
    small_backend: Backend,
) -> None:
    parts = of(small_backend, model="unique")
    metas = {
        each.get("http-equiv"): each["content"]
        for each in parts.attributes("meta")
        if "content" in each
    }
    policy = metas["Content-Security-Policy"] or ""
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    for name, code in (
        ("script-src", parts.texts["script"][1]),
        ("style-src", parts.texts["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    for _, attributes in parts.elements:
        assert all(
            (attributes.get(name, "data:") or "").startswith("data:") for name in ("src", "href")
        )


@pytest.mark.parametrize("model", ["identity", "decoder", "lookup"])
def test_equal_states_give_equal_files(
    small_backend: Backend, loaded_models: list[LoadedModel], model: str
) -> None:
    ask = from_words({"model": model})
    assert page(small_backend, ask) == page(Backend(loaded_models), ask)


def test_it_is_written_whole(small_backend: Backend, tmp_path: Path) -> None:
    path = save(small_backend, State(model="identity"), tmp_path / "new" / "page.html")
    assert path.read_text(encoding="utf-8") == page(
        small_backend, from_words({"model": "identity"})
    )
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]
    with refused("which is a directory"):
        save(small_backend, State(model="identity"), tmp_path)


def test_what_cannot_be_saved(small_backend: Backend) -> None:
    with refused(expected="between spaces"):
        of(small_backend, model="decoder", text="words")
    with refused(got="Z"):
        of(small_backend, model="identity", text="Z", cells='{"Km.0.0": "2"}')


def test_pages_that_were_never_built(
    monkeypatch: pytest.MonkeyPatch, small_backend: Backend, tmp_path: Path
) -> None:
    monkeypatch.setattr("glassformer.explorer.saving.saved_page.PAGE", tmp_path)
    with refused(fix=re.escape("Run 'make page'.")):
        of(small_backend, model="identity")
