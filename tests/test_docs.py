"""The site builds without a warning, is self-contained and small, and its search finds what users look for."""

import json
import re
import subprocess
import sys
from pathlib import Path

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
MOST_WORDS, MOST_MEAN, MOST_SENTENCE, MOST_BYTES = 600, 25, 45, 40 * 10**6


def prose(page: Path) -> str:
    """A page without code, tables, formulas, headings and marks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^( {4}|\||#|<).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`", "code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def sentences(page: Path) -> list[int]:
    """The words of each sentence."""
    paragraphs = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", prose(page), flags=re.MULTILINE)
    each = [part for one in paragraphs for part in re.split(r"(?<=[.!?:;])\s+(?=[A-Z0-9\"(\[]|code)", one)]
    return [count for part in each if (count := len(re.findall(r"\w[\w'.,-]*", part)))]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_sentences_are_short(page: Path) -> None:
    found = sentences(page) or [0]
    assert max(found) <= MOST_SENTENCE
    assert sum(found) / len(found) <= MOST_MEAN


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_is_one_task(guide: str) -> None:
    assert len(prose(DOCS / f"{guide}.md").split()) <= MOST_WORDS


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx", "furo", "myst_nb"):
        pytest.importorskip(package, reason="no sphinx: pip install 'glassformer[dev]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", folder / "trees"]
    done = subprocess.run([*command, DOCS, folder / "site"], capture_output=True, text=True, timeout=900)
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
    assert 'rel="icon"' in (site / "index.html").read_text(encoding="utf-8")  # or else browsers ask for /favicon.ico


@pytest.mark.slow
def test_links_inside_the_site_lead_somewhere(site: Path) -> None:
    lost = []
    for page in site.rglob("*.html"):
        if page.parent.name in ("pages", "_static") or "_modules" in page.parts:  # listings are not prose
            continue
        links = re.findall(r"(?:href|src)=\"([^\"#]+)[^\"]*\"", page.read_text(encoding="utf-8"))
        here = [link.partition("?")[0] for link in links if not re.match(r"[a-z]+:|//", link)]
        lost += [f"{page.relative_to(site)}: {link}" for link in here if not (page.parent / link).exists()]
    assert lost == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "page"),
    [("ablate head", "intervene"), ("kv cache", "gpt-oss"), ("why does holds say", "concepts/certificates")],
)
def test_search_finds(site: Path, query: str, page: str) -> None:
    """As the site's search does: every word, or the beginning of it that stays after stemming, is on the page."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    found = None
    for word in query.split():
        places: set[int] = set()
        for kind in ("terms", "titleterms"):
            for term, at in index[kind].items():
                if word.startswith(term) or term.startswith(word):
                    places |= {at} if isinstance(at, int) else set(at)
        found = places if found is None else found & places
    assert page in {index["docnames"][place] for place in found or ()}
