"""Limits of a request: how much it may ask for before, while and after its texts are tokenized."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from bert_runtime import Model
from bert_runtime.batching.streaming import EncodedInput
from bert_runtime.inputs import SingleInput, texts_of
from bert_runtime.tasks import FeatureExtraction, Task, TextInput
from bert_serve.errors import AnswerTooLargeError, QueueFullError, TextTooLongError, TooManyTextsError
from bert_serve.serving.sizes import num_candidates
from bert_serve.settings import EngineSettings

__all__ = ["MAX_UNBROKEN_CHARACTERS", "RequestLimits"]

_MAX_OUTPUT_BYTES = 1 << 28
"""Raw outputs of a request: scores of 2,200 masks, or sparse embeddings of 2,200 texts. A judgement."""

_MAX_VECTOR_BYTES = 1 << 26
"""Token vectors of a request, which are larger as JSON: 22,000 of 768 elements. A judgement."""

_MAX_HELD_BYTES = 1 << 29
"""Raw outputs of all requests that a model computes at a time. A judgement."""

_MAX_CANDIDATES = 50_000
"""Candidates of a request that names how many it wants. A judgement."""

MAX_UNBROKEN_CHARACTERS = 300_000
"""Characters of a text that truncation has to tokenize, since it has no boundaries of words to cut at. A judgement."""


class RequestLimits:
    """Limits of what a request to a model may ask for, and of what all of them hold together.

    Args:
        model: the model.
        settings: limits of the server.
    """

    def __init__(self, model: Model, settings: EngineSettings) -> None:
        self._model = model
        self._settings = settings
        self._held_bytes = 0
        """Raw outputs that are computed or wait to be."""

    def check_number(self, num_texts: int, noun: str = "texts") -> None:
        """Check a request before its texts are tokenized.

        Args:
            num_texts: how many texts it has.
            noun: what they are, for the error.

        Raises:
            TooManyTextsError: there are more than a request may have.
        """
        if num_texts > self._settings.max_texts:
            raise TooManyTextsError(f"expected at most {self._settings.max_texts} {noun}, found {num_texts}")

    def check_unbroken(self, inputs: Sequence[SingleInput], length: int) -> None:
        """Check a request for texts without words, of which truncation would tokenize everything. Takes a moment.

        Args:
            inputs: the inputs.
            length: characters of all of them.

        Raises:
            TextTooLongError: such a text is too long. For what is read in windows, the tokenizer has a limit.
        """
        tokenizer, most = self._model.tokenizer, MAX_UNBROKEN_CHARACTERS
        if length <= most or tokenizer.windows is not None:
            return
        side = slice(-most, None) if tokenizer.truncation_side == "left" else slice(most)
        for index, value in enumerate(inputs):
            texts = list(texts_of(value))
            for text in texts:
                if len(text) <= most:
                    continue
                is_undecided = len(tokenizer.shortened(TextInput(text[side])).text) == most
                # Of pairs, the longer one's tokens may be counted behind what is kept.
                if is_undecided or (len(texts) > 1 and max(map(len, text.split()), default=0) > most):
                    raise TextTooLongError(
                        f"input {index}: expected a text whose {most:,} characters that truncation keeps have the "
                        f"{tokenizer.max_tokens} tokens that are read, found fewer, or no words, in {len(text):,}"
                    )

    def check_lengths(self, encoded: Sequence[EncodedInput], *, truncate: bool) -> None:
        """Check a request's tokenized inputs.

        Args:
            encoded: the inputs.
            truncate: whether what exceeds the model's maximum may be cut off.

        Raises:
            TextTooLongError: an input has more tokens than it may.
        """
        limit = self._settings.max_tokens_per_text
        if limit is None and truncate:
            return
        windowed, most = self._model.task.splits_long_inputs, self._model.tokenizer.max_tokens
        limit = limit or most
        if not (windowed and truncate):  # the model reads no more at once
            limit = min(limit, most)
        for index, item in enumerate(encoded):
            num_tokens = sum(map(len, item.windows))
            if (cut := self.is_cut(item)) or num_tokens > limit:
                found = f"more than {num_tokens}" if cut else str(num_tokens)
                if len(item.windows) > 1:
                    found += f" in {len(item.windows)} overlapping windows"
                raise TextTooLongError(f"input {index}: expected at most {limit} tokens, found {found}")

    def is_cut(self, item: EncodedInput) -> bool:
        """Return whether an input is longer than what the model reads of it."""
        return not self._model.task.splits_long_inputs and any(window.overflowing for window in item.windows)

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Count the raw outputs of a request while they are computed.

        Raises:
            AnswerTooLargeError: they would take more memory than those of one request may.
            QueueFullError: with those in progress, they would take more than those of all requests may.
        """
        most = _MAX_VECTOR_BYTES if isinstance(self._model.task, FeatureExtraction) else _MAX_OUTPUT_BYTES
        if num_bytes > most:
            raise AnswerTooLargeError(
                f"expected texts of which the model computes at most {most >> 20} MiB of float32, found "
                f"{num_bytes >> 20} MiB; send fewer at a time"
            )
        if self._held_bytes + num_bytes > _MAX_HELD_BYTES:
            raise QueueFullError(
                f"expected at most {_MAX_HELD_BYTES >> 20} MiB of outputs in progress, found {self._held_bytes >> 20} "
                f"MiB and this request's {num_bytes >> 20} MiB; try again later"
            )
        self._held_bytes += num_bytes
        try:
            yield
        finally:
            self._held_bytes -= num_bytes

    def check_candidates(self, inputs: Sequence[EncodedInput], task: Task, options: Collection[str]) -> None:
        """Raise `AnswerTooLargeError` where a request's options make decoding weigh too many candidates.

        Args:
            inputs: the tokenized inputs.
            task: the task with the options.
            options: names of the options that the request has.
        """
        given = sorted({"top_k", "n_best", "candidates"}.intersection(options))
        if given and (found := num_candidates(inputs, task)) > _MAX_CANDIDATES:
            raise AnswerTooLargeError(
                f"{', '.join(given)}: expected at most {_MAX_CANDIDATES:,} candidates to be weighed, found {found:,}; "
                "ask for fewer of each text, or send fewer texts"
            )
