"""What the tests of the design view share: opening a head, its cells, and its weights with one number changed."""

from playwright.sync_api import Locator, Page, expect

from glassformer.handcraft.single_head import HeadWeights

from .conftest import Go

UNIQUE = {"model": "unique", "view": "design", "text": "ABCA"}


def showing(go: Go) -> Go:
    """``show(page, text="AB")``: the head that finds unique letters, in this view."""

    def show(page: Page, **state: object) -> None:
        go(page, **{**UNIQUE, **state})
        expect(page.get_by_role("region", name="Certificate")).to_be_visible()

    return show


def cell(page: Page, name: str, row: str, column: str | int) -> Locator:
    return page.get_by_label(f"{name}, row {row}, column {column}")


def changed(weights: HeadWeights, name: str, row: int, column: int, number: float) -> HeadWeights:
    matrices = {key: matrix.copy() for key, matrix in weights.matrices.items()}
    matrices[name][row, column] = number
    return HeadWeights(**matrices)
