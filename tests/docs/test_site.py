"""The built site: strict, complete, readable on a phone, and without the network."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pages import DOCS, PAGES, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PHONE_WIDTH = 390
# An outer page of any width loads each page in a frame as wide as a phone, since chromium's windows are wider.
_FRAMES = """<!doctype html><body><script>
const pages = %s, width = %d, results = {};
const measure = (page) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.style.width = width + "px"; frame.style.height = "844px";
  frame.onload = () => {
    const root = frame.contentDocument.documentElement;
    results[page] = [root.scrollWidth, frame.contentDocument.querySelectorAll("h1").length];
    frame.remove(); resolve();
  };
  frame.src = page; document.body.append(frame);
});
(async () => {
  for (const page of pages) await measure(page);
  const shown = document.createElement("pre");
  shown.id = "results"; shown.textContent = JSON.stringify(results); document.body.append(shown);
})();
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return folder


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return found or pytest.skip("needs chromium, such as Debian's package of that name")


def built_pages(site: Path) -> Iterator[str]:
    for page in PAGES:
        path = page.relative_to(DOCS)
        name = "index" if path.stem == "README" else path.stem
        yield path.with_name(f"{name}.html").as_posix()


def test_every_page_is_built(site: Path) -> None:
    assert not [page for page in built_pages(site) if not (site / page).is_file()]


def test_commands_and_names_are_expanded(site: Path) -> None:
    cli = (site / "reference/cli.html").read_text(encoding="utf-8")
    for anchor in ("bert-export-export", "bert-export-bench", "bert-bench-run"):
        assert f'id="{anchor}"' in cli
    runtime = (site / "reference/python/bert_runtime.html").read_text(encoding="utf-8")
    assert 'id="bert_runtime.load"' in runtime
    for page in built_pages(site):
        assert not re.search(r"^\s*(?:<p>)?:::", (site / page).read_text(encoding="utf-8"), re.MULTILINE), page


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc(?:set)?=\"(https?:[^\"]+)\"|<link\b[^>]*\"(https?:[^\"]+)\""
    )
    for page in built_pages(site):
        assert not loaded.findall((site / page).read_text(encoding="utf-8")), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\"?https?:|@import", sheet.read_text(encoding="utf-8")), sheet


def open_page(chromium: str, url: str, folder: Path) -> tuple[str, set[str]]:
    """Open a page; return its HTML after its scripts have run, and the addresses outside of file:// that it asked."""
    log = folder / "network.json"
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}",
        "--window-size=800,900", "--virtual-time-budget=120000", "--dump-dom", url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    events = json.loads(log.read_text(encoding="utf-8"))["events"]
    # Requests of the browser itself have no origin.
    requests = [event["params"] for event in events if "initiator" in event.get("params", {})]
    return done.stdout, {request["url"] for request in requests if request["initiator"] != "not an origin"}


def test_pages_fit_a_phone_and_ask_no_network(site: Path, chromium: str, tmp_path: Path) -> None:
    pages = [*built_pages(site)]
    index = site / "frames.html"
    index.write_text(_FRAMES % (json.dumps(pages), PHONE_WIDTH), encoding="utf-8")
    shown, asked = open_page(chromium, index.as_uri(), tmp_path)
    index.unlink()
    found = re.search(r'<pre id="results">(.*?)</pre>', shown)
    assert found
    results = json.loads(found[1])
    assert results.keys() == set(pages)
    assert not {page: width for page, (width, _) in results.items() if width > PHONE_WIDTH}, "wider than a phone"
    assert not {page: titles for page, (_, titles) in results.items() if titles != 1}, "not one title"
    assert not asked


def test_search_works_in_files(site: Path, chromium: str, tmp_path: Path) -> None:
    shown, asked = open_page(chromium, f"{(site / 'index.html').as_uri()}?q=inter_threads", tmp_path)
    assert "md-search-result__link" in shown
    assert not asked


def test_a_request_to_the_network_is_seen(chromium: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="https://example.invalid/x.png">', encoding="utf-8")
    assert open_page(chromium, page.as_uri(), tmp_path)[1] == {"https://example.invalid/x.png"}
