"""Inputs that several tasks make alike of rows and of plain texts."""

from collections.abc import Sequence

from bert_runtime.records import Record
from bert_runtime.tasks.ranking_rows import first_text, read_ranking_row, second_name
from bert_runtime.tasks.values import TextInput

__all__ = ["pair_with_next", "separate_texts"]


def separate_texts(record: Record) -> tuple[TextInput, ...]:
    """Return the text of a row, or its several texts as separate inputs: two, or those of `read_ranking_row`."""
    if second_name(record) is None:
        return (TextInput(first_text(record)),)
    query, answer, negatives = read_ranking_row(record)
    return tuple(map(TextInput, (query, answer, *negatives)))


def pair_with_next(texts: Sequence[str]) -> list[TextInput]:
    """Pair each text with the next one, and the last with the first."""
    return [TextInput(text, texts[(i + 1) % len(texts)]) for i, text in enumerate(texts)]
