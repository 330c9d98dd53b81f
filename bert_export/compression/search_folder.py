"""The folder of a search: what may be in it, and how it is emptied."""

import shutil
from pathlib import Path

from bert_export.compression.journal import JOURNAL_NAME
from bert_export.compression.preparation import SearchRequest
from bert_export.errors import OutputExistsError
from bert_models import Checkpoint
from bert_models.errors import CompressionError
from bert_runtime.bundle.atomic_folders import is_free

__all__ = ["check_outside", "make_folder", "remove_contents"]


def check_outside(request: SearchRequest, source: Checkpoint) -> None:
    """Raise `CompressionError` if an input is in a folder that this search writes, and --force empties."""
    inputs = (source.path, request.train, request.unlabelled, request.dev, request.test)
    for folder in (request.folder, request.output):
        for path in filter(None, inputs):
            if path.resolve().is_relative_to(folder.resolve()):
                raise CompressionError(
                    f"{path}: is in {folder}, which this search writes; move it elsewhere, or choose another output"
                )


def make_folder(request: SearchRequest) -> Path:
    """Return the folder of the search, which is made unless an earlier one is there."""
    folder = request.folder
    if not is_free(folder) and not (folder / JOURNAL_NAME).is_file():
        raise OutputExistsError(f"{folder}: exists and is not the folder of a search; move it elsewhere")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove_contents(folder: Path) -> None:
    """Empty a folder, which stays: it is locked. The journal goes last: without it, the rest is no search's."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == JOURNAL_NAME):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
