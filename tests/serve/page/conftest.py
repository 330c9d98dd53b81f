"""The page in Chromium, headless."""

from __future__ import annotations  # Playwright is imported by those tests alone that need it

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; closed after each file, since no other event loop can run in the thread until then."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """A function that opens a server's page: `open_page(address, width=390, dark=True)`.

    In the end, nothing may have failed in the page, and it may have asked nobody but its server.
    """
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_page(address: str, width: int = 1280, *, dark: bool = False, problem: str = "none") -> Page:
        scheme: Any = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: problems.append(message.text) if problem not in message.text else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(address) else problems.append(asked.url))
        page.goto(f"{address}/")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def run(page: Page) -> None:
    """Press Run, and wait for the answer."""
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator("#answer[aria-busy=false]").wait_for()


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
