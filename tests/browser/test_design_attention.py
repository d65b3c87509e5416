"""What the other views show of a hand-designed head whose numbers somebody has changed."""

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import unique

from .attention_page import shown_value
from .conftest import Go, Open, settled, showing
from .design_page import UNIQUE, cell

show = showing(".certificate", **UNIQUE)


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
    matrices = {key: matrix.copy() for key, matrix in weights.matrices.items()}
    matrices["Qm"][:3, 9] = 500
    head = NumpyHead(HeadWeights(**matrices))
    task = unique()
    x = task.cases(task.space.block([task.space.encode("ABCA")])).inputs[0]
    expected, plain = head.trace(x).weights, NumpyHead(weights).trace(x).weights
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
        for press in ["ArrowRight", *["ArrowLeft"] * count] if query == 0 else ["ArrowDown", *["ArrowLeft"] * count]:
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
