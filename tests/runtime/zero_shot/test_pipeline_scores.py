"""Scores of zero-shot classification are those of the pipeline of transformers on the same checkpoint, in FP32."""

from copy import copy
from pathlib import Path
from typing import Any

import pytest
import transformers

from bert_runtime import Model, ZeroShotClassification, ZeroShotClassifier
from bert_runtime.tasks import TextClassification

from ...models.toy_tokenizers import TEXT, train_bpe
from ..task_models import NASTY, exported, labelled, reference

CANDIDATES = ["parcel", "money and banks", "rain", "déjà vu", "train to paris"]

LABEL_ORDERS = [
    ("contradiction", "neutral", "entailment"),
    ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
    ("contradiction", "entailment", "neutral"),
    ("neutral", "Entailment", "contradiction"),
    ("entailment", "not_entailment"),
    ("not_entailment", "entailment"),
]

Pair = tuple[Any, Model]


def make_pair(tokenizer: Any, class_name: str, num_labels: int, folder: Path, **config: Any) -> Pair:
    """Return the pipeline and a bundle of one random checkpoint."""
    labels = [f"label {index}" for index in range(num_labels)]
    labels[0] = "entailment"
    theirs = reference(class_name, tokenizer, **labelled(labels), **config)
    pipeline = transformers.pipeline("zero-shot-classification", model=theirs, tokenizer=tokenizer, device="cpu")
    return pipeline, exported(theirs, tokenizer, folder)


def named(pair: Pair, labels: tuple[str, ...]) -> Pair:
    """Return the pair with other names for the model's labels."""
    pipeline, model = pair[0], copy(pair[1])
    pipeline.model.config.id2label, pipeline.model.config.label2id = labelled(labels).values()
    model.task = TextClassification(labels=labels)
    return pipeline, model


@pytest.fixture(scope="module")
def bert_pairs(toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Pair]:
    """BERT with heads of two and of three labels, by their number."""
    tokenizer = transformers.BertTokenizer(str(toy_vocab / "vocab.txt"), model_max_length=64)
    name = "BertForSequenceClassification"
    options = {"type_vocab_size": 2, "max_position_embeddings": 64}
    return {size: make_pair(tokenizer, name, size, tmp_path_factory.mktemp("bert"), **options) for size in (2, 3)}


@pytest.fixture(scope="module")
def roberta_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """RoBERTa, whose pairs have two separators between their texts and one token type."""
    folder = tmp_path_factory.mktemp("roberta")
    train_bpe(folder)
    files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer = transformers.RobertaTokenizer(*files, model_max_length=254)
    return make_pair(tokenizer, "RobertaForSequenceClassification", 3, folder, type_vocab_size=1)


def assert_equal(pair: Pair, texts: list[str], **options: Any) -> None:
    """Assert that both give the same scores, with the best label first."""
    pipeline, model = pair
    expected = pipeline(texts, CANDIDATES, **options)
    for found, theirs in zip(ZeroShotClassifier(model, CANDIDATES, **options)(texts), expected, strict=True):
        value = found.to_dict()
        value.pop("truncated", None)
        assert value.keys() == theirs.keys() == {"sequence", "labels", "scores"}
        assert (value["sequence"], value["labels"]) == (theirs["sequence"], theirs["labels"])
        assert value["scores"] == pytest.approx(theirs["scores"], abs=1e-5)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", LABEL_ORDERS)
def test_label_orders(bert_pairs: dict[int, Pair], labels: tuple[str, ...], multi_label: bool) -> None:
    assert_equal(named(bert_pairs[len(labels)], labels), TEXT[:3], multi_label=multi_label)


@pytest.mark.parametrize("template", ["This text is about {}.", "{0}", "{{{}}} is it, a {}?".replace("a {}", "a {{}}")])
def test_templates(bert_pairs: dict[int, Pair], template: str) -> None:
    assert_equal(named(bert_pairs[3], LABEL_ORDERS[0]), TEXT[:2], hypothesis_template=template)


@pytest.mark.parametrize("multi_label", [False, True])
def test_nasty_and_long_texts(bert_pairs: dict[int, Pair], roberta_pair: Pair, multi_label: bool) -> None:
    texts = [text for text in NASTY if text] + ["the train is late " * 200, "x " * 50]
    for pair in (named(bert_pairs[3], LABEL_ORDERS[0]), named(roberta_pair, LABEL_ORDERS[0])):
        assert_equal(pair, texts, multi_label=multi_label)


def test_a_single_label_is_judged_alone(bert_pairs: dict[int, Pair]) -> None:
    pipeline, model = named(bert_pairs[3], LABEL_ORDERS[0])
    expected = pipeline(TEXT[0], "parcel")
    found = ZeroShotClassifier(model, "parcel")(TEXT[0])
    assert isinstance(found, ZeroShotClassification)
    assert found.to_dict()["labels"] == expected["labels"] == ["parcel"]
    assert found.score == pytest.approx(expected["scores"][0], abs=1e-5)
    assert found.score < 1
