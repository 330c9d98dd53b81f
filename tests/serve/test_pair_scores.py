"""Which models give one score for a pair, and which score that is."""

import numpy as np
import pytest

from bert_runtime import InputError
from bert_runtime.numerics import softmax
from bert_runtime.tasks import NextSentencePrediction, Task, TextClassification
from bert_serve.serving.pair_scores import PairScores, relevance_logits

from ..runtime.outputs import outputs_of

LOGITS = np.array([[0.5, 2.0], [1.0, -3.0]], dtype=np.float32)


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
    np.testing.assert_allclose(PairScores(logits, 0).probabilities, softmax(LOGITS)[:, positive], rtol=1e-6)


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
