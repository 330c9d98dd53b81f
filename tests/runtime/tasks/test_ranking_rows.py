"""Pairs that belong together: how rows are read, and the metrics of ranking all second texts for each first one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bert_runtime.errors import DataError
from bert_runtime.evaluation import build_examples, evaluate
from bert_runtime.records import Record
from bert_runtime.similarity import similarity_matrix
from bert_runtime.tasks import Outputs, SentenceEmbedding, SparseEmbedding, Task
from bert_runtime.tasks.ranking_rows import RankingRow, rank_vectors, read_ranking_row
from bert_runtime.tasks.text_inputs import separate_texts
from bert_runtime.tokenization import Batch, TextTokenizer

from ..outputs import outputs_of
from ..task_models import RandomRunner, with_runner, wordpiece


class Pooled(RandomRunner):
    """A random vector for each text [B, H]."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        return super().run(batch)[:, 0]


PROMPTS = {"query": "search: ", "passage": "found: "}


def record(**fields: Any) -> Record:
    return Record(fields, Path("pairs.jsonl"), 1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"text": "a", "text_pair": "b"}, RankingRow("a", "b")),
        ({"query": "a", "document": "b", "negative": ""}, RankingRow("a", "b")),
        ({"query": "a", "positive": "b", "negative": "c"}, RankingRow("a", "b", ("c",))),
        ({"text": "a", "text_pair": "b", "negative": ["c", "d"]}, RankingRow("a", "b", ("c", "d"))),
    ],
)
def test_rows_have_the_names_of_pairs_or_of_triples(fields: dict[str, Any], expected: RankingRow) -> None:
    assert read_ranking_row(record(**fields)) == expected
    texts = [text.text for text in separate_texts(record(**fields))]
    assert texts == [expected.query, expected.answer, *expected.negatives]


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"text": "a", "query": "b"}, ["a"]),
        ({"text": "a", "document": "d17"}, ["a"]),
        ({"query": "a", "text_pair": "", "positive": "b"}, ["a", "b"]),
        ({"text": "a", "text_pair": "b", "query": "c", "positive": "d"}, ["a", "b"]),
        ({"text": "a", "positive": "b"}, ["a", "b"]),
    ],
)
def test_the_names_that_columns_were_given_come_first(fields: dict[str, Any], texts: list[str]) -> None:
    assert [text.text for text in separate_texts(record(**fields))] == texts
    if len(texts) == 2:
        assert read_ranking_row(record(**fields)) == RankingRow(*texts)
    else:
        with pytest.raises(DataError, match="expected a field 'text_pair'"):
            read_ranking_row(record(**fields))


def test_one_text_alone_is_one_input() -> None:
    assert [[text.text for text in separate_texts(record(**{name: "a"}))] for name in ("text", "query")] == [["a"]] * 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": "a"}, "expected a field 'text_pair'"),
        ({"query": "a", "positive": ["b"]}, "expected 'positive' to be a string, found list"),
        ({"query": "a", "positive": "b", "negative": ["c", 3]}, r"expected negative\[1\] to be a non-empty string"),
    ],
)
def test_rows_without_texts_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"pairs\.jsonl:1: .*{message}"):
        read_ranking_row(record(**fields))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"score": 1}, {}], r"pairs\.jsonl:1: expected a score as in pairs\.jsonl:1, or none in the whole file"),
        ([{"label": 1}], "found 'text', 'text_pair', 'label'; name the score with --columns score=label, or leave"),
        ([{"similarity": 1}], "--columns score=similarity"),
    ],
)
def test_columns_that_look_like_scores_are_not_ignored(
    toy_vocab: Path, rows: list[dict[str, Any]], message: str
) -> None:
    records = [record(text="a", text_pair="b", **row) for row in rows]
    with pytest.raises(DataError, match=message):
        build_examples(SentenceEmbedding(dimensions=2), TextTokenizer(wordpiece(toy_vocab), 64, 0), records)


def test_queries_and_documents_get_their_prompts() -> None:
    task = SentenceEmbedding(dimensions=2, prompts=PROMPTS)
    assert [text.text for text in task.example(record(text="a", text_pair="b")).inputs] == ["search: a", "found: b"]
    scored = task.example(record(text="a", text_pair="b", score=1))
    assert [text.text for text in scored.inputs] == ["a", "b"]
    default = replace(task, prompt_name="query")  # which is put in front of texts that are neither
    inputs = default.example(record(text="a", text_pair="b")).inputs
    assert [text.text for text in default.prefixed(inputs)] == ["search: a", "found: b"]
    assert [text.text for text in default.prefixed(scored.inputs)] == ["search: a", "search: b"]


VECTORS = {"a": [1, 0], "b": [0, 1], "x": [2, 1], "y": [0, 2], "z": [0.5, 2.5]}


def ranked(task: Task, *pairs: str) -> tuple[list[Outputs], list[Any]]:
    examples = [task.example(record(text=query, text_pair=answer)) for query, answer in pairs]
    inputs = [text for example in examples for text in example.inputs]
    arrays = np.array([VECTORS[text.text] for text in inputs], dtype=np.float32)
    outputs = [output._replace(input=text) for output, text in zip(outputs_of(arrays), inputs, strict=True)]
    return outputs, examples


@pytest.mark.parametrize(("similarity", "first"), [("cosine", "y"), ("dot", "z"), ("euclidean", "y")])
def test_answers_are_ranked_by_the_models_similarity(similarity: str, first: str) -> None:
    """The query `b` is nearest to `y`, but the dot product with the longer `z` is larger."""
    task = SentenceEmbedding(dimensions=2, normalize=False, similarity=similarity)
    outputs, examples = ranked(task, "ax", "by", "bz")
    run = task.rank(outputs, examples)
    assert max(run["b"], key=run["b"].__getitem__) == first
    assert task.score(outputs, examples) == {
        "ndcg_at_10": 1, "mrr_at_10": 1, "recall_at_1": 0.75, "recall_at_10": 1,
    }  # fmt: skip
    outputs, examples = ranked(task, "ax", "by", "az")
    assert task.metric_for(examples) == "ndcg_at_10"
    assert task.score(outputs, examples)["mrr_at_10"] == (1 if first == "y" else 0.75)
    assert task.metric_for([task.example(record(text="a", text_pair="b", score=1))]) == "spearman"


@pytest.mark.parametrize("default", [None, "query"])
def test_a_model_with_a_default_prompt_is_ranked(default: str | None, toy_vocab: Path) -> None:
    """It is in front of documents, too, which have no prompt of their own here."""
    task = SentenceEmbedding(dimensions=8, normalize=False, prompts={"query": "the "}, prompt_name=default)
    model = with_runner(Pooled(8), task, wordpiece(toy_vocab), 64)
    rows = [{"text": f"my card {number}", "text_pair": f"my card {number}"} for number in range(30)]
    metrics = evaluate(model, [record(**row) for row in rows])
    if default is not None:  # the same text on both sides
        assert metrics == {"mrr_at_10": 1, "ndcg_at_10": 1, "recall_at_1": 1, "recall_at_10": 1}
    assert 0 < metrics["mrr_at_10"] <= 1


def test_ranking_is_that_of_all_similarities() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(80, 8)).astype(np.float32)
    texts = [f"{'qd'[row % 2]}{row // 2}" for row in range(80)]
    found = rank_vectors(texts, vectors, "cosine")
    expected = similarity_matrix(vectors[0::2], vectors[1::2])
    for row in range(40):
        best = np.argsort(-expected[row])[:10]
        assert list(found[f"q{row}"]) == [f"d{index}" for index in best]
        assert list(found[f"q{row}"].values()) == pytest.approx(expected[row, best], abs=1e-6)


def test_sparse_embeddings_are_ranked_by_the_tokens_of_their_results() -> None:
    task = SparseEmbedding(vocab_size=2, top_k=1)
    outputs, examples = ranked(task, "bx")
    assert task.rank(outputs, examples) == {"b": {}}  # of x, the result has the first token alone, and b the second


def test_sparse_embeddings_decide_by_their_own_metric() -> None:
    task = SparseEmbedding(vocab_size=2)
    assert task.metric_for([task.example(record(query="a", positive="b"))]) == "mrr_at_10"
