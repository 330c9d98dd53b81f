"""The compression experiment's table has the gate's verdict of every task."""

import json
from pathlib import Path
from typing import Any

from bert_bench.experiments.compression import results_table

_GATE = {"metric": "accuracy", "rows": 1001, "uncompressed": 0.9351, "compressed": 0.9301, "drop_percent": 0.534}
_GATE["drop_percent_interval"] = [-0.25, 1.5]


def test_every_result_of_the_folder_is_a_row(tmp_path: Path) -> None:
    record = {
        "gate": _GATE, "time": {"uncompressed_latency_ms": 0.5, "latency_ms": 0.25, "speedup": 2.0},
        "layers_kept": [0, 2, 5], "intermediate_size": 768, "seconds": 1500,
    }  # fmt: skip
    for title in ("Intents", "Reviews"):
        result: dict[str, Any] = {"title": title, "compression": record}
        if title == "Reviews":
            result["by_hand"] = {
                "first_layers": {"layers": 3, "gate": {"drop_percent": 2.5}, "time": {"speedup": 1.9}},
                "distilbert": {"layers": 3, "gate": {"drop_percent": 1.5}, "time": {"speedup": 1.8}},
            }
        (tmp_path / f"{title}.json").write_text(json.dumps(result), encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in results_table(tmp_path).splitlines()]
    assert [row[0] for row in rows[2:]] == ["Intents, accuracy", "Reviews, accuracy"]
    assert rows[2][1:] == [
        "1,001", "0.9351", "0.9301", "0.53 %", "-0.25 to 1.50 %", "0.500 → 0.250", "2.00×", "3 layers, width 768",
        "25", "", "",
    ]  # fmt: skip
    assert rows[3][-2:] == ["2.50 %, 1.90×", "1.50 %, 1.80×"]
