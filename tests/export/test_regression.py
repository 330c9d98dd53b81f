"""Export of models of one number, whose outputs may be large."""

from pathlib import Path

import pytest
import torch

from bert_export import export
from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime import verify
from bert_runtime.tasks import TextClassification


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
    assert variant.self_test.tolerance >= 1e-4 * largest
    assert variant.parity["max_abs_error"] > 1e-4  # which rounding to float32 explains
    assert all(check.passed for check in verify(tmp_path / "bundle"))
