"""The command lines of the README and of the site's pages can be typed as they stand.

Each is one that its command's parser accepts. Blocks also run, each alone in an empty directory,
with `mine.py` as a page shows it; `<!-- not run: WHY -->` marks one that does not. Nothing is
served.
"""

import gc
import io
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from glassformer.cli import main as command
from glassformer.cli import train_flags
from glassformer.explorer import server
from test_readme import DOCS, GENERATED, ROOT, samples, skip_without_models

FENCE = re.compile(
    r"(?:^<!-- ([^\n]*) -->\n)?^```(?:sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
INLINE = re.compile(r"(?<!`)`(glassformer [a-z-]+ [^`\n]*--[^`\n]+)`")
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if not GENERATED & set(page.parents)),
]
MINE = next(
    code for _, _, code, _ in samples(DOCS / "programs.md") if "vocabulary, max_len" in code
)


def command_lines(shell: str) -> list[list[str]]:
    """The words behind each ``glassformer``, up to a pipe or a redirection."""
    found = []
    for line in shell.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.wordchars += "*"
        words = list(reader)
        if "glassformer" in words and words[0] != "pip":
            rest = words[words.index("glassformer") + 1 :]
            ends = [place for place, word in enumerate(rest) if set(word) <= set("|><&;")]
            found.append(rest[: min(ends, default=None)])
    return found


BLOCKS = [
    pytest.param(
        match[2], match[1] or "", id=f"{page.stem} {text.count(chr(10), 0, match.start(2)) + 1}"
    )
    for page in PAGES
    if (text := page.read_text(encoding="utf-8"))
    for match in FENCE.finditer(text)
    if command_lines(match[2])
]
WRITTEN = {line for page in PAGES for line in INLINE.findall(page.read_text(encoding="utf-8"))}
LINES = [
    words
    for text in (*sorted(WRITTEN), *(block.values[0] for block in BLOCKS))
    for words in command_lines(text)
]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_its_command_accepts_the_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        train_flags, "_flags_of", lambda run: train_flags.TrainFlags(data="recurrence", run=run)
    )
    with nullcontext() if "--help" not in words else pytest.raises(SystemExit, match=r"^0$"):
        command.parse(words[0], words[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "mark"), [block for block in BLOCKS if not block.values[1].startswith("not run: ")]
)
def test_a_block_runs(
    shell: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_models('"smollm2"' if "smollm2" in shell else "")
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(server, "serve", lambda backend, listener, *_, **__: listener.close())
    assert [command.main(words) for words in command_lines(shell)] == [0] * len(
        command_lines(shell)
    )
