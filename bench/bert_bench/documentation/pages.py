"""The files that are generated or hold generated blocks."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bert_bench.documentation.blocks import fill_blocks
from bert_bench.documentation.generators import generate
from bert_bench.errors import DocumentationError

__all__ = ["changed_files"]


def changed_files(root: Path) -> Mapping[Path, str]:
    """Return the new text of each file that would change; nothing is written.

    Args:
        root: the project's folder, with README.md and bench/results.

    Raises:
        DocumentationError: `root` is not the project's folder, or a block cannot be filled.
    """
    readme, results = root / "README.md", root / "bench" / "results"
    for path in (readme, results):
        if not path.exists():
            raise DocumentationError(f"{path}: not found; name the folder of the project's sources with --root")
    changed: dict[Path, str] = {}
    for path in (readme, *sorted((root / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        filled = fill_blocks(text, path.relative_to(root), partial(generate, results))
        if filled != text:
            changed[path] = filled
    return changed
