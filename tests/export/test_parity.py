"""Parity with PyTorch: which batches it is checked on, and what it reports."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bert_export.cuda.parity import check_cuda_parity
from bert_export.errors import ParityError
from bert_export.parity import check_parity, probe_batches, reference_outputs
from bert_models import TaskModel
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import FeatureExtraction, TextClassification, TokenClassification
from bert_runtime.tokenization import Batch

from .toy_models import CLASSIFIER, toy_model


def test_probe_batches_cover_every_padding() -> None:
    batches = probe_batches(toy_model(CLASSIFIER), max_tokens=32)
    right, left, holes = (batches[name].attention_mask for name in ("right-padded", "left-padded", "holes"))
    assert (np.diff(right, axis=1) <= 0).all()
    assert (right == 0).any()
    assert (np.diff(left, axis=1) >= 0).all()
    assert (left == 0).any()
    assert (holes.sum(axis=1) > 0).all()
    assert batches["longest"].input_ids.shape == (1, 32)


def test_parity_error_names_the_kinds_of_padding_that_fail() -> None:
    model = toy_model(CLASSIFIER)

    def assume_right_padding(batch: Batch) -> FloatArray:
        """Compute what a graph does that turns a mask into lengths."""
        lengths = batch.attention_mask.sum(axis=1, keepdims=True)
        mask = (np.arange(batch.input_ids.shape[1])[None, :] < lengths).astype(np.int64)
        return reference_outputs(model, batch._replace(attention_mask=mask))

    with pytest.raises(ParityError) as caught:
        check_parity(model, assume_right_padding, 32)
    assert "left-padded" in str(caught.value)
    assert "holes" in str(caught.value)
    assert "right-padded" not in str(caught.value)


def test_nan_fails_parity() -> None:
    model = toy_model(CLASSIFIER)
    with pytest.raises(ParityError, match="unpadded"):
        check_parity(model, lambda batch: np.full((len(batch.input_ids), 3), np.nan, dtype=np.float32), 32)


def test_outputs_of_padding_are_not_compared() -> None:
    """No one reads them; a wrong output of a real token fails."""
    model = toy_model(TokenClassification(labels=("O", "B-PER")))

    def wrong_where(mask_value: int) -> Callable[[Batch], FloatArray]:
        return lambda batch: reference_outputs(model, batch) + (batch.attention_mask == mask_value)[:, :, None]

    assert check_parity(model, wrong_where(0), 32)["max_abs_error"] == 0
    with pytest.raises(ParityError, match="unpadded"):
        check_parity(model, wrong_where(1), 32)


def add_to(model: TaskModel, error: FloatArray) -> Callable[[Batch], FloatArray]:
    """Compute what a graph does whose outputs differ by `error` from the model's."""
    return lambda batch: reference_outputs(model, batch) + error.astype(np.float32)


def test_tolerance_of_large_outputs_is_a_share_of_them() -> None:
    """A float32 step at 2,000 exceeds the tolerance of outputs up to 10."""
    model = toy_model(TextClassification(labels=("year",), problem_type="regression"))
    with torch.no_grad():
        model.head.output.bias.fill_(2000.0)
    step = np.array([2 * np.spacing(np.float32(2000))])
    assert step > 1e-4
    for check in (check_parity, lambda *args: check_cuda_parity(*args, fp16=False)):
        parity = check(model, add_to(model, step), 32)
        assert 1e-4 < parity["max_abs_error"] <= parity["tolerance"]
        assert 0.019 < parity["tolerance"] < 0.021
        with pytest.raises(ParityError, match="unpadded"):
            check(model, add_to(model, np.array([0.05])), 32)


def test_one_massive_dimension_does_not_excuse_the_others() -> None:
    model = toy_model(FeatureExtraction(hidden_size=24, num_layers=3, layers=(3,)))
    with torch.no_grad():
        model.encoder.layers[-1].feed_forward_norm.bias[5] = 3000.0
    massive, other = np.zeros(24), np.zeros(24)
    massive[5], other[6] = 0.01, 0.01
    assert check_parity(model, add_to(model, massive), 32)["max_abs_error"] > 1e-3
    with pytest.raises(ParityError, match="unpadded"):
        check_parity(model, add_to(model, other), 32)


@pytest.mark.parametrize("bias", [0.0, 9.0])
def test_outputs_up_to_10_have_the_whole_tolerance_and_no_more(bias: float) -> None:
    model = toy_model(CLASSIFIER)
    with torch.no_grad():
        model.head.output.weight.mul_(0.01)
        model.head.output.bias.fill_(bias)
    assert check_parity(model, lambda batch: reference_outputs(model, batch), 32)["tolerance"] == 1e-4
    check_parity(model, add_to(model, np.full(3, 9e-5)), 32)
    with pytest.raises(ParityError, match="unpadded"):
        check_parity(model, add_to(model, np.full(3, 1.1e-4)), 32)
