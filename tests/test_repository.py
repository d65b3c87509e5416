"""The repository: nothing is unpickled, versions agree, links lead somewhere."""

import re
from pathlib import Path
from typing import get_args

import pytest

from glassformer.explorer.messages import View

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "glassformer"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])

UNPICKLES = re.compile(
    r"torch\.load\(|\bpickle\b|(?<![.\w])eval\(|(?<![.\w])exec\(|weights_only\s*=\s*False"
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# Words that a translated text uses where English has a term. Phrases may be wrapped, in comments
# too.
UNCLEAR = (
    *(
        "mend",
        "mends",
        "mended",
        "mending",
        "somebody",
        "nobody",
        "whoever",
        "stranger",
        "strangers",
    ),
    *("come along", "comes along", "that there is not", "how manieth", "what it minds"),
)
UNCLEAR_WORDS = re.compile(
    r"\b(" + "|".join(words.replace(" ", r"\s+(?:[#*/]+\s+)?") for words in UNCLEAR) + r")\b",
    re.IGNORECASE,
)
TEXTS = sorted(
    [
        *(path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".md", ".j2", ".toml"}),
        *(
            path
            for path in (ROOT / "web" / "src").rglob("*")
            if path.suffix in {".ts", ".css", ".html"}
        ),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    ]
)
# Sentences that the sentiment lab's probes classify.
PROBES = re.compile("Nobody could (dis)?like this")
HEADING = re.compile(r"^#+\s+(.+?)\s*$", re.MULTILINE)


def in_root(path: Path) -> str:
    """The path as it reads from the root of the repository."""
    return str(path.relative_to(ROOT))


def test_nothing_is_unpickled_or_evaluated() -> None:
    # PyTorch writes model.eval() for "switch to evaluation": a method call is not the builtin.
    assert [
        in_root(module)
        for module in MODULES
        if UNPICKLES.search(module.read_text(encoding="utf-8"))
    ] == []


def test_the_changelog_knows_what_comes_next() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def make_targets(path: str) -> set[str]:
    """The targets of make that a file calls."""
    return set(re.findall(r"\bmake ([a-z][a-z-]+)", (ROOT / path).read_text(encoding="utf-8")))


def test_pull_requests_are_held_to_what_a_change_must_pass() -> None:
    wanted = make_targets(".ci/run")
    assert make_targets(".github/workflows/pull-request.yml") == wanted
    assert wanted <= set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )


def anchors(page: Path) -> set[str]:
    """The fragments that headings of a page can be linked by, as GitHub forms them."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=in_root)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{link} leads nowhere"
        assert not fragment or fragment in anchors(target), f"{link} names no heading"


def test_unclear_words_are_not_used() -> None:
    found = []
    for path in TEXTS:
        text = PROBES.sub("", path.read_text(encoding="utf-8"))
        found += [
            f"{in_root(path)}:{text.count(chr(10), 0, match.start()) + 1}: "
            f"{' '.join(match[0].split())}"
            for match in UNCLEAR_WORDS.finditer(text)
        ]
    assert found == []


def test_the_styles_of_a_view_reach_no_other() -> None:
    views = ROOT / "web" / "src" / "views"
    sheets = list(views.rglob("*.css"))
    names = {sheet.relative_to(views).parts[0].removesuffix(".css") for sheet in sheets}
    assert {name.replace("-", "") for name in names} == set(get_args(View))
    for sheet in sheets:
        view = sheet.relative_to(views).parts[0].removesuffix(".css")
        text = re.sub(
            r"/\*.*?\*/|@media[^{]*\{", "", sheet.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        selectors = [
            each.strip() for rule in re.findall(r"([^{}]+)\{", text) for each in rule.split(",\n")
        ]
        own = rf"\.glassformer (\.{view}(?![\w-])|:is\(\.{view}, [^)]*\))"  # or views that it names
        assert [each for each in selectors if not re.match(own, each)] == []
