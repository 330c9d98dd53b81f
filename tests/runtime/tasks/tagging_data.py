"""Tasks, texts and models for the tests of token-classification."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_runtime.records import Record
from bert_runtime.tasks import TokenClassification

from ..task_models import (
    LABELS,
    RandomRunner,
)

TEXTS = (
    "Antananarivo is the best bank",
    "hello zebra , good film",
    "see xyz",
    "parcel - refund / unhelpfully",
    "q",
)
"""Texts of up to six words of the toy vocabulary, some of which are spelled letter by letter."""


TAGS = TokenClassification(labels=LABELS)


class Scripted(RandomRunner):
    """A session that returns given logits for the tokens between the special ones."""

    def __init__(self, logits: np.ndarray) -> None:
        super().__init__(logits.shape[1])
        self.logits = logits

    def values(self, ids: Sequence[int]) -> Any:
        return np.pad(self.logits, ((1, 1), (0, 0))).astype(np.float32)


def record(words: Sequence[str], tags: Sequence[str]) -> Record:
    return Record({"tokens": list(words), "tags": list(tags)}, Path("data.jsonl"), 3)
