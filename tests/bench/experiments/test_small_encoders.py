"""The experiment of small encoders: their sizes, and the tables of a result."""

import json
from pathlib import Path

import pytest

from bert_bench.experiments.small_encoders import FAMILY_SIZES, SmallModel, results_table
from bert_models.pretraining import PretrainSettings
from bert_models.tokenizer_files import read_tokenizer


@pytest.mark.parametrize("family", FAMILY_SIZES)
def test_sequences_are_longer_than_what_the_family_treats_token_by_token(
    family: str, tmp_path: Path, toy_vocab: Path
) -> None:
    read_tokenizer(toy_vocab, "bert").save(str(tmp_path / "tokenizer.json"))
    settings = PretrainSettings()
    model = SmallModel(family=family, tokenizer=tmp_path).load(settings).model
    config = model.config
    reach = config.sliding_window if config.local_layers else (config.position_buckets or 0) // 2
    assert reach == 16
    assert settings.max_tokens > 2 * reach + 1


def test_table_shows_losses_before_and_after_and_both_precisions(tmp_path: Path) -> None:
    masked = {"mlm_loss": 4.5, "mlm_accuracy": 0.25}
    drift = {"mean_abs_logit_drift": 0.01, "max_abs_logit_drift": 0.5}
    result = {
        "family": "modernbert",
        "data_set": "sst2",
        "pretraining": {
            "settings": {"steps": 10, "batch_size": 1000, "max_tokens": 100},
            "parameters": 3_300_000,
            "seconds": 90,
            "untrained": {"mlm_loss": 8.3, "mlm_accuracy": 0.0},
            "measured": [masked],
            "bundle": {"masks": 7000, "fp32": masked, "int8": masked, "token_agreement": 0.99, **drift},
        },
        "fine_tuning": {
            "metric": "accuracy",
            "metrics": {"fp32": {"accuracy": 0.8}, "int8": {"accuracy": 0.79}},
            "int8_drift": {"label_agreement": 0.98, **drift},
        },
    }
    (tmp_path / "modernbert.json").write_text(json.dumps(result))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in results_table(tmp_path).splitlines()]
    assert ["modernbert", "3.3", "1.0", "1.5", "8.30 → 4.50", "0.0% → 25.0%"] in cells
    assert ["modernbert, accuracy on sst2", "80.00%", "79.00%", "98.00%", "0.010", "0.500"] in cells
