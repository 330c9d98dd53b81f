"""Read the rows of a search."""

from pathlib import Path
from typing import Any

from bert_export.compression.data import SearchData, read_search_data
from bert_models import open_checkpoint

__all__ = ["read"]


def read(checkpoint: Path, dev: Path, train: Path, **changes: Any) -> SearchData:
    """Return the rows of a search for a checkpoint; `changes` are arguments of `read_search_data`."""
    source = open_checkpoint(checkpoint)
    task = source.task()
    given: dict[str, Any] = {"unlabelled": None, "test": None, "columns": None, "fraction": 0.5, "seed": 0, **changes}
    return read_search_data(task, source.text_tokenizer(), train, dev=dev, **given)
