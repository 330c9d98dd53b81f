"""Tables and chart of the serving benchmark."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_bench.serving.tables import results_chart, results_table


def server(label: str, per_second: float) -> dict[str, Any]:
    load = {"requests_per_s": per_second, "p50_ms": 2.0, "server_cpu_ms_per_text": 1.0, "failed": 0}
    return {
        "label": label,
        "precision": "int8",
        "first_answer_s": 0.5,
        "resident_mb": 120.0,
        "cosine_with_fp32": {"mean": 0.999, "min": 0.99},
        "loads": {"1x1": load, "1x16": load, "32x4": load},
    }


@pytest.fixture
def result(tmp_path: Path) -> Path:
    values = {
        "conditions": {"machine": {"cpu": "AMD EPYC", "cpu_model": "26/2/1", "cores": 2}},
        "tokens": {"mean": 14.0},
        "servers": {
            "slow": server("Slow", 10),
            "bert-export-int8": server("bert-export serve", 100),
            "broken": {"label": "Broken", "precision": "fp32", "error": "ImportError: no module"},
        },
        "latency": {"request_p50_ms": 1.5, "empty_handler_p50_ms": 0.5, "model_p50_ms": 0.6, "added_p50_ms": 0.4},
    }
    path = tmp_path / "serving.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def test_table_has_the_fastest_first_and_names_those_that_do_not_run(result: Path) -> None:
    table = results_table(result)
    assert table.index("bert-export serve") < table.index("Slow")
    assert "* Broken: `ImportError: no module`" in table
    assert "1.50 − 0.50 − 0.60 = 0.40" in table


def test_chart_has_a_row_per_server_that_ran(result: Path) -> None:
    chart = results_chart(result)
    assert [row.name for row in chart.rows] == ["bert-export-int8", "slow"]
    assert chart.rows[0].emphasized
    (section,) = chart.sections
    assert [panel.values["slow"] for panel in section.panels] == [10, 10]
