"""Zero-shot classification: how often it tokenizes, several texts, what is truncated, and what it refuses."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime import (
    InputError,
    InputFailure,
    Model,
    Record,
    ZeroShotClassification,
    ZeroShotClassifier,
    evaluate,
)
from bert_runtime.tasks import SentenceEmbedding, Task, TextClassification, TextInput
from bert_runtime.tokenization import Batch
from bert_runtime.zero_shot import classifier as classifier_module
from bert_runtime.zero_shot.evaluation import zero_shot_outputs, zero_shot_task

from ..task_models import with_runner, wordpiece

LABELS = ("contradiction", "neutral", "entailment")
TEXTS = ["where is my card", "hello", "good morning, the train is late", "thanks and bye"]
CANDIDATES = ["card", "greeting", "train"]


class PairRunner:
    """A runner whose logits [B, 3] depend on the ids and token types of each pair, and on nothing else."""

    threads = 1
    device_name = "random"

    def __init__(self) -> None:
        self.sequences: list[list[int]] = []

    def run(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        logits = []
        for ids, mask, types in zip(*batch, strict=True):
            self.sequences.append(ids[mask == 1].tolist())
            weights = np.arange(1, len(ids) + 1) * mask
            logits.append([np.sin(ids @ weights), np.cos(ids @ (weights + types)), np.sin(ids @ weights + 1)])
        return np.array(logits, dtype=np.float32)


def nli_model(vocab: Path, max_tokens: int = 64, task: Task | None = None) -> Model:
    return with_runner(PairRunner(), task or TextClassification(labels=LABELS), wordpiece(vocab), max_tokens)


@pytest.fixture
def model(toy_vocab: Path) -> Model:
    return nli_model(toy_vocab)


@pytest.fixture
def classifier(model: Model) -> ZeroShotClassifier:
    return ZeroShotClassifier(model, CANDIDATES)


def scores(result: ZeroShotClassification | InputFailure) -> list[float]:
    assert isinstance(result, ZeroShotClassification)
    return list(map(float, result.scores))


def test_a_result_keeps_scores_in_the_order_of_the_labels(classifier: ZeroShotClassifier) -> None:
    result = classifier(TEXTS[0])
    assert (result.labels, result.logits.shape) == (tuple(CANDIDATES), (3, 3))
    assert sum(scores(result)) == pytest.approx(1)
    ranked = result.top()
    assert (result.label, result.score) == ranked[0]
    assert ranked == sorted(zip(CANDIDATES, scores(result), strict=True), key=lambda label: -label[1])
    assert result.top(1) == ranked[:1]
    assert result.summary() == f"{result.label}\t{result.score:.4f}"


def test_several_texts_equal_single_ones_in_order(
    classifier: ZeroShotClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = TEXTS * 3
    expected = [scores(classifier(text)) for text in texts]
    monkeypatch.setattr(classifier_module, "_MAX_PAIRS", 7)  # two texts at a time
    assert list(map(scores, classifier(texts))) == expected
    assert list(map(scores, classifier.stream(iter(texts)))) == expected
    assert classifier([]) == []


def test_each_text_and_each_hypothesis_is_tokenized_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = model.tokenizer.encode_ids
    monkeypatch.setattr(
        model.tokenizer,
        "encode_ids",
        lambda inputs, first=0: (encoded.extend(x.text for x in inputs), encode(inputs))[1],
    )
    classifier = ZeroShotClassifier(model, CANDIDATES, hypothesis_template="{}")
    classifier(TEXTS)
    classifier(TEXTS)
    assert encoded == [*CANDIDATES, *TEXTS, *TEXTS]


def test_the_text_is_truncated_and_never_the_hypothesis(toy_vocab: Path) -> None:
    model = nli_model(toy_vocab, max_tokens=12)
    long, short = ZeroShotClassifier(model, ["my card", "the"], hypothesis_template="it is {}")(
        ["hello " * 40, "hello bye"]
    )
    assert isinstance(long, ZeroShotClassification)
    assert isinstance(short, ZeroShotClassification)
    assert (long.truncated, short.truncated) == (True, False)
    assert long.to_dict()["truncated"] is True
    assert isinstance(model.session, PairRunner)
    decoded = [model.tokenizer.decode(sequence) for sequence in model.session.sequences]
    assert f"[CLS] {'hello ' * 5}[SEP] it is my card [SEP]" in decoded
    assert f"[CLS] {'hello ' * 6}[SEP] it is the [SEP]" in decoded
    assert "[CLS] hello bye [SEP] it is my card [SEP]" in decoded


def test_labels_between_commas(model: Model) -> None:
    assert ZeroShotClassifier(model, " card, greeting ,, train,").labels == tuple(CANDIDATES)


def test_a_pair_is_refused_with_its_index(classifier: ZeroShotClassifier) -> None:
    with pytest.raises(InputError, match=r"^input 1: expected one text, found a pair"):
        classifier(["hello", ("hello", "bye")])
    found = classifier(["hello", ("hello", "bye"), TEXTS[0]], on_error="return")
    assert [isinstance(result, InputFailure) for result in found] == [False, True, False]
    assert len(classifier([None, "hello"], on_error="skip")) == 1  # type: ignore[list-item]
    with pytest.raises(InputError, match="on_error='skip' is for several inputs"):
        classifier("hello", on_error="skip")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="for one input call the classifier"):
        list(classifier.stream("hello"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "at least one candidate label"),
        (" , ", "at least one candidate label"),
        (["a", " "], "candidate label 1: expected a text that is not blank, found ' '"),
        (["a", 3], "candidate label 1: expected a text that is not blank, found 3"),
        (["a", "b", "a"], "must be distinct, found more than once: a$"),
        ({"a", "b"}, "as a list of texts, found set"),
        (["a", "b\ud800"], "^candidate label 1: the text holds a lone surrogate"),
        (["card", "card " * 80], r"the hypothesis of label 'card card .* has 62 tokens or more; expected at most 60"),
    ],
)
def test_unusable_labels_are_refused(model: Model, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ZeroShotClassifier(model, labels)


@pytest.mark.parametrize(
    "template", ["", "a label", "{", "a {} }", "{1}", "{name}", "{0.__class__}", "{:>9}", "{!r}", None]
)
def test_unusable_templates_are_refused(model: Model, template: Any) -> None:
    with pytest.raises(InputError, match=r"^hypothesis template.*expected \{\} where the label goes"):
        ZeroShotClassifier(model, CANDIDATES, hypothesis_template=template)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (SentenceEmbedding(dimensions=8), "found one for sentence-embedding"),
        (TextClassification(labels=("score",), problem_type="regression"), "problem type is regression"),
        (
            TextClassification(labels=("LABEL_0", "LABEL_1", "LABEL_2")),
            "begins with 'entail'; found LABEL_0, LABEL_1, LABEL_2. .* name its labels in id2label of the checkpoint",
        ),
        (TextClassification(labels=("not_entailment", "other")), "found not_entailment, other"),
    ],
)
def test_models_of_something_else_are_refused(toy_vocab: Path, task: Task, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ZeroShotClassifier(nli_model(toy_vocab, task=task), CANDIDATES)


def test_a_neutral_label_in_the_place_of_contradiction_is_logged(
    toy_vocab: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bert_runtime"):
        ZeroShotClassifier(nli_model(toy_vocab), CANDIDATES)
        assert not caplog.records
        labels = ("neutral", "entailment", "contradiction")
        ZeroShotClassifier(nli_model(toy_vocab, task=TextClassification(labels=labels)), CANDIDATES)
    assert "entailment is compared with the label 'neutral'" in caplog.text


@pytest.mark.parametrize(("labels", "multi_label"), [(CANDIDATES, False), (CANDIDATES, True), (["card"], False)])
def test_logits_of_labels_give_the_scores(labels: list[str], multi_label: bool, model: Model) -> None:
    classifier = ZeroShotClassifier(model, labels, multi_label=multi_label)
    results = classifier(TEXTS)
    examples = [TextInput(text) for text in TEXTS]
    for outputs, result in zip(zero_shot_outputs(classifier, examples, lambda done: None), results, strict=True):
        found = zero_shot_task(classifier).probabilities(outputs.arrays[0])
        assert found.tolist() == pytest.approx(scores(result), abs=1e-6)


def test_evaluation_has_the_metrics_of_a_classifier(classifier: ZeroShotClassifier) -> None:
    best = [result.label for result in classifier(TEXTS)]
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, best, strict=True)]
    records = [Record({**row}, Path("dev.jsonl"), number) for number, row in enumerate(rows, start=1)]
    assert evaluate(classifier, records)["accuracy"] == 1
