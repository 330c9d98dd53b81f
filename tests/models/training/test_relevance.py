"""Training of rerankers: which loss a file's rows have, the losses by hand, and files that are refused."""

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from bert_models import TaskModel
from bert_models.training.lambda_loss import lambda_loss
from bert_models.training.objectives import build_objective, stack_targets
from bert_models.training.relevance import check_dev_examples, learns_logits, relevance_examples
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Reranking

PAIRS = [{"text": "q", "text_pair": "a", "label": 1}, {"text": "q", "text_pair": "b", "label": 0}]
SCORED = [{"text": "q", "text_pair": "a", "score": 4.5}, {"text": "q", "text_pair": "b", "score": -2}]
TRIPLES = [
    {"query": "q", "positive": "a", "negative": "b"},
    {"query": "r", "positive": ["c", "d"], "negative": ["e", "f"]},
]
MARGINS = [{"query": "q", "positive": "a", "negative": "b", "score": margin} for margin in (3.5, -1)]
LISTS = [
    {"query": "q", "documents": ["a", "b", "c"], "scores": [0, 2, 1]},
    {"query": "r", "documents": ["a", "b"], "scores": [1, 0]},
]


def records(rows: list[dict[str, Any]]) -> list[Record]:
    return [Record(row, Path("train.jsonl"), line) for line, row in enumerate(rows, start=1)]


def loss(rows: list[dict[str, Any]], logits: list[float]) -> float:
    """Return the objective's loss of all rows in one batch."""
    objective = build_objective(Reranking())
    examples = relevance_examples(records(rows))
    targets = stack_targets([objective.target(example, cast(Any, None), cast(Any, None)) for example in examples])
    assert sum(len(example.inputs) for example in examples) == len(logits)
    return float(objective.loss(cast(TaskModel, None), torch.tensor(logits)[:, None], targets))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_labelled_pairs_have_binary_cross_entropy() -> None:
    assert loss(PAIRS, [0.3, -1.0]) == pytest.approx(-(math.log(sigmoid(0.3)) + math.log(sigmoid(1.0))) / 2)


def test_pairs_with_other_grades_have_a_squared_error() -> None:
    assert loss(SCORED, [4.0, 0.0]) == pytest.approx((0.5**2 + 2**2) / 2)


def test_triples_have_the_cross_entropy_of_the_better_documents_of_each_row() -> None:
    logits = [1.0, 0.0, 2.0, 1.0, 0.5, 0.0]
    first = -math.log(math.e / (math.e + 1))
    total = sum(map(math.exp, logits[2:]))
    second = -(math.log(math.exp(2) / total) + math.log(math.e / total)) / 2
    assert loss(TRIPLES, logits) == pytest.approx((first + second) / 2, rel=1e-6)


def test_triples_with_margins_have_the_squared_error_of_differences() -> None:
    assert loss(MARGINS, [2.0, 0.0, 1.0, 1.0]) == pytest.approx((1.5**2 + 1) / 2)


def lambda_by_hand(logits: list[list[float]], grades: list[list[float]]) -> float:
    """Sum NDCG-Loss2++ pair by pair."""
    losses = []
    for scores, relevance in zip(logits, grades, strict=True):
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        rank = {document: position for position, document in enumerate(order, start=1)}
        ideal = sum((2**y - 1) / math.log2(1 + r) for r, y in enumerate(sorted(relevance, reverse=True), start=1))
        for i in range(len(scores)):
            for j in range(len(scores)):
                if relevance[i] > relevance[j]:
                    gain = abs((2 ** relevance[i] - 1) - (2 ** relevance[j] - 1)) / ideal
                    apart = abs(rank[i] - rank[j])
                    delta = abs(1 / math.log2(1 + apart) - 1 / math.log2(2 + apart))
                    rho = abs(1 / math.log2(1 + rank[i]) - 1 / math.log2(1 + rank[j]))
                    losses.append(-math.log2(sigmoid(scores[i] - scores[j])) * (10 * delta + rho) * gain)
    return sum(losses) / len(losses)


def test_lists_have_lambda_loss_whatever_their_lengths() -> None:
    expected = lambda_by_hand([[0.5, -1.0, 2.0], [0.3, 0.8]], [[0, 2, 1], [1, 0]])
    assert loss(LISTS, [0.5, -1.0, 2.0, 0.3, 0.8]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("rows", "sizes"), [(PAIRS, [1, 1]), (SCORED, [1, 1]), (TRIPLES, [2, 4]), (MARGINS, [2, 2]), (LISTS, [3, 2])]
)
def test_weighted_mean_of_the_parts_of_a_batch_is_its_loss(rows: list[dict[str, Any]], sizes: list[int]) -> None:
    """As processes share a batch, whose lists may differ in how many pairs they compare."""
    objective, examples = build_objective(Reranking()), relevance_examples(records(rows))
    targets = [objective.target(example, cast(Any, None), cast(Any, None)) for example in examples]
    logits = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(0))
    total = total_weight = torch.zeros(())
    for part, target in zip(logits.split(sizes), targets, strict=True):
        weight = objective.weight(stacked := stack_targets([target]))
        total = total + weight * objective.loss(cast(TaskModel, None), part[:, None], stacked)
        total_weight = total_weight + weight
    assert float(total / total_weight) == pytest.approx(loss(rows, logits.tolist()), rel=1e-5)


def test_targets_without_labels_have_the_weight_of_their_rows() -> None:
    assert build_objective(Reranking()).weight(torch.zeros(3, dtype=torch.int64)) == 3


def test_lambda_loss_of_equal_grades_is_zero_and_has_gradients() -> None:
    logits = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    known = torch.ones(2, 4, dtype=torch.bool)
    found: Tensor = lambda_loss(logits, torch.ones(2, 4), known)
    assert float(found.detach()) == 0
    known[0, 2:] = False
    found = lambda_loss(logits, torch.tensor([[1.0, 0, -100, -100], [3, 2, 1, 0]]), known)
    found.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[0, 2:].any()
    expected = lambda_by_hand([logits[0, :2].tolist(), logits[1].tolist()], [[1, 0], [3, 2, 1, 0]])
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("rows", "logits"), [(PAIRS, False), (SCORED, True), (TRIPLES, False), (MARGINS, True), (LISTS, False)]
)
def test_grades_that_are_no_probabilities_are_learned_as_logits(rows: list[dict[str, Any]], logits: bool) -> None:
    assert learns_logits(records(rows)) == logits


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*PAIRS, TRIPLES[0]], "train.jsonl:3: expected a pair as in train.jsonl:1, found a triple"),
        ([LISTS[0], PAIRS[0]], "train.jsonl:2: expected a list as in train.jsonl:1, found a pair"),
        (PAIRS[:1] * 3, "train.jsonl: expected grades that differ, found only 1"),
        ([MARGINS[0], TRIPLES[0]], "train.jsonl:2: expected a score as in train.jsonl:1, or none in the whole file"),
        (
            [MARGINS[0], {**TRIPLES[1], "score": 1}],
            "train.jsonl:2: expected one positive and one negative with a score",
        ),
        ([{**LISTS[1], "scores": [1, -1]}], "train.jsonl:1: expected grades of 0 to 30 in a list, found -1"),
        ([{**LISTS[1], "scores": [1, 31]}], "train.jsonl:1: expected grades of 0 to 30 in a list, found 31"),
        ([{**LISTS[1], "scores": [1, 1]}], "train.jsonl: expected lists of documents whose grades differ, found none"),
    ],
)
def test_files_that_teach_nothing_are_refused(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        relevance_examples(records(rows))


def test_dev_files_need_a_relevant_document() -> None:
    task = Reranking()
    check_dev_examples([task.example(record) for record in records(LISTS)], "dev.jsonl")
    with pytest.raises(DataError, match=r"dev.jsonl: expected a document of grade 1 or more"):
        check_dev_examples([task.example(record) for record in records([{**PAIRS[0], "label": 0.5}])], "dev.jsonl")


def test_targets_of_dev_examples_are_arrays_too() -> None:
    (record,) = records([LISTS[0]])
    target = build_objective(Reranking()).target(Reranking().example(record), cast(Any, None), cast(Any, None))
    assert (target.dtype, target.shape) == (np.float32, (4,))
