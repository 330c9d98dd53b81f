"""Bulk work in this process: one part after another, each on all threads of the model."""

from collections.abc import Callable, Iterator, Sequence

from bert_serve.bulk.part_writer import Job, PartResult, answer_part
from bert_serve.bulk.parts import Part

__all__ = ["local_engine"]


def local_engine(job: Job, parts: Sequence[Part], advance: Callable[[int], object]) -> Iterator[PartResult]:
    """Answer parts in order.

    Args:
        job: what to do with them.
        parts: the parts.
        advance: called with the number of rows that have been done since the last call.

    Yields:
        The result of each part.

    Raises:
        OSError: the output cannot be written.
    """
    job.function.model()  # before the first part, so that a damaged bundle is one error
    for part in parts:
        yield answer_part(job, part, advance)
