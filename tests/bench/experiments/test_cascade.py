"""The cascade experiment runs on a toy model, and its table says what the gate refused."""

import json
import random
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from bert_bench.experiments.cascade import main, results_table
from bert_runtime import load

WORDS = ("my", "card", "is", "lost", "at", "the", "bank", "please", "help", "good", "morning")


def test_the_experiment_measures_quality_and_cost(
    classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_bench.experiments.cascade._TIMED_TEXTS", 40)
    monkeypatch.setattr("bert_export.cascade.latency._MAX_TEXTS", 20)
    draw = random.Random(0)
    texts = list({" ".join(draw.choices(WORDS, k=8)): None for _ in range(80)})
    rows = zip(texts, load(classifier_bundle)(texts), strict=True)
    lines = (json.dumps({"text": text, "label": cast(Any, result).label}) for text, result in rows)
    (tmp_path / "dev.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "results").mkdir()
    result = tmp_path / "results" / "toy.json"
    arguments = ["--title", "Toy", "--small", classifier_bundle, "--large", classifier_bundle]
    arguments += ["--dev", tmp_path / "dev.jsonl", "--work", tmp_path, "--output", result, "--max-drop", 2]
    outcome = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert outcome.exit_code == 0
    values = json.loads(result.read_text(encoding="utf-8"))
    assert set(values["batch_ms"]) == {"small", "large", "cascade"}
    assert abs(values["overhead_us"]) < 1e4
    table = results_table(result.parent)
    assert "| Toy, accuracy |   80 | 1.0000 | 1.0000 |  1.0000 | 0.00 % |" in table
    share = values["cascade"]["judged_on"]["small_share"]  # of rows that are surer than the least sure row to choose by
    assert share > 0.8
    assert f"{share:.1%}" in table
    values["cascade"]["passed"] = False
    result.write_text(json.dumps(values), encoding="utf-8")
    assert "0.00 %, refused" in results_table(result.parent)
