"""The program view in a browser: graph, heads and stream follow what is typed, and agree with the
program.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.discovery import entries_at
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.programs import compile_program
from glassformer.programs.graph import graph
from glassformer.programs.library import PROGRAMS
from glassformer.programs.saved import save_program
from sorting import SORTED, sorting

from .conftest import Go, screenshot, settled

ROWS = """(label) => [...document.querySelector(`table[aria-label="${label}"]`).querySelectorAll('tbody tr')]
  .map((row) => [...row.querySelectorAll('th, td:not(.more)')].map((cell) => cell.innerText.split('\\n')[0]))"""


@pytest.fixture(scope="module")
def sorted_page(serve: Callable[[Any], Any]) -> str:
    """The address of a sorting program."""
    return str(serve(Backend([wrap_model(sorting(), "2412")])).address)


def part(page: Page, name: str) -> Locator:
    return page.locator(".graph li").filter(
        has=page.locator("b", has_text=re.compile(f"^{re.escape(name)}$"))
    )


def variables(page: Page) -> dict[str, list[str]]:
    """The value of each variable at every position."""
    return {
        row[0]: row[1:]
        for row in page.evaluate(ROWS, "Variables at every position")
        if len(row) > 1
    }


def test_typing_changes_graph_heads_stream_and_outputs(page: Page, sorted_page: str) -> None:
    page.goto(sorted_page)
    for text in ("2412", "31", "44231"):
        page.get_by_label("Text").fill(text)
        expect(page.locator(".positions button")).to_have_count(len(text))
        settled(page)
        sequence = list(map(int, text))
        expect(page.locator(".said")).to_have_text(" ".join(map(str, sorted(sequence))))
        assert page.locator(".positions b").all_inner_texts() == list(map(str, sorted(sequence)))
        assert page.locator('.positions i[data-right="true"]').count() == len(text)
        seen = variables(page)
        for node in graph(SORTED):
            if node.part.kind in ("input", "function", "width", "aggregate"):
                values = [str(value) for value in node.part(sequence)]  # type: ignore[operator]
                assert seen[str(node.part)] == values
                expect(part(page, str(node.part)).locator("code")).to_have_text(values[-1])
        rows = page.evaluate(ROWS, "Attention weights, layer 2, head 0")
        for query, row in enumerate(rows):
            place = seen["place"].index(str(query))
            weights = ["100" if key == place else "\u00b7" for key in range(len(text))]
            assert row == [str(sequence[query]), *weights, "\u00b7"]
    screenshot(page, "program")


def test_a_position_is_followed_everywhere_and_in_the_address(page: Page, sorted_page: str) -> None:
    page.goto(sorted_page)
    expect(part(page, "unique key").locator("code")).to_have_text("13")
    page.get_by_role("button", name="4 at 1: 2, as defined").click()
    expect(part(page, "unique key").locator("code")).to_have_text("21")
    expect(part(page, "unique key < unique key").locator("code")).to_have_text("{0, 2, 3}")
    expect(page.get_by_role("heading", name="Coordinates at position 1 (4)")).to_be_visible()
    expect(page).to_have_url(re.compile("pin=1"))
    page.keyboard.press("ArrowLeft")
    expect(part(page, "unique key").locator("code")).to_have_text("10")
    page.get_by_role("button", name="Follow 1 at 2").click()
    expect(part(page, "unique key").locator("code")).to_have_text("7")
    page.get_by_role("table", name="Attention weights, layer 1, head 0").locator("tbody tr").nth(
        1
    ).click()
    expect(part(page, "unique key").locator("code")).to_have_text("21")


def test_pointing_at_a_part_shows_where_it_is(page: Page, sorted_page: str) -> None:
    page.goto(sorted_page)
    part(page, "place").hover()
    expect(page.locator('.graph path[data-on="true"]')).to_have_count(2)
    expect(page.locator('.variables tr[data-on="true"] th')).to_have_text("place")
    expect(page.locator('.coordinates td[data-on="true"]')).to_have_count(2)
    page.get_by_role("article", name="Layer 2, head 0").hover()
    expect(page.locator('.graph li[data-on="true"] b')).to_have_text("place == indices")


@pytest.mark.slow
def test_every_program_of_the_library_can_be_chosen(page: Page, go: Go) -> None:
    go(page)
    options = page.locator(".model select").locator('optgroup[label="Programs"] option')
    assert options.count() == len(PROGRAMS)
    for name in ("histogram", "reverse", "induction"):
        page.locator(".model select").select_option(f"program-{name}")
        expect(page.locator(".proof h2")).to_have_text("Holds")
        settled(page)
        assert page.locator(".graph li").count() == len(graph(PROGRAMS[name].program))
        expect(page.get_by_role("article").first).to_be_visible()
        assert page.locator('.positions i[data-right="false"]').count() == 0


def test_broken_weights_show_their_counterexample(page: Page, serve: Callable[[Any], Any]) -> None:
    example = PROGRAMS["histogram"]
    model = compile_program(example.program, example.vocabulary, example.max_len)
    with torch.no_grad():
        model.layers[0].ffn.up.bias[0] -= 2.0  # type: ignore[union-attr,operator,index]
    page.goto(serve(Backend([wrap_model(model, "abc")])).address)
    expect(page.locator(".proof h2")).to_have_text("Fails")
    page.get_by_role("button", name=re.compile("^Show ")).click()
    expect(page.locator('.positions [aria-pressed="true"] i')).to_have_attribute(
        "data-right", "false"
    )
    settled(page)
    screenshot(page, "program-broken")


def test_a_stored_program_is_shown_without_a_definition(
    page: Page, serve: Any, tmp_path: Path, watch: Any
) -> None:
    watch.forgive("422")
    example = PROGRAMS["induction"]
    save_program(
        compile_program(example.program, example.vocabulary, example.max_len, causal=True),
        tmp_path / "a.json",
    )
    page.goto(serve(Backend(entries_at(tmp_path / "a.json"))).address)
    expect(page.locator(".proof h2")).to_have_text("Not verified")
    expect(page.locator(".proof .verdict p")).to_have_text(
        re.compile("^A model without its program; expected ")
    )
    expect(page.locator(".graph")).to_have_count(0)
    expect(page.locator(".said")).to_have_text("– – – b c a")
    assert page.locator(".positions i").count() == 0
    assert variables(page)["tokens"] == list("abcabc")
    screenshot(page, "program-stored")


@pytest.mark.slow
def test_lines_of_the_graph_do_not_cross_boxes(page: Page, go: Go) -> None:
    crossed = """() => {
      const boxes = [...document.querySelectorAll('.graph li')].map((each) => each.getBoundingClientRect());
      let count = 0;
      for (const path of document.querySelectorAll('.graph path')) {
        const matrix = path.getScreenCTM();
        for (let at = 4; at < path.getTotalLength() - 4; at += 4) {
          const { x, y } = path.getPointAtLength(at).matrixTransform(matrix);
          count += boxes.some((box) => x > box.left + 1 && x < box.right - 1 && y > box.top + 1 && y < box.bottom - 1);
        }
      }
      return count;
    }"""
    for model in ("sort", "dyck-2", "shuffle-dyck-2", "addition", "machine"):
        go(page, model=f"program-{model}")
        page.locator(".graph").wait_for()
        assert page.evaluate(crossed) == 0, model
        places = "(boxes) => boxes.map((each) => [each.offsetLeft, each.offsetTop])"
        boxes = page.locator(".graph li").evaluate_all(places)
        assert len({tuple(box) for box in boxes}) == len(boxes)
