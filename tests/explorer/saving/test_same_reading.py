"""The page and Python read an address alike: the state, the edited weights, and the request for the
run.

Otherwise a saved page lacks the answers that it asks for. The page's side runs in Node.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassformer.explorer.backend import Backend
from glassformer.explorer.messages import AskHead, HeadWeightsMessage
from glassformer.explorer.saving.page_state import ask_of, edited, page_state
from glassformer.explorer.state import NAMES, from_words, to_words

WEB = Path(__file__).resolve().parents[3] / "web"
SCRIPT = """
import { createInterface } from "node:readline";
import { askRun } from "./ask-run";
import { cardOf, fromWords, resolved, toWords } from "./state";
import { designed, edited } from "./views/design/weights";
const calls = {
  state(words) {
    const { tour, step, ...state } = fromWords(words); // a tour is no part of a saved page
    return state;
  },
  words: (words) => toWords(fromWords(words)),
  edited: ({ design, cells }) => edited(design, cells).weights,
  ask({ words, cards, head }) {
    const address = fromWords(words);
    const card = cardOf(address, cards);
    const edits = head && edited(designed(head, address.exercise), address.cells);
    return askRun(card, resolved(address, card), edits && { ...edits, differs: edits.differs || address.exercise });
  },
};
createInterface({ input: process.stdin }).on("line", (line) => {
  const { name, asked } = JSON.parse(line);
  console.log(JSON.stringify(calls[name](asked)));
});
"""
Page = Callable[[str, Any], Any]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """``page(name, asked)``: what one of the functions above returns."""
    node = shutil.which("node")
    esbuild = WEB / "node_modules" / ".bin" / "esbuild"
    if node is None or not esbuild.exists():
        pytest.skip("no node, or no web/node_modules: run npm ci in web/")
    script = tmp_path_factory.mktemp("page") / "page.cjs"
    build = [str(esbuild), "--bundle", "--platform=node", "--format=cjs", f"--outfile={script}"]
    subprocess.run(build, input=SCRIPT, cwd=WEB / "src", capture_output=True, text=True, check=True)
    with subprocess.Popen(
        [node, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def ask(name: str, asked: Any) -> Any:
            process.stdin.write(json.dumps({"name": name, "asked": asked}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


DESIGN = HeadWeightsMessage(
    Km=[[1.0, 2.0], [3.0, 4.0], [0.0, 0.5]],
    Qm=[[0.0, 2.0], [1.0, 4.0], [0.0, 0.5]],
    Vm=[[1.0], [2.0], [0.0]],
    pos=[[0.0], [1.0]],
)
WITHOUT_POSITIONS = HeadWeightsMessage(Km=[[1.0]], Qm=[[2.0]], Vm=[[1.0]])

numbers = st.sampled_from(
    [
        "2",
        "-0.5",
        "1e3",
        " 7 ",
        "",
        "x",
        "1,5",
        "\u22122",
        "1e\u22123",
        "1e\u2212",
        "+.5",
        "5.",
        "1e999",
        "1e300",
        "-0",
    ]
) | st.text(alphabet="0123456789.eE+-\u2212 \t\n\u00a0\x1c\ufeff_x", max_size=45)
addresses = (
    st.from_regex(r"(Km|Qm|Vm|pos)\.[0-4]\.[0-3]", fullmatch=True)
    | st.from_regex(r"[KQVX]m?\.{0,2}[0-9 x]{0,3}\.?[0-9\n-]{0,3}", fullmatch=True)
    | st.sampled_from(
        [
            "Km..1",
            "Km.1.",
            "Km.01.1",
            "Km.1.1.1",
            "pos.0",
            "size",
            "toString",
            "__proto__",
            "Km.9.9",
        ]
    )
)
sizes = st.dictionaries(
    st.sampled_from(["size.qk", "size.pos", "size.len"]),
    st.sampled_from(["0", "1", "2", "3", "03", "99", "999", "1000", "x", "", " 1", "1\n", "-1"]),
)
edits = st.builds(
    lambda one, other: {**one, **other}, st.dictionaries(addresses, numbers, max_size=6), sizes
)

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-1, 5)
    | st.sampled_from(
        [255, 256, 4095, 4096, 65_536, 2**53 - 1, 2**53, 10**400, 3.0, 0.5, -0.0, 1e400]
    )
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["self", "cross", "x" * 81, "\U0001f600" * 80, "\ud800"])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["layer", "head", "query", "key", "size", "more", "__proto__"]), inner
        )
    ),
    max_leaves=6,
)
places = st.fixed_dictionaries(
    {"layer": st.integers(-1, 4), "head": st.integers(0, 4) | st.just(2.0)}
)
windows = st.fixed_dictionaries(
    {"query": st.integers(-1, 4), "key": st.integers(0, 5000), "size": st.integers(0, 5000)}
)
odd_texts = (
    "",
    "matrix",
    "design",
    "cross",
    '"cross"',
    "all",
    "sink",
    "01",
    "1.",
    "1e2",
    "NaN",
    "[1,]",
    "{}",
    "AB",
)
texts = st.sampled_from([*odd_texts, "\ufeff1", " 1\n"]) | st.text(max_size=4)
jsons = st.builds(json.dumps, values | places | windows | edits, ensure_ascii=st.booleans())
words = st.dictionaries(
    st.sampled_from([*NAMES, *NAMES.values(), "toString", "__proto__"]), texts | jsons, max_size=6
)


@example({"part": "cross"})
@example({"layer": "1e2", "pin": "3.0", "seed": "-0", "versus": '{"layer":1.0,"head":2}'})
@example({"temperature": "1e400", "topP": "true", "source": '["\\ud800"]'})
@example({"cells": '{"Km.0.0":"\\ud800"}'})
@example({"cells": '{"\\ud800":"1"}'})
@example(
    {"order": "[0,0]", "toString": "1", "topK": "0", "window": '{"query":0,"key":0,"size":4097}'}
)
@given(words)
@settings(max_examples=100, deadline=None)
def test_the_state(page: Page, words: dict[str, str]) -> None:
    read = from_words(words)
    assert page("state", words) == read.model_dump(mode="json")
    # Both write words that both read alike.
    for written in (to_words(read), page("words", words)):
        assert from_words(written) == read
        assert page("state", written) == page("state", words)
    assert set(to_words(read)) == set(page("words", words))


@example(DESIGN, {"size.qk": "999", "size.pos": "99"})
@example(DESIGN, {"Km..1": "7"})
@example(DESIGN, {"Km.0x1.1": "7", "Km. 1.1": "7", "Km.0.0.0": "7"})
@example(DESIGN, {"Km.0.0": "\ufeff7", "Km.0.1": "\x1c7"})
@given(st.sampled_from([DESIGN, WITHOUT_POSITIONS]), edits)
@settings(max_examples=100, deadline=None)
def test_the_edited_weights(page: Page, design: HeadWeightsMessage, cells: dict[str, str]) -> None:
    read = page("edited", {"design": design.model_dump(), "cells": cells})
    assert edited(design, cells).model_dump() == read


odd_orders = st.sampled_from(
    ["[4,3,2,1,0]", "[0,1,2,3,4]", "[1,0]", "[1.0,0]", "[]", "[0,0]", "[9]", "null"]
)
asked = st.fixed_dictionaries(
    {"model": st.sampled_from(["identity", "lookup", "decoder", ""])},
    optional={
        "text": st.sampled_from(["", "AB", "4", "1 2"]),
        "view": st.sampled_from(["design", "attention", "nowhere"]),
        "source": st.sampled_from(["[]", '["1","2"]', "null", '["1"', "3"]),
        "order": odd_orders,
        "exercise": st.sampled_from(["true", "false"]),
        "cells": st.builds(json.dumps, edits),
    },
)


@example({"model": "identity", "cells": '{"Vm.0.0":"1","Vm.1.0":"nonsense"}'})
@example({"model": "identity", "cells": '{"size.qk":"999","size.pos":"99"}'})
@given(asked)
@settings(max_examples=50, deadline=None)
def test_the_request_for_the_run(page: Page, small_backend: Backend, words: dict[str, str]) -> None:
    cards = small_backend.catalogue().models
    shown = page_state(from_words(words), cards)
    head = None
    if shown.card.kind == "head":
        head = small_backend.answer("head", AskHead(model=shown.card.name))
    told = {"words": words, "cards": [card.model_dump(mode="json") for card in cards]}
    asked = page("ask", {**told, "head": head and head.model_dump(mode="json")})
    assert ask_of(small_backend, shown).model_dump(mode="json") == asked
