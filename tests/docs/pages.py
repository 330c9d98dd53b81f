"""The pages of the documentation."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"


def name_of(page: Path) -> str:
    """Return a page's path from the repository's root."""
    return page.relative_to(ROOT).as_posix()


PAGES = sorted(DOCS.rglob("*.md"))
