"""Rows of a query and a text that answers it, to train and to measure embeddings by.

    {"text": "where is my card?", "text_pair": "Cards arrive in a week."}
    {"query": "where is my card?", "positive": "Cards arrive in a week.", "negative": ["We close at noon.", …]}

`query` is another name of `text`, and `positive` is another of `text_pair`, as is `document` beside a `query`; they are
read where there is no `text`, or no `text_pair`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bert_runtime.errors import DataError
from bert_runtime.metrics import Qrels, Run, retrieval_metrics
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record
from bert_runtime.records.column_hints import suggest_columns
from bert_runtime.similarity import nearest_neighbors
from bert_runtime.tasks.values import Example

__all__ = [
    "RankingRow",
    "are_ranked",
    "check_scores",
    "first_text",
    "rank_vectors",
    "ranking_metrics",
    "ranking_qrels",
    "read_ranking_row",
    "second_name",
]

_NUM_RANKED = 10
"""Texts of a ranking, as many as its metrics read."""


class RankingRow(NamedTuple):
    """A query with a text that answers it, and texts that do not."""

    query: str
    answer: str
    negatives: tuple[str, ...] = ()


def first_text(record: Record) -> str:
    """Return the field `text`, or `query` where there is none."""
    return record.text("text" if "text" in record.fields or "query" not in record.fields else "query")


def second_name(record: Record) -> str | None:
    """Return the name of the field that answers the first text: `text_pair`, `positive` or `document`, if there is one.

    Beside a `text`, a `document` is something else, such as its id.
    """
    names = ("text_pair", "positive") if "text" in record.fields else ("text_pair", "positive", "document")
    return next((name for name in names if record.fields.get(name) not in (None, "")), None)


def read_ranking_row(record: Record) -> RankingRow:
    """Return a row's texts.

    Raises:
        DataError: there is no query or no answer, or a field is no text; `negative` may be a list, empty or missing.
    """
    return RankingRow(
        first_text(record),
        record.text(second_name(record) or "text_pair"),
        tuple(record.texts("negative")) if record.fields.get("negative") else (),
    )


def check_scores(records: Sequence[Record]) -> None:
    """Raise `DataError` if only some rows have a score, or none has and a column looks like a label of pairs."""
    scored = next((record for record in records if "score" in record.fields), None)
    unscored = next((record for record in records if "score" not in record.fields), None)
    if unscored is None or second_name(unscored) is None:
        return
    if scored is not None:
        raise DataError(f"{unscored.where}: expected a score as in {scored.where}, or none in the whole file")
    labels = [name for name in ("label", "labels") if name in unscored.fields]
    hint = f"--columns score={labels[0]}" if labels else suggest_columns(["score"], list(unscored.fields))
    if hint:
        raise DataError(
            f"{unscored.where}: expected a field 'score', or nothing but texts that belong together, found "
            f"{', '.join(map(repr, unscored.fields))}; name the score with {hint}, or leave the column out"
        )


def are_ranked(examples: Sequence[Example]) -> bool:
    """Return whether the targets of examples are texts that answer queries, not scores."""
    return bool(examples) and isinstance(examples[0].target, str)


def rank_vectors(texts: Sequence[str], vectors: FloatArray, similarity: str) -> dict[str, dict[str, float]]:
    """Return for each query the scores of the ten nearest of all distinct answers.

    Args:
        texts: queries and answers of B rows in turn [2 B].
        vectors: their vectors, float [2 B, H].
        similarity: one of `bert_runtime.similarity.SIMILARITIES`.
    """
    queries, answers = ({text: 2 * row + part for row, text in enumerate(texts[part::2])} for part in (0, 1))
    names = list(answers)
    found = nearest_neighbors(vectors[[*queries.values()]], [vectors[[*answers.values()]]], _NUM_RANKED, similarity)
    return {
        query: {names[index]: score for index, score in zip(indices, scores, strict=True)}
        for query, indices, scores in zip(queries, found.indices.tolist(), found.scores.tolist(), strict=True)
    }


def ranking_qrels(examples: Sequence[Example]) -> dict[str, dict[str, float]]:
    """Return for each query the texts that answer it, with grade 1.

    A query may have several rows, of which all texts are right.

    Args:
        examples: of each, the first input is the query, and the target is the text that answers it.
    """
    qrels: dict[str, dict[str, float]] = {}
    for example in examples:
        qrels.setdefault(example.inputs[0].text, {})[example.target] = 1
    return qrels


def ranking_metrics(run: Run, qrels: Qrels) -> dict[str, float]:
    """Return MRR, nDCG and recall of a ranking of all answers for each query.

    Args:
        run: scores of the first ten texts by query.
        qrels: what `ranking_qrels` returned, or a part of it.
    """
    return retrieval_metrics(run, qrels, mrr_at=(10,), ndcg_at=(10,), recall_at=(1, 10))
