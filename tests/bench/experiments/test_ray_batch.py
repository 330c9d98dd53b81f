"""The table of bulk work on Ray: figures from samples, and the limits that follow from them."""

import json
from pathlib import Path

import pytest

from bert_bench.experiments.ray_batch import _summary, results_table


def sample(wall_s: float, driver: float, replicas: float, ray: float = 0.1) -> dict[str, float]:
    return {"wall_s": wall_s, "driver_cpu_s": driver, "replicas_cpu_s": replicas, "ray_cpu_s": ray}


VALUES = {
    "rows": 10_000,
    "part_rows": 1_000,
    "parts": 10,
    "bytes_read_per_row": 100.0,
    "bytes_written_per_row": 1_500.0,
    "samples": {
        "one replica": [sample(10, 0.1, 10), sample(20, 0.1, 10), sample(10, 0.1, 10)],
        "two replicas": [sample(5, 0.2, 10, 0.3), sample(10, 0.2, 10, 0.3), sample(10, 0.2, 10, 0.3)],
        "local engine": [sample(9, 8, 0)] * 3,
        "encode": [sample(8, 8, 0)] * 3,
    },
}


def test_rates_are_those_of_the_fastest_run_and_cpu_times_medians() -> None:
    found = _summary(VALUES)
    assert (found["rows_per_s"], found["rows_per_s_of_two"], found["speedup"]) == (1000, 2000, 2)
    assert found["driver_share"] == pytest.approx(0.02)
    assert found["driver_ms_per_part"] == pytest.approx(20)
    assert (found["replica_vs_local"], found["local_vs_encode"]) == (1.25, 1)


def test_limits_follow_from_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(VALUES))
    shown = " ".join(results_table(path).split())
    assert "| CPU time of the driver, of that of the replicas | 2.0% |" in shown
    assert "a part takes *R* / *r* = 50 s" in shown
    assert "full at *R* / (*r* · *d*) = 2,500 replicas" in shown  # a part of 50 s costs the driver 20 ms
    assert "*B* / (*r* · *b*) = 625 replicas" in shown  # 1 GB/s, 1,000 rows/s of 1,600 bytes
