"""The uncompressed model as the reference, and the texts that are timed."""

from pathlib import Path

import numpy as np
import pytest

from bert_export.compression.measuring import Reference, timed_texts
from bert_models.errors import CompressionError
from bert_runtime.tasks import Example, TextClassification, TextInput

TEXTS = [TextInput(" ".join(["card"] * length)) for length in (1, 30, 2, 20, 3, 10)]


def test_a_model_without_any_success_is_refused(classifier_bundle: Path) -> None:
    reference = Reference(classifier_bundle, TEXTS)
    predicted = [int(np.argmax(output.flat)) for output in reference.model.outputs(TEXTS)]
    wrong = [Example((text,), (label + 1) % 3) for text, label in zip(TEXTS, predicted, strict=True)]
    with pytest.raises(CompressionError, match=r"whose accuracy is above 0, found 0\.0000 of 6 dev rows in INT8"):
        reference.check_metric(wrong)
    reference.check_metric([Example((TEXTS[0],), predicted[0])])


def test_a_threshold_is_tuned_for_the_reference_too(classifier_bundle: Path) -> None:
    """Candidates get theirs when they are trained."""
    reference = Reference(classifier_bundle, TEXTS)
    logits = np.linspace(-4, 0, len(TEXTS))
    reference.task = TextClassification(labels=("a",), problem_type="multi_label")
    examples = [Example((text,), [0] if logit > -2 else []) for text, logit in zip(TEXTS, logits, strict=True)]
    outputs = [
        output._replace(arrays=(np.array([logit], dtype=np.float32),))
        for output, logit in zip(reference.model.outputs(TEXTS), logits, strict=True)
    ]
    reference._outputs[id(examples)] = examples, outputs
    reference.tune_threshold(examples)
    assert isinstance(reference.task, TextClassification)
    assert reference.task.threshold < 0.5
    assert reference.task.score(reference.outputs(examples), examples)[reference.task.metric] == 1


def test_a_bundle_is_compared_and_timed(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_export.compression.measuring._REST_S", 0.0)
    reference = Reference(classifier_bundle, TEXTS)
    examples = [Example((text,), index % 3) for index, text in enumerate(TEXTS)]
    drop = reference.compare(classifier_bundle, examples)
    assert (drop.rows, drop.metric) == (len(TEXTS), "accuracy")
    time = reference.time(classifier_bundle)
    assert time["speedup"] == pytest.approx(time["uncompressed_latency_ms"] / time["latency_ms"], rel=1e-3)


def test_the_median_of_three_timings_counts(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timings = iter([{"compressed": 1.0, "uncompressed": speedup} for speedup in (2.1, 1.5, 2.0)])
    monkeypatch.setattr("bert_export.compression.measuring._REST_S", 0.0)
    monkeypatch.setattr("bert_export.compression.measuring.measure_latencies", lambda *given: next(timings))
    assert Reference(classifier_bundle, TEXTS).time(classifier_bundle)["speedup"] == 2.0


def test_timed_texts_are_spread_over_the_lengths(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_export.compression.measuring._TIMED_TEXTS", 3)
    model = Reference(classifier_bundle, TEXTS).model
    assert [len(item.text.split()) for item in timed_texts(model, TEXTS)] == [1, 3, 20]
