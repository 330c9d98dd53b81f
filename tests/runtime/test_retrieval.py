"""Retrieval by models that rerank candidates."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bert_runtime import DataError, InputError, Model, Task, TextClassification
from bert_runtime.metrics import Run
from bert_runtime.records.retrieval import RetrievalData
from bert_runtime.retrieval import evaluate_retrieval, retrieve, run_of_vectors
from bert_runtime.sentence_transformers import CrossEncoder
from bert_runtime.tasks import Reranking

from .task_models import random_model

WORDS = ("card", "money", "time", "help", "bank", "hello", "please", "good")
DATA = RetrievalData(
    corpus={f"d{i}": f"my {first} and {second}" for i, (first, second) in enumerate(pairwise(WORDS))},
    queries={f"q{i}": f"where is the {word}?" for i, word in enumerate(WORDS[:3])},
    qrels={f"q{i}": {f"d{i}": 1} for i in range(3)},
    path=Path("qrels.tsv"),
)


def pair_model(task: Task, vocab: Path, width: int) -> Model:
    """Return a model with random outputs for each pair."""
    model = random_model(task, vocab, 64, width)
    run = model.session.run
    model.session.run = lambda batch: run(batch)[:, 1]  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    "task",
    [Reranking(), TextClassification(labels=("relevance",), problem_type="regression")],
    ids=lambda task: task.name,
)
def test_candidates_are_reranked(task: Task, toy_vocab: Path) -> None:
    model = pair_model(task, toy_vocab, 1)
    candidates = {"q0": {"d3": 0.1, "d0": 0.2, "gone": 0.3}, "q1": {"d1": 1.0}}
    found = retrieve(model, DATA, candidates=candidates)
    logits = model.outputs([(DATA.queries["q0"], DATA.corpus[document]) for document in ("d3", "d0")])
    assert found["q0"] == pytest.approx({"d3": logits[0].flat.max(), "d0": logits[1].flat.max()}, abs=1e-5)
    assert (list(found["q1"]), found["q2"]) == (["d1"], {})
    assert evaluate_retrieval(model, DATA, candidates=candidates)["recall_at_10"] == pytest.approx(2 / 3)


def test_a_query_that_is_a_document_does_not_find_itself() -> None:
    """As in ArguAna, whose queries are documents of the corpus, without their titles, under the same ids."""
    corpus = {"a": "Cards my card", "b": "my cards", "c": "we open at nine"}
    data = RetrievalData(
        corpus=corpus, queries={"a": "my card", "c": "another text", "b": "my cards"}, path=Path("qrels.tsv"),
        qrels={"a": {"b": 1}, "c": {"a": 1}, "b": {"b": 1}},
    )  # fmt: skip
    run = run_of_vectors(np.eye(3)[[0, 2, 1]], [np.eye(3)], data, "cosine", top_k=2)
    assert {query: set(found) for query, found in run.items()} == {
        "a": {"b", "c"}, "c": {"c", "a"}, "b": {"b", "a"},
    }  # fmt: skip


def test_models_of_pairs_need_candidates(toy_vocab: Path) -> None:
    with pytest.raises(InputError, match=r"the candidates that it reranks \(--first-stage\), found one for rerank"):
        retrieve(pair_model(Reranking(), toy_vocab, 1), DATA)


@pytest.mark.parametrize("candidates", [{}, {"q0": {"gone": 0.3}}, {"other": {"d0": 0.1}}])
def test_candidates_of_another_data_set_are_refused(candidates: Run, toy_vocab: Path) -> None:
    with pytest.raises(
        DataError, match=r"qrels.tsv: expected candidates for its 3 queries that are documents of the cor"
    ):
        retrieve(pair_model(Reranking(), toy_vocab, 1), DATA, candidates=candidates)


@pytest.mark.parametrize("activation", ["sigmoid", "identity"])
def test_rerankers_behind_the_cross_encoder_class(activation: str, toy_vocab: Path) -> None:
    model = pair_model(Reranking(activation=activation), toy_vocab, 1)
    documents = list(DATA.corpus.values())
    scores = CrossEncoder(model).predict([("hello", document) for document in documents])
    ranked = model.rank("hello", documents)
    assert [item.score for item in ranked] == pytest.approx(sorted(scores.tolist(), reverse=True))
    assert [item["corpus_id"] for item in CrossEncoder(model).rank("hello", documents)] == [
        item.index for item in ranked
    ]
