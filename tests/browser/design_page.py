"""What the tests of the design view share: a head, its cells, and its weights with one number changed."""

from playwright.sync_api import Locator, Page

from glassformer.handcraft.single_head import HeadWeights

UNIQUE = {"model": "unique", "view": "design", "text": "ABCA"}


def cell(page: Page, name: str, row: str, column: str | int) -> Locator:
    return page.get_by_label(f"{name}, row {row}, column {column}")


def changed(weights: HeadWeights, name: str, row: int, column: int, number: float) -> HeadWeights:
    matrices = {key: matrix.copy() for key, matrix in weights.matrices.items()}
    matrices[name][row, column] = number
    return HeadWeights(**matrices)
