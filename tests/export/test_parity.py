"""Parity with PyTorch: which batches it is checked on, and what it reports."""

from collections.abc import Callable

import numpy as np
import pytest

from bert_export.errors import ParityError
from bert_export.parity import check_parity, probe_batches, reference_outputs
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TokenClassification
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
