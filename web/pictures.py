"""Take the pictures of the explorer that README.md and docs/explorer.md show: ``python
web/pictures.py [NAME ...]``.

Serves SmolLM2 (``make models``) and the bundled models, and takes screenshots in Chromium, light
and dark.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright

OUT = Path(__file__).resolve().parents[1] / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FORBIDDEN = [{"part": "cross", "layer": None, "head": None, "query": 0, "key": 1}]
REMOVED = [{"part": "self", "layer": 0, "head": 2}]
TEXT = "When Mary and John went to the store, John gave a drink to"
SECOND = "When Mary and John went to the store, Mary gave a drink to"
SPOT = '{"layer":15,"position":9}'
PICTURES = {
    "explorer-light": "model=smollm2",
    "explorer-dark": "model=smollm2",
    "explorer-flow-light": "model=smollm2&view=flow",
    "explorer-lines-dark": "model=sentiment&shape=lines&layer=1&head=1&pin=5",
    "explorer-design-light": "model=unique",
    "explorer-program-light": "model=program-histogram",
    "explorer-program-dark": "model=program-count",
    "explorer-scramble-light": "model=lookup-facts&view=scramble&order=%5B3%2C0%2C4%2C1%2C5%2C2%5D",
    "explorer-sampling-light": "model=recurrence&view=sampling&temperature=2&topP=0.9",
    "explorer-experts-dark": "model=recurrence&view=experts",
    "explorer-what-if-light": f"model=lookup-facts&view=whatif&part=cross&forbidden={quote(json.dumps(FORBIDDEN))}",
    "explorer-start-light": "",
    "explorer-two-texts-dark": f"model=smollm2&view=patch&text={quote(TEXT)}&second={quote(SECOND)}&spot={quote(SPOT)}",
    "explorer-what-if-dark": f"model=recurrence&view=whatif&removed={quote(json.dumps(REMOVED))}",
}
"""Each picture's name, ending in its theme, and the address of its state."""


def main() -> None:
    names = sys.argv[1:] or list(PICTURES)
    command = [
        sys.executable,
        "-m",
        "glassformer",
        "explore",
        "smollm2",
        "--no-browser",
        "--port",
        "0",
        "--runs",
        "/none",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip().partition("#")[0]
    try:
        with sync_playwright() as playwright:
            chromium = next(path for name in BROWSERS if (path := shutil.which(name)))
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            for scheme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": 1440, "height": 900},
                    color_scheme=scheme,
                    device_scale_factor=1.25,
                    reduced_motion="reduce",
                )
                page.set_default_timeout(90_000)
                for name, state in PICTURES.items():
                    if not name.endswith(scheme) or name not in names:
                        continue
                    page.goto("about:blank")
                    page.goto(f"{address}#{state}")
                    page.locator(
                        ":is(.view :is(.panel, canvas, table), .start .card)"
                    ).first.wait_for()
                    page.wait_for_load_state("networkidle")
                    page.wait_for_timeout(1000)
                    page.locator(".sweeping").first.wait_for(state="detached")
                    page.screenshot(path=OUT / f"{name}.png", full_page=True)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
