"""text-classification: predictions compared with the transformers pipeline, for every problem type, texts and pairs."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from bert_runtime import InputError, Model
from bert_runtime.tasks import Classification, MultiLabelClassification, Regression

from ..task_models import exported, labelled, reference, stsb, wnut

PROBLEM_TYPES = ["single_label_classification", "multi_label_classification", "regression"]


@pytest.fixture(scope="module", params=PROBLEM_TYPES)
def pair(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Model]:
    """The transformers pipeline, and a bundle of the same checkpoint."""
    tokenizer = transformers.BertTokenizer(str(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"))
    labels = ["score"] if request.param == "regression" else ["sad", "neutral", "glad", "angry"]
    theirs = reference(
        "BertForSequenceClassification", tokenizer, problem_type=request.param, type_vocab_size=2, **labelled(labels)
    )
    pipeline = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer, top_k=None)
    return pipeline, exported(theirs, tokenizer, tmp_path_factory.mktemp(request.param))


@pytest.mark.shared_data
@pytest.mark.parametrize("kind", ["texts", "pairs"])
def test_predictions_equal_pipeline(pair: tuple[Any, Model], shared_data: Path, kind: str) -> None:
    pipeline, model = pair
    texts = [*wnut(shared_data, 60), *stsb(shared_data)]
    inputs = texts if kind == "texts" else list(zip(texts, reversed(texts), strict=True))
    theirs = pipeline(inputs if kind == "texts" else [{"text": x, "text_pair": y} for x, y in inputs])
    for found, expected in zip(model(inputs), theirs, strict=True):
        scores = {row["label"]: pytest.approx(row["score"], abs=1e-4) for row in expected}
        if isinstance(found, Regression):
            assert found.to_dict() == {"label": "score", "score": scores["score"]}
        elif isinstance(found, MultiLabelClassification):
            assert dict(zip(found.labels, found.scores, strict=True)) == scores
            assert [label for label, _ in found.chosen] == [x["label"] for x in expected if x["score"] >= 0.5]
        else:
            assert isinstance(found, Classification)
            assert found.to_dict() == {"label": expected[0]["label"], "score": scores[expected[0]["label"]]}
            assert [label for label, _ in found.top()] == [row["label"] for row in expected]


@pytest.mark.shared_data
@pytest.mark.parametrize("top_k", [1, 3, 9])
def test_labels_are_those_of_the_pipeline_with_top_k(pair: tuple[Any, Model], shared_data: Path, top_k: int) -> None:
    pipeline, model = pair
    if "top_k" not in model.task.options:
        with pytest.raises(InputError, match="found top_k"):
            model.with_options(top_k=top_k)
        return
    texts = wnut(shared_data, 8)
    for found, expected in zip(model.with_options(top_k=top_k)(texts), pipeline(texts, top_k=top_k), strict=True):
        assert found.to_dict() == [
            {"label": row["label"], "score": pytest.approx(row["score"], abs=1e-4)} for row in expected
        ]
        assert found.summary().count(", ") == min(top_k, 4) - 1
