"""Converts a notebook to PDF: pandoc turns its Markdown and formulas into Typst, which sets pages.

Both are Python packages and include fonts; no browser, LaTeX or network is needed. The files are
PDF/A-2b, which requires embedded fonts and a glyph for every character.
"""

import base64
import json
import re
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glassformer.errors import InputError, naming_extras

with naming_extras("hand-in"):
    import pypandoc
    import typst

_TEMPLATE = Path(__file__).with_suffix(".typ")
_MARKDOWN = "gfm+tex_math_dollars+raw_attribute"
_FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
_FORMULA = re.compile(r"(?<!\\)\$[^$]+\$")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OVERWRITTEN = re.compile(r"^.*\r(?!$)", re.MULTILINE)


def require_pandoc() -> None:
    """Raise :class:`InputError` if pypandoc is installed without pandoc."""
    try:
        pypandoc.get_pandoc_version()
    except OSError as error:
        raise InputError(
            got="no pandoc",
            expected="pandoc, which converts a notebook to PDF",
            fix="Run: pip install 'glassformer[hand-in]'.",
        ) from error


def notebook_pdf(notebook: dict[str, Any], author: str, day: date) -> bytes:
    """Convert an executed notebook (nbformat 4) to PDF.

    Folded hints (``<details>``) are left out. An output with several forms is shown as a picture,
    else as Markdown, else as plain text. The same arguments give the same bytes.

    Args:
        notebook: A notebook without errors among its outputs.
        author: Author in the file's metadata.
        day: Date in the file's metadata.

    Raises:
        InputError: If a character has no glyph in the fonts of Typst and of this machine.
    """
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        page = folder / "notebook.typ"
        page.write_text(typst_source(notebook, folder, author, day), encoding="utf-8")
        try:
            return typst.compile(str(page), pdf_standards="a-2b")
        except typst.TypstError as error:
            missing = sorted(
                set(re.findall(r'the text `"(.*?)"` could not be displayed', error.diagnostic))
            )
            if not missing:
                raise
            raise InputError(
                got=f"characters without a glyph: {' '.join(missing[:10])}",
                expected="text that the fonts of this machine can draw",
                fix=(
                    "Install a font that has them, such as one of Google's Noto fonts, or write "
                    "other characters."
                ),
            ) from error


def typst_source(notebook: dict[str, Any], folder: Path, author: str, day: date) -> str:
    """Convert a notebook to Typst's language; pictures are written to ``folder``."""
    blocks: list[str] = []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "markdown":
            blocks.append(_markdown(cell["source"]))
            continue
        blocks.append(_typst_call("source", cell["source"].rstrip()))
        for position, output in enumerate(cell["outputs"]):
            blocks.append(_output(output, folder / f"{number}-{position}.png"))
    body = pypandoc.convert_text(
        "\n\n".join(blocks), "typst", format=_MARKDOWN, extra_args=["--wrap=none"]
    )
    typst_date = f"datetime(year: {day.year}, month: {day.month}, day: {day.day})"
    typst_author = json.dumps(author, ensure_ascii=False)
    metadata = f"#set document(author: {typst_author}, date: {typst_date})"
    return "\n".join([metadata, _TEMPLATE.read_text(encoding="utf-8"), body])


def _markdown(text: str) -> str:
    r"""Return Markdown without folded hints and without ``\!`` in formulas."""
    # pandoc makes \! a space of -1 em instead of -1/6 em: neighbours would overlap.
    return _FORMULA.sub(lambda formula: formula[0].replace(r"\!", ""), _FOLDED.sub("", text))


def _output(output: dict[str, Any], picture: Path) -> str:
    """Convert an output to Markdown; an image is written to ``picture``."""
    if output["output_type"] == "stream":
        return _typst_call("printed", output["text"].rstrip("\n"))
    data = output["data"]
    if "image/png" in data:
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return _typst_call("picture", picture.name)
    if "text/markdown" in data:
        return _markdown(data["text/markdown"])
    return _typst_call("printed", data["text/plain"])


def _typst_call(function: str, text: str) -> str:
    """Return a call of a template's function, as a Markdown block that pandoc copies verbatim."""
    # As on a terminal, a carriage return starts the line again.
    text = _OVERWRITTEN.sub("", _ESCAPES.sub("", text))
    text = _CONTROLS.sub("", text)
    # A JSON string without control characters is also a Typst string, on one line.
    return f"```{{=typst}}\n#{function}({json.dumps(text, ensure_ascii=False)})\n```"
