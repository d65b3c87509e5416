"""The design view in a browser: a hand-designed head's numbers are changed, and what comes of it is
seen and judged.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import identity, unique
from glassformer.handcraft.verification import verify
from glassformer.handcraft.weight_files import read_head, write_head

from .attention_page import shown_value
from .conftest import Go, Open, check_fits, eventually, screenshot, settled, showing

READ_TABLE = """(name) => {
  const table = [...document.querySelectorAll('.design table')].find((each) => each.ariaLabel.startsWith(name));
  return [...table.querySelectorAll('tbody tr')].map((row) =>
    [...row.querySelectorAll('td.number')].map((cell) => Number(cell.title.replace('\\u2212', '-'))));
}"""


show = showing(".certificate", model="unique", view="design", text="ABCA")


def cell(page: Page, name: str, row: str, column: str | int) -> Locator:
    return page.get_by_label(f"{name}, row {row}, column {column}")


def changed(weights: HeadWeights, name: str, row: Any, column: int, number: float) -> HeadWeights:
    matrices = {key: matrix.copy() for key, matrix in weights.matrices.items()}
    matrices[name][row, column] = number
    return HeadWeights(**matrices)


def verdict(page: Page) -> Locator:
    return page.locator(".certificate h2")


def numbers(page: Page, name: str) -> np.ndarray:
    """A computed table, to all digits."""
    return np.array(page.evaluate(READ_TABLE, name))


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def paste(cell: Locator, text: str) -> None:
    cell.focus()
    cell.evaluate(
        "(cell, text) => { const clipboardData = new DataTransfer(); "
        "clipboardData.setData('text/plain', text);"
        " cell.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, "
        "cancelable: true })); }",
        text,
    )


def focused(page: Page) -> str:
    label: str = page.evaluate("document.activeElement.ariaLabel ?? ''")
    return label.removesuffix(", edited")


def check_numbers(page: Page, weights: HeadWeights, letters: str, has_cls: bool) -> None:
    """The page's tables against the head's formula, written out here."""
    alphabet = {letter: place for place, letter in enumerate("ABC")} | {"CLS": 3}
    tokens = (["CLS"] if has_cls else []) + list(letters)
    x = np.eye(4 if has_cls else 3)[[alphabet[token] for token in tokens]]
    if weights.pos is not None:
        x = np.concatenate([x, weights.pos[: len(x)]], axis=1)
    keys = x @ weights.Km
    queries = x @ weights.Qm
    values = x @ weights.Vm
    scores = queries @ keys.T / np.sqrt(keys.shape[1])
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    tables = {
        "x,": x,
        "Q,": queries,
        "K,": keys,
        "V,": values,
        "Scores": scores,
        "Attention": shares,
    }
    for name, expected in {**tables, "Outputs": shares @ values}.items():
        np.testing.assert_allclose(
            numbers(page, name), expected, rtol=1e-9, atol=1e-12, err_msg=name
        )


def test_every_cell_of_the_four_matrices_can_be_edited_and_each_matrix_says_why(
    page: Page, show: Go
) -> None:
    show(page)
    weights = design(unique()).weights
    for name, matrix in weights.matrices.items():
        cells = page.locator(f'.sheet[data-matrix="{name}"] td input')
        assert cells.count() == matrix.size
        assert all(each.is_editable() for each in (cells.first, cells.last))
        titles = [each.get_attribute("title") or "" for each in cells.all()]
        np.testing.assert_array_equal(
            [float(title.replace("\u2212", "-")) for title in titles], matrix.ravel()
        )
    why = page.locator(".design .why").all_text_contents()
    assert len(why) == 4
    assert all(len(text) > 20 for text in why)


def test_every_number_on_the_way_changes_while_typing(page: Page, show: Go) -> None:
    show(page)
    weights = design(unique()).weights
    check_numbers(page, weights, "ABCA", has_cls=True)
    expect(verdict(page)).to_have_text("Holds")
    expect(page.locator(".certificate")).to_contain_text("every sequence: 120 of 120 run")
    screenshot(page, "design")

    # Without leaving the cell.
    cell(page, "Km", "A", 0).click()
    page.keyboard.type("-0.25")
    expect(verdict(page)).to_have_text("Fails")
    settled(page)
    edited = changed(weights, "Km", 0, 0, -0.25)
    expect(page.get_by_text("\u22120.25").first).to_be_attached()
    check_numbers(page, edited, "ABCA", has_cls=True)
    # What the edited head says stands above.
    expect(page.locator(".said")).to_have_text("+1 +1 +1 +1")
    proof = verify(edited, unique())
    expect(page.locator(".certificate")).to_contain_text(
        f"{proof.num_right} of {proof.num_outputs}"
    )
    expect(page.locator(".counterexample")).to_contain_text(f"Show {proof.counterexample.sequence}")
    assert focused(page) == "Km, row A, column 0"
    expect(page.locator(".edits")).to_have_text("1 cell edited")
    screenshot(page, "design-edited")


def test_a_head_without_positions_shows_its_numbers(page: Page, show: Go) -> None:
    show(page, model="identity", text="CAB")
    check_numbers(page, design(identity()).weights, "CAB", has_cls=False)
    expect(page.locator('.sheet[data-matrix="pos"]')).to_have_count(0)


def test_a_click_on_the_counterexample_makes_it_the_text(page: Page, show: Go) -> None:
    show(page, cells=json.dumps({"Vm.1.0": "1"}))
    weights = changed(design(unique()).weights, "Vm", 1, 0, 1.0)
    failure = verify(weights, unique()).counterexample
    page.get_by_role("button", name=f"Show {failure.sequence}").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value(failure.sequence)
    followed = page.get_by_role("group", name="Follow a position").locator('[aria-pressed="true"]')
    expect(followed).to_contain_text(f"@{failure.position}")
    expect(followed).to_have_attribute("aria-label", f"B at @{failure.position}, wrong")


def test_the_grid_is_used_by_keyboard_as_a_spreadsheet(page: Page, show: Go) -> None:
    show(page)
    cell(page, "Qm", "A", 0).focus()
    press(page, "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft")
    assert focused(page) == "Qm, row C, column 0"
    press(page, "End")
    assert focused(page) == "Qm, row C, column 9"
    press(page, "ArrowRight", "Control+Home")
    assert focused(page) == "Qm, row A, column 0"
    # Typing replaces, Enter goes down, Tab to the right.
    page.keyboard.type("7")
    press(page, "Enter")
    assert focused(page) == "Qm, row B, column 0"
    page.keyboard.type("8")
    press(page, "Tab")
    assert focused(page) == "Qm, row B, column 1"
    expect(cell(page, "Qm", "A", 0)).to_have_value("7")
    expect(cell(page, "Qm", "B", 0)).to_have_value("8")
    # F2 edits what is there; Escape takes it back.
    press(page, "ArrowLeft", "F2", "ArrowLeft")
    assert focused(page) == "Qm, row B, column 0"
    page.keyboard.type("1")
    expect(cell(page, "Qm", "B", 0)).to_have_value("18")
    press(page, "Escape")
    expect(cell(page, "Qm", "B", 0)).to_have_value("8")
    # Where nothing was typed, Tab leaves the matrix for the next one: no keyboard trap.
    press(page, "Tab")
    assert focused(page).startswith("Km, row")


def test_a_block_from_a_spreadsheet_is_pasted(page: Page, show: Go) -> None:
    show(page)
    paste(cell(page, "pos", "@1", "@1"), "2\t3\t4\r\n5\t6\t7\r\n")
    block = page.locator('.sheet[data-matrix="pos"] td[data-edited="true"] input')
    expect(block).to_have_count(6)
    assert [each.input_value() for each in block.all()] == ["2", "3", "4", "5", "6", "7"]
    page.get_by_role("button", name="Undo").click()
    expect(block).to_have_count(0)


def test_a_refused_number_is_marked_with_the_reason_and_the_designs_counts(
    page: Page, show: Go
) -> None:
    show(page)
    target = cell(page, "Vm", "A", "output")
    target.click()
    page.keyboard.type("-3")
    expect(page.get_by_role("button", name="Undo")).to_be_enabled()
    eventually(page, lambda: numbers(page, "V,")[1, 0] == -3)
    target.click()
    page.keyboard.type("0,5")
    expect(target).to_have_attribute("aria-invalid", "true")
    expect(page.locator('.sheet[data-matrix="Vm"] .cell-line')).to_contain_text(
        "Use a decimal point"
    )
    expect(page.get_by_role("button", name="Download head.json")).to_be_disabled()
    eventually(page, lambda: numbers(page, "V,")[1, 0] == -1)
    press(page, "Control+a")
    page.keyboard.type("abc")
    expect(page.locator('.sheet[data-matrix="Vm"] .cell-line')).to_contain_text("Not a number")
    press(page, "Control+a")
    page.keyboard.type("0.5")
    expect(target).to_have_attribute("aria-invalid", "false")
    eventually(page, lambda: numbers(page, "V,")[1, 0] == 0.5)


def test_numbers_that_cannot_be_computed_with_are_refused_with_the_reason(
    page: Page, show: Go, watch: Any
) -> None:
    watch.forgive("status of 422")
    show(page)
    before = numbers(page, "Scores")
    for name in ("Km", "Qm"):
        cell(page, name, "A", 0).click()
        page.keyboard.type("1e200")
    expect(page.locator(".design .fault")).to_contain_text("Scale Km or Qm down")
    # The last numbers that could be computed stay, and are marked as such.
    expect(page.locator(".certificate")).to_have_attribute("data-stale", "true")
    assert np.isfinite(numbers(page, "Scores")).all()
    assert numbers(page, "Scores").shape == before.shape


def test_undo_and_redo_by_key_and_by_button(page: Page, show: Go) -> None:
    show(page)
    target = cell(page, "Km", "A", 0)
    edits = page.locator(".edits")
    target.click()
    page.keyboard.type("25")
    press(page, "ArrowRight")
    page.keyboard.type("4")
    expect(edits).to_have_text("2 cells edited")
    # The two letters of "25" are one step.
    press(page, "Control+z")
    expect(edits).to_have_text("1 cell edited")
    press(page, "Control+z")
    expect(edits).to_have_text("As designed")
    expect(target).to_have_value("1")
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    press(page, "Control+Shift+Z", "Control+Shift+Z")
    expect(edits).to_have_text("2 cells edited")
    expect(target).to_have_value("25")
    # The verdict above comes to its end first: it moves the buttons.
    expect(page.locator(".glassformer [data-busy=true]")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(edits).to_have_text("1 cell edited")
    page.get_by_role("button", name="Redo").click()
    # What was done is kept while another tab is looked at.
    page.get_by_role("tab", name="Attention").click()
    page.get_by_role("tab", name="Design").click()
    expect(edits).to_have_text("2 cells edited")
    page.get_by_role("button", name="Back to the design").click()
    expect(edits).to_have_text("As designed")
    expect(verdict(page)).to_have_text("Holds")
    page.get_by_role("button", name="Undo").click()
    expect(edits).to_have_text("2 cells edited")


def test_edits_are_in_the_address(page: Page, open_page: Open, show: Go) -> None:
    show(page)
    cell(page, "Vm", "CLS", "output").click()
    page.keyboard.type("-1")
    expect(verdict(page)).to_have_text("Fails")
    expect(page).to_have_url(re.compile(r"Vm\.3\.0"))
    other = open_page()
    other.goto(page.url)
    expect(cell(other, "Vm", "CLS", "output")).to_have_value("\u22121")
    expect(cell(other, "Vm", "CLS", "output")).to_have_attribute(
        "aria-label", "Vm, row CLS, column output, edited"
    )
    expect(verdict(other)).to_have_text("Fails")


def test_a_head_that_is_read_rightly_and_fails_says_what_does_not_hold(
    page: Page, show: Go
) -> None:
    show(page, model="identity", text="ABC", cells='{"Vm.0.0": "0.9"}')
    expect(verdict(page)).to_have_text("Fails")
    certificate = page.locator(".certificate")
    expect(certificate).to_contain_text("1,092 of 1,092 sequences were run")
    expect(certificate).to_contain_text("6,015 of 6,015")
    expect(certificate.locator(".verdict p")).to_contain_text(
        "Each output reads right, but one is off by 0.1. Required: every error at most 0.001."
    )


def test_the_downloaded_weights_are_those_that_verify_reads(
    page: Page, show: Go, tmp_path: Path
) -> None:
    show(page)
    cell(page, "Qm", "@0", 5).click()
    page.keyboard.type("-120.125")
    press(page, "Enter")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download head.json").click()
    assert waiting.value.suggested_filename == "head.json"
    path = tmp_path / "head.json"
    waiting.value.save_as(path)
    read = read_head(path)
    expected = changed(design(unique()).weights, "Qm", 5, 5, -120.125)
    for name, matrix in expected.matrices.items():
        np.testing.assert_array_equal(read.matrices[name], matrix)
    proof = verify(read, unique())
    expect(verdict(page)).to_have_text(proof.verdict.capitalize())


def test_a_file_of_weights_is_loaded_also_with_other_sizes(
    page: Page, show: Go, tmp_path: Path
) -> None:
    show(page, text="ABA")
    random = np.random.default_rng(0)
    keys, queries, values, places = (
        random.normal(size=size).round(3) for size in ((6, 2), (6, 2), (6, 1), (5, 2))
    )
    weights = HeadWeights(keys, queries, values, places)
    write_head(weights, tmp_path / "mine.json")
    page.get_by_label("Weights to load").set_input_files(tmp_path / "mine.json")
    expect(page.locator(".edits")).to_contain_text("other sizes")
    expect(page.locator('.sheet[data-matrix="Km"] td input')).to_have_count(12)
    eventually(page, lambda: numbers(page, "K,").shape[1] == 2)
    check_numbers(page, weights, "ABA", has_cls=True)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator('.sheet[data-matrix="Km"] td input')).to_have_count(90)


NO_HEADS = (
    ("not json", "not JSON"),
    ("[]", "without names"),
    ('{"Km": [[1]], "Qm": [[1]]}', "Vm is missing"),
    ('{"Km": [[1, 2], [3]], "Qm": [[1]], "Vm": [[1]]}', "rows of different lengths"),
    ('{"Km": [["1"]], "Qm": [[1]], "Vm": [[1]]}', "Km holds"),
    ('{"Km": [[1]], "Qm": [[1]], "Vm": [[1]]}', "Km of 1 rows"),
    ('{"Km": [[1]], "Qm": [[1]], "Vm": [[1]], "Wm": [[1]]}', "a matrix named Wm"),
    ('{"Km": [[' + ", ".join("1" * 900) + "]]}", "Qm is missing"),
    ('{"Km": [[' + ", ".join("1" * 5000) + "]]}", "more than"),
    (" " * (2**20 + 1), "bytes"),
)


def test_a_file_that_is_no_head_is_refused_with_the_reason(page: Page, show: Go) -> None:
    show(page)
    for text, reason in NO_HEADS:
        page.get_by_label("Weights to load").set_input_files(
            {"name": "head.json", "mimeType": "application/json", "buffer": text.encode()}
        )
        expect(page.locator(".design .fault")).to_contain_text(reason, ignore_case=True)
        expect(page.locator(".edits")).to_have_text("As designed")


def test_one_position_is_followed_through_every_table(page: Page, show: Go) -> None:
    show(page)
    group = page.get_by_role("group", name="Follow a position")
    group.get_by_role("button", name="C at @2").click()
    story = page.locator(".design .story")
    expect(story).to_contain_text("CLS")
    expect(story).to_contain_text("which reads +1: \u2713 as expected")
    assert page.locator('.design tr[data-on="true"] th').all_text_contents() == ["C@2"] * 5
    # A row that is pointed at is shown in all tables, too; a click on it chooses it.
    page.locator(".chain-step").first.get_by_role("row", name=re.compile("^B@1")).hover()
    assert page.locator('.design tr[data-on="true"] th').all_text_contents() == ["B@1"] * 5
    expect(story).to_contain_text("C@2")
    page.mouse.move(0, 0)
    expect(page.locator('.design tr[data-on="true"] th').first).to_have_text("C@2")
    group.get_by_role("button", name="C at @2").focus()
    press(page, "ArrowRight")
    expect(group.locator('[aria-pressed="true"]')).to_contain_text("A@3")
    expect(story).to_contain_text("which reads -1: \u2713 as expected")
    expect(page).to_have_url(re.compile("pin=4"))
    show(page, model="identity", exercise="true", text="ABCABC")
    expect(story).to_contain_text("16.7 % A@3, 33.3 % for the rest.")


def test_the_four_columns_stand_beside_each_other_on_a_narrow_window(
    open_page: Open, show: Go
) -> None:
    page = open_page(viewport={"width": 1280, "height": 900})
    show(page)
    boxes = [box for stage in page.locator(".design .stage").all() if (box := stage.bounding_box())]
    assert len(boxes) == 4
    assert len({box["y"] for box in boxes}) == 1
    target = cell(page, "Km", "A", 0).bounding_box()
    assert min(target["width"], target["height"]) >= 24


def test_a_number_is_seen_whole(page: Page, show: Go) -> None:
    show(page)
    cell(page, "Km", "A", 0).click()
    for row, typed, seen in (
        ("A", "-0.25", "\u22120.25"),
        ("B", "12345.5", "12346"),
        ("C", "-0.0000125", "~0"),
    ):
        page.keyboard.type(typed)
        press(page, "Enter")  # which goes on to the row below
        expect(cell(page, "Km", row, 0)).to_have_value(seen)
    cut = (
        "cells => cells.filter(each => each.scrollWidth > each.clientWidth).map(each => each.value)"
    )
    assert page.locator(".design td input").evaluate_all(cut) == []


def test_long_numbers_and_wrong_texts_do_not_widen_the_page(open_page: Open, show: Go) -> None:
    page = open_page(viewport={"width": 1280, "height": 900})
    show(page)
    for name in ("Km", "Qm"):
        block = "\n".join("\t".join(["-0.25"] * 10) for _ in range(9))
        paste(cell(page, name, "A", 0), block)
        expect(cell(page, name, "@3", 9)).to_have_value("\u22120.25")
    check_fits(page)
    cell(page, "Km", "A", 0).focus()
    page.keyboard.type("no number at all, " * 6)
    press(page, "Enter")
    check_fits(page)


@pytest.mark.slow
def test_attention_is_that_of_the_edited_head(page: Page, show: Go, open_page: Open) -> None:
    show(page)
    before = page.locator(".said").inner_text()
    for row in "ABC":
        cell(page, "Qm", row, 9).click()
        page.keyboard.type("500")
        page.keyboard.press("Enter")
    expect(page.locator(".said")).not_to_have_text(before)
    settled(page)
    weights = design(unique()).weights
    head = NumpyHead(changed(weights, "Qm", slice(3), 9, 500))
    task = unique()
    x = task.cases(task.space.block([task.space.encode("ABCA")])).inputs[0]
    expected = head.trace(x).weights
    plain = NumpyHead(weights).trace(x).weights
    assert page.locator(".said").inner_text() == " ".join(f"{each:+.2g}" for each in head(x)[1:, 0])
    page.get_by_role("tab", name="Attention").click()
    settled(page)
    other = open_page()
    other.goto(page.url)
    settled(other)
    for each in (page, other):
        shown = matrix_on(each, len(x))
        np.testing.assert_allclose(shown, expected, atol=6e-4)
        assert np.abs(shown - plain).max() > 0.5


def matrix_on(page: Page, count: int) -> np.ndarray:
    """Every weight of the matrix, as the page tells it where the keyboard goes."""
    cells = page.get_by_role("application")
    cells.focus()
    cells.press("Escape")
    rows = []
    for query in range(count):
        for press in (
            ["ArrowRight", *["ArrowLeft"] * count]
            if query == 0
            else ["ArrowDown", *["ArrowLeft"] * count]
        ):
            cells.press(press)
        row = [shown_value(page)]
        for _ in range(count - 1):
            cells.press("ArrowRight")
            row.append(shown_value(page))
        rows.append(row)
    return np.array(rows)


def test_weights_that_cannot_be_run_with_are_told_once(page: Page, show: Go, watch: Any) -> None:
    watch.forgive("status of 4")
    show(page)
    for name in ("Km", "Qm"):
        cell(page, name, "A", 0).click()
        page.keyboard.type("1e300")
        page.keyboard.press("Enter")
    expect(page.locator(".fault")).to_have_count(1)
    page.get_by_role("tab", name="Attention").click()
    expect(page.locator(".fault")).to_have_count(1)
    page.go_back()
    page.get_by_role("button", name="Back to the design").click()
    expect(page.locator(".fault")).to_have_count(0)
    expect(page.locator(".said")).to_have_text("-1 +1 +1 -1")
