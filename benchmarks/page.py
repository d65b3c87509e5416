"""How long a reader of the page waits for a real language model, measured in a browser.

    python benchmarks/page.py [PART ...] [--model smollm2] [--browser /usr/bin/chromium]
                              [--out benchmarks/page.json]

Each part starts ``glassformer explore MODEL`` anew and drives the page that it serves, without a
graphics card. Times are seconds from the event in the page (a click, a changed text) to the frame
that shows the answer, requests to the server included; *open* begins with the command, *first
token* with the call of ``load`` after the import.

=========  =========================================================================================
open       the command until the answer to the first text is painted; loading until the first token
short      texts of 14 tokens, and heads that are removed in What if, while nothing else is computed
sweep      the effect of every head; texts and removed heads while it is computed
write      30 tokens written one by one after 14 tokens, and after 500
long       a text of 1,000 tokens, its thumbnails, and removed heads while its sweep is computed
=========  =========================================================================================
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).parent
FLAGS = (
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-sync",
)
PEOPLE = ("Mary", "Tom", "Anna", "Paul", "Lucy", "Mark")
FIRST = """
import time, glassformer, glassformer.generation.language_model
start = time.perf_counter()
next(glassformer.load({model!r}).stream("The capital of France is", 1))
print(time.perf_counter() - start)
"""

ACT = """
async ([action, done]) => {
  const act = new Function("return " + action)();
  const isDone = new Function("return " + done)();
  const frame = () => new Promise((painted) => requestAnimationFrame(() => setTimeout(painted, 0)));
  const changed = () => new Promise((then) => {
    const observer = new MutationObserver(() => (observer.disconnect(), then()));
    observer.observe(
    document, { subtree: true, childList: true, attributes: true, characterData: true });
  });
  await frame();
  const start = performance.now();
  act();
  while (!isDone()) await changed();
  await frame();
  return (performance.now() - start) / 1000;
}
"""
"""Seconds from an action to the first painted frame in which a condition holds.

Nothing runs between two changes.
"""

TYPE = """() => {{
  const field = document.querySelector(".reading textarea");
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(field, {text});
  field.dispatchEvent(new Event("input", {{ bubbles: true }}));
}}"""
READ = """() => {
  const said = document.querySelector(".said");
  return said.dataset.busy === "false" && said.textContent !== ""
    && said.textContent !== window.saidBefore;
}"""
CLICK = (
    """() => document.querySelectorAll('[aria-label="Heads to remove"] button')[{head}].click()"""
)
ANSWERED = """() => document.querySelector(".prediction")?.dataset.busy === "false"
  && document.querySelectorAll(".changes .change").length === {changes}"""
SWEPT = f"""() => ({READ})() && document.querySelector('[aria-label="What each head does"] .legend')
  && !document.querySelector(".sweeping")
  && !document.querySelector('.results[data-foreign="true"]')"""
MEASURED = """() => document.querySelector('.heads-panel[data-busy="false"]') !== null"""
WRITE = """() => {
  const buttons = [...document.querySelectorAll(".writing button")];
  buttons.find((each) => each.textContent === "Write ten").click();
}"""
WRITTEN = """() => document.querySelector(".writing .count")
  .textContent.startsWith("{count} generated")"""
QUIET = """() => document.querySelector('[data-busy="true"], .sweeping') === null"""


def text(at: int, tokens: int = 14) -> str:
    """One of many texts of as many tokens, each of one word."""
    receiver = PEOPLE[at % len(PEOPLE)]
    giver = PEOPLE[(at + 1 + at // len(PEOPLE)) % len(PEOPLE)]
    words = f"When {receiver} and {giver} went to the store, {giver} gave a drink to".split(" ")
    words = [
        part for word in words for part in ([word[:-1], ","] if word.endswith(",") else [word])
    ]
    return " ".join((words * (1 + tokens // len(words)))[-tokens:]).replace(" ,", ",")


@contextmanager
def served(model: str) -> Iterator[tuple[str, float]]:
    """The address of the page, and when the command was begun."""
    begun = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "glassformer",
        "explore",
        model,
        "--no-browser",
        "--port",
        "0",
        "--runs",
        "/none",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip(), begun
        finally:
            server.terminate()


def timed(page: Page, action: str, done: str) -> float:
    """Seconds from an action in the page until what it led to is painted."""
    page.evaluate("() => { window.saidBefore = document.querySelector('.said')?.textContent; }")
    return float(page.evaluate(ACT, [action, done]))


def typed(page: Page, words: str) -> float:
    """Seconds until the next token after another text is painted."""
    return timed(page, TYPE.format(text=json.dumps(words)), READ)


def clicked(page: Page, heads: range) -> list[float]:
    """Seconds until the output without one more head is painted, for each."""
    return [
        timed(page, CLICK.format(head=head), ANSWERED.format(changes=at + 1))
        for at, head in enumerate(heads)
    ]


def show(page: Page, address: str, **words: str) -> None:
    """Open the page and wait until it has nothing to compute."""
    page.goto("about:blank")
    page.goto(f"{address}&{urlencode(words)}" if words else address)
    page.wait_for_function(
        "() => document.querySelector('.said')?.textContent.startsWith('next')", timeout=60_000
    )
    page.wait_for_function(QUIET, timeout=60_000, polling=100)


def spread(times: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(times), 3), "largest": round(max(times), 3)}


def opening(browser: Browser, model: str) -> dict[str, Any]:
    painted = []
    for _ in range(3):
        with served(model) as (address, begun):
            page = browser.new_page()
            page.goto(address)
            page.wait_for_function(
                "() => document.querySelector('.said')?.textContent.startsWith('next')",
                timeout=60_000,
            )
            painted.append(time.perf_counter() - begun)
            page.close()
    command = [sys.executable, "-c", FIRST.format(model=model)]
    first = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    return {"open the page": spread(painted), "load to first token": spread(first)}


def short(page: Page, address: str) -> dict[str, Any]:
    show(page, address)
    texts = []
    for at in range(1, 8):
        texts.append(typed(page, text(at)))
        page.wait_for_function(QUIET, polling=100)
    show(page, address, view="whatif")
    return {"another text": spread(texts), "a click": spread(clicked(page, range(12, 20)))}


def sweep(page: Page, address: str) -> dict[str, Any]:
    show(page, address, view="whatif")
    whole = [timed(page, TYPE.format(text=json.dumps(text(at))), SWEPT) for at in range(1, 4)]
    texts = []
    clicks = []
    for at in range(4, 10):
        texts.append(typed(page, text(at)))
        page.wait_for_selector(".sweeping")
        clicks += clicked(page, range(20 + 3 * at, 23 + 3 * at))
        page.get_by_role("button", name="Undo all").click()
    return {
        "the sweep of all heads": spread(whole),
        "another text during a sweep": spread(texts),
        "a click during a sweep": spread(clicks),
    }


def write(page: Page, address: str) -> dict[str, Any]:
    seconds = {}
    for tokens in (14, 500):
        show(page, address, view="sampling", text=text(1, tokens))
        took = 0.0
        for at in range(1, 4):
            took += timed(page, WRITE, WRITTEN.format(count=10 * at))
        seconds[f"tokens a second after {tokens}"] = round(30 / took, 1)
    return seconds


def long(page: Page, address: str) -> dict[str, Any]:
    show(page, address)
    begun = time.perf_counter()
    texts = [typed(page, text(1, 1000))]
    page.wait_for_function(MEASURED, timeout=60_000, polling=20)
    thumbnails = time.perf_counter() - begun
    show(page, address, view="whatif")
    texts.append(typed(page, text(2, 1000)))
    page.wait_for_selector('.results[data-foreign="false"]')
    first = clicked(page, range(12, 14))
    page.wait_for_selector(".sweeping", timeout=60_000)
    return {
        "1,000 tokens": spread(texts),
        "1,000 tokens: thumbnails": round(thumbnails, 3),
        "1,000 tokens: a click while the effects are estimated": spread(first),
    }


PARTS: dict[str, Any] = {"short": short, "sweep": sweep, "write": write, "long": long}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", help="open, short, sweep, write, long; all when none is named"
    )
    parser.add_argument("--model", default="smollm2", help="what 'glassformer explore' takes")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="path of a chromium")
    parser.add_argument("--out", type=Path, default=HERE / "page.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with sync_playwright() as playwright:
        flags = [f"--{flag}" for flag in FLAGS]
        browser = playwright.chromium.launch(executable_path=arguments.browser, args=flags)
        machine = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "chromium": browser.version,
        }
        for part in arguments.parts or ("open", *PARTS):
            if part == "open":
                results |= opening(browser, arguments.model)
                continue
            with served(arguments.model) as (address, _):
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.set_default_timeout(60_000)
                results |= PARTS[part](page, address)
                page.close()
        browser.close()
    known = (
        json.loads(arguments.out.read_text(encoding="utf-8"))
        if arguments.parts and arguments.out.exists()
        else {}
    )
    report = json.dumps(known | machine | {"model": arguments.model} | results, indent=2)
    arguments.out.write_text(report + "\n", encoding="utf-8")
    for name, value in results.items():
        if not isinstance(value, float):
            value = "  ".join(f"{key} {seconds:.2f}" for key, seconds in value.items())
        print(f"{name:55} {value}")


if __name__ == "__main__":
    main()
