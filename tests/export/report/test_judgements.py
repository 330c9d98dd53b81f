"""What a variant decides agrees with the task's metrics, for every task."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from bert_export.report.judgements import JUDGES, Judgement, judge
from bert_runtime.metrics import pearson
from bert_runtime.tasks import TASKS

from .toy_outputs import CASES, outputs_and_examples

CORRECT = {
    "multi_label": "exact_match",
    "question-answering": "exact_match",
    "sparse-embedding": "recall_at_1",
    "ranked embeddings": "recall_at_1",
}
"""The metric that is the share of correct decisions, where it is not the accuracy."""


@pytest.fixture(scope="module")
def judged(toy_vocab: Path) -> dict[str, tuple[Judgement, Mapping[str, float]]]:
    """Judgement and metrics by the name of the case."""
    found = {}
    for name in CASES:
        task, outputs, examples = outputs_and_examples(name, toy_vocab)
        found[name] = judge(task, outputs, examples), task.score(outputs, examples)
    return found


Judged = dict[str, tuple[Judgement, Mapping[str, float]]]
NUMBERS = ("regression", "sentence-embedding", "rerank")


def test_every_task_has_a_judge() -> None:
    labelled = {name for name, task in TASKS.items() if task.has_labels}
    assert JUDGES.keys() == labelled
    assert {task.name for task, _, _ in CASES.values()} == labelled


@pytest.mark.parametrize("name", [name for name in CASES if name not in NUMBERS])
def test_decisions_agree_with_the_metric(judged: Judged, name: str) -> None:
    judgement, metrics = judged[name]
    correct = [decision.correct for decision in judgement.decisions]
    assert np.mean(correct) == pytest.approx(metrics[CORRECT.get(name, "accuracy")])
    assert 0 < np.mean(correct) < 1, "a case in which all or nothing is correct tests little"


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_agree_with_the_metric(judged: Judged, name: str) -> None:
    judgement, metrics = judged[name]
    assert judgement.numbers is not None
    found = pearson(judgement.numbers.predicted, judgement.numbers.expected)
    assert found == pytest.approx(metrics.get("pearson", found))  # of reranking, there is none among the metrics
    assert len(judgement.numbers.texts) == len(judgement.numbers.predicted)
    assert not judgement.decisions
    assert not len(judgement.probabilities)


@pytest.mark.parametrize("name", [name for name in CASES if name not in NUMBERS])
def test_tables_count_every_decision(judged: Judged, name: str) -> None:
    judgement, metrics = judged[name]
    assert judgement.table is not None
    if name == "multi_label":  # counts labels
        found, missed, wrongly_found = judgement.table.counts.sum(axis=0)
        assert 2 * found / (2 * found + missed + wrongly_found) == pytest.approx(metrics["micro_f1"])
        return
    assert judgement.table.counts.sum() == len(judgement.decisions)
    if judgement.table.rows == judgement.table.columns:
        assert np.trace(judgement.table.counts) == sum(decision.correct for decision in judgement.decisions)


@pytest.mark.parametrize("name", [name for name in CASES if name not in NUMBERS])
def test_probabilities_are_those_of_the_decisions(judged: Judged, name: str) -> None:
    judgement, _ = judged[name]
    assert ((judgement.probabilities >= 0) & (judgement.probabilities <= 1)).all()
    assert len(judgement.probabilities) == len(judgement.outcomes)
    known = [decision for decision in judgement.decisions if decision.probability is not None]
    if name != "multi_label":
        assert judgement.probabilities.tolist() == pytest.approx([decision.probability for decision in known])
    if name in ("sparse-embedding", "ranked embeddings"):  # scores are no probabilities
        assert not known
        return
    margins = [decision.margin for decision in judgement.decisions if decision.margin is not None]
    assert margins
    assert -1 <= min(margins) <= max(margins) <= 1


@pytest.mark.parametrize("name", ["token-classification", "crf", "replaced-token-detection"])
def test_a_word_that_the_tokenizer_drops_has_no_probability(judged: Judged, name: str) -> None:
    judgement, _ = judged[name]
    dropped = [decision for decision in judgement.decisions if decision.probability is None]
    assert len(dropped) == 3  # the zero-width space of each row
    for decision in dropped:
        assert decision.span is not None
        assert decision.text[slice(*decision.span)] == "\u200b"
    assert {decision.predicted for decision in dropped} == {
        {"token-classification": "O", "crf": "dropped", "replaced-token-detection": "original"}[name]
    }


def test_spans_point_at_the_word_or_mask(judged: Judged) -> None:
    for name, texts in (("token-classification", {"card"}), ("fill-mask", {"[MASK]"})):
        decisions = judged[name][0].decisions
        shown = {decision.text[slice(*decision.span)] for decision in decisions if decision.span is not None}
        assert texts <= shown
        assert all(decision.span is not None for decision in decisions)
    first, second = judged["fill-mask"][0].decisions[:2]
    assert first.span != second.span


def test_margins_of_labels_lead_the_runner_up(judged: Judged) -> None:
    for decision in judged["next-sentence-prediction"][0].decisions:
        assert decision.probability is not None
        assert decision.margin == pytest.approx(2 * decision.probability - 1)


def test_questions_without_an_answer_have_a_row_of_their_own(judged: Judged) -> None:
    table = judged["question-answering"][0].table
    assert table is not None
    assert (table.rows, table.columns) == (("an answer", "no answer"), ("exact", "partly right", "wrong", "no answer"))
    assert table.counts.sum(axis=1).tolist() == [21, 11]
