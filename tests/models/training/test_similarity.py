"""Training of sentence embeddings: scores, and the loss with and without them."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from bert_models import load_model, open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.data import ExampleDataset
from bert_models.training.in_batch_negatives import dot_products
from bert_models.training.objectives import build_objective, stack_targets
from bert_models.training.similarity import similarity_examples, similarity_loss, similarity_target
from bert_runtime.errors import DataError
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import (
    SentenceEmbedding,
)


def write(path: Path, rows: list[dict[str, Any]], times: int = 1) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * times), encoding="utf-8")
    return path


def similar(rows: list[dict[str, Any]]) -> list[Any]:
    records = [Record(row, Path("x.jsonl"), number) for number, row in enumerate(rows, start=1)]
    return [example.target for example in similarity_examples(SentenceEmbedding(dimensions=2), records)]


def test_scores_are_scaled_to_at_most_one() -> None:
    pair = {"text": "a", "text_pair": "b"}
    assert similar([{**pair, "score": 5}, {**pair, "score": 2.5}]) == [1.0, 0.5]
    assert similar([{**pair, "score": 0.2}, {**pair, "score": -0.4}]) == [0.2, -0.4]
    assert similar([pair, pair]) == ["b", "b"]


def targets(partners: str, texts: str = "abc", negatives: str = "") -> Tensor:
    """Targets of pairs without scores, by their second texts, their first ones, and the negatives of the first row."""
    rows: list[dict[str, Any]] = [
        {"text": text, "text_pair": partner} for text, partner in zip(texts, partners, strict=True)
    ]
    rows[0]["negative"] = [*negatives]
    records = [Record(row, Path("x.jsonl"), number) for number, row in enumerate(rows, start=1)]
    examples = similarity_examples(SentenceEmbedding(dimensions=2), records)
    return stack_targets([similarity_target(example) for example in examples])


@pytest.mark.parametrize(
    ("scores", "message"),
    [((1.0, None), r"x\.jsonl:2: expected a score as in x\.jsonl:1"), ((0, 0), "expected scores that differ")],
)
def test_missing_or_zero_scores_are_rejected(scores: tuple[Any, ...], message: str) -> None:
    rows = [{"text": "a", "text_pair": "b"} | ({} if score is None else {"score": score}) for score in scores]
    with pytest.raises(DataError, match=message):
        similar(rows)


def test_loss_without_scores_ranks_partners() -> None:
    vectors: Tensor = torch.eye(4)[[0, 0, 1, 1, 2, 2]]
    pairs = targets("xyz")
    assert similarity_loss(vectors, pairs) < 1e-6
    assert similarity_loss(vectors[[0, 2, 3, 5, 4, 1]], pairs) > 10


def test_text_that_belongs_to_two_others_is_no_negative_of_either() -> None:
    vectors: Tensor = torch.eye(4)[[0, 0, 0, 0, 2, 2]]
    assert similarity_loss(vectors, targets("xxz")) < 1e-6
    assert similarity_loss(vectors, targets("xyz")) > 0.4


def test_another_answer_of_the_same_text_is_no_negative() -> None:
    vectors: Tensor = torch.eye(4)[[0, 0, 0, 0, 2, 2]]
    assert similarity_loss(vectors, targets("xyz", "aab")) < 1e-6
    vectors = torch.eye(4)[[0, 1, 0, 0, 2, 0]]  # the third row's answer is that of the second, of an equal query
    found, alone = (similarity_loss(vectors, targets(*rows)) for rows in (("xyy", "aab"), ("xyz", "aab")))
    assert found < alone


def test_negatives_of_a_row_are_wrong_answers_of_every_query() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(8, 4)  # a x u v | b y | c z
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    queries, documents = unit[[0, 4, 6]], unit[[1, 5, 7, 2, 3]]
    found = similarity_loss(vectors, targets("xyz", negatives="uv"))
    expected = torch.nn.functional.cross_entropy(20 * queries @ documents.T, torch.arange(3))
    torch.testing.assert_close(found, expected)
    answer = similarity_loss(vectors, targets("xyz", negatives="uy"))  # an answer of b is a wrong one of a and c alone
    scores = 20 * queries @ documents.T
    scores[1, 4] = float("-inf")
    torch.testing.assert_close(answer, torch.nn.functional.cross_entropy(scores, torch.arange(3)))


def test_models_of_the_dot_product_are_ranked_by_it() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(6, 4)
    expected = torch.nn.functional.cross_entropy(vectors[0::2] @ vectors[1::2].T, torch.arange(3))
    torch.testing.assert_close(similarity_loss(vectors, targets("xyz"), dot=True), expected)
    losses = {}
    for normalize in (False, True):
        task = SentenceEmbedding(dimensions=4, similarity="dot", normalize=normalize)
        losses[normalize] = build_objective(task).loss(Mock(), vectors, targets("xyz"))
    torch.testing.assert_close(losses[False], expected)
    torch.testing.assert_close(losses[True], similarity_loss(vectors, targets("xyz")))


def test_negatives_get_the_prompt_of_documents() -> None:
    task = SentenceEmbedding(dimensions=2, prompts={"query": "search: ", "document": "found: "})
    row = Record({"query": "a", "positive": "b", "negative": ["c", "d"]}, Path("x.jsonl"), 1)
    (example,) = similarity_examples(task, [row])
    assert [text.text for text in example.inputs] == ["search: a", "found: b", "found: c", "found: d"]


def test_cosines_are_float32_where_autocast_is_on() -> None:
    torch.manual_seed(0)
    close = torch.nn.functional.normalize(torch.randn(1, 16) + 0.02 * torch.randn(8, 16), dim=-1)
    with torch.autocast("cpu", torch.bfloat16):
        found = dot_products(close, close)
        assert (close @ close.T).dtype == torch.bfloat16
    torch.testing.assert_close(found, close @ close.T)


def test_training_without_scores_lowers_the_loss(embedding_checkpoint: Path, tmp_path: Path) -> None:
    words = ("card", "rain", "bank", "train", "book", "film", "parcel", "refund")
    rows = [{"text": f"my {word}", "text_pair": f"the {word} is {word}"} for word in words]
    train = write(tmp_path / "train.jsonl", rows)
    pairs = [(x, y) for x in words for y in words]
    scored = [{"text": f"my {x}", "text_pair": f"the {y} is {y}", "score": float(x == y)} for x, y in pairs]
    dev = write(tmp_path / "dev.jsonl", scored)
    settings = TrainSettings(epochs=20, batch_size=8, lr=5e-4, precision="fp32")
    fine_tune("sentence-embedding", embedding_checkpoint, train, dev, tmp_path / "out", settings)

    def loss_of(folder: Path) -> float:
        checkpoint = open_checkpoint(folder)
        task = checkpoint.task()
        examples = ExampleDataset(task, similarity_examples(task, read_records(train)), checkpoint.text_tokenizer())
        batch = examples.collate(range(len(examples)))
        with torch.no_grad():
            vectors = load_model(checkpoint, task)(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return float(similarity_loss(vectors, batch.targets))

    assert loss_of(tmp_path / "out") < 0.5 * loss_of(embedding_checkpoint)


def test_pairs_select_the_epoch_by_how_they_are_ranked(embedding_checkpoint: Path, tmp_path: Path) -> None:
    words = ("card", "rain", "bank", "train", "book", "film", "parcel", "refund")
    rows = [
        {"query": f"my {word}", "positive": f"the {word} is {word}", "negative": f"the {other} is late"}
        for word, other in zip(words, words[1:] + words[:1], strict=True)
    ]
    file = write(tmp_path / "triples.jsonl", rows)
    settings = TrainSettings(epochs=3, batch_size=4, lr=5e-4, precision="fp32")
    report = fine_tune("sentence-embedding", embedding_checkpoint, file, file, tmp_path / "out", settings)
    values = [epoch["ndcg_at_10"] for epoch in report["epochs"]]
    assert report["metric"] == "ndcg_at_10"
    assert report["best"]["ndcg_at_10"] == max(values) > 0.5
    assert "spearman" not in report["best"]
