"""A tokenized corpus in flat files that are mapped into memory: tokens, words, sentences and documents.

Letters in shapes: T tokens, N sentences and D documents in the corpus.
"""

import mmap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_models.errors import CheckpointError
from bert_models.files import read_json, write_json
from bert_runtime.errors import DataError
from bert_runtime.numerics import IntArray

__all__ = ["FORMAT_VERSION", "CacheLayout", "TokenCache", "split_documents"]

FORMAT_VERSION = 1
"""Part of the key: a cache that another version wrote is not found."""


_LAYOUT_NAME = "cache.json"


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """What `cache.json` holds."""

    format_version: int
    key: str
    token_dtype: str
    num_tokens: int
    num_sentences: int
    num_documents: int

    def write(self, folder: Path) -> None:
        """Writes it into the folder of the flat files."""
        write_json(folder / _LAYOUT_NAME, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "CacheLayout":
        """The inverse of `write`; raises `DataError`."""
        advice = "delete the folder, and it is made again"
        try:
            layout = cls(**read_json(folder / _LAYOUT_NAME))
        except (CheckpointError, TypeError) as error:
            raise DataError(f"{folder}: not a token cache: {error}; {advice}") from None
        if layout.format_version != FORMAT_VERSION:
            raise DataError(
                f"{folder}: expected a token cache of version {FORMAT_VERSION}, found {layout.format_version}; {advice}"
            )
        return layout

    @property
    def files(self) -> dict[str, tuple[str, int]]:
        """The flat files: dtype and number of entries."""
        return {
            "tokens": (self.token_dtype, self.num_tokens),
            "word_starts": ("bool", self.num_tokens),
            "sentences": ("int64", self.num_sentences + 1),
            "documents": ("int64", self.num_documents + 1),
        }


class TokenCache:
    """A tokenized corpus on disk. Only the pages that are read are in memory; pickles as the folder's name."""

    def __init__(self, folder: str | Path) -> None:
        """Maps the files; raises `DataError` where one is missing or has another size than `cache.json` says."""
        self.folder = Path(folder)
        self.layout = CacheLayout.read(self.folder)
        self.tokens: NDArray[np.unsignedinteger[Any]] = self._map("tokens")
        """Token ids without special ones, uint16 or uint32 [T]."""
        self.word_starts: NDArray[np.bool_] = self._map("word_starts")
        """True at the first token of every word, [T]."""
        self.sentences: IntArray = self._map("sentences")
        """Where each sentence's tokens begin, int64 [N + 1]; the last entry is T."""
        self.documents: IntArray = self._map("documents")
        """Where each document's sentences begin, int64 [D + 1]; the last entry is N."""

    def _map(self, name: str) -> NDArray[Any]:
        path, (dtype, count) = self.folder / f"{name}.bin", self.layout.files[name]
        expected = count * np.dtype(dtype).itemsize
        found = path.stat().st_size if path.is_file() else 0
        if found != expected:
            raise DataError(
                f"{path}: expected {expected} bytes, found {found}; delete the folder, and it is made again"
            )
        with path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        # A plain array over the map: slices of np.memmap cost several times as much.
        return np.frombuffer(mapped, dtype=dtype)

    def __reduce__(self) -> tuple[type["TokenCache"], tuple[Path]]:
        return TokenCache, (self.folder,)

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.layout.num_tokens

    @property
    def num_sentences(self) -> int:
        """N."""
        return self.layout.num_sentences

    @property
    def num_documents(self) -> int:
        """D."""
        return self.layout.num_documents

    def sentence_bounds(self, document: int) -> IntArray:
        """Where the sentences of a document begin among the tokens, and where the last one ends, int64 [n + 1]."""
        first, end = self.documents[document : document + 2]
        return self.sentences[first : end + 1]


def split_documents(num_documents: int, dev_fraction: float, seed: int) -> tuple[IntArray, IntArray]:
    """The numbers of the documents to train on and of those to measure on, both sorted.

    The latter are a random `dev_fraction` of all, at least one and not all; none where `dev_fraction` is 0. Raises
    `DataError`.
    """
    if not 0 <= dev_fraction < 1:
        raise DataError(f"the share of dev documents must lie in [0, 1), found {dev_fraction}")
    if dev_fraction == 0:
        return np.arange(num_documents), np.arange(0)
    if num_documents < 2:
        raise DataError(f"expected at least 2 documents to set some apart for measuring, found {num_documents}")
    count = min(max(1, round(dev_fraction * num_documents)), num_documents - 1)
    order = np.random.default_rng(seed).permutation(num_documents)
    return np.sort(order[count:]), np.sort(order[:count])
