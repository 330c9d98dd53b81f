"""Export of models of one number, whose outputs may be large."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bert_export import export
from bert_export.errors import ExportError
from bert_export.variants import check_drift, measure_drift
from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime import verify
from bert_runtime.tasks import Outputs, TextClassification, TextInput

from ..task_bundles import TaskBundles


@pytest.fixture(scope="module")
def years(toy_config: EncoderConfig, toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that gives numbers around 2,000."""
    torch.manual_seed(7)
    model = TaskModel(toy_config, TextClassification(labels=("year",), problem_type="regression")).eval()
    with torch.no_grad():
        model.head.output.weight.mul_(1000)
        model.head.output.bias.fill_(2000)
    folder = tmp_path_factory.mktemp("checkpoints") / "years"
    folder.mkdir()
    save_model(model, folder, tokenizer_from=toy_vocab)
    return folder


def test_years_are_exported_and_verified(years: Path, tmp_path: Path) -> None:
    variant = export(years, tmp_path / "bundle", precisions=["fp32"]).variant("fp32")
    largest = max(abs(value) for values in variant.self_test.outputs for value in values)
    assert largest > 1000
    assert variant.self_test.tolerance >= 1e-5 * largest
    assert variant.parity["max_abs_error"] > 1e-4  # which rounding to float32 explains
    assert all(check.passed for check in verify(tmp_path / "bundle"))


def test_a_single_pair_cannot_judge_a_reranker(task_bundles: TaskBundles, tmp_path: Path) -> None:
    """The correlation of one value is undefined, which is said before the model is captured."""
    labelled, stages = tmp_path / "pairs.jsonl", list[str]()
    labelled.write_text('{"query": "where is my card", "document": "it is lost", "label": 1}\n' * 2)
    checkpoint = task_bundles.checkpoint("rerank")
    expected = r"pairs\.jsonl: expected at least 2 different inputs .*, found 1; give more$"
    with pytest.raises(ExportError, match=expected):
        export(checkpoint, tmp_path / "bundle", evaluate=labelled, progress=stages.append)
    assert stages == ["reading the checkpoint"]
    assert export(checkpoint, tmp_path / "bundle", evaluate=labelled, precisions=["fp32"]).variant("fp32").metrics


def test_correlation_of_equal_outputs_is_an_error() -> None:
    task = TextClassification(labels=("year",), problem_type="regression")
    outputs = [Outputs(TextInput(str(i)), (), (np.ones(1, dtype=np.float32),), {}) for i in range(3)]
    with pytest.raises(ExportError, match="pearson with FP32 is not defined on 3 inputs"):
        check_drift(measure_drift(task, outputs, outputs))
