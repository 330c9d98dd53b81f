"""A loaded bundle: texts in, results out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from tokenizers import Encoding

from bert_runtime.batching import parallel_batches
from bert_runtime.bundle.manifest import Manifest, Variant
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.cpu.session import Session
from bert_runtime.errors import InputError
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.padding_router import PaddingRouter
from bert_runtime.gpu.shape_buckets import accepts_batch
from bert_runtime.gpu.tensorrt_session import TensorrtSession
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Outputs, Result, Task
from bert_runtime.tokenization import Batch, TextTokenizer, as_text_input, check_batch, pad

__all__ = ["CHUNK_SIZE", "Model"]

CHUNK_SIZE = 512
"""Inputs that are sorted by length together: enough to pad little, few enough for `stream` to read ahead and hold."""


class Model:
    """A tokenizer, a session and a task. Safe to call from many threads; load it again after a fork.

    Use `bert_runtime.load` to make one.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: TextTokenizer,
        session: Session | CudaSession | PaddingRouter | TensorrtSession,
        parallel_sessions: ParallelSessions | None = None,
        *,
        max_batch_tokens: int = 1024,
        manifest: Manifest | None = None,
        variant: Variant | None = None,
    ) -> None:
        if max_batch_tokens < 1:
            raise InputError(f"max_batch_tokens must be at least 1, found {max_batch_tokens}")
        self.task = task
        self.tokenizer = tokenizer
        self.session = session
        """Runs one batch at a time."""
        self.parallel_sessions = parallel_sessions
        """Runs several batches, also of several callers; `None` where `session` does all of it."""
        self.max_batch_tokens = max_batch_tokens
        self.manifest = manifest
        """What the bundle says; `None` for a graph that is not in a bundle yet."""
        self.variant = variant

    def __repr__(self) -> str:
        precision = self.variant.precision if self.variant is not None else "no bundle"
        return f"Model({self.task.name}, {precision}, {self.session.device_name})"

    def __call__(self, inputs: Any = None, **fields: str) -> Any:
        """One input gives one `Result`; a list (or other sequence that is no tuple) gives a list in the same order.

        An input is a text, a tuple of two texts, or a dict with `text` and `text_pair`, or `question` and `context`.
        These may also be given by name: `model(question="…", context="…")`.
        """
        if fields:
            if inputs is not None:
                raise InputError("give an input either by position or by name, not both")
            if strange := sorted(set(fields) - {"text", "text_pair", "question", "context"}):
                raise InputError(f"expected text and text_pair, or question and context, found {', '.join(strange)}")
            inputs = fields
        if isinstance(inputs, str | tuple | dict):
            return self.task.decode(self.outputs([inputs])[0])
        if not isinstance(inputs, Sequence):
            raise InputError(
                f"expected a text or a list of texts, found {type(inputs).__name__}; for an iterator use model.stream"
            )
        return list(self._answers(inputs))

    def stream(self, inputs: Iterable[Any]) -> Iterator[Result]:
        """Results one by one, in order, reading at most a few hundred inputs ahead."""
        if isinstance(inputs, str | bytes | dict):
            raise InputError(f"expected several inputs, found {type(inputs).__name__}; for one input call the model")
        yield from self._answers(inputs)

    def _answers(self, inputs: Iterable[Any]) -> Iterator[Result]:
        """Results window by window, so that no more raw outputs are held."""
        iterator = iter(inputs)
        first = 0
        while chunk := list(islice(iterator, CHUNK_SIZE)):
            yield from map(self.task.decode, self.outputs(chunk, first))
            first += len(chunk)

    def with_options(self, **options: Any) -> "Model":
        """The same model decoding otherwise, such as `model.with_options(top_k=3)`; what may be set is `task.options`.

        Both share one session. Raises `InputError` for an option the task does not have, or a value it cannot take.
        """
        configured = copy(self)
        configured.task = self.task.with_options(**options)
        return configured

    def outputs(self, inputs: Sequence[Any], first: int = 0) -> list[Outputs]:
        """Raw outputs before post-processing, in the order of `inputs`.

        `first` is the number that an error gives the first of `inputs`.
        """
        if len(inputs) > CHUNK_SIZE:  # so that streaming, evaluating and calling at once make the same batches
            parts = range(0, len(inputs), CHUNK_SIZE)
            return [each for i in parts for each in self.outputs(inputs[i : i + CHUNK_SIZE], first + i)]
        read = [as_text_input(each) for each in inputs]
        encoded = self.tokenizer.encode(read, first)
        for number, (value, windows) in enumerate(zip(read, encoded, strict=True), start=first):
            if (problem := self.task.input_error(value, windows)) is not None:
                raise InputError(f"input {number}: {problem}")
        rows = iter(self._rows([window for windows in encoded for window in windows]))
        return [
            Outputs(value, windows, tuple(islice(rows, len(windows))), self.tokenizer)
            for value, windows in zip(read, encoded, strict=True)
        ]

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of token ids that are at hand: what the graph gives, [masks, …] for fill-mask.

        The batch is divided as texts are, into runs of `max_batch_tokens` tokens, padding included. Raises `InputError`
        for arrays that are no batch, or hold ids that the model has no row for.
        """
        check_batch(batch, {} if self.manifest is None else self.manifest.id_limits)
        if self.variant is not None and not accepts_batch(self.variant.padding, batch):
            raise InputError(f"the {self.variant.title} graph does not take such padding; run what load(…) gives")
        rows, tokens = batch.input_ids.shape
        arrays = [array for _, array in self._runs([tokens] * rows, partial(_part, batch))]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def _rows(self, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """The raw output of each encoding, run in batches of similar length."""

        def padded(indices: list[int]) -> Batch:
            return pad([encodings[i] for i in indices], self.tokenizer.pad_token_id)

        rows: list[FloatArray] = [np.empty(0)] * len(encodings)
        for indices, array in self._runs([len(each) for each in encodings], padded):
            for i, row in zip(indices, self.task.split(array, [encodings[i] for i in indices]), strict=True):
                rows[i] = row
        return rows

    def _runs(
        self, lengths: Sequence[int], make: Callable[[list[int]], Batch]
    ) -> Iterator[tuple[list[int], FloatArray]]:
        """Divides rows of those lengths into runs: the rows of each, and its raw output; `make` gives a run's batch."""
        alone = self.parallel_sessions or self.session
        if len(lengths) == 1:
            yield [0], alone.run(make([0]))
            return
        parallel_sessions = self.parallel_sessions
        batches = parallel_batches(
            lengths, self.max_batch_tokens, 1 if parallel_sessions is None else parallel_sessions.runs
        )
        if parallel_sessions is not None and not (len(batches) > 1 and parallel_sessions.fills(len(batches))):
            parallel_sessions, batches = None, parallel_batches(lengths, self.max_batch_tokens, 1)
        if parallel_sessions is None:
            arrays: Iterator[FloatArray] = (alone.run(make(indices)) for indices in batches)
        else:
            arrays = parallel_sessions.run_many([partial(make, indices) for indices in batches])
        yield from zip(batches, arrays, strict=True)


def _part(batch: Batch, rows: list[int]) -> Batch:
    """Rows of a batch that follow one another."""
    return Batch(*(array[rows[0] : rows[-1] + 1] for array in batch))
