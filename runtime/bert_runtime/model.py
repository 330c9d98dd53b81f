"""A loaded bundle: texts in, results out."""

from __future__ import annotations  # so that help() shows type aliases by name

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice
from typing import Any, Literal, overload

import numpy as np
from tokenizers import Encoding

from bert_runtime.batching.batch_runner import check_max_batch_tokens, run_batches, slice_batch
from bert_runtime.batching.streaming import (
    EncodedInput,
    divide,
    divide_by_output_size,
    encode_inputs,
    stream_results,
)
from bert_runtime.bundle.manifest import Manifest, Variant
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.embedding import TextEncoding
from bert_runtime.errors import InputError
from bert_runtime.gpu.shape_buckets import accepts_batch
from bert_runtime.inputs import (
    Column,
    InputFailure,
    OnError,
    SingleInput,
    check_column,
    named_input,
)
from bert_runtime.numerics import FloatArray
from bert_runtime.ranking import DocumentRanking
from bert_runtime.runner import Runner
from bert_runtime.tasks import Outputs, Result, Task
from bert_runtime.tokenization import Batch, TextTokenizer, check_batch, pad

__all__ = ["Model"]


class Model(TextEncoding, DocumentRanking):
    """A loaded bundle: a tokenizer, a session and a task. Made by `bert_runtime.load`.

    Safe to call from many threads. After a fork, load it again in the child.

    An input is a text, a pair of texts as a tuple, or a dict with `text` and `text_pair`, or `question` and `context`:

        model("I lost my card")                     # one input: one Result
        model(["I lost my card", "hello"])          # a list: a list of Results in the same order
        model(question="Who?", context="She did.")  # one input by name
        model.stream(lines)                         # an iterator: Results one by one
        model(texts, on_error="return")             # an InputFailure in place of a Result

    An empty or blank text is an input like any other.

    The class of the results depends on the task: `Classification`, `Entities`, `Answers`, … All have `to_dict()`, the
    JSON shape of the Hugging Face pipeline.

    Args:
        task: decodes raw outputs into results.
        tokenizer: turns texts into token ids.
        session: runs one batch at a time.
        parallel_sessions: runs several batches at the same time; `None` where `session` runs all.
        max_batch_tokens: padded tokens per batch.
        whole_batch_tokens: inputs of at most so many tokens together are one batch on all threads.
        manifest: the bundle's manifest; `None` for a graph that is not in a bundle yet.
        variant: the variant that runs; `None` as above.

    Raises:
        InputError: `max_batch_tokens` is less than 1.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: TextTokenizer,
        session: Runner,
        parallel_sessions: ParallelSessions | None = None,
        *,
        max_batch_tokens: int = 1024,
        whole_batch_tokens: int = 0,
        manifest: Manifest | None = None,
        variant: Variant | None = None,
    ) -> None:
        check_max_batch_tokens(max_batch_tokens)
        self.task = task
        self.tokenizer = tokenizer
        self.session = session
        """Runs one batch at a time."""
        self.parallel_sessions = parallel_sessions
        """Runs several batches at the same time, also for several callers; `None` where `session` runs all."""
        self.max_batch_tokens = max_batch_tokens
        """Padded tokens per batch, of inputs that have more than `whole_batch_tokens` together."""
        self.whole_batch_tokens = whole_batch_tokens
        """Inputs of at most so many tokens together are one batch on all threads."""
        self.manifest = manifest
        """The bundle's manifest; `None` for a graph that is not in a bundle yet."""
        self.variant = variant
        """The variant that runs; `None` for a graph that is not in a bundle yet."""

    def __repr__(self) -> str:
        precision = self.variant.precision if self.variant is not None else "no bundle"
        return f"Model({self.task.name}, {precision}, {self.session.device_name})"

    @overload
    def __call__(self, inputs: SingleInput) -> Result: ...  # type: ignore[overload-overlap] # a str is one input

    @overload
    def __call__(
        self, inputs: Sequence[SingleInput] | Column, *, on_error: Literal["raise", "skip"] = "raise"
    ) -> list[Result]: ...

    @overload
    def __call__(
        self, inputs: Sequence[SingleInput] | Column, *, on_error: Literal["return"]
    ) -> list[Result | InputFailure]: ...

    @overload
    def __call__(self, *, text: str, text_pair: str | None = None) -> Result: ...

    @overload
    def __call__(self, *, question: str, context: str) -> Result: ...

    def __call__(
        self,
        inputs: SingleInput | Sequence[SingleInput] | Column | None = None,
        *,
        on_error: OnError = "raise",
        **fields: str | None,
    ) -> Result | list[Result] | list[Result | InputFailure]:
        """Return the result of one input, or the results of several in the same order.

        Args:
            inputs: one input, or a list of inputs; instead of a list also a Series, an array, an Arrow column, or
                another collection in order, but not a tuple.
            on_error: of several inputs, what happens to one that cannot be processed, see `OnError`.
            **fields: one input by name: `text` and optionally `text_pair`, or `question` and `context`.

        Returns:
            One `Result` for one input, a list of them for several.

        Raises:
            InputError: an input is not one of the above, or the task cannot process it; names its index.
            ForkedSessionError: the model was loaded before the process forked.
        """
        if fields:
            inputs = named_input(inputs, fields)
        if isinstance(inputs, str | tuple | Mapping):
            if on_error != "raise":
                raise InputError(f"on_error={on_error!r} is for several inputs; give the input in a list")
            return self.task.decode(self.outputs([inputs])[0])
        check_column(inputs)
        return list(self._results(inputs, on_error))  # type: ignore[arg-type] # checked in the line above

    @overload
    def stream(
        self, inputs: Iterable[SingleInput] | Column, *, on_error: Literal["raise", "skip"] = "raise"
    ) -> Iterator[Result]: ...

    @overload
    def stream(
        self, inputs: Iterable[SingleInput] | Column, *, on_error: Literal["return"]
    ) -> Iterator[Result | InputFailure]: ...

    def stream(
        self, inputs: Iterable[SingleInput] | Column, *, on_error: OnError = "raise"
    ) -> Iterator[Result | InputFailure]:
        """Yield results one by one, in order, reading at most 512 inputs ahead (`CHUNK_SIZE`), fewer of long texts.

        An error, also one that `inputs` raises, comes after the results of all inputs before it.

        Args:
            inputs: anything that yields inputs.
            on_error: what happens to an input that cannot be processed, see `OnError`.

        Raises:
            InputError: see `__call__`.
        """
        if isinstance(inputs, str | bytes | Mapping):
            raise InputError(f"expected several inputs, found {type(inputs).__name__}; for one input call the model")
        yield from self._results(inputs, on_error)

    def _results(self, inputs: Iterable[SingleInput], on_error: OnError) -> Iterator[Result | InputFailure]:
        return stream_results(inputs, on_error, self.tokenize, self._predict)

    def with_options(self, /, **options: Any) -> Model:
        """Return a model that decodes differently and shares this one's session: `model.with_options(top_k=3)`.

        Args:
            **options: new values for some of `model.task.options`.

        Raises:
            InputError: the task has no such option, or cannot take this value.
        """
        configured = copy(self)
        configured.task = self.task.with_options(**options)
        return configured

    def outputs(self, inputs: Sequence[SingleInput], first: int = 0) -> list[Outputs]:
        """Return the raw outputs of inputs, before post-processing, in the same order.

        Args:
            inputs: inputs as in `__call__`.
            first: the number that an error gives the first input.

        Raises:
            InputError: see `__call__`.
        """
        outputs: list[Outputs] = []
        for chunk in divide(inputs):
            outputs += self.encoded_outputs(self.tokenize(chunk, first + len(outputs)))
        return outputs

    def tokenize(self, inputs: Sequence[SingleInput], first: int = 0) -> list[EncodedInput]:
        """Return inputs with their tokens; raise `InputError` for one that the task cannot process, see `outputs`."""
        return encode_inputs(self.task, self.tokenizer, inputs, first)

    def _vectors(self, inputs: Sequence[SingleInput], first: int) -> FloatArray:
        """Return the raw outputs of N inputs as one array [N, …], where they have one shape."""
        return np.stack(self.run_encodings([item.windows[0] for item in self.tokenize(inputs, first)]))

    def _predict(self, encoded: Sequence[EncodedInput]) -> Iterator[Result]:
        for part in divide_by_output_size(encoded, self.output_bytes):
            yield from map(self.task.decode, self.encoded_outputs(part))

    def output_bytes(self, encoded: EncodedInput) -> int:
        """Return the size of a tokenized input's raw outputs in bytes."""
        return self._vector_bytes * sum(map(self.task.num_vectors, encoded.windows))

    @property
    def _vector_bytes(self) -> int:
        """Size of a vector of raw outputs, float32; that of fill-mask is as wide as the vocabulary."""
        width = self.task.output_width or (self.manifest.output.axes[-1] if self.manifest else None)
        return 4 * (width if isinstance(width, int) else self.tokenizer.vocab_size)

    def encoded_outputs(self, encoded: Sequence[EncodedInput]) -> list[Outputs]:
        """Return the raw outputs of tokenized inputs, before post-processing, in the same order."""
        arrays = iter(self.run_encodings([window for item in encoded for window in item.windows]))
        return [
            Outputs(item.input, item.windows, tuple(islice(arrays, len(item.windows))), self.tokenizer)
            for item in encoded
        ]

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of token ids: what the graph computes, float32 [B, …], for fill-mask [masks, …].

        Like texts, the sequences are divided into batches of `max_batch_tokens` padded tokens, or are one batch if they
        have at most `whole_batch_tokens` with their padding.

        Args:
            batch: int64 arrays [B, S], S at most the bundle's `max_tokens`.

        Raises:
            InputError: the arrays are not a batch, are too long, hold ids out of range, or have padding that the graph
                cannot read.
        """
        if self.manifest is None:
            check_batch(batch, {})
        else:
            check_batch(batch, self.manifest.id_limits, self.manifest.max_tokens)
        if self.variant is not None and not accepts_batch(self.variant.padding, batch):
            raise InputError(
                f"the {self.variant.title} graph cannot read this padding; run the model that bert_runtime.load returns"
            )
        batch_size, length = batch.input_ids.shape
        arrays = [array for _, array in self._run_batches([length] * batch_size, partial(slice_batch, batch))]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def run_encodings(self, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """Return the raw output of each tokenized sequence, run in batches of similar length."""
        if len(encodings) == 1:  # no batches to make: what a single text waits for
            array = (self.parallel_sessions or self.session).run(self._pad(encodings, [0]))
            return self.task.split(array, encodings)
        outputs: list[FloatArray] = [np.empty(0)] * len(encodings)
        for indices, array in self._run_batches(list(map(len, encodings)), partial(self._pad, encodings)):
            parts = self.task.split(array, [encodings[index] for index in indices])
            for index, output in zip(indices, parts, strict=True):
                outputs[index] = output
        return outputs

    def _pad(self, encodings: Sequence[Encoding], indices: list[int]) -> Batch:
        return pad([encodings[index] for index in indices], self.tokenizer.pad_token_id)

    def _run_batches(
        self, lengths: Sequence[int], make_batch: Callable[[list[int]], Batch]
    ) -> Iterator[tuple[list[int], FloatArray]]:
        return run_batches(
            lengths, make_batch, self.session, self.parallel_sessions, self.max_batch_tokens, self.whole_batch_tokens,
            pads_outputs=self.variant is not None and "UnpackRows" in self.variant.functions,
        )  # fmt: skip
