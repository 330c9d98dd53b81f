"""Rows of data files for reranking: a pair, a query with better and worse documents, or a query with graded ones.

    {"text": "where is my card?", "text_pair": "Cards arrive in a week.", "label": 1}
    {"query": "where is my card?", "positive": "Cards arrive in a week.", "negative": ["We close at noon.", …]}
    {"query": "where is my card?", "documents": ["Cards arrive in a week.", …], "scores": [2, 0, …]}

`query` and `document` are other names of `text` and `text_pair`.
"""

from typing import NamedTuple

from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks.ranking_rows import first_text
from bert_runtime.tasks.values import TextInput

__all__ = ["RelevanceRow", "read_pairs", "read_relevance_row", "row_kind"]


class RelevanceRow(NamedTuple):
    """A query with N documents, and what a file says of their relevance."""

    kind: str
    """`pair`, `triple` or `list`, see `row_kind`."""
    pairs: tuple[TextInput, ...]
    """The query with each document, of a triple the better ones first."""
    grades: tuple[float, ...]
    """Relevance of each document; of a triple 1 for the better and 0 for the worse ones."""


def row_kind(record: Record) -> str:
    """Return the kind of a row: `list` (it has `documents`), `triple` (it has `positive`), else `pair`."""
    if "documents" in record.fields:
        return "list"
    return "triple" if "positive" in record.fields else "pair"


def read_pairs(record: Record) -> tuple[TextInput, ...]:
    """Return the query of a row with each of its documents; grades are not read.

    Raises:
        DataError: there is no query or no document, or one is not a text.
    """
    kind = row_kind(record)
    query = first_text(record)
    if kind == "list":
        documents = record.texts("documents")
    elif kind == "triple":
        documents = [*record.texts("positive"), *record.texts("negative")]
    elif "query" in record.fields and not {"document", "text_pair"} & set(record.fields):
        found = ", ".join(map(repr, record.fields))
        raise DataError(
            f"{record.where}: expected 'document', 'documents', or 'positive' and 'negative' beside the query, found "
            f"only {found:.80}"
        )
    else:
        has_document = "document" in record.fields and "text_pair" not in record.fields
        documents = [record.text("document" if has_document else "text_pair")]
    return tuple(TextInput(query, document) for document in documents)


def read_relevance_row(record: Record) -> RelevanceRow:
    """Return a labelled row.

    Raises:
        DataError: see `read_pairs`; or a grade is missing, or is no finite number.
    """
    kind, pairs = row_kind(record), read_pairs(record)
    if kind == "triple":
        num_better = len(record.texts("positive"))
        return RelevanceRow(kind, pairs, (1.0,) * num_better + (0.0,) * (len(pairs) - num_better))
    if kind == "list":
        return RelevanceRow(kind, pairs, _scores(record, len(pairs)))
    return RelevanceRow(kind, pairs, (record.number("score" if "score" in record.fields else "label"),))


def _scores(record: Record, count: int) -> tuple[float, ...]:
    """Return the field `scores` or `labels`: a finite number for each document."""
    name = "labels" if "labels" in record.fields and "scores" not in record.fields else "scores"
    values = record.fields.get(name)
    if not isinstance(values, list) or len(values) != count:
        found = f"{len(values)} of them" if isinstance(values, list) else repr(values)[:80]
        raise DataError(
            f"{record.where}: expected {name!r} to be a list of {count} numbers, one per document, found {found}"
        )
    for position, value in enumerate(values):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value != value or value in (float("inf"), float("-inf")):
            raise DataError(f"{record.where}: expected {name}[{position}] to be a finite number, found {value!r:.80}")
    return tuple(map(float, values))
