"""A tokenized corpus in memory-mapped flat files: tokens, word starts, sentences and documents.

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

__all__ = ["FORMAT_VERSION", "MAX_DEV_TOKENS", "CacheLayout", "TokenCache", "split_documents"]

FORMAT_VERSION = 1
"""Version of the file format; part of the cache key, so that caches of other versions are not found."""

MAX_DEV_TOKENS = 200_000
"""About how many tokens are held out at most: a tenth of those that the default settings train on between two
evaluations."""

_LAYOUT_NAME = "cache.json"


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """Contents of `cache.json`."""

    format_version: int
    """`FORMAT_VERSION` of the writer."""
    key: str
    """See `tokenizing.cache_key`."""
    token_dtype: str
    """`uint16` or `uint32`."""
    num_tokens: int
    num_sentences: int
    num_documents: int

    def write(self, folder: Path) -> None:
        """Write `cache.json` into the folder of the flat files."""
        write_json(folder / _LAYOUT_NAME, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "CacheLayout":
        """Read `cache.json` from the folder of the flat files.

        Raises:
            DataError: the file is missing, damaged, or of another version.
        """
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
        """Dtype and number of entries of each flat file, by name."""
        return {
            "tokens": (self.token_dtype, self.num_tokens),
            "word_starts": ("bool", self.num_tokens),
            "sentences": ("int64", self.num_sentences + 1),
            "documents": ("int64", self.num_documents + 1),
        }


class TokenCache:
    """A tokenized corpus on disk, mapped into memory.

    Only pages that are read take memory. A pickle holds the folder's path only, so worker processes map the same files.
    """

    def __init__(self, folder: str | Path) -> None:
        """Map the files.

        Raises:
            DataError: a file is missing, or its size differs from `cache.json`.
        """
        self.folder = Path(folder)
        self.layout = CacheLayout.read(self.folder)
        self.tokens: NDArray[np.unsignedinteger[Any]] = self._map("tokens")
        """Token ids without special tokens, uint16 or uint32 [T]."""
        self.word_starts: NDArray[np.bool_] = self._map("word_starts")
        """True at the first token of every word, bool [T]."""
        self.sentences: IntArray = self._map("sentences")
        """Index of each sentence's first token, int64 [N + 1]; the last entry is T."""
        self.documents: IntArray = self._map("documents")
        """Index of each document's first sentence, int64 [D + 1]; the last entry is N."""

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
        # A plain array over the map: slicing np.memmap is several times slower.
        return np.frombuffer(mapped, dtype=dtype)

    def __reduce__(self) -> tuple[type["TokenCache"], tuple[Path]]:
        return TokenCache, (self.folder,)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, T."""
        return self.layout.num_tokens

    @property
    def num_sentences(self) -> int:
        """Number of sentences, N."""
        return self.layout.num_sentences

    @property
    def num_documents(self) -> int:
        """Number of documents, D."""
        return self.layout.num_documents

    @property
    def document_tokens(self) -> IntArray:
        """Number of tokens of each document, int64 [D]."""
        return np.diff(self.sentences[self.documents])

    def sentence_bounds(self, document: int) -> IntArray:
        """Return the first token of each of a document's n sentences, and the end of the last one, int64 [n + 1]."""
        first, end = self.documents[document : document + 2]
        return self.sentences[first : end + 1]


def split_documents(
    document_tokens: IntArray, dev_fraction: float, seed: int, min_documents: int = 1
) -> tuple[IntArray, IntArray]:
    """Split documents at random into training and held-out ones.

    About `dev_fraction` of the tokens, or `MAX_DEV_TOKENS` if these are fewer, are held out: documents of no more than
    that in random order until they have as many. Where these have less than half of it, the shortest other is added,
    unless it is longer than `MAX_DEV_TOKENS`; and as many as `min_documents` wants.

    Args:
        document_tokens: number of tokens of each document, int64 [D].
        dev_fraction: fraction of the tokens to hold out, between 0 and 1.
        seed: seed of the choice.
        min_documents: minimum of documents to train on, and of those to hold out.

    Returns:
        The indices of the training and of the held-out documents, both sorted, int64.

    Raises:
        DataError: `dev_fraction` is out of range, or there are fewer documents than twice `min_documents`.
    """
    if not 0 < dev_fraction < 1:
        raise DataError(f"dev_fraction must lie between 0 and 1, found {dev_fraction}")
    num_documents = len(document_tokens)
    if num_documents < 2 * min_documents:
        raise DataError(
            f"expected at least {2 * min_documents} documents, to hold {min_documents} out for evaluation, found "
            f"{num_documents}; check how documents are separated"
        )
    wanted = min(round(dev_fraction * int(document_tokens.sum())), MAX_DEV_TOKENS)
    order = np.random.default_rng(seed).permutation(num_documents)
    short = order[document_tokens[order] <= wanted]
    sizes = document_tokens[short]
    held_out = short[sizes.cumsum() - sizes < wanted][: num_documents - min_documents]
    others = np.setdiff1d(order, held_out)
    for document in others[document_tokens[others].argsort(kind="stable")][: len(others) - min_documents]:
        is_enough = document_tokens[held_out].sum() >= wanted / 2 or document_tokens[document] > MAX_DEV_TOKENS
        if len(held_out) >= min_documents and is_enough:
            break
        held_out = np.append(held_out, document)
    return np.setdiff1d(order, held_out), np.sort(held_out)
