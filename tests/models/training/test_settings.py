"""Validation and serialization of training settings."""

import json

import pytest

from bert_models import TrainingError
from bert_models.pretraining import PretrainSettings
from bert_models.training import TrainSettings


def test_all_invalid_settings_are_reported_at_once() -> None:
    with pytest.raises(TrainingError) as caught:
        TrainSettings(
            epochs=0, gradient_accumulation_steps=0, patience=0, lr=-1.0, warmup_ratio=2.0, precision="fp8",
            layer_lr_decay=1.5, label_smoothing=1.0, class_weights="some",
        )  # fmt: skip
    assert str(caught.value).split("; ") == [
        "epochs must be at least 1, found 0",
        "gradient_accumulation_steps must be at least 1, found 0",
        "patience must be at least 1, found 0",
        "lr must be positive, found -1.0",
        "warmup_ratio must lie in [0, 1], found 2.0",
        "precision must be one of auto, fp32, bf16, fp16, found 'fp8'",
        "layer_lr_decay must lie in (0, 1], found 1.5",
        "label_smoothing must lie in [0, 1), found 1.0",
        "class_weights must be balanced, found 'some'",
    ]


def test_settings_are_json_serializable() -> None:
    assert json.loads(json.dumps(TrainSettings().to_dict()))["batch_size"] == 32


def test_renamed_settings_keep_their_keys_in_reports() -> None:
    """Reports and the state of interrupted runs hold these keys; other settings have their own names."""
    settings = PretrainSettings(gradient_accumulation_steps=2, mlm_probability=0.2, dev_fraction=0.3)
    found = settings.to_dict()
    assert (found["accumulate"], found["mask_share"], found["dev_share"]) == (2, 0.2, 0.3)
    assert found.keys() - vars(settings).keys() == {"accumulate", "mask_share", "dev_share"}
    assert TrainSettings().to_dict().keys() - vars(TrainSettings()).keys() == {"accumulate", "dev_share"}
