"""The page in Chromium: no errors, no requests, no sideways scrolling on a phone, and printable."""

import contextlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bert_export.report import Report
from bert_export.report.page import render_page

from .conftest import HOSTILE
from .test_page import case_report

pytestmark = pytest.mark.slow

CASES = ("single_label", "token-classification", "question-answering", "sentence-embedding", "no labelled file")

# The page's own policy forbids scripts, so a page around it measures.
FRAME = """<!doctype html><link rel="icon" href="data:,"><body style="margin:0">
<iframe src="report.html" style="width:WIDTHpx;height:2000px;border:0"></iframe><script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const outside = [...page.querySelectorAll("main *, header *")].filter(element =>
    !element.closest(".scroll") && element.getBoundingClientRect().right > WIDTH + 0.5);
  document.title = JSON.stringify({
    width: root.scrollWidth, ran: window.ran || page.defaultView.ran || null,
    sections: page.querySelectorAll("section").length,
    outside: outside.map(element => element.outerHTML.slice(0, 80)),
    blank: [...page.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().height < 50).length});
};</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; yield its address and the list of paths that are asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_chromium(chromium: str, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--hide-scrollbars", "--enable-logging=stderr", f"--user-data-dir={profile}", *arguments,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def hostile_report(base: Report, case: str, vocab: Path) -> Report:
    """Return the report of a task with names that are long or markup."""
    report = replace(base, evaluation=None) if case == "no labelled file" else case_report(base, case, vocab)
    return replace(report, bundle=f"{HOSTILE}<img src=x onerror=ran=1>{'x' * 100}", source={"path": "a" * 300})


@pytest.mark.parametrize("case", CASES)
def test_page(case: str, chromium: str, classifier_report: Report, toy_vocab: Path, tmp_path: Path) -> None:
    report = hostile_report(classifier_report, case, toy_vocab)
    (tmp_path / "report.html").write_text(render_page(report), encoding="utf-8")
    for width in (390, 1280):
        (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
        with serving(tmp_path) as (address, asked):
            done = run_chromium(chromium, tmp_path / "profile", "--dump-dom", f"{address}/frame.html")
        assert asked == ["/frame.html", "/report.html"]
        assert "CONSOLE" not in done.stderr
        title = re.search(r"<title>(.*?)</title>", done.stdout)
        assert title is not None, done.stdout
        found = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        assert found == {"width": width, "ran": None, "sections": 9, "outside": [], "blank": 0}


def test_print(chromium: str, classifier_report: Report, tmp_path: Path) -> None:
    page, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(render_page(classifier_report), encoding="utf-8")
    run_chromium(chromium, tmp_path / "profile", f"--print-to-pdf={printed}", page.as_uri())
    assert printed.read_bytes().startswith(b"%PDF")
    pages = re.findall(rb"/Type\s*/Page\b", printed.read_bytes())
    assert 3 <= len(pages) <= 10
