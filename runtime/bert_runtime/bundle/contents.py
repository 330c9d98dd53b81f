"""The files of a bundle's folder, and whether it may be replaced."""

from pathlib import Path

from bert_runtime.bundle.atomic_folders import is_free, unowned_files
from bert_runtime.bundle.manifest import MANIFEST_NAME
from bert_runtime.plan import TUNING_NAME

__all__ = ["BUNDLE_FILES", "CARD_NAME", "replacement_problem"]

CARD_NAME = "README.md"
"""The model card, which a hub shows."""

BUNDLE_FILES = (MANIFEST_NAME, TUNING_NAME, CARD_NAME, "tokenizer.json", "model.*.onnx", "model.*.onnx.data")
"""Glob patterns of a bundle's files, which are replaced with it."""


def replacement_problem(output: Path, *, force: bool) -> str | None:
    """Return why a bundle may not be written to `output`, or `None` if it may.

    Args:
        output: the folder; free, empty, or holding nothing but a bundle.
        force: whether a bundle that is already there may be replaced.
    """
    if is_free(output):
        return None
    if not (output / MANIFEST_NAME).is_file():
        return f"{output}: exists and is not a bundle; choose another path"
    if not force:
        return f"{output}: a bundle is already there; replace it with --force"
    if unowned := unowned_files(output, BUNDLE_FILES):
        found = ", ".join(unowned)
        return f"{output}: besides the bundle there is also {found}, which would be lost; move that elsewhere first"
    return None
