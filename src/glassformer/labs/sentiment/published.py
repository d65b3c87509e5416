"""Sections of the lab's published report, which the lesson quotes."""

import re
from pathlib import Path

# The paths in a wheel and in a checkout.
_PATHS = (
    Path(__file__).with_name("report.md"),
    Path(__file__).parents[4] / "docs" / "labs" / "sentiment" / "report.md",
)


def published(heading: str) -> str:
    """Return the section of the report under a heading, in Markdown."""
    text = next(path for path in _PATHS if path.exists()).read_text(encoding="utf-8")
    section = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL
    )
    assert section is not None, f"the report has no section {heading}"
    return section[1].strip()
