"""Raw outputs made by hand, in the shape that a model gives to its task."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_runtime.tasks import Outputs, TextInput


class NoVocabulary:
    """A tokenizer that a task must not use."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        raise AssertionError("this task decodes no tokens")

    def id_to_token(self, token_id: int) -> str:
        raise AssertionError("this task spells no tokens")

    def token_ids(self, word: str) -> list[int]:
        raise AssertionError("this task looks up no words")


def outputs_of(arrays: Any) -> list[Outputs]:
    """Wrap arrays [N, …] as the outputs of N inputs of one window each, for tasks that use only the arrays."""
    return [Outputs(TextInput("a"), (), (array,), NoVocabulary()) for array in np.asarray(arrays)]
