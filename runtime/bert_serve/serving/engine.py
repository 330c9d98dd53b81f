"""A loaded bundle with its queue and its worker."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from itertools import islice
from math import inf
from typing import Any, cast

from tokenizers import Encoding

from bert_runtime import Model
from bert_runtime.batching.streaming import EncodedInput
from bert_runtime.errors import BundleError
from bert_runtime.inputs import SingleInput
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Outputs, Result, TextInput
from bert_runtime.verification import self_test
from bert_runtime.zero_shot import ZeroShotClassifier
from bert_serve.metrics import ModelMetrics
from bert_serve.serving.caller import Caller, wait_for
from bert_serve.serving.request_limits import RequestLimits
from bert_serve.serving.sizes import num_answers, num_characters
from bert_serve.serving.token_ids import TokenIds, check_token_ids
from bert_serve.serving.token_queue import Job, Reservation, TokenQueue
from bert_serve.serving.worker import Worker
from bert_serve.settings import EngineSettings

__all__ = ["INLINE_CHARACTERS", "Engine"]

_log = logging.getLogger("bert_serve")

_TAKEN_BATCHES = 4
"""Batches of `max_batch_tokens` that the worker takes at a time: enough to sort by length and to fill the parallel
sessions, few enough for a new request to have its turn soon. A judgement."""

_TURN_TAKES = 4
"""Takes of the worker that a request has in its turn. With half of a take, requests of 32
texts had two turns, and so waited twice. A judgement."""

INLINE_CHARACTERS = 1_000
"""Length of a single text that is tokenized on the event loop, which takes less than passing it to a thread. At twice
the capacity in requests of 32 texts, tokenizing these there took a quarter of the loop's time (py-spy)."""

_INLINE_ANSWERS = 32
"""Answers that are decoded at once, without a thread, counted by `num_answers`. A thread costs 0.03 ms; 20 words of a
tagger with BIO rules 0.6 ms, and 32 windows of a question's context 5 ms with the tests' toy model."""

_TOKENS_PER_CHARACTER = 0.3
"""Tokens per character before any text was tokenized: BANKING77's have 0.29 with special tokens in BERT's uncased
vocabulary."""

_SMOOTHING = 0.05
"""Weight of the newest request in the tokens per character. A judgement."""

_SUSPICIOUS_FAILURES = 3
"""Requests in a row on which the model fails, after which its self-test tells whether the fault is theirs. A
judgement."""

_LABEL_SETS = 16
"""Label sets of zero-shot classification whose hypotheses are kept tokenized. A judgement."""


class Engine:
    """A loaded bundle whose work comes from a queue.

    Args:
        model: the loaded bundle of one model.
        settings: how its work is joined.
        metrics: where it is counted.

    Raises:
        BundleError: the model computes something else than the bundle's self-test says.
    """

    def __init__(self, model: Model, settings: EngineSettings, metrics: ModelMetrics) -> None:
        self.model = model
        """The loaded model; of a cascade, both of them."""
        self._tested = model
        self._settings = settings
        self.limits = RequestLimits(model, settings)
        """Limits of what a request may ask for."""
        self._metrics = metrics
        self._check_self_test()
        take_tokens = _TAKEN_BATCHES * self.model.max_batch_tokens
        turn_tokens = _TURN_TAKES * take_tokens
        self.queue = TokenQueue(
            settings.max_queue_tokens,
            take_tokens,
            turn_tokens,
            settings.max_queue_ms / 1e3,
            metrics.queue_tokens.set,
        )
        self._broken = False
        self._tokens_per_character = _TOKENS_PER_CHARACTER
        self._worker = Worker(self.model, self.queue, metrics.joined.observe)
        self.zero_shot_classifier: Callable[..., ZeroShotClassifier] = lru_cache(_LABEL_SETS)(
            partial(ZeroShotClassifier, model)
        )
        """Makes a `ZeroShotClassifier` of the model; those of recent label sets have their hypotheses tokenized."""

    def _check_self_test(self) -> None:
        manifest, variant = self._tested.manifest, self._tested.variant
        assert manifest is not None, "a loaded bundle has a manifest"
        assert variant is not None, "a loaded bundle has a variant"
        check = self_test(self._tested, manifest, variant)
        if not check.passed:
            raise BundleError(f"{check.name} failed: {check.detail}; run bert-export verify on the bundle")

    def reserve(self, inputs: Sequence[SingleInput], repeats: int = 1) -> AbstractContextManager[Reservation]:
        """Reserve room in the queue for inputs before they are tokenized, by their length in characters.

        Args:
            inputs: inputs as in `bert_runtime.Model.__call__`.
            repeats: how often each is run, with different second texts.

        Raises:
            QueueFullError: too much work is waiting.
        """
        most = inf if self.model.task.splits_long_inputs else self.model.tokenizer.max_tokens
        expected = (min(most, num_characters([value]) * self._tokens_per_character) for value in inputs)
        return self.queue.reserve(round(sum(expected)) * repeats)

    async def run(
        self,
        inputs: Sequence[SingleInput],
        caller: Caller | None = None,
        *,
        truncate: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> list[Outputs]:
        """Return the raw outputs of inputs; refuse under overload before they are tokenized.

        Args:
            inputs: inputs as in `bert_runtime.Model.__call__`.
            caller: whose connection is watched; see `outputs`.
            truncate: whether what exceeds the model's maximum may be cut off.
            options: options of the task, such as the name of a prompt.

        Raises:
            InputError: names an input that the task cannot process, or an option that it does not have.
            ServeError: the request cannot be answered now, or exceeds a limit; see `encode` and `outputs`.
        """
        self.limits.check_number(len(inputs))
        with self.reserve(inputs) as reservation:
            encoded = await self.encode(inputs, truncate=truncate, options=options)
            if options:
                self.limits.check_candidates(encoded, self.model.task.with_options(**options), options)
            return await self.outputs(encoded, caller, reservation)

    async def encode(
        self, inputs: Sequence[SingleInput], *, truncate: bool = True, options: Mapping[str, Any] | None = None
    ) -> list[EncodedInput]:
        """Tokenize inputs.

        Args:
            inputs: inputs as in `bert_runtime.Model.__call__`.
            truncate: whether what exceeds the model's maximum may be cut off.
            options: options of the task, such as the name of a prompt.

        Raises:
            InputError: names an input that the task cannot process, or an option that it does not have.
            TooManyTextsError: there are more than a request may have.
            TextTooLongError: an input has more tokens than it may.
        """
        self.limits.check_number(len(inputs))
        start = time.perf_counter()
        model = self.model.with_options(**options) if options else self.model
        length = num_characters(inputs)
        if len(inputs) == 1 and length <= INLINE_CHARACTERS:
            encoded = model.tokenize(inputs)
        else:
            encoded = await asyncio.to_thread(self._tokenize, model, inputs, length)
        self.limits.check_lengths(encoded, truncate=truncate)
        if length and not any(map(self.limits.is_cut, encoded)):  # what is cut off has characters and no tokens
            found = sum(len(window) for item in encoded for window in item.windows) / length
            self._tokens_per_character += _SMOOTHING * (found - self._tokens_per_character)
        self._metrics.tokenize_s.observe(time.perf_counter() - start)
        return encoded

    def _tokenize(self, model: Model, inputs: Sequence[SingleInput], length: int) -> list[EncodedInput]:
        self.limits.check_unbroken(inputs, length)
        return model.tokenize(inputs)

    def encode_ids(self, sequences: Sequence[Sequence[int]]) -> list[EncodedInput]:
        """Return token ids as tokenized inputs, special tokens included as they are.

        Args:
            sequences: token ids of each input.

        Raises:
            InputError: names an input that has no ids, or ids that the vocabulary lacks.
            TooManyTextsError: there are more than a request may have.
            TextTooLongError: an input has more tokens than it may.
        """
        self.limits.check_number(len(sequences))
        tokenizer, limits = self.model.tokenizer, self.model.manifest.id_limits if self.model.manifest else {}
        max_tokens = min(tokenizer.max_tokens, self._settings.max_tokens_per_text or tokenizer.max_tokens)
        check_token_ids(sequences, limits.get("input_ids", tokenizer.vocab_size), max_tokens, tokenizer.special_ends)
        return [EncodedInput(TextInput(""), (cast(Encoding, TokenIds(ids)),)) for ids in sequences]

    async def outputs(
        self, encoded: Sequence[EncodedInput], caller: Caller | None = None, reservation: Reservation | None = None
    ) -> list[Outputs]:
        """Return the raw outputs of tokenized inputs, computed together with those of other callers.

        Args:
            encoded: the inputs.
            caller: whose connection is watched; work for a client that has gone is dropped.
            reservation: the room that `reserve` gave for them.

        Raises:
            QueueFullError: too much work is waiting.
            QueueTimeoutError: the work was not started in time.
            ClientGoneError: the client has gone.
            AnswerTooLargeError: the outputs of all inputs together would take too much memory.
            BundleError: the graph failed.
        """
        if not encoded:
            return []
        with self.limits.holding(sum(map(self.model.output_bytes, encoded))):
            return await self._compute(encoded, caller, reservation)

    async def _compute(
        self, encoded: Sequence[EncodedInput], caller: Caller | None, reservation: Reservation | None
    ) -> list[Outputs]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish(job: Job) -> None:
            loop.call_soon_threadsafe(_set_done, done)

        sequences = [window for item in encoded for window in item.windows]
        job = Job(sequences, time.perf_counter() + self._settings.max_queue_ms / 1e3, finish)
        with nullcontext(reservation) if reservation else self.queue.reserve(job.num_waiting_tokens) as room:
            self.queue.put(job, room)
        try:
            await wait_for(done, caller)
        except BaseException:  # also when the handler is cancelled
            self.queue.cancel(job)
            raise
        if job.error is not None:
            raise job.error
        self._metrics.count(job)
        arrays = iter(cast(list[FloatArray], job.outputs))  # all are computed
        return [
            Outputs(item.input, item.windows, tuple(islice(arrays, len(item.windows))), self.model.tokenizer)
            for item in encoded
        ]

    async def decode(self, outputs: Sequence[Outputs], options: Mapping[str, Any] | None = None) -> list[Result]:
        """Return the results of raw outputs; raise `InputError` for an option that the task does not have."""
        task = self.model.task.with_options(**options) if options else self.model.task
        if num_answers(outputs, task) > _INLINE_ANSWERS:
            return await asyncio.to_thread(lambda: list(map(task.decode, outputs)))
        return list(map(task.decode, outputs))

    @property
    def broken(self) -> bool:
        """Whether the model failed on requests and on its self-test since, such as on a lost GPU."""
        return self._broken

    def check_failures(self) -> None:
        """Run the self-test again where the model has failed on requests, to tell whether the fault is theirs."""
        if self._worker.num_failures < _SUSPICIOUS_FAILURES:  # or a request has succeeded since
            self._broken = False
            return
        try:
            self._check_self_test()
        except Exception as error:  # of a driver, too
            if not self._broken:
                _log.critical("the model fails on requests, and on its self-test: %s", error)
            self._broken = True
        else:
            self._broken, self._worker.num_failures = False, 0

    def close(self) -> None:
        """Accept no more work; what waits is still done, by a thread that then ends."""
        self.queue.close()

    def join(self, timeout_s: float) -> bool:
        """Wait until a closed engine's thread has ended; return whether it has."""
        return self._worker.join(timeout_s)


def _set_done(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
