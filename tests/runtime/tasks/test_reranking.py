"""Reranking: settings, scores, rows of data files, and metrics."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime.errors import DataError, InputError
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Example, Outputs, Relevance, Reranking, TextInput

from ..outputs import NoVocabulary, outputs_of

QUERY = "where is my card"
MODULAR: dict[str, Any] = {
    "pooling": "cls", "dense_sizes": (8, 1), "dense_activations": ("gelu", "identity"), "dense_norms": (True, False),
}  # fmt: skip


def record(**fields: object) -> Record:
    return Record(fields, Path("data.jsonl"), 3)


def output(query: str, document: str, *logits: float) -> Outputs:
    arrays = tuple(np.array([logit], dtype=np.float32) for logit in logits)
    return Outputs(TextInput(query, document), (), arrays, NoVocabulary())


def test_score_is_the_activation_of_the_best_window() -> None:
    result = Reranking().decode(output("a", "b", -1.0, 2.0, 0.5))
    assert isinstance(result, Relevance)
    assert (result.logit, result.score) == (2.0, pytest.approx(1 / (1 + np.exp(-2)), abs=1e-7))
    assert result.to_dict() == {"score": result.score, "logit": 2.0}
    assert result.summary() == "0.8808"
    raw = Reranking(activation="identity").decode(output("a", "b", 2.0))
    assert isinstance(raw, Relevance)
    assert raw.score == raw.logit == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "tanh"}, "expected activation to be sigmoid or identity, found 'tanh'"),
        ({"long_documents": "skip"}, "expected long_documents to be windows or truncate, found 'skip'"),
        ({"pooling": "last"}, "expected a pooling of mean, cls, .*, found 'last'"),
        ({"pooling": "cls"}, "expected a pooling with a size, an activation and a norm per dense layer"),
        (MODULAR | {"dense_sizes": (8, 2)}, "the last of size 1 without norm"),
        (MODULAR | {"dense_norms": (True, True)}, "the last of size 1 without norm"),
        (MODULAR | {"dense_activations": ("elu", "identity")}, "found elu"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reranking(**settings)


def test_options_are_what_decoding_reads() -> None:
    assert Reranking().with_options(activation="identity", long_documents="truncate").options == (
        "activation", "long_documents",
    )  # fmt: skip
    with pytest.raises(InputError, match="rerank has the options activation, long_documents, found top_k"):
        Reranking().with_options(top_k=3)
    assert (Reranking().reads_first_token_only, Reranking(**MODULAR).reads_first_token_only) == (True, True)
    assert not Reranking(**MODULAR | {"pooling": "mean"}).reads_first_token_only


@pytest.mark.parametrize(
    ("fields", "documents", "grades"),
    [
        ({"text": QUERY, "text_pair": "a", "label": "1"}, ["a"], (1,)),
        ({"query": QUERY, "document": "a", "score": 0.5, "label": 1}, ["a"], (0.5,)),
        ({"query": QUERY, "positive": "a", "negative": "b"}, ["a", "b"], (1, 0)),
        ({"query": QUERY, "positive": ["a", "c"], "negative": ["b"]}, ["a", "c", "b"], (1, 1, 0)),
        ({"query": QUERY, "documents": ["a", "b"], "scores": [0, 2]}, ["a", "b"], (0, 2)),
        ({"query": QUERY, "documents": ["a", "b"], "labels": [1, 0]}, ["a", "b"], (1, 0)),
    ],
)
def test_rows_are_pairs_triples_and_lists(
    fields: dict[str, Any], documents: list[str], grades: tuple[float, ...]
) -> None:
    example = Reranking().example(record(**fields))
    assert example == Example(tuple(TextInput(QUERY, document) for document in documents), grades)
    assert Reranking().inputs(record(**fields)) == example.inputs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": "a", "label": 1}, "expected a field 'text_pair', found only 'text', 'label'"),
        ({"query": "a", "label": 1}, "expected 'document', .* beside the query, found only 'query', 'label'"),
        ({"text": "a", "text_pair": "b"}, "expected a number in 'label', found None"),
        ({"text": "a", "text_pair": "b", "label": "yes"}, "expected a number in 'label', found 'yes'"),
        ({"query": "a", "positive": "b"}, "expected a field 'negative', found only 'query', 'positive'"),
        ({"query": "a", "positive": [], "negative": "b"}, "expected at least one text in 'positive', found none"),
        ({"query": "a", "positive": "b", "negative": ["c", 3]}, r"expected negative\[1\] to be a non-empty string"),
        (
            {"query": "a", "documents": ["b", "c"], "scores": [1]},
            "expected 'scores' to be a list of 2 numbers, one per document, found 1 of",
        ),
        ({"query": "a", "documents": ["b"], "scores": ["x"]}, r"expected scores\[0\] to be a finite number, found 'x'"),
        ({"query": "a", "documents": ["b"], "scores": [float("nan")]}, r"expected scores\[0\] to be a finite number"),
        ({"query": "a", "documents": ["b"]}, "expected 'scores' to be a list of 1 numbers, one per document, found N"),
    ],
)
def test_bad_rows_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^data.jsonl:3: {message}"):
        Reranking().example(record(**fields))


def test_tables_may_have_the_fields_of_reranking(tmp_path: Path) -> None:
    for header in ("query\tpositive\tnegative", "query\tdocument\tlabel"):
        (tmp_path / "data.tsv").write_text(f"{header}\n{QUERY}\ta\t0\n", encoding="utf-8")
        (row,) = read_records(tmp_path / "data.tsv")
        assert Reranking().inputs(row)[0] == TextInput(QUERY, "a")


def test_rows_of_one_query_are_ranked_together() -> None:
    """The second query's relevant document is at rank 2; the third has none, and is left out."""
    rows = [("q1", "a", 3.0, 1), ("q1", "b", 1.0, 0), ("q2", "c", 0.2, 1), ("q2", "d", 0.5, 0), ("q3", "e", 1.0, 0)]
    outputs = [output(query, document, logit) for query, document, logit, _ in rows]
    examples = [Example((item.input,), (grade,)) for item, (*_, grade) in zip(outputs, rows, strict=True)]
    metrics = Reranking().score(outputs, examples)
    assert metrics == {
        "ndcg_at_10": pytest.approx((1 + 1 / np.log2(3)) / 2),
        "mrr_at_10": pytest.approx(0.75),
    }
    grouped = [Example((outputs[0].input, outputs[1].input), (1, 0)), *examples[2:]]
    assert Reranking().score(outputs, grouped) == metrics


def test_agreement_compares_logits() -> None:
    reference = outputs_of(np.array([[1.0], [2.0], [4.0]], dtype=np.float32))
    drifted = outputs_of(np.array([[1.5], [2.0], [4.0]], dtype=np.float32))
    found = Reranking().agreement(drifted, reference)
    assert (found["mean_abs_logit_drift"], found["max_abs_logit_drift"]) == (pytest.approx(0.5 / 3), 0.5)
    assert 0.9 < found["pearson"] < 1
    assert Reranking().agreement(reference, reference)["pearson"] == pytest.approx(1)
