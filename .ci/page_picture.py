"""Make docs/pictures/page.png: the page of a server, with attention of a bundle.

    bert-export export all-MiniLM-L6-v2 minilm --attention
    python .ci/page_picture.py minilm docs/pictures/page.png

Needs chromium, Playwright and Pillow.
"""

import shutil
import sys
import threading
import time
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from bert_serve.http.app import create_app
from bert_serve.settings import ServerSettings

TEXT = "The bank refunded my card, since it was charged twice."
WIDTH, HEIGHT = 1240, 900
NUM_COLORS = 64  # a third of the size, without a difference that one sees


def main(bundle: Path, picture: Path) -> None:
    """Serve a bundle, draw the page and write the picture."""
    app = create_app(ServerSettings(bundles={bundle.resolve().name: bundle}))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        draw(f"http://127.0.0.1:{port}/", picture)
    finally:
        server.should_exit = True
        thread.join()
    Image.open(picture).convert("RGB").quantize(NUM_COLORS).save(picture, optimize=True)


def draw(address: str, picture: Path) -> None:
    """Write a picture of the page with the attention of a text."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(address)
        page.locator("#run:enabled").wait_for()
        page.locator("textarea").first.fill(TEXT)
        page.locator("#run").click()
        page.get_by_role("article").first.wait_for()
        page.get_by_role("tab", name="Attention").click()
        page.get_by_role("button", name="Layer 2, head 1", exact=True).click()
        page.locator(".map canvas").focus()
        for key in ["ArrowDown"] * 11 + ["ArrowRight"] * 12:
            page.keyboard.press(key)
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
