"""The site: `make docs`."""

import json
import re
import sys
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from glassformer import __version__  # noqa: E402
from glassformer.cli.main import COMMANDS, main  # noqa: E402

project = "glassformer"
copyright = "the glassformer developers"
version = release = __version__
html_title = f"glassformer {version}"
html_theme = "furo"
# MathJax as one file without fonts, from a package that brings it along: nothing is loaded from
# other hosts.
mathjax_path = "tex-svg.js"
MATHJAX = str(
    Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax" / mathjax_path
)
html_static_path = ["_static", MATHJAX]
html_css_files = ["site.css"]
html_favicon = "../src/glassformer/explorer/page/icon.svg"
html_extra_path = ["build/extra"]
html_copy_source = False
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks are executed by `make notebooks`
exclude_patterns = ["build"]
# Two packages may each have a Record; a check of a lesson leaves a record for grading beside its
# text.
suppress_warnings = ["ref.python", "mystnb.unknown_mime_type"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Matplotlib writes a method "set" into each figure class, with a docstring in roles of its own
# site.
autodoc_default_options = {"members": True, "show-inheritance": True, "exclude-members": "set"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

LIVE = ("unique", "induction", "lookup-facts", "sentiment", "program-sort")
"""Bundled models whose pages are part of guides."""


def _links_inside(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to notebooks and to the details of benchmarks lead to their pages on the site."""
    text = (
        source[0]
        .replace("../notebooks/", "tutorials/")
        .replace("../benchmarks/README.md", "details/benchmarks.md")
    )
    source[0] = text.replace("../benchmarks/", "details/")


def setup(app: Sphinx) -> None:
    """Sphinx calls this first: commands print their page, notebooks become tutorials, bundled
    models are saved.
    """
    sections = []
    for name in COMMANDS:
        with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
            main([name, "--help"])
        sections.append(f"## {name}\n\n```text\n{printed.getvalue().rstrip()}\n```\n")
    app.connect("source-read", _links_inside)
    (ROOT / "docs/build").mkdir(exist_ok=True)
    (ROOT / "docs/build/commands.md").write_text("\n".join(sections), encoding="utf-8")
    tutorials = ROOT / "docs/tutorials"
    tutorials.mkdir(exist_ok=True)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        content = json.loads(notebook.read_text(encoding="utf-8").replace("](../docs/", "](../"))
        # A page has one title: further headings of the first level go one down.
        for cell in [cell for cell in content["cells"] if cell["cell_type"] == "markdown"][1:]:
            cell["source"] = re.sub(r"(?m)^# ", "## ", "".join(cell["source"]))
        (tutorials / notebook.name).write_text(json.dumps(content), encoding="utf-8")
    details = ROOT / "docs/details"
    details.mkdir(exist_ok=True)
    for name, title in (("README", "benchmarks"), ("tracr", "tracr")):
        text = (ROOT / f"benchmarks/{name}.md").read_text(encoding="utf-8")
        # The site has no pages of programs and their results.
        text = re.sub(r"\[([^\]]*)\]\((?!http|#|\.\./docs/)[^)]*\)", r"\1", text)
        (details / f"{title}.md").write_text(text.replace("](../docs/", "](../"), encoding="utf-8")
    pages = ROOT / "docs/build/extra/pages"
    pages.mkdir(parents=True, exist_ok=True)
    for model in LIVE:
        if not (pages / f"{model}.html").exists():
            with suppress(SystemExit):
                main(["explore", model, "--save", str(pages / f"{model}.html")])
