"""Sequences through sessions, in batches of similar length: one after another, or several in parallel."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Integral

from bert_runtime.batching import parallel_batches
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.errors import InputError
from bert_runtime.numerics import FloatArray
from bert_runtime.runner import Runner
from bert_runtime.tokenization import Batch

__all__ = ["check_max_batch_tokens", "run_batches", "slice_batch"]

MAX_BATCH_TOKENS = 1 << 20
"""Largest `max_batch_tokens`: 64 times what fills a GPU. A judgement."""


def check_max_batch_tokens(max_batch_tokens: int) -> None:
    """Raise `InputError` for a number of padded tokens per batch that is out of range."""
    if not isinstance(max_batch_tokens, Integral) or not 1 <= max_batch_tokens <= MAX_BATCH_TOKENS:
        raise InputError(
            f"max_batch_tokens must be a whole number in 1 to {MAX_BATCH_TOKENS:,}, found {max_batch_tokens!r:.50}"
        )


def run_batches(
    lengths: Sequence[int],
    make_batch: Callable[[list[int]], Batch],
    session: Runner,
    parallel: ParallelSessions | None,
    max_batch_tokens: int,
    whole_batch_tokens: int,
    *,
    pads_outputs: bool = False,
) -> Iterator[tuple[list[int], FloatArray]]:
    """Divide sequences into batches; yield each batch's indices and raw output.

    Args:
        lengths: tokens of each sequence.
        make_batch: builds the batch of some indices.
        session: runs one batch at a time.
        parallel: runs several at the same time; `None` where `session` runs all.
        max_batch_tokens: padded tokens per batch.
        whole_batch_tokens: at most so many tokens together are one batch.
        pads_outputs: whether outputs have padding, which then counts as tokens, too: one long text among many short
            ones would cost memory.
    """
    num_tokens = len(lengths) * max(lengths, default=0) if pads_outputs else sum(lengths)
    if len(lengths) == 1 or 0 < num_tokens <= whole_batch_tokens:
        whole = list(range(len(lengths)))
        yield whole, (parallel or session).run(make_batch(whole))
        return
    batches = parallel_batches(lengths, max_batch_tokens, 1 if parallel is None else parallel.inter_threads)
    if parallel is not None and len(batches) > 1 and parallel.fills_threads(len(batches)):
        arrays = parallel.run_many([partial(make_batch, indices) for indices in batches])
    else:
        batches = parallel_batches(lengths, max_batch_tokens, 1)
        arrays = ((parallel or session).run(make_batch(indices)) for indices in batches)
    yield from zip(batches, arrays, strict=True)


def slice_batch(batch: Batch, indices: list[int]) -> Batch:
    """Return the sequences at consecutive indices."""
    return Batch(*(array[indices[0] : indices[-1] + 1] for array in batch))
