"""The notebooks: executed as they stand, with the sources and reports of today, without measured
numbers in prose.
"""

import json
import math
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
NUMBER = re.compile(
    r"(?<![\w.,/-])[-+−]?\d[\d,]*(?:\.\d+)? ?%|(?<![\w.,/-])[-+−]?\d[\d,]*\.\d+(?![\w.]*\w)"
)


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """The notebook's cells of a kind."""
    return [
        cell
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == kind
    ]


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
    return "\n".join(
        page.read_text(encoding="utf-8")
        for page in sorted((ROOT / "docs" / "labs").glob("*/report.md"))
    )


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
    return sorted(
        line for line in lines if line and line not in known and f"## {line}" not in reports()
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_the_execution_of_its_script(path: Path) -> None:
    script = jupytext.read(path.with_suffix(".py"))
    stored = [
        (cell["cell_type"], text(cell).strip())
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]
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
    """A share or a number with decimals in prose is a setting, marked as code or in it; what is
    measured is printed.
    """
    code = "\n".join(text(cell) for cell in cells(path, "code"))
    prose = [
        re.sub(
            r"`[^`]*`|^#.*$|sections? [\d.]+( to [\d.]+)?",
            "",
            text(cell),
            flags=re.MULTILINE | re.IGNORECASE,
        )
        for cell in cells(path, "markdown")
    ]
    typed = [number for each in prose for number in NUMBER.findall(each)]
    assert [number for number in typed if number.strip("+-−") not in code] == []


FOLDED = {
    "gpt_oss": ["def compare("],
    "hand_designed": ["def panels(", "def spent("],
    "lookup": ["def plot_cross_attention("],
    "sentiment": ["def interval(", 'published("Takeaways")'],
}
# A number that is printed after these words bounds something, so it may only be rounded outwards.
BOUND = re.compile(
    r"\b(?:at most|at least|up to|more than|reach from) \{+[^{}]*?(?:\{[^{}]*\}[^{}]*?)*\}+"
)
NEAREST = re.compile(r':[+,]?\d*\.\d+[efg%]\}|\| ?format\(|"%\S+"\|format|percent\(')
LONG_NUMBER = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\w.,]*\d)")
LESSONS = ("gpt_oss", "hand_designed", "lookup", "sentiment")
# The notebook, a term, and the words that explain it, which have to come before any other use in
# code or output.
EXPLAINED = {
    "margin in a certificate": ("hand_designed", r"\n  margin +\d", r"Its \*margin\* is"),
    "bound in a certificate": ("hand_designed", r"\n  bound on error", r"\*bound on\s+error\*"),
    "shape of a mask": (
        "lookup",
        r"\[batch, 1, 1, position\]",
        r"mask as `\[batch, 1, 1, position\]`",
    ),
    "gradient norms": ("sentiment", r"positions back'", r"## 1.1 Attention by hand"),
}


def everything(path: Path) -> list[str]:
    """The source of each cell, with the text that a code cell has printed."""
    content = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        "\n".join(
            [text(cell), *("".join(output.get("text", "")) for output in cell.get("outputs", ()))]
        )
        for cell in content
    ]


def printed(name: str) -> str:
    """All text that a notebook's cells have printed."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    return "".join(
        "".join(output.get("text", ""))
        for cell in cells(path, "code")
        for output in cell["outputs"]
    )


def markdown(name: str) -> str:
    """The Markdown of a notebook."""
    return "\n".join(text(cell) for cell in cells(ROOT / "notebooks" / f"{name}.ipynb", "markdown"))


@pytest.mark.parametrize("name", FOLDED)
def test_helper_cells_are_folded(name: str) -> None:
    """In JupyterLab by source_hidden, on the documentation's site by the tag."""
    code = cells(ROOT / "notebooks" / f"{name}.ipynb", "code")
    for start in FOLDED[name]:
        (metadata,) = (cell["metadata"] for cell in code if start in text(cell))
        assert metadata["jupyter"]["source_hidden"], start
        assert "hide-input" in metadata["tags"], start
    for cell in code:
        folded = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        assert folded == ("hide-input" in cell["metadata"].get("tags", ()))
        assert not (folded and "nbgrader" in cell["metadata"]), "an exercise or a check"


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "notebooks").glob("*.py")),
        *sorted((ROOT / "src" / "glassformer" / "labs").glob("*/*.j2")),
    ],
    ids=lambda path: path.stem if path.suffix == ".py" else path.parent.name,
)
def test_bounds_are_printed_rounded_outwards(path: Path) -> None:
    source = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    assert [bound for bound in BOUND.findall(source) if NEAREST.search(bound)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_long_number_in_prose_is_a_setting_or_was_printed(path: Path) -> None:
    prose = "\n".join(text(cell) for cell in cells(path, "markdown"))
    others = re.sub(
        "[,_]", "", "\n".join(text(cell) for cell in cells(path, "code")) + printed(path.stem)
    )
    numbers = {
        number.replace(",", "")
        for number in LONG_NUMBER.findall(re.sub(r"^#.*$", "", prose, flags=re.M))
    }
    assert [number for number in sorted(numbers) if number not in others] == []


def test_a_printed_bound_is_not_below_the_bound() -> None:
    """The library's head for 26 letters and up to 64 positions: 63 wrong keys, each behind by the
    printed margin.
    """
    margin, bound = re.search(
        r"margin (?:at least )?(\S+); no output is off by more than (\S+)", printed("hand_designed")
    ).groups()
    assert float(bound) >= 63 * math.exp(-float(margin))


@pytest.mark.parametrize("name", LESSONS)
def test_a_check_is_not_said_to_show_the_smallest_case(name: str) -> None:
    """It shows the smallest among the cases that it tries."""
    teaching = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    for prose in (markdown(name), teaching):
        assert not re.search(
            r"smallest (case\s+(in|on) which|input (for|that)|one that fails)", prose
        )


@pytest.mark.parametrize("term", EXPLAINED)
def test_a_term_is_explained_before_it_is_used(term: str) -> None:
    name, use, explanation = EXPLAINED[term]
    parts = everything(ROOT / "notebooks" / f"{name}.ipynb")
    explained = next(number for number, part in enumerate(parts) if re.search(explanation, part))
    used = next(
        number for number, part in enumerate(parts) if re.search(use, part) and number != explained
    )
    assert explained < used


def test_sinks_are_explained_where_they_are_needed() -> None:
    parts = everything(ROOT / "notebooks" / "gpt_oss.ipynb")
    explained = next(number for number, part in enumerate(parts) if "GPT-OSS adds a *sink*" in part)
    exercise = next(number for number, part in enumerate(parts) if "def softmax_with_sink" in part)
    assert 0 < exercise - explained <= 4


def test_contradictions_of_the_original_exercises_are_named() -> None:
    assert "VOCAB['EOS']" in markdown("lookup")
    contradictions = markdown("gpt_oss").split("contradicts itself")[1]
    assert "coordinates 1 and 2, 3 and 4, ..." in contradictions
    assert "coordinates $i$ and $i + d/2$" in contradictions


@pytest.mark.parametrize("name", ["gpt_oss", "sentiment"])
def test_gradients_are_compared_where_the_lesson_says_so(name: str) -> None:
    """Some checks compare values alone, so the lesson may not promise gradients for every answer."""
    code = cells(ROOT / "notebooks" / f"{name}.ipynb", "code")
    verdicts = [
        "".join(output["data"].get("text/plain", ""))
        for cell in code
        if "check(" in text(cell)
        for output in cell["outputs"]
        if output["output_type"] == "display_data"
    ]
    assert any("values)" in verdict for verdict in verdicts)
    assert re.search(r"gradients (too|included) where\s+an\s+answer\s+has\s+any", markdown(name))


def test_the_sentiment_lesson_counts_its_exercises() -> None:
    path = ROOT / "notebooks" / "sentiment.ipynb"
    checks = [cell for cell in cells(path, "code") if text(cell).startswith("check(")]
    assert len(checks) == 13
    assert "You write thirteen short answers" in markdown("sentiment")


def test_four_ways_of_sampling_differ_where_the_model_knows_the_rule() -> None:
    lines = re.findall(
        r"knows the rule, t = (.+): rule ([\d.]+), plus one ([\d.]+)", printed("gpt_oss")
    )
    assert len(lines) == 4
    assert len({(rule, increment) for _, rule, increment in lines}) == 4
    (neutral,) = (
        (float(rule), float(increment))
        for setting, rule, increment in lines
        if setting == "1, top-p = 1"
    )
    assert neutral == pytest.approx((0.9, 0.1), abs=0.05)


def test_negations_that_word_counts_cannot_see_were_tried() -> None:
    unseen, tried = re.search(
        r"(\d+) of (\d+) negations .* leave the probabilities", printed("sentiment")
    ).groups()
    assert int(unseen) == int(tried) > 12
    assert re.search(
        r"^0 of 12 are in the transformer's vocabulary", printed("sentiment"), flags=re.MULTILINE
    )


def test_heads_of_a_layer_read_the_words_that_are_named() -> None:
    """The third sentence praises and blames; the lesson names the words that heads of layer 1 read
    most.
    """
    readings = re.findall(r"layer 1, what each head reads most: (.+)", printed("sentiment"))
    named = re.search(
        r"Which word a head of layer 1 reads most, (.+?), differs", markdown("sentiment"), re.DOTALL
    )[1]
    assert {reading.split()[0] for reading in readings[2].split(", ")} == set(
        re.findall(r"\*(\w+)\*", named)
    )


def test_one_name_and_both_names_are_hidden_apart() -> None:
    lines = dict(re.findall(r"the last token may not see (.+?): (.+)", printed("real_model")))
    assert list(lines) == ["the first name", "the name that returned", "either of the two"]
    assert len(set(lines.values())) == 3


def test_values_of_the_first_token_were_measured() -> None:
    rows = re.findall(
        r"^ *(\d+) +(\d+)% +([\d.]+) +([\d.]+) +([\d.]+)$",
        printed("real_model"),
        flags=re.MULTILINE,
    )
    late = [tuple(map(float, row[1:])) for row in rows if int(row[0]) >= 15]
    assert len(late) == 4
    assert all(
        share > 50 and stream > 5 and value < 1 and cosine > 0.98
        for share, stream, value, cosine in late
    )


def test_composition_alone_points_to_another_head() -> None:
    """Head 0.0 has more K-composition with 1.1 than 0.3, which is the one that cannot be removed."""
    composition = cells(ROOT / "notebooks" / "intervene.ipynb", "code")[-1]
    removed = printed("intervene")
    (output,) = composition["outputs"]
    rows = re.findall(r"\[([^\[\]]+)\]", "".join(output["data"]["text/plain"]))
    with_last = [float(row.split(",")[1]) for row in rows]
    assert with_last[0] > with_last[3]
    shares = dict(re.findall(r"without (\d\.\d) +([\d.]+)%", removed))
    assert float(shares["0.0"]) == 100 > float(shares["0.3"])
