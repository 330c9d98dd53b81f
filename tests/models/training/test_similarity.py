"""Training of sentence embeddings: scores, and the loss with and without them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bert_models import load_model, open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.data import ExampleDataset
from bert_models.training.in_batch_negatives import dot_products
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
    assert np.isnan(similar([pair, pair])).all()


def targets(partners: str, texts: str = "abc") -> Tensor:
    """Targets of pairs without scores, by their second texts and their first ones."""
    rows = [{"text": text, "text_pair": partner} for text, partner in zip(texts, partners, strict=True)]
    records = [Record(row, Path("x.jsonl"), number) for number, row in enumerate(rows, start=1)]
    examples = similarity_examples(SentenceEmbedding(dimensions=2), records)
    return torch.from_numpy(np.stack([similarity_target(example) for example in examples]))


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
