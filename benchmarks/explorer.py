"""Speed of the explorer's page in a browser: from hovering to drawing, and frames while moving.

    python benchmarks/explorer.py [--browser /usr/bin/chromium] [--out benchmarks/explorer.json]

A decoder with random weights (6 layers, 8 heads, every other layer with a window, sinks) is served
on this machine and looked at without a graphics card. *Hover to redraw* is the time from a
pointer's event to the end of the frame that shows it. *Frames* are counted while every frame moves
or zooms the matrix: first with a cold cache, when tiles are fetched on the way, then again over the
same path. *Head to answer* is the time from the click that removes a head of a bundled model to the
end of the frame that shows the new probabilities, the request to the server included; every click
removes one more head.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
from playwright.sync_api import Page, sync_playwright

from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.loaded_model import LoadedDecoder, entry_of
from glassformer.explorer.messages import ModelCard
from glassformer.explorer.server import listen, make_server
from glassformer.models import Decoder, DecoderConfig

HERE = Path(__file__).parent
SHORT = 512
LONG = 4096
REMOVED_FROM = ("sentiment", "lookup-course", "lookup-facts", "recurrence", "induction")
WORDS = [
    first + second
    for first in ("ba", "ce", "di", "fo", "gu", "la", "me", "ni")
    for second in "bdfgklmnprst"
]
FLAGS = (
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-sync",
)

HOVER = """
async ([selector, kind, count, inner]) => {
  const element = document.querySelector(selector);
  const frame = element.getBoundingClientRect();
  const times = [];
  for (let at = 0; at < count; at += 1) {
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    const targets = inner ? [...element.querySelectorAll(inner)] : [element];
    const target = targets[(at * 37) % targets.length];
    const place = {
      clientX: frame.x + frame.width * (0.25 + (0.6 * ((at * 13) % 29)) / 29),
      clientY: frame.y + frame.height * (0.3 + (0.6 * ((at * 7) % 31)) / 31),
    };
    const event = new PointerEvent(
      kind, { bubbles: true, pointerType: "mouse", pointerId: 1, ...place });
    const start = performance.now();
    target.dispatchEvent(event);
    // A component's drawing for an event is on the page a task later, a canvas's a frame later; the
    // second frame begins once the first one is painted.
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    times.push(performance.now() - start);
  }
  return times;
}
"""

REMOVE = """
async () => {
  const shown = document.querySelector(".what-if .outcomes");
  const times = [];
  for (const head of document.querySelectorAll('[aria-label="Heads to remove"] button')) {
    await new Promise((done) => setTimeout(done, 100));
    let asked = false;
    let answered;
    const watch = new MutationObserver(() => {
      if (shown.dataset.busy === "true") asked = true;
      else if (asked) answered();
    });
    watch.observe(shown, { attributes: true, attributeFilter: ["data-busy"] });
    const answer = new Promise((done) => (answered = done));
    const start = performance.now();
    head.click();
    await answer;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    times.push(performance.now() - start);
    watch.disconnect();
  }
  return times;
}
"""

MOVE = """
async ([seconds, zooming]) => {
  const element = document.querySelector(".cell-map");
  const box = element.getBoundingClientRect();
  const at = { clientX: box.x + box.width * 0.55, clientY: box.y + box.height * 0.55 };
  const pointer = (kind, x, y) => element.dispatchEvent(new PointerEvent(kind, {
    bubbles: true, pointerId: 1, pointerType: "mouse", button: 0, buttons: 1,
    clientX: x, clientY: y,
  }));
  element.setPointerCapture = () => {};
  const gaps = [];
  const start = performance.now();
  let last = start;
  let step = 0;
  if (!zooming) pointer("pointerdown", at.clientX, at.clientY);
  while (last - start < 1000 * seconds) {
    const turn = Math.sin(step / 25);
    if (zooming) {
      const wheel = { bubbles: true, cancelable: true, deltaY: -60 * Math.cos(step / 25), ...at };
      element.dispatchEvent(new WheelEvent("wheel", wheel));
    } else {
      pointer("pointermove", at.clientX + 900 * turn, at.clientY + 700 * turn);
    }
    step += 1;
    const now = await new Promise((done) => requestAnimationFrame(done));
    gaps.push(now - last);
    last = now;
  }
  if (!zooming) pointer("pointerup", at.clientX, at.clientY);
  return gaps.slice(1);
}
"""


def loaded() -> LoadedDecoder:
    """Return the decoder, with sharpened queries: random ones read all positions alike."""
    torch.manual_seed(0)
    config = DecoderConfig(len(WORDS), 6, 128, 64, 8, 16, window=256, sinks=True, max_seq_len=LONG)
    model = Decoder(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("attention.query.weight"):
                weight.mul_(5.0)
    number = {word: at for at, word in enumerate(WORDS)}
    card = ModelCard(
        name="random",
        title="A decoder with random weights",
        kind="decoder",
        about="For measuring.",
        views=["attention"],
        text=" ".join(WORDS[:12]),
        input_help="words",
        origin="given",
    )
    return LoadedDecoder(
        card,
        model,
        lambda text: [number[word] for word in text.split()],
        lambda token: WORDS[token],
        lambda tokens: " ".join(WORDS[token] for token in tokens),
        longest=LONG,
    )


def text(tokens: int) -> str:
    """Words in an order that repeats late."""
    return " ".join(WORDS[(at * at * 7 + at * 3 + at // 96) % len(WORDS)] for at in range(tokens))


def rest(
    page: Page,
    busy: str = ".glassformer .shape-panel [data-busy=true]",
    there: str = ".glassformer .shape-panel",
) -> None:
    """Wait until the view is there and nothing has been asked for a while."""
    page.locator(there).first.wait_for(timeout=120_000)
    quiet = 0
    deadline = time.monotonic() + 240
    while quiet < 6:
        assert time.monotonic() < deadline, "the page does not come to rest"
        page.wait_for_timeout(250)
        quiet = 0 if page.locator(busy).count() else quiet + 1


def hovering(
    page: Page, address: str, shape: str, target: tuple[str, str, str | None]
) -> dict[str, float]:
    """Milliseconds from hovering to the end of the frame that shows it."""
    open_at(page, address, SHORT, shape=shape)
    rest(page, ".glassformer [data-busy=true]")
    selector, kind, inner = target
    times = page.evaluate(HOVER, [selector, kind, 40, inner])[5:]
    return {"median_ms": round(statistics.median(times), 1), "largest_ms": round(max(times), 1)}


def moving(page: Page, zooming: bool) -> dict[str, float]:
    """Frames a second while every frame moves or zooms, and the longest frame."""
    gaps = page.evaluate(MOVE, [5, zooming])
    return {
        "frames_per_s": round(1000 * len(gaps) / sum(gaps), 1),
        "longest_ms": round(max(gaps), 1),
    }


def removing(page: Page, address: str, model: str) -> dict[str, float]:
    """Return milliseconds from the click on a head to the frame with the new probabilities."""
    page.goto("about:blank")
    page.goto(f"{address}#{urlencode({'model': model, 'view': 'whatif'})}")
    rest(page, ".glassformer [data-busy=true]", ".glassformer .outcome")
    times = page.evaluate(REMOVE)
    return {"median_ms": round(statistics.median(times), 1), "largest_ms": round(max(times), 1)}


def open_at(page: Page, address: str, tokens: int, **state: str) -> None:
    """Show the decoder's reading of a text, and wait until it is there."""
    page.goto("about:blank")
    words = {"model": "random", "view": "attention", "text": text(tokens), **state}
    page.goto(f"{address}#{urlencode(words)}")
    rest(page)


def measure(page: Page, address: str) -> dict[str, Any]:
    """Every figure."""
    measured: dict[str, Any] = {}
    for shape, target in {
        "matrix": (".cell-map", "pointermove", None),
        "lines": (".column-query", "pointerover", ".column-word"),
        "words": (".token-text", "pointerover", "[data-place]"),
    }.items():
        measured[f"hover_{shape}_{SHORT}_tokens"] = hovering(page, address, shape, target)
    # Heads are measured in the background, which on two cores would be what is timed: wait for them
    # as well.
    open_at(page, address, LONG)
    rest(page, ".glassformer [data-busy=true]")
    for pass_ in ("cold", "warm"):
        measured[f"zoom_{LONG}_tokens_{pass_}"] = moving(page, zooming=True)
    open_at(page, address, LONG, window='{"query":2000,"key":1900,"size":400}', head="1")
    for pass_ in ("cold", "warm"):
        measured[f"scroll_{LONG}_tokens_{pass_}"] = moving(page, zooming=False)
    for model in REMOVED_FROM:
        measured[f"remove_head_{model}"] = removing(page, address, model)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--browser", default=shutil.which("chromium"), help="path of a chromium")
    parser.add_argument("--out", type=Path, default=HERE / "explorer.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    listener = listen(0)
    server = make_server(Backend([entry_of(loaded()), *bundled()]), listener)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with sync_playwright() as playwright:
        flags = [f"--{flag}" for flag in FLAGS]
        browser = playwright.chromium.launch(executable_path=arguments.browser, args=flags)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        measured = measure(page, address)
        version = browser.version
        browser.close()
    # What the page was still asking for is computed to its end: a thread of torch must not outlive
    # the program.
    server.config.timeout_graceful_shutdown = None
    server.should_exit = True
    thread.join(60)
    machine = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "chromium": version,
        "torch": torch.__version__,
    }
    report = json.dumps({**machine, **measured}, indent=2)
    arguments.out.write_text(report + "\n", encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
