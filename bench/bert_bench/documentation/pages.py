"""The files that are generated or hold generated blocks, and which of them are out of date."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bert_bench.documentation.blocks import fill_blocks
from bert_bench.documentation.generators import generate
from bert_bench.documentation.pictures import Drawing, drawings, is_current
from bert_bench.documentation.results_pages import FIGURES, ResultsPages
from bert_bench.errors import DocumentationError
from bert_runtime.bundle.atomic_files import atomic_write

__all__ = ["Update", "find_updates"]


@dataclass(frozen=True, kw_only=True)
class Update:
    """Changes to make in the project's folder."""

    texts: Mapping[Path, str]
    """New contents of Markdown files."""
    pictures: Mapping[Path, Drawing]
    stale: tuple[Path, ...]
    """Figures of results that are gone."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files that would change."""
        return (*self.texts, *self.pictures, *self.stale)

    def apply(self) -> None:
        """Write and remove the files."""
        for path, text in self.texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(text)
        for path, drawing in self.pictures.items():
            drawing.write(path)
        for path in self.stale:
            path.unlink()


def find_updates(root: Path) -> Update:
    """Return what must change; nothing is written.

    Args:
        root: the project's folder, with README.md and bench/results.

    Raises:
        DocumentationError: `root` is not the project's folder, or a block or page cannot be made.
        BenchError: a result cannot be read.
    """
    readme, results, docs = root / "README.md", root / "bench" / "results", root / "docs"
    for path in (readme, results):
        if not path.exists():
            raise DocumentationError(f"{path}: not found; name the folder of the project's sources with --root")
    pages = ResultsPages(results)
    pictures = {docs / name: drawing for name, drawing in drawings(pages).items()}
    texts = {docs / "results" / name: text for name, text in pages.texts().items()}
    figures = docs / "results" / FIGURES
    stale = tuple(path for path in sorted(figures.glob("*")) if path not in texts and path not in pictures)
    for path in (readme, *sorted(docs.rglob("*.md"))):
        if path not in texts and path not in stale:
            text = path.read_text(encoding="utf-8")
            texts[path] = fill_blocks(text, path.relative_to(root), partial(generate, results))
    return Update(
        texts={path: text for path, text in texts.items() if not _has_text(path, text)},
        pictures={path: drawing for path, drawing in pictures.items() if not is_current(path, drawing)},
        stale=stale,
    )


def _has_text(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
