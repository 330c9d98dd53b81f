"""Documents in the order of their relevance, by every kind of model that gives one score for a pair."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime import InputError, Model
from bert_runtime.numerics import sigmoid, softmax
from bert_runtime.ranking import rank_outputs, relevance_logits
from bert_runtime.tasks import NextSentencePrediction, Reranking, Task, TextClassification

from .outputs import outputs_of
from .task_models import random_model

LOGITS = np.array([[0.5, 2.0], [1.0, -3.0]], dtype=np.float32)
QUERY = "where is my card"
DOCUMENTS = ["it is lost", "", "the bank is open", "good morning", "why not", "the train is late"]


def ranker(task: Task, vocab: Path, width: int = 1, max_tokens: int = 64) -> Model:
    """Return a model with a random logit for each pair."""
    model = random_model(task, vocab, max_tokens, width)
    run = model.session.run
    model.session.run = lambda batch: run(batch)[:, 0]  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("activation", ["sigmoid", "identity"])
def test_documents_come_back_best_first_with_the_scores_of_single_pairs(activation: str, toy_vocab: Path) -> None:
    model = ranker(Reranking(activation=activation), toy_vocab)
    single: list[Any] = [model((QUERY, document)) for document in DOCUMENTS]
    ranked = model.rank(QUERY, DOCUMENTS)
    assert [item.index for item in ranked] == sorted(range(6), key=lambda index: -single[index].logit)
    for item in ranked:
        expected = single[item.index]
        assert (item.score, item.logit, item.document) == (expected.score, expected.logit, DOCUMENTS[item.index])
        assert item.score == (
            item.logit if activation == "identity" else pytest.approx(float(sigmoid(np.float64(item.logit))))
        )
    assert model.rank(QUERY, tuple(DOCUMENTS), top_k=2) == ranked[:2]
    assert ranked[0].to_dict() == {"index": ranked[0].index, "score": ranked[0].score, "document": ranked[0].document}
    with pytest.raises(FrozenInstanceError):
        ranked[0].score = 1  # type: ignore[misc]


def test_the_best_window_of_a_long_document_counts(toy_vocab: Path) -> None:
    model = ranker(Reranking(), toy_vocab, max_tokens=16)
    long = " ".join("abcdefghijklmnopqrstuvwxyz")
    (output,) = model.outputs([(QUERY, long)])
    assert len(output.arrays) > 2
    assert model.rank(QUERY, [long])[0].logit == max(float(array[0]) for array in output.arrays)
    assert not model.rank(QUERY, [long])[0].truncated
    (cut,) = model.with_options(long_documents="truncate").rank(QUERY, [long])
    assert cut.to_dict()["truncated"]
    assert cut.logit == float(model.outputs([(QUERY, long[:17])])[0].arrays[0][0])


def test_a_query_that_was_cut_is_marked_with_documents_of_any_length(toy_vocab: Path) -> None:
    model = ranker(Reranking(), toy_vocab, max_tokens=16)
    letters = " ".join("abcdefghijklmnopqrstuvwxyz")
    assert [document.truncated for document in model.rank(letters, ["a", letters])] == [True, True]
    assert [result.truncated for result in model([(letters, letters), (QUERY, letters)])] == [True, False]


def test_equal_scores_keep_the_order_that_was_given() -> None:
    outputs = outputs_of(np.array([[1.0], [2.0], [1.0], [2.0]], dtype=np.float32))
    assert [item.index for item in rank_outputs(Reranking(), outputs)] == [1, 3, 0, 2]


@pytest.mark.parametrize(
    "calibration", [{}, {"logit_scales": (0.25,)}, {"logit_scales": (2.0, 0.5), "logit_biases": (0.5, -1.0)}]
)
def test_a_classifier_of_pairs_ranks_too(calibration: dict[str, Any], toy_vocab: Path) -> None:
    model = ranker(TextClassification(labels=("no", "yes"), **calibration), toy_vocab, width=2)
    scores = {item.index: item.score for item in model.rank(QUERY, DOCUMENTS)}
    for index, document in enumerate(DOCUMENTS):
        result: Any = model((QUERY, document))
        assert scores[index] == pytest.approx(result.scores[1], abs=1e-6)


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ("a text", {}, "expected a list of documents, found str"),
        (["a", None], {}, "input 1: expected a document to be a text, found NoneType"),
        (["a", "\ud800"], {}, "input 1: the text holds a lone surrogate"),
        ({"a", "b"}, {}, "expected a text or a list of texts, found set"),
        (iter(["a"]), {}, "expected a list of documents, found list_iterator; put the documents into a list"),
        (["a"], {"top_k": 0}, "top_k must be a whole number of at least 1, found 0"),
    ],
)
def test_bad_documents_are_named(documents: Any, options: dict[str, Any], message: str, toy_vocab: Path) -> None:
    with pytest.raises(InputError, match=message):
        ranker(Reranking(), toy_vocab).rank(QUERY, documents, **options)


def test_bad_queries_and_models_are_refused(toy_vocab: Path) -> None:
    with pytest.raises(InputError, match="expected the query to be a text, found int"):
        ranker(Reranking(), toy_vocab).rank(3, ["a"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="found one for next-sentence-prediction"):
        ranker(NextSentencePrediction(), toy_vocab, width=2).rank(QUERY, ["a"])
    assert ranker(Reranking(), toy_vocab).rank(QUERY, []) == []


@pytest.mark.parametrize("problem_type", ["regression", "multi_label"])
def test_the_only_number_or_label_is_the_score(problem_type: str) -> None:
    task = TextClassification(labels=("relevance",), problem_type=problem_type)
    assert relevance_logits(task, outputs_of(LOGITS[:, :1])).tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (("LABEL_0", "LABEL_1"), 1),
        (("irrelevant", "relevant"), 1),
        (("not_equivalent", "equivalent"), 1),
        (("entailment", "not_entailment"), 0),
        (("Relevant", "irrelevant"), 0),
    ],
)
def test_the_positive_of_two_labels_is_the_second_unless_its_name_negates_the_first(
    labels: tuple[str, str], positive: int
) -> None:
    logits = relevance_logits(TextClassification(labels=labels), outputs_of(LOGITS))
    np.testing.assert_allclose(sigmoid(logits), softmax(LOGITS)[:, positive], rtol=1e-6)


@pytest.mark.parametrize(
    ("task", "found"),
    [
        (TextClassification(labels=("a", "b", "c")), r"found 3 labels \(single_label\)"),
        (TextClassification(labels=("a", "b"), problem_type="multi_label"), r"found 2 labels \(multi_label\)"),
        (TextClassification(labels=("a", "b"), problem_type="regression"), r"found 2 labels \(regression\)"),
        (NextSentencePrediction(), "found one for next-sentence-prediction"),
    ],
)
def test_other_models_are_refused(task: Task, found: str) -> None:
    with pytest.raises(InputError, match=found):
        relevance_logits(task, [])


def test_no_documents_have_no_scores() -> None:
    assert relevance_logits(TextClassification(labels=("no", "yes")), []).shape == (0,)
