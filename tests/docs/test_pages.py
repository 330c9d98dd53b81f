"""Pages: links and anchors resolve, and measured numbers stand in generated blocks only."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from .pages import DOCS, PAGES, README, ROOT, name_of

GUIDES = [path for path in (README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md") if path.exists()]

_CODE_BLOCK = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"<!-- generated: .*?<!-- /generated -->", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)|(?:src|href|srcset)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+ +(.*?)(?: +\{ *#([\w-]+)[^}]*\})? *$", re.MULTILINE)
_ID = re.compile(r"<a (?:id|name)=\"([\w-]+)\"|\bid=\"([\w-]+)\"")

_MEASURED = re.compile(
    r"(?<![\w.])\d[\d.,]*\s?(?:×(?!\s?\d)|(?:ms|µs|kB|MB|GB|(?:texts|tokens|sequences)/s)\b)|\d+\.\d+\s?%"
)
LIMITS = {
    "docs/how-to/benchmark.md": {"1.5 GB": "the room that an environment may need"},
    "docs/project/security.md": {"64 MB": "a limit in the code"},
}
"""Numbers with units that nobody measured, by page, with what they are."""


@cache
def prose(page: Path) -> str:
    """Return a page's text with its code blocks emptied; lines keep their numbers."""
    return _CODE_BLOCK.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    for match in _LINK.finditer(text):
        for target in (match[1] or match[2]).split(", "):
            if not re.match(r"[a-z]+:", target):
                yield unquote(target.split(" ")[0])


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page: those of headings as mkdocs and code hosts write them, and explicit ones."""
    found: list[str] = []
    for title, explicit in _HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        host = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found += [explicit] if explicit else [host, re.sub(r"-+", "-", host)]
    found += [first or second for first, second in _ID.findall(page.read_text(encoding="utf-8"))]
    return frozenset(found)


def has_all_headings(path: Path) -> bool:
    """Whether a page's headings are in its text; those from code or other files are left to the strict build."""
    return path.suffix == ".md" and not re.search(r"^(:::|--8<--) ", path.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", [*GUIDES, *PAGES], ids=name_of)
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and has_all_headings(target) and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_navigation() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES if "figures" not in page.parts}
    assert set(re.findall(r"[\w/-]+\.md\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))) == pages


def is_written(page: Path) -> bool:
    """Whether people wrote a page, and not `bert_bench.documentation`."""
    return not page.read_text(encoding="utf-8").startswith("<!-- Written by")


def measured_numbers(text: str) -> list[str]:
    """Return the numbers with units of measurement in a page, outside of generated blocks and code."""
    text = re.sub(r"`[^`\n]*`", "", _CODE_BLOCK.sub("", _GENERATED.sub("", text)))
    return [match[0] for match in _MEASURED.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if is_written(page)], ids=name_of)
def test_measured_numbers_are_generated(page: Path) -> None:
    found = set(measured_numbers(page.read_text(encoding="utf-8"))) - LIMITS.get(name_of(page), {}).keys()
    assert not found, "put them into a generated block; limits of the code go into LIMITS"


def test_limits_are_in_use() -> None:
    for page, numbers in LIMITS.items():
        assert numbers.keys() <= set(measured_numbers((ROOT / page).read_text(encoding="utf-8"))), page


@pytest.mark.parametrize("number", ["2.5×", "3×", "0.45 ms", "97.3 %", "97.3%", "1.2 GB", "1,200 texts/s", "12 µs"])
def test_measured_numbers_are_found(number: str) -> None:
    assert measured_numbers(f"It takes {number} here.") == [number]
    assert not measured_numbers(f"<!-- generated: table -->\n{number}\n<!-- /generated -->\n\n```text\n{number}\n```\n")


@pytest.mark.parametrize("text", ["8 × 128 tokens", "97 % of the texts", "Python 3.11", "arXiv:1706.04599", "`2.5×`"])
def test_other_numbers_are_not(text: str) -> None:
    assert not measured_numbers(text)
