"""Padded batches of token ids."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding

from bert_runtime.errors import InputError
from bert_runtime.numerics import IntArray

__all__ = ["Batch", "check_batch", "check_ids", "pad"]


class Batch(NamedTuple):
    """Padded sequences as three int64 arrays [B, S].

    A masked graph takes padding on any side, a packed one on the right only, an unmasked one none; see
    `bert_runtime.bundle.manifest.Variant.padding`.
    """

    input_ids: IntArray
    attention_mask: IntArray
    """1 at real tokens and 0 at padding."""
    token_type_ids: IntArray
    """1 at the second text of a pair, 0 elsewhere."""


def check_batch(batch: Batch, limits: Mapping[str, int], max_tokens: int | None = None) -> None:
    """Raise `InputError` unless `batch` is three int64 arrays of one shape [B, S], B and S ≥ 1, with ids in range.

    ONNX Runtime would look up negative ids from the table's end, and broadcast a mask that has one row.

    Args:
        batch: the arrays.
        limits: see `check_ids`.
        max_tokens: largest S; `None` for any.
    """
    if not isinstance(batch, Batch):
        raise InputError(
            f"expected a bert_runtime.Batch of three int64 arrays [batch, tokens], found {type(batch).__name__}"
        )
    for name, array in batch._asdict().items():
        if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 2 or not array.size:
            found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise InputError(f"expected {name} to be a non-empty int64 array [batch, tokens], found {found}")
        if array.shape != batch.input_ids.shape:
            raise InputError(
                f"expected {name} of the shape of input_ids, {list(batch.input_ids.shape)}, found {list(array.shape)}"
            )
    if max_tokens is not None and batch.input_ids.shape[1] > max_tokens:
        raise InputError(f"expected at most {max_tokens} tokens per sequence, found {batch.input_ids.shape[1]}")
    check_ids(batch, limits)


def check_ids(batch: Batch, limits: Mapping[str, int]) -> None:
    """Raise `InputError` for an id that would be looked up beyond the ends of its table.

    Args:
        batch: the arrays.
        limits: exclusive maximum of an input's values, by the input's name.
    """
    for name, limit in limits.items():
        array: IntArray = getattr(batch, name)
        if int(array.view(np.uint64).max(initial=0)) >= limit:  # as unsigned integers, negative ids are large
            low, high = int(array.min()), int(array.max())
            raise InputError(f"{name} must lie in 0 to {limit - 1}, found {low if low < 0 else high}")


def pad(encodings: Sequence[Encoding], pad_token_id: int) -> Batch:
    """Return encodings as one batch, right-padded to the longest of them."""
    if len(encodings) == 1:  # nothing to pad: no copies in the latency of a single text
        encoding = encodings[0]
        ids = np.array([encoding.ids], dtype=np.int64)
        return Batch(ids, np.ones(ids.shape, dtype=np.int64), np.array([encoding.type_ids], dtype=np.int64))
    shape = len(encodings), max(map(len, encodings))
    batch = Batch(np.full(shape, pad_token_id, dtype=np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    for index, encoding in enumerate(encodings):
        length = len(encoding)
        batch.input_ids[index, :length] = encoding.ids
        batch.attention_mask[index, :length] = 1
        batch.token_type_ids[index, :length] = encoding.type_ids
    return batch
