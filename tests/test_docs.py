"""The site builds without a warning, is self-contained and small, and its search finds what users
look for.
"""

import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GUIDES = (
    "capture",
    "explorer",
    "families",
    "gpt-oss",
    "handcraft",
    "intervene",
    "programs",
    "proofs",
    "sweep",
    "training",
)
WRITTEN = sorted({*DOCS.glob("*.md"), *DOCS.glob("compare/*.md"), *DOCS.glob("concepts/*.md")})
MOST_WORDS = 600
MOST_MEAN = 25
MOST_SENTENCE = 45
MOST_BYTES = 40 * 10**6


def prose(page: Path) -> str:
    """A page without code, tables, formulas, headings and marks."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    text = re.sub(r"^( {4}|\||#|<).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`", "code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def sentences(page: Path) -> list[int]:
    """The words of each sentence."""
    paragraphs = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", prose(page), flags=re.MULTILINE)
    each = [
        part
        for one in paragraphs
        for part in re.split(r"(?<=[.!?:;])\s+(?=[A-Z0-9\"(\[]|code)", one)
    ]
    return [count for part in each if (count := len(re.findall(r"\w[\w'.,-]*", part)))]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_sentences_are_short(page: Path) -> None:
    found = sentences(page) or [0]
    assert max(found) <= MOST_SENTENCE
    assert sum(found) / len(found) <= MOST_MEAN


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_is_one_task(guide: str) -> None:
    assert len(prose(DOCS / f"{guide}.md").split()) <= MOST_WORDS


def test_until_a_release_extras_are_installed_from_a_clone() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "no release on PyPI yet" in readme, "pages may name glassformer[...] from now on"
    pages = [*WRITTEN, ROOT / "README.md", *DOCS.glob("labs/*.md"), *ROOT.glob("notebooks/*.py")]
    assert [
        page
        for page in pages
        if re.search(r"pip install '?glassformer\b", page.read_text(encoding="utf-8"))
    ] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx", "furo", "myst_nb"):
        pytest.importorskip(package, reason="no sphinx: pip install 'glassformer[dev]'")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        folder / "trees",
    ]
    done = subprocess.run(
        [*command, DOCS, folder / "site"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "site"


@pytest.mark.slow
def test_the_site_is_small_and_loads_nothing_from_elsewhere(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    loads = re.compile(
        r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//"
    )
    pages = [path for path in files if path.suffix == ".html" and path.parent.name != "pages"]
    assert [path.name for path in pages if loads.search(path.read_text(encoding="utf-8"))] == []
    assert 'icon" href="_static/icon.svg"' in (site / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_links_inside_the_site_lead_somewhere(site: Path) -> None:
    lost = []
    for page in site.rglob("*.html"):
        if (
            page.parent.name in ("pages", "_static") or "_modules" in page.parts
        ):  # listings are not prose
            continue
        links = re.findall(r"(?:href|src)=\"([^\"#]+)[^\"]*\"", page.read_text(encoding="utf-8"))
        here = [link.partition("?")[0] for link in links if not re.match(r"[a-z]+:|//", link)]
        lost += [
            f"{page.relative_to(site)}: {link}"
            for link in here
            if not (page.parent / link).exists()
        ]
    assert lost == []


SEARCHES = {
    "ablate head": "intervene",
    "attention sink": "reference/glossary",
    "install": "start",
    "kv cache": "gpt-oss",
    "logit lens": "reference/glossary",
    "why does holds say": "proofs",
}


@pytest.mark.slow
def test_search_finds(site: Path) -> None:
    """The page is among the first three results that the site's own search shows in a browser."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install 'glassformer[dev]'"
    )
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=site)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = {}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        for query in SEARCHES:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/search.html?q={quote(query)}")
            page.locator(".search-summary", has_text="finished").wait_for()
            links = page.locator("ul.search > li > a").evaluate_all(
                "all => all.map(each => each.pathname)"
            )
            found[query] = [link.removeprefix("/").removesuffix(".html") for link in links[:3]]
        browser.close()
    server.shutdown()
    server.server_close()
    assert {query: pages for query, pages in found.items() if SEARCHES[query] not in pages} == {}
