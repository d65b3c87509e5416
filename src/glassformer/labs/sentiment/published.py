"""Sections of the lab's published report, which the lesson quotes."""

import re
from pathlib import Path

# In a wheel, and in a checkout.
_PLACES = (
    Path(__file__).with_name("report.md"),
    Path(__file__).parents[4] / "docs" / "labs" / "sentiment" / "report.md",
)


def published(heading: str) -> str:
    """What stands under a heading of the report, in Markdown."""
    text = next(place for place in _PLACES if place.exists()).read_text(encoding="utf-8")
    section = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL
    )
    assert section is not None, f"the report has no section {heading}"
    return section[1].strip()
