"""Opened engines: a runtime `Model` with any inference session, or a library that reads texts itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, partial
from typing import Any

from bert_bench.workloads import Case
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextInput
from bert_runtime.timing import interleaved_medians

__all__ = ["SPLIT_BATCH_TOKENS", "Engine", "ModelEngine", "TextEngine"]

SPLIT_BATCH_TOKENS = 256
"""Padded tokens per batch when a compared engine splits a batch of token ids, as bert_runtime does."""

_STREAM_TOKENS = (128, SPLIT_BATCH_TOKENS, 512)
"""Padded tokens per batch that are tried with several batches at a time, too: larger ones leave threads idle."""

_LONG_CASE_TOKENS = 2048
"""Tokens of a case above which each batch size is tried once instead of three times."""


class Engine(ABC):
    """An opened engine."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        """Size of graph and weights on disk."""
        self.batch_tokens: dict[str, int] = {}
        """By case: padded tokens per batch, where the engine chose them by trial."""
        self.streams: dict[str, int] = {}
        """By case: batches at a time, where several were chosen."""

    @abstractmethod
    def predict(self, text: TextInput) -> Any:
        """Return the decoded prediction for one text."""

    @abstractmethod
    def predict_batch(self, texts: Sequence[TextInput]) -> Any:
        """Return the decoded predictions for texts that are passed in one call."""

    @abstractmethod
    def choose_batches(self, texts: Sequence[TextInput]) -> None:
        """Try batch sizes for `predict_batch` with texts like those to come, if the engine has a choice."""

    def close_unused(self) -> None:
        """Drop what no case will use: memory is measured afterwards."""
        return

    @abstractmethod
    def raw_outputs(self, texts: Sequence[TextInput]) -> list[tuple[FloatArray, ...]]:
        """Return the raw outputs of each text, one array per window."""

    @abstractmethod
    def timed_call(self, case: Case) -> Callable[[], Any]:
        """Return the function whose calls are timed for a case; trials and conversions happen before it returns."""


class ModelEngine(Engine):
    """A runtime `Model` with the inference session of the engine that is measured.

    Args:
        model: tokenizes, pads, batches and decodes; its session is the engine's.
        size_bytes: size of graph and weights on disk.
        batch_token_choices: padded tokens per batch to choose from by trial; empty: the model's `max_batch_tokens`.
        open_streams: opens the model that runs several batches at a time, on a thread each, where the engine can.
    """

    def __init__(
        self,
        model: Model,
        size_bytes: int,
        batch_token_choices: Sequence[int] = (),
        open_streams: Callable[[], Model | None] = lambda: None,
    ) -> None:
        super().__init__(size_bytes)
        self.model = model
        self._streams_model = cache(open_streams)
        """Opens the model that runs several batches at a time, once."""
        self._batch_model = model
        """Predicts many texts: the model with the batch size that was chosen last."""
        self._batch_token_choices = batch_token_choices

    def predict(self, text: TextInput) -> Any:
        return self.model(text)

    def predict_batch(self, texts: Sequence[TextInput]) -> Any:
        return self._batch_model(list(texts))

    def raw_outputs(self, texts: Sequence[TextInput]) -> list[tuple[FloatArray, ...]]:
        return [outputs.arrays for outputs in self.model.outputs(texts)]

    def timed_call(self, case: Case) -> Callable[[], Any]:
        if case.stage == "tokenization":
            return partial(self.model.tokenize, case.texts)
        if (batch := case.batch) is not None:
            whole = sum(case.tokens)
            can_split = self._batch_token_choices and whole > SPLIT_BATCH_TOKENS and len(case.tokens) > 1
            choices = (whole, SPLIT_BATCH_TOKENS) if can_split else ()
            return partial(self._with_fastest_batches(case, choices, lambda model: model.run(batch)).run, batch)
        if len(case.texts) == 1:
            return partial(self.model, case.texts[0])
        texts = list(case.texts)
        self._batch_model = self._with_fastest_batches(case, self._batch_token_choices, lambda model: model(texts))
        return partial(self._batch_model, texts)

    def choose_batches(self, texts: Sequence[TextInput]) -> None:
        tokens = [sum(map(len, windows)) for windows in self.model.tokenizer.encode(self.model.task.prefixed(texts))]
        self.timed_call(Case(name="loadgen", stage="end_to_end", texts=tuple(texts), tokens=tuple(tokens)))

    def close_unused(self) -> None:
        """Drop the model that runs several batches at a time, and its weights, where no case chose it."""
        if not self.streams:
            self._streams_model.cache_clear()

    def _with_fastest_batches(self, case: Case, choices: Sequence[int], call: Callable[[Model], Any]) -> Model:
        """Return the model with the fastest `max_batch_tokens` of `choices` for a case; unchanged without choices.

        Batches run one after another on all threads, or, small ones, several at a time. Each choice is warmed up, then
        timed three times interleaved with the others (once in a long case); the smallest median wins.
        """
        if not choices:
            return self.model
        models = {(tokens, 1): copy(self.model) for tokens in choices}
        if (streams := self._streams_model()) is not None:
            num_streams = self.model.session.threads
            small = [tokens for tokens in choices if tokens in _STREAM_TOKENS and tokens < sum(case.tokens)]
            models |= {(tokens, num_streams): copy(streams) for tokens in small}
        for (tokens, _), model in models.items():
            model.max_batch_tokens = tokens
            call(model)
        tries = 1 if sum(case.tokens) > _LONG_CASE_TOKENS else 3
        calls = {choice: partial(call, model) for choice, model in models.items()}
        seconds = interleaved_medians(calls, tries, warm=False)
        fastest = min(seconds, key=lambda choice: seconds[choice])
        self.batch_tokens[case.name], num_streams = fastest
        if num_streams > 1:
            self.streams[case.name] = num_streams
        return models[fastest]


class TextEngine(Engine):
    """A library that reads texts and returns predictions, called as it stands.

    Args:
        predict_one: text → prediction.
        predict_many: list of texts → predictions.
        predict_raw: list of texts → raw outputs [N, …].
        size_bytes: size of graph and weights on disk.
    """

    def __init__(
        self, predict_one: Callable[[Any], Any], predict_many: Callable[[list[Any]], Any],
        predict_raw: Callable[[list[Any]], FloatArray], size_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(size_bytes)
        self._predict_one, self._predict_many, self._predict_raw = predict_one, predict_many, predict_raw

    def predict(self, text: TextInput) -> Any:
        return self._predict_one(_library_input(text))

    def predict_batch(self, texts: Sequence[TextInput]) -> Any:
        return self._predict_many([_library_input(text) for text in texts])

    def choose_batches(self, texts: Sequence[TextInput]) -> None:
        """Leave the library its default."""

    def raw_outputs(self, texts: Sequence[TextInput]) -> list[tuple[FloatArray, ...]]:
        return [(output,) for output in self._predict_raw([_library_input(text) for text in texts])]

    def timed_call(self, case: Case) -> Callable[[], Any]:
        texts = [_library_input(text) for text in case.texts]
        if len(texts) == 1:
            return partial(self._predict_one, texts[0])
        return partial(self._predict_many, texts)


def _library_input(text: TextInput) -> str | dict[str, str | None]:
    """Convert a text, or a pair for the transformers pipeline, which alone of these libraries is given pairs."""
    return text.text if text.text_pair is None else text._asdict()
