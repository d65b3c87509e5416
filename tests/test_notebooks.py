"""The notebooks: executed as they stand, with the sources and reports of today, without measured numbers in prose."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

jupytext = pytest.importorskip("jupytext")

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
# A share, or a number with decimals.
NUMBER = re.compile(r"(?<![\w.,/-])[-+−]?\d[\d,]*(?:\.\d+)? ?%|(?<![\w.,/-])[-+−]?\d[\d,]*\.\d+(?![\w.]*\w)")


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """The notebook's cells of a kind."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def text(cell: dict[str, Any]) -> str:
    """What stands in a cell, or in a part of its output."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def shown(path: Path) -> list[str]:
    """The Markdown that the notebook's cells have displayed."""
    found = []
    for cell in cells(path, "code"):
        for output in cell["outputs"]:
            markdown = output.get("data", {}).get("text/markdown", "")
            found.append(markdown if isinstance(markdown, str) else "".join(markdown))
    return [each for each in found if each]


@cache
def sources() -> str:
    """All Python code, without indentation and empty lines."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "notebooks").glob("*.py")]
    return "\n".join(map(flat, (file.read_text(encoding="utf-8") for file in files)))


def flat(code: str) -> str:
    """Its lines without indentation, and without empty ones."""
    return "\n".join(filter(None, map(str.strip, code.splitlines())))


@cache
def reports() -> str:
    """The published reports."""
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "labs").glob("*/report.md")))


def stale_code(path: Path) -> list[str]:
    """Code blocks that it shows and that are nowhere in the sources."""
    blocks = [block for markdown in shown(path) for block in CODE.findall(markdown)]
    pieces = [piece for block in blocks for piece in re.split(r"\n{2,}(?=\S)", block)]
    return [piece for piece in pieces if flat(piece) and flat(piece) not in sources()]


def stale_report(path: Path) -> list[str]:
    """Lines that it quotes from a report and that no report has, of what is not code."""
    quoted = [markdown for markdown in shown(path) if "```python" not in markdown]
    known = {line.strip() for line in reports().splitlines()}
    lines = {line.strip().lstrip("# ") for markdown in quoted for line in markdown.splitlines()}
    return sorted(line for line in lines if line and line not in known and f"## {line}" not in reports())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_the_execution_of_its_script(path: Path) -> None:
    script = jupytext.read(path.with_suffix(".py"))
    stored = [(cell["cell_type"], text(cell).strip()) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    assert stored == [(cell.cell_type, cell.source.strip()) for cell in script.cells]
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_shows_todays_sources(path: Path) -> None:
    assert stale_code(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_quotes_todays_report(path: Path) -> None:
    assert stale_report(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_measured_number_is_typed_into_prose(path: Path) -> None:
    """A share or a number with decimals in prose is a setting, marked as code or in it; what is measured is printed."""
    code = "\n".join(text(cell) for cell in cells(path, "code"))
    prose = [
        re.sub(r"`[^`]*`|^#.*$|sections? [\d.]+( to [\d.]+)?", "", text(cell), flags=re.MULTILINE | re.IGNORECASE)
        for cell in cells(path, "markdown")
    ]
    typed = [number for each in prose for number in NUMBER.findall(each)]
    assert [number for number in typed if number.strip("+-−") not in code] == []
