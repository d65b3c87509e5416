"""The PDF of a notebook: what stands in it, that formulas are set, that no character is lost
without a word.
"""

import base64
import io
import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from glassformer.labs.notebook_pdf import notebook_pdf, typst_source
from refusals import refused

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
DAY = date(2026, 3, 31)


def markdown(*texts: str) -> dict[str, Any]:
    return {"cells": [{"cell_type": "markdown", "source": text} for text in texts]}


def code(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cells": [{"cell_type": "code", "source": source, "outputs": list(outputs)}]}


def shown(**data: str) -> dict[str, Any]:
    names = {
        "png": "image/png",
        "markdown": "text/markdown",
        "plain": "text/plain",
        "check": "application/vnd.x+json",
    }
    return {
        "output_type": "display_data",
        "data": {names[name]: value for name, value in data.items()},
    }


def printed(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def calls(source: str) -> list[tuple[str, str]]:
    """The calls of the template's functions, each with its argument."""
    body = source.partition("#let picture")[2]
    return [
        (name, json.loads(text))
        for name, text in re.findall(r'^#(\w+)\((".*")\)$', body, re.MULTILINE)
    ]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_executed_notebook_becomes_a_pdf(path: Path) -> None:
    """pandoc translates each formula, Typst accepts the result, and no character lacks a glyph."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        cell["source"] = "".join(cell["source"])
        for output in cell.get("outputs", ()):
            output["text"] = "".join(output.get("text", ""))
            output["data"] = {
                kind: value if isinstance(value, dict) else "".join(value)
                for kind, value in output.get("data", {}).items()
            }
    pages = notebook_pdf(content, "Ann", DAY)
    assert pages.startswith(b"%PDF-")
    pictures = sum(
        "image/png" in output["data"]
        for cell in content["cells"]
        for output in cell.get("outputs", ())
    )
    assert pages.count(b"/Subtype /Image") >= pictures
    assert pages == notebook_pdf(content, "Ann", DAY)


def test_cells_and_what_they_show_stand_in_order(tmp_path: Path) -> None:
    stored = io.BytesIO()
    Image.new("RGB", (4, 3)).save(stored, "png")
    picture = base64.b64encode(stored.getvalue()).decode()
    cell = code(
        'print("a\\n", b)  # \\! ```\n\n',
        printed("one\ntwo\n"),
        shown(png=picture, plain="<Figure>"),
        shown(check="{}", plain="right"),
        shown(markdown="*words*", plain="<Markdown>"),
    )
    source = typst_source(cell, tmp_path, "Ann", DAY)
    assert calls(source) == [
        ("source", 'print("a\\n", b)  # \\! ```'),
        ("printed", "one\ntwo"),
        ("picture", "0-1.png"),
        ("printed", "right"),
    ]
    assert source.rstrip().endswith("#emph[words]")
    assert (tmp_path / "0-1.png").read_bytes() == stored.getvalue()
    assert notebook_pdf(cell, "Ann", DAY).startswith(b"%PDF-")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        (" 10%\r 50%\r100%\ndone\n", "100%\ndone"),
        ("a\r\nb", "a\nb"),
        ("bell\x07 and\ttab", "bell and\ttab"),
        ('"quoted" \\ #panic()', '"quoted" \\ #panic()'),
    ],
)
def test_output_is_what_a_terminal_shows(output: str, expected: str, tmp_path: Path) -> None:
    assert calls(typst_source(code("1", printed(output)), tmp_path, "Ann", DAY))[1] == (
        "printed",
        expected,
    )


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"$\mathrm{f}\!\left(\frac{a}{b}\right)$", "$upright(f) (a / b)$"),
        (r"$$x_t \ge 2$$", "$ x_t gt.eq 2 $"),
        (r"$\begin{pmatrix}0\\ \ln 3\end{pmatrix}$", "$vec(0, ln 3)$"),
    ],
)
def test_formulas_are_formulas(formula: str, expected: str, tmp_path: Path) -> None:
    body = typst_source(markdown(formula), tmp_path, "Ann", DAY)
    assert body.rstrip().endswith(expected)


def test_folded_hints_are_left_out(tmp_path: Path) -> None:
    hint = "before\n\n<details><summary>Hint 1</summary>\n\nthe hint\n\n</details>\n\nafter"
    body = typst_source(markdown(hint), tmp_path, "Ann", DAY)
    assert "before" in body
    assert "after" in body
    assert "int" not in body.partition("before")[2]


def test_the_file_names_its_author_and_day(tmp_path: Path) -> None:
    source = typst_source(markdown("# Title"), tmp_path, 'Ann "A" \\', DAY)
    assert (
        source.splitlines()[0]
        == r'#set document(author: "Ann \"A\" \\", date: datetime(year: 2026, month: 3, day: 31))'
    )


def test_a_character_without_a_glyph_is_refused() -> None:
    private = "\U000f1234"
    with refused("without a glyph", fix="font"):
        notebook_pdf(markdown(f"# {private}"), "Ann", DAY)
    with refused("without a glyph"):
        notebook_pdf(code(f'print("{private}")'), "Ann", DAY)
