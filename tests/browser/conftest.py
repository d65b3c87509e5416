"""A real server, a real browser, and pages that fail their test when anything goes wrong in them."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("playwright", reason="no playwright: pip install 'glassformer[dev]'")
pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'glassformer[explore]'")

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

from serving import Served

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE = {"viewport": {"width": 1440, "height": 900}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}
LOOKS = (
    "wide",
    *(pytest.param(look, marks=pytest.mark.slow) for look in ("dark", "phone", "phone-dark")),
)
PATIENCE = 180_000
"""Milliseconds after which something that a test waits for counts as missing, on the slowest
machine.
"""


@pytest.fixture(scope="session")
def backend() -> Any:
    """The models that come with the project, without any of this machine's runs."""
    from glassformer.explorer.backend import Backend
    from glassformer.explorer.loading.bundled import bundled

    return Backend(bundled())


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Any], Served]]:
    """``serve(explorer)``: a server of its own, for a test that stops it or shows models of its
    own.
    """
    begun: list[Served] = []

    def serve(backend: Any) -> Served:
        server = Served(backend, at_once=True)  # browsers hold on to their connections
        server.start()
        begun.append(server)
        return server

    yield serve
    for server in begun:
        server.stop()


@pytest.fixture(scope="session")
def served(serve: Callable[[Any], Served], backend: Any) -> str:
    """The address of a server with the models that come with the project."""
    return serve(backend).address


# For the package alone: playwright keeps an event loop in this thread, which other tests could not
# bear.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} on the PATH: apt-get install chromium")
    flags = [
        "no-sandbox",
        "disable-gpu",
        "disable-sync",
        "force-color-profile=srgb",
        "font-render-hinting=none",
    ]
    flags += [
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
    ]
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=[f"--{flag}" for flag in flags]
        )
        yield browser
        browser.close()


@dataclass
class Watch:
    """What went wrong in a test's pages. ``forgive`` names, as a pattern, what the test brings
    about itself.
    """

    faults: list[str] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)

    def forgive(self, pattern: str) -> None:
        self.forgiven.append(pattern)

    def told(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text}")

    def unforgiven(self) -> list[str]:
        return [
            fault
            for fault in self.faults
            if not any(re.search(each, fault) for each in self.forgiven)
        ]


@pytest.fixture
def watch() -> Watch:
    return Watch()


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, watch: Watch) -> Iterator[Open]:
    """``open_page(phone=False, dark=False, **options of a browser's context)``: an empty page of a
    fresh visitor.

    The test fails in the end when a page told an error or a warning on its console, threw one, or
    asked for anything that is not on this machine.
    """
    contexts = []

    def open_page(*, phone: bool = False, dark: bool = False, **options: Any) -> Page:
        size = PHONE if phone else WIDE
        settings = {
            "color_scheme": "dark" if dark else "light",
            "reduced_motion": "reduce",
            **size,
            **options,
        }
        context = browser.new_context(**settings)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        context.route(re.compile("^(?!http://127\\.0\\.0\\.1[:/])https?:"), elsewhere)
        page = context.new_page()
        page.on("console", watch.told)
        page.on("pageerror", lambda error: watch.faults.append(f"thrown: {error}"))
        return page

    def elsewhere(route: Route, request: Request) -> None:
        watch.faults.append(f"asked for {request.url}")
        route.abort()

    yield open_page
    for context in contexts:
        context.close()
    assert watch.unforgiven() == []


@pytest.fixture
def page(open_page: Open) -> Page:
    """A wide page in light colours."""
    return open_page()


@pytest.fixture
def phone(open_page: Open) -> Page:
    """A page as wide as a phone, with touch."""
    return open_page(phone=True)


Go = Callable[..., None]


@pytest.fixture
def go(served: str) -> Go:
    """``go(page, model="recurrence", view="sampling", ...)``: open the page in a state, and wait
    until it is shown.
    """

    def go(page: Page, **state: object) -> None:
        # The same address again, or another place in it, would load nothing.
        page.goto("about:blank")
        page.goto(f"{served}#{urlencode(state)}" if state else served)
        settled(page)

    return go


def showing(selector: str, **usual: object) -> Callable[..., Go]:
    """The fixture ``show(page, ...)``: as ``go``, in this state but for what is given, until
    something is there.
    """

    @pytest.fixture
    def show(go: Go) -> Go:
        def show(page: Page, **state: object) -> None:
            go(page, **{**usual, **state})
            page.locator(selector).first.wait_for()

        return show

    return show


def settled(page: Page) -> None:
    """Wait until a view is shown and nothing in it waits for an answer."""
    page.locator(".glassformer :is(.view, .start)").first.wait_for()
    expect(page.locator(".glassformer [data-busy=true]")).to_have_count(0)


def eventually(page: Page, happened: Callable[[], bool]) -> None:
    """Wait until it has.

    Playwright's own ``wait_for_function`` evaluates text within the page, which the page's content
    security policy rightly refuses.
    """
    deadline = time.monotonic() + PATIENCE / 1000
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        page.wait_for_timeout(20)


def drag_finger(page: Page, x: float, y: float, across: float, down: float) -> None:
    """Put a finger on a place of the page, and take it so many pixels further."""
    finger = page.context.new_cdp_session(page)
    for step in range(11):
        place = {"x": x + across * step / 10, "y": y + down * step / 10}
        finger.send(
            "Input.dispatchTouchEvent",
            {"type": "touchMove" if step else "touchStart", "touchPoints": [place]},
        )
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def check_fits(page: Page) -> None:
    """Fail for a page with sideways scroll, which on a phone hides a part of it."""
    there, room = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert there <= room, f"{there} pixels wide with room for {room}"


def screenshot(page: Page, name: str) -> None:
    """Keep the whole page as a picture in build/screenshots, for a person to look at."""
    settled(page)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True, animations="disabled")


def check_accessible(page: Page) -> None:
    """Fail for a page in which axe-core finds a serious or a critical fault."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    settled(page)
    grave = [
        f"{each['impact']}: {each['help']} ({node['html'][:160]}: {node['failureSummary']})"
        for each in axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
    assert grave == []


def check_look(page: Page, name: str) -> None:
    """A picture, of a page without sideways scroll and without accessibility faults."""
    screenshot(page, name)
    check_fits(page)
    check_accessible(page)
