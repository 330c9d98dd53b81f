"""The page's files: how they are served, and what they may not hold."""

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import bert_serve.page
from bert_serve.page.static_files import StaticFiles

FOLDER = Path(bert_serve.page.__file__).parent / "static"
SOURCES = sorted(path for path in FOLDER.rglob("*") if path.is_file())
SCRIPTS = [path for path in SOURCES if path.suffix == ".js"]


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(FOLDER).as_posix() for path in paths]


def test_the_page_allows_only_what_its_own_server_sends(embedding_client: TestClient) -> None:
    response = embedding_client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == policy.pop("frame-ancestors") == "'none'"
    assert policy.pop("base-uri") == policy.pop("form-action") == "'none'"
    assert policy == {f"{kind}-src": "'self'" for kind in ("script", "style", "img", "connect")}
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_browser_keeps_files_and_asks_whether_the_page_has_changed(embedding_client: TestClient) -> None:
    page = embedding_client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    again = embedding_client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    files = re.findall(r'(?:src|href)="(static/[^"]+)"', page.text)
    assert {Path(file).suffix for file in files} == {".js", ".css", ".svg"}
    for file in files:
        response = embedding_client.get(f"/{file}")
        assert response.status_code == 200
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["{digest}/none.js", "0000000000000000/main.js", "{digest}/%2e%2e/routes.py", "main.js"]
)
def test_other_files_are_not_served(embedding_client: TestClient, path: str) -> None:
    digest = StaticFiles().digest
    assert embedding_client.get(f"/static/{path.format(digest=digest)}").status_code == 404


def test_all_files_are_served_with_their_type() -> None:
    files = StaticFiles()
    served = {name: files.get(files.digest, name) for name in names(SOURCES)}
    assert served.pop("index.html") is None  # it is the page itself
    types = {name: file.media_type.partition(";")[0] for name, file in served.items() if file is not None}
    assert types.keys() == served.keys()
    assert {Path(name).suffix: kind for name, kind in types.items()} == {
        ".css": "text/css",
        ".js": "text/javascript",
        ".svg": "image/svg+xml",
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=names(SCRIPTS))
def test_scripts_set_text_never_markup(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\b|new Function"
    assert not re.search(markup, source)
    assert len(source.splitlines()) <= 300


@pytest.mark.parametrize("script", SCRIPTS, ids=names(SCRIPTS))
def test_scripts_import_files_of_the_page(script: Path) -> None:
    for imported in re.findall(r'from "([^"]+)"', script.read_text(encoding="utf-8")):
        assert imported.startswith(".")
        assert (script.parent / imported).is_file(), imported


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_nothing_is_loaded_from_elsewhere(path: Path) -> None:
    source = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|\burl\(", source)
    assert not re.search(r"<script>|<style>|\bstyle=|\bon\w+=\"", source), "the policy forbids what is inline"
