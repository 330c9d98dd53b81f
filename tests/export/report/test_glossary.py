"""The lines that explain measurements and fusions."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from bert_export.report import Report
from bert_export.report.glossary import FUSIONS, heading, measure_note, readable

from .toy_outputs import CASES, outputs_and_examples


@pytest.mark.parametrize("name", CASES)
def test_every_metric_and_drift_is_explained(name: str, toy_vocab: Path) -> None:
    task, outputs, examples = outputs_and_examples(name, toy_vocab)
    measures: Mapping[str, float] = {**task.score(outputs, examples), **task.agreement(outputs, outputs)}
    assert not [key for key in measures if not measure_note(task.name, key)]


def test_every_fusion_is_explained(classifier_report: Report) -> None:
    found = {name for variant in classifier_report.variants for name in variant.fusions}
    assert found <= {*FUSIONS, "masked_rows"}


def test_words() -> None:
    assert (readable("int8_matmul"), readable("fp16 cuda packed")) == ("INT8 matmul", "FP16 CUDA packed")
    assert (heading("micro_f1"), heading("f1"), heading("")) == ("Micro F1", "F1", "")
    assert measure_note("question-answering", "f1") != measure_note("token-classification", "f1")
    assert measure_note("fill-mask", "of_a_later_release") == ""
