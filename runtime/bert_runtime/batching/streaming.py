"""Results of any number of inputs, chunk by chunk and around inputs that cannot be processed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tokenizers import Encoding

from bert_runtime.errors import InputError
from bert_runtime.inputs import InputFailure, OnError, SingleInput, as_text_input, check_on_error, texts_of
from bert_runtime.tasks import Result, Task, TextInput
from bert_runtime.tokenization import TextTokenizer
from bert_runtime.tokenization.shared_pairs import encode_pairs

__all__ = [
    "CHUNK_SIZE",
    "EncodedInput",
    "divide",
    "divide_by_output_size",
    "encode_inputs",
    "read_chunk",
    "stream_results",
]

T = TypeVar("T")

CHUNK_SIZE = 512
"""Inputs that are read, sorted by length and run together.

Enough for little padding, and few enough for `stream` to read ahead and hold. A judgement.
"""

_CHUNK_CHARACTERS = 1 << 21
"""Characters of a chunk after which it ends; of long texts in windows, tokens take 140 bytes a character."""

_MAX_OUTPUT_BYTES = 1 << 27
"""Raw outputs that are held together: 10,922 token vectors of four layers of BERT-base. A judgement."""


class EncodedInput(NamedTuple):
    """An input and its tokens."""

    input: TextInput
    windows: tuple[Encoding, ...]
    """Its windows; without strings, offsets and masks where the task cuts none, see `TextTokenizer.encode_ids`."""


def encode_inputs(
    task: Task, tokenizer: TextTokenizer, inputs: Sequence[SingleInput], first: int
) -> list[EncodedInput]:
    """Tokenize inputs, and check that the task can process them.

    Args:
        task: the task that they are for.
        tokenizer: the tokenizer.
        inputs: inputs as in `bert_runtime.model.Model.__call__`.
        first: the number that an error gives the first input.

    Raises:
        InputError: names an input that cannot be processed.
    """
    read = []
    for index, value in enumerate(inputs, start=first):
        try:
            read.append(as_text_input(value))
        except InputError as error:
            raise InputError(error.reason, index) from None
    read = task.prefixed(read)
    if task.repeats_texts:
        encodings = encode_pairs(tokenizer, read, first, windows=task.splits_long_inputs)
    else:
        encodings = tokenizer.encode_ids(read, first)
    encoded = list(map(EncodedInput, read, encodings))
    for index, (value, windows) in enumerate(encoded, start=first):
        if (reason := task.input_error(value, windows)) is not None:
            raise InputError(reason, index)
    return encoded


def stream_results(
    inputs: Iterable[SingleInput],
    on_error: OnError,
    encode: Callable[[Sequence[SingleInput], int], list[EncodedInput]],
    predict: Callable[[Sequence[EncodedInput]], Iterator[Result]],
) -> Iterator[Result | InputFailure]:
    """Yield the results of inputs in order; read one chunk ahead at most.

    An error, also one that `inputs` raises, comes after the results of all inputs before it.

    Args:
        inputs: the inputs.
        on_error: what happens to an input that cannot be processed.
        encode: tokenizes inputs, of which the first has the number given.
        predict: returns the results of tokenized inputs.

    Raises:
        InputError: names the first input that cannot be processed, with `on_error="raise"`.
    """
    check_on_error(on_error)
    iterator = iter(inputs)
    first = 0
    end: Exception | None = None
    while end is None:
        chunk, end = read_chunk(iterator)
        if not chunk:
            break
        try:
            encoded = encode(chunk, first)
        except InputError:
            items = _encode_one_by_one(chunk, first, on_error, encode)
            yield from _fill_in_failures(items, first, on_error, predict)
        else:
            yield from predict(encoded)
        first += len(chunk)
    if end is not None and not isinstance(end, StopIteration):
        raise end


def divide_by_output_size(
    encoded: Sequence[EncodedInput], output_bytes: Callable[[EncodedInput], int]
) -> Iterator[Sequence[EncodedInput]]:
    """Divide tokenized inputs into runs of at most `_MAX_OUTPUT_BYTES` of raw outputs, or of one input.

    Args:
        encoded: the inputs, at least one.
        output_bytes: returns the size of an input's raw outputs.
    """
    start = size = 0
    for index, item_size in enumerate(map(output_bytes, encoded)):
        if index > start and size + item_size > _MAX_OUTPUT_BYTES:
            yield encoded[start:index]
            start, size = index, 0
        size += item_size
    yield encoded[start:]


def read_chunk(iterator: Iterator[T]) -> tuple[list[T], Exception | None]:
    """Read up to `CHUNK_SIZE` items, fewer of long texts.

    Returns:
        The items, and the exception that ended them: `StopIteration` after the last, `None` where more may come.
    """
    chunk: list[T] = []
    num_characters = 0
    try:
        while len(chunk) < CHUNK_SIZE and num_characters < _CHUNK_CHARACTERS:
            chunk.append(next(iterator))
            num_characters += sum(map(len, texts_of(chunk[-1])))
    except Exception as error:  # the caller's iterator may raise anything
        return chunk, error
    return chunk, None


def divide(inputs: Iterable[T]) -> Iterator[list[T]]:
    """Yield inputs in chunks, as `stream_results` reads them: batches are the same however a model is called.

    An error that `inputs` raises comes after all inputs before it.
    """
    iterator, end = iter(inputs), None
    while end is None:
        chunk, end = read_chunk(iterator)
        if chunk:
            yield chunk
    if not isinstance(end, StopIteration):
        raise end


def _encode_one_by_one(
    chunk: Sequence[SingleInput],
    first: int,
    on_error: OnError,
    encode: Callable[[Sequence[SingleInput], int], list[EncodedInput]],
) -> list[EncodedInput | InputError]:
    """Tokenize the inputs of a chunk, up to the first error if that is to be raised."""
    items: list[EncodedInput | InputError] = []
    for index, value in enumerate(chunk, start=first):
        try:
            items += encode([value], index)
        except InputError as error:
            items.append(error)
            if on_error == "raise":
                break
    return items


def _fill_in_failures(
    items: Sequence[EncodedInput | InputError],
    first: int,
    on_error: OnError,
    predict: Callable[[Sequence[EncodedInput]], Iterator[Result]],
) -> Iterator[Result | InputFailure]:
    """Yield the results of the inputs that can be processed, and what `on_error` says for the others."""
    good = [item for item in items if not isinstance(item, InputError)]
    results = predict(good) if good else iter(())
    for index, item in enumerate(items, start=first):
        if not isinstance(item, InputError):
            yield next(results)
        elif on_error == "raise":
            raise item
        elif on_error == "return":
            yield InputFailure(index, item.reason)
