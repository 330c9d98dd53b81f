"""Widths from a phone to a desk, light and dark, and the rules of accessibility (axe-core)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..conftest import StartServer
from .conftest import OpenPage, open_tab, run

if TYPE_CHECKING:
    from playwright.sync_api import Page

TABS = ("Result", "Tokens", "Attention", "Request")
# Elements that stand out of their card, unless what is around them scrolls.
OUTSIDE = """() => [...document.querySelectorAll("header *, .card *")].filter((element) => {
    const around = element.closest(".card, header").getBoundingClientRect();
    const { left, right } = element.getBoundingClientRect();
    const scrolls = element.closest(".scroll, .code, .hidden, option") !== null;
    return element.checkVisibility() && !scrolls && (left < around.left || right > around.right);
}).map((element) => element.outerHTML.slice(0, 80))"""
LONG = f"{'y' * 200} hello\nשלום 😀\nwhere is my card"


@pytest.fixture
def address(start_server: StartServer, attention_bundle: Path, embedding_bundle: Path) -> str:
    return start_server({"classifier": attention_bundle, "n" * 100: embedding_bundle})


def tabs(page: Page) -> Iterator[str]:
    """Run each model, and open its tabs one after the other."""
    page.locator("#run:enabled").wait_for()
    for name in page.get_by_label("Model").locator("option").all_text_contents():
        page.get_by_label("Model").select_option(name)
        page.locator("textarea").first.fill(LONG)
        run(page)
        for tab in TABS:
            open_tab(page, tab)
            if tab == "Attention":
                page.locator("#panel-attention").locator(".reading, pre").first.wait_for()
            yield f"{name}, {tab}"


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_nothing_is_wider_than_the_screen(address: str, open_page: OpenPage, width: int) -> None:
    page = open_page(address, width, dark=width == 768)
    for place in tabs(page):
        assert page.evaluate("document.documentElement.scrollWidth") == width, place
        assert page.evaluate(OUTSIDE) == [], place


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_rules_of_accessibility(address: str, open_page: OpenPage, dark: bool) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(address, 390 if dark else 1280, dark=dark)
    for place in tabs(page):
        violations = axe.run(page).response["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]][:3]) for rule in violations] == [], place
