"""An engine that is ready to answer: a model of the runtime with anybody's session, or a product as it stands."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

from bert_bench.workloads import Case
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextInput
from bert_runtime.timing import interleaved_medians

__all__ = ["SPLIT_BATCH_TOKENS", "Engine", "ModelEngine", "TextEngine"]

SPLIT_BATCH_TOKENS = 256
"""Padded tokens per run that a peer may divide a batch of token ids into, as ours does."""

_LONG_TOKENS = 2048
"""Tokens of a case that is tried less often."""


class Engine(ABC):
    """An engine that is ready to answer."""

    size_bytes: int
    """Graph and weights on disk."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.batch_tokens: dict[str, int] = {}
        """Padded tokens per run of many texts, by the case for which the engine chose them."""

    @abstractmethod
    def answer(self, text: TextInput) -> Any:
        """The decoded answer for one text."""

    @abstractmethod
    def predict_batch(self, texts: Sequence[TextInput]) -> Any:
        """The decoded answers for texts that are handed over at once."""

    @abstractmethod
    def rows(self, texts: Sequence[TextInput]) -> list[tuple[FloatArray, ...]]:
        """Raw outputs of each text, one array per window of it."""

    @abstractmethod
    def call(self, case: Case) -> Callable[[], Any]:
        """What is timed in a case."""


class ModelEngine(Engine):
    """A model of the runtime, with the session of whoever is measured."""

    def __init__(self, model: Model, size_bytes: int, sizes: Sequence[int] = ()) -> None:
        super().__init__(size_bytes)
        self.model = model
        self._many = model
        """What answers many texts: the model with the padded tokens per run that were chosen last."""
        self._sizes = sizes
        """Padded tokens per run to choose from for many texts; none where the model's own count."""

    def answer(self, text: TextInput) -> Any:
        return self.model(text)

    def predict_batch(self, texts: Sequence[TextInput]) -> Any:
        return self._many(list(texts))

    def rows(self, texts: Sequence[TextInput]) -> list[tuple[FloatArray, ...]]:
        return [each.arrays for each in self.model.outputs(texts)]

    def call(self, case: Case) -> Callable[[], Any]:
        if case.stage == "tokenization":
            return partial(self.model.tokenizer.encode, case.texts)
        if (batch := case.batch) is not None:
            whole = sum(case.tokens)
            sizes = (
                (whole, SPLIT_BATCH_TOKENS)
                if self._sizes and whole > SPLIT_BATCH_TOKENS and len(case.tokens) > 1
                else ()
            )
            return partial(self._chosen(case, sizes, lambda model: model.run(batch)).run, batch)
        if len(case.texts) == 1:
            return partial(self.model, case.texts[0])
        texts = list(case.texts)
        self._many = self._chosen(case, self._sizes, lambda model: model(texts))
        return partial(self._many, texts)

    def _chosen(self, case: Case, sizes: Sequence[int], ask: Callable[[Model], Any]) -> Model:
        """The model with those of `sizes`, padded tokens per run, that are fastest for a case; as it is without any.

        Each size is tried three times, or once in a case that takes long, after a time that warmed up.
        """
        if not sizes:
            return self.model
        models = {size: copy(self.model) for size in sizes}
        for size, model in models.items():
            model.max_batch_tokens = size
            ask(model)
        tries = 1 if sum(case.tokens) > _LONG_TOKENS else 3
        seconds = interleaved_medians({size: partial(ask, model) for size, model in models.items()}, tries, warm=False)
        self.batch_tokens[case.name] = fastest = min(seconds, key=lambda size: seconds[size])
        return models[fastest]


class TextEngine(Engine):
    """A product that takes texts and gives answers; `raw` gives raw outputs [N, …] of the same texts."""

    def __init__(
        self, one: Callable[[Any], Any], many: Callable[[list[Any]], Any], raw: Callable[[list[Any]], FloatArray],
        size_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(size_bytes)
        self._one, self._many, self._raw = one, many, raw

    def answer(self, text: TextInput) -> Any:
        return self._one(_plain(text))

    def predict_batch(self, texts: Sequence[TextInput]) -> Any:
        return self._many([_plain(text) for text in texts])

    def rows(self, texts: Sequence[TextInput]) -> list[tuple[FloatArray, ...]]:
        return [(row,) for row in self._raw([_plain(text) for text in texts])]

    def call(self, case: Case) -> Callable[[], Any]:
        texts = [_plain(text) for text in case.texts]
        return partial(self._one, texts[0]) if len(texts) == 1 else partial(self._many, texts)


def _plain(text: TextInput) -> str | dict[str, str | None]:
    """A text as a product takes it; of those here, the pipeline alone is asked about pairs."""
    return text.text if text.text_pair is None else text._asdict()
