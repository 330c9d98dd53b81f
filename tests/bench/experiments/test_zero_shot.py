"""The zero-shot experiment runs on a toy model, and its table shows the fastest pipeline only."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bert_bench.experiments.zero_shot import main, results_table


@pytest.mark.slow
def test_the_experiment_measures_speed_scores_and_accuracy(classifier_checkpoint: Path, tmp_path: Path) -> None:
    from bert_export import export

    checkpoint = Path(shutil.copytree(classifier_checkpoint, tmp_path / "checkpoint"))
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    names = ("contradiction", "neutral", "entailment")
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    export(checkpoint, tmp_path / "bundle")
    (tmp_path / "categories.json").write_text(json.dumps(["lost_card", "late_train"]), encoding="utf-8")
    with (tmp_path / "test_odd_rows.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "category"), ("where is my card", "lost_card"), ("a", "late_train")])
    (tmp_path / "labels.txt").write_text("rain\nbank\n", encoding="utf-8")
    arguments = [tmp_path / "bundle", "--checkpoint", checkpoint, "--banking77", tmp_path, "--rounds", "1"]
    arguments += ["--labels", tmp_path / "labels.txt", "--output", tmp_path / "result.json"]
    outcome = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert outcome.exit_code == 0
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["labels"] == 4
    assert max(result["max_score_difference"].values()) < 1e-5
    assert result["banking77"]["questions"] == 2
    table = results_table(tmp_path / "result.json")
    assert table.count("transformers' pipeline") in (1, 2)  # the fastest for either length
    assert "bert-export, INT8" in table
