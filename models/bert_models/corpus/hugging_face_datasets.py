"""A dataset of the Hugging Face `datasets` library as a corpus; every row is a document."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from bert_models.corpus.sentences import Sentence, split_sentences
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.errors import DataError, MissingExtraError

__all__ = ["HuggingFaceDataset"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class HuggingFaceDataset:
    """A dataset on the hub, or a folder that `load_dataset` or `load_from_disk` reads. Rows are streamed."""

    name: str
    """A folder, or `org/name` on the hub."""
    config: str | None = None
    """Name of the dataset's configuration (subset)."""
    split: str = "train"
    field: str = "text"
    """Column with the text of a document, whose lines are its sentences."""
    revision: str | None = None
    """Branch, tag or commit on the hub; by default the main branch."""

    @classmethod
    def from_name(cls, name: str, *, split: str = "train", field: str = "text") -> "HuggingFaceDataset":
        """Parse a dataset's name.

        Args:
            name: a folder, or `org/name[/config][@revision]` on the hub.
            split: name of the split to read.
            field: column with the text.

        Raises:
            DataError: `name` has another form.
        """
        if Path(name).is_dir():
            return cls(name=name, split=split, field=field)
        path, _, revision = name.partition("@")
        parts = path.split("/")
        if not 1 <= len(parts) <= 3 or not all(parts):
            raise DataError(f"{name}: expected a folder, or org/name or org/name/config with an optional @revision")
        config = parts[2] if len(parts) == 3 else None
        return cls(name="/".join(parts[:2]), config=config, split=split, field=field, revision=revision or None)

    def sentences(self) -> Iterator[Sentence]:
        for number, row in enumerate(self._pinned._rows(), start=1):
            where = f"{self.name}: row {number} of {self.split!r}"
            text = row.get(self.field)
            if not isinstance(text, str):
                found = type(text).__name__ if self.field in row else f"the columns {', '.join(map(repr, row))}"
                raise DataError(f"{where}: expected a text in the column {self.field!r}, found {found}")
            yield from split_sentences(text, where)

    def fingerprint(self) -> str:
        """Return a SHA-256 of the settings and of the folder's file contents, or of the hub dataset's commit."""
        folder = Path(self.name)
        if folder.is_dir():
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            contents: Any = [(path.relative_to(folder).as_posix(), sha256_file(path)) for path in files]
        else:
            contents = [self.name, self._pinned.revision]
        settings = ["dataset", self.config, self.split, self.field]
        return hashlib.sha256(json.dumps([settings, contents]).encode()).hexdigest()

    @cached_property
    def _pinned(self) -> "HuggingFaceDataset":
        """This dataset pinned to the commit of `revision`; cached, so that the commit hashed is the commit read."""
        if Path(self.name).is_dir() or _COMMIT.fullmatch(self.revision or ""):
            return self
        _import_datasets()  # installs huggingface_hub, too
        from huggingface_hub import HfApi

        try:
            return replace(self, revision=HfApi().dataset_info(self.name, revision=self.revision).sha)
        except Exception as error:  # HTTP, offline mode, or an invalid name
            raise DataError(
                f"{self.name}: expected a folder or a dataset on the hub, found no such folder, and the hub did not "
                f"answer: {error}; to read it from the cache alone, give the commit: org/name@ and its 40 digits"
            ) from None

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        library, folder = _import_datasets(), Path(self.name)
        saved = any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
        try:
            if saved:  # written by `save_to_disk`; memory-mapped, not loaded
                loaded = library.load_from_disk(self.name)
                yield from loaded[self.split] if isinstance(loaded, dict) else loaded
            else:
                yield from library.load_dataset(
                    self.name, self.config, split=self.split, revision=self.revision, streaming=True
                )
        except Exception as error:  # datasets and its readers raise errors of many types
            raise DataError(f"{self.name}: split {self.split!r} cannot be read: {error}") from error


def _import_datasets() -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(error.name or "datasets", "train", "reading a dataset") from None
    return datasets
