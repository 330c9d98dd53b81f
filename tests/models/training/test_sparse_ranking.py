"""Training of sparse embeddings: ranking with in-batch negatives, and the regularizer."""

import json
from pathlib import Path

import pytest
import torch

from bert_models import EncoderConfig, TaskModel, load_model, open_checkpoint, save_model
from bert_models.crf import IGNORE_INDEX
from bert_models.errors import TrainingError
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.in_batch_negatives import ranking_example, ranking_target
from bert_models.training.objectives import stack_targets
from bert_models.training.sparse_ranking import Regularizer, flops, ranking_loss
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import SparseEmbedding, TextInput
from bert_runtime.tokenization import pad

TASK = SparseEmbedding(vocab_size=4)
NONE = Regularizer(query=0, document=0)
ROWS = [
    {"text": "a", "text_pair": "x"},
    {"text": "b", "text_pair": "y", "negative": "z"},
    {"text": "c", "text_pair": "x", "negative": ""},
]


def targets(rows: list[dict[str, str]]) -> torch.Tensor:
    records = [Record(row, Path("pairs.jsonl"), number) for number, row in enumerate(rows, start=1)]
    return stack_targets([ranking_target(ranking_example(TASK, record)) for record in records])


def test_examples_have_a_negative_where_the_row_has_one() -> None:
    found = targets(ROWS)
    assert found[:, 0].tolist() == [2, 3, 2]
    assert (found[:, 3] != IGNORE_INDEX).tolist() == [False, True, False]
    assert found[0, 2] == found[2, 2] != found[1, 2]
    assert len(set(found[:, 1].tolist())) == 3
    with pytest.raises(DataError, match="text_pair"):
        targets([{"text": "a"}])


def test_loss_is_the_cross_entropy_over_all_texts_of_the_batch() -> None:
    torch.manual_seed(0)
    weights = torch.rand(7, 4)  # a x | b y z | c x
    queries, documents = weights[[0, 2, 5]], weights[[1, 3, 6, 4]]
    scores = queries @ documents.T
    scores[0, 2] = scores[2, 0] = float("-inf")  # the same text answers both
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(3))
    torch.testing.assert_close(ranking_loss(weights, targets(ROWS), NONE), expected)
    regularizer = Regularizer(query=0.5, document=0.25)
    penalty = 0.5 * flops(queries) + 0.25 * flops(documents)
    torch.testing.assert_close(ranking_loss(weights, targets(ROWS), regularizer), expected + penalty)


def test_negative_that_answers_another_query_is_no_negative_of_that() -> None:
    rows = [{"text": "a", "text_pair": "x"}, {"text": "b", "text_pair": "y", "negative": "x"}]
    torch.manual_seed(0)
    weights = torch.rand(5, 4)  # a x | b y x
    scores = weights[[0, 2]] @ weights[[1, 3, 4]].T
    scores[0, 2] = float("-inf")
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(2))
    torch.testing.assert_close(ranking_loss(weights, targets(rows), NONE), expected)


def test_another_answer_of_the_same_query_is_no_negative() -> None:
    rows = [{"text": "a", "text_pair": "x"}, {"text": "a", "text_pair": "y", "negative": "z"}]
    torch.manual_seed(0)
    weights = torch.rand(5, 4)  # a x | a y z
    scores = weights[[0, 2]] @ weights[[1, 3, 4]].T
    scores[0, 1] = scores[1, 0] = float("-inf")
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(2))
    torch.testing.assert_close(ranking_loss(weights, targets(rows), NONE), expected)


def test_regularizer_is_the_squared_mean_weight_and_rises_quadratically() -> None:
    assert flops(torch.tensor([[1.0, 0], [3, 0]])) == 4
    assert [Regularizer(1, 1, progress).factor for progress in (0, 1 / 6, 1 / 3, 1)] == [0, 0.25, 1, 1]


@pytest.mark.parametrize("name", ["query_flops", "document_flops"])
def test_negative_weights_are_refused(name: str) -> None:
    with pytest.raises(TrainingError, match=f"{name} must not be negative"):
        TrainSettings(**{name: -1.0})


def test_training_lowers_the_loss_and_the_regularizer_makes_vectors_sparse(
    tmp_path: Path, toy_vocab: Path, toy_config: EncoderConfig
) -> None:
    torch.manual_seed(0)
    base = tmp_path / "base"
    base.mkdir()
    model = TaskModel(toy_config, SparseEmbedding(vocab_size=toy_config.vocab_size)).eval()
    save_model(model, base, tokenizer_from=toy_vocab)
    words = ("card", "rain", "bank", "train", "book", "film", "parcel", "refund")
    rows = [{"text": f"where is the {word}", "text_pair": f"my {word} is late"} for word in words]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows * 4), encoding="utf-8")
    reports, counts = {}, {}
    for weight in (0.0, 0.3):
        output = tmp_path / f"trained {weight}"
        settings = TrainSettings(epochs=6, batch_size=8, lr=3e-3, query_flops=weight, document_flops=weight)
        reports[weight] = fine_tune("sparse-embedding", base, file, file, output, settings)
        counts[weight] = mean_count(output, [row["text"] for row in rows])
        assert open_checkpoint(output).task() == model.task
    losses = [epoch["train_loss"] for epoch in reports[0.0]["epochs"]]
    assert losses[-1] < 0.7 * losses[0]
    assert counts[0.3] < counts[0.0]


def mean_count(checkpoint: Path, texts: list[str]) -> float:
    """Return how many tokens a checkpoint weighs, the mean over texts."""
    source = open_checkpoint(checkpoint)
    model, tokenizer = load_model(source, source.task()), source.text_tokenizer()
    encodings = [windows[0] for windows in tokenizer.encode([TextInput(text) for text in texts])]
    with torch.no_grad():
        weights = model(*map(torch.from_numpy, pad(encodings, tokenizer.pad_token_id)))
    return float((weights > 0).sum(dim=1).float().mean())
