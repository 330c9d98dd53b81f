"""Running LoadGen's scenarios and reading its summary."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_bench import Settings
from bert_bench.errors import WorkerError
from bert_bench.mlperf_loadgen import measure_loadgen
from bert_bench.mlperf_loadgen.scenario import SCENARIOS, LoadOptions, read_summary, run_scenario, summary_metrics
from bert_runtime.tasks import TextInput

SUMMARY = """\
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : SingleStream
Mode     : PerformanceOnly
90.0th percentile latency (ns) : 1170000
Result is : INVALID
  Min duration satisfied : Yes
QPS w/ loadgen overhead         : 1250.50
Mean latency (ns)               : 799000
50.00 percentile latency (ns)   : 780000
90.00 percentile latency (ns)   : 1170000
99.00 percentile latency (ns)   : 2000000

================================================
Test Parameters Used
================================================
samples_per_query : 1
"""


def test_metrics_are_in_the_units_of_reports() -> None:
    found = summary_metrics(read_summary(SUMMARY))
    assert found == {
        "valid": False,
        "bound_met": True,
        "texts_per_s": 1250.5,
        "p50_ms": 0.78,
        "p90_ms": 1.17,
        "p99_ms": 2.0,
    }


def test_offline_rate_is_read_without_a_space_before_the_colon() -> None:
    assert summary_metrics(read_summary("Samples per second: 1500.25\nResult is : VALID\n"))["texts_per_s"] == 1500.25


def test_test_parameters_are_not_read_as_results() -> None:
    assert "samples_per_query" not in read_summary(SUMMARY)
    assert read_summary(SUMMARY)["SUT name"] == "PySUT"


class FakeLoadGen(SimpleNamespace):
    """The parts of the module that `run_scenario` uses: every text is queried once, in one query for Offline."""

    def __init__(self) -> None:
        super().__init__(
            TestScenario=SimpleNamespace(SingleStream="SingleStream", Offline="Offline", Server="Server"),
            TestMode=SimpleNamespace(PerformanceOnly=0),
            TestSettings=SimpleNamespace, LogOutputSettings=SimpleNamespace, LogSettings=SimpleNamespace,
            DestroySUT=lambda system: None, DestroyQSL=lambda library: None,
            ConstructQSL=lambda count, performance, load, unload: count,
            ConstructSUT=lambda issue, flush: issue,
            QuerySampleResponse=lambda number, data, size: number,
        )  # fmt: skip
        self.completed: list[int] = []

    def QuerySamplesComplete(self, responses: Sequence[int]) -> None:  # noqa: N802 - LoadGen's name
        self.completed += responses

    def StartTestWithLogSettings(self, issue: Any, count: int, settings: Any, logs: Any) -> None:  # noqa: N802
        samples = [SimpleNamespace(id=100 + i, index=i) for i in range(count)]
        for query in [samples] if settings.scenario == "Offline" else [[sample] for sample in samples]:
            issue(query)
        (Path(logs.log_output.outdir) / "mlperf_log_summary.txt").write_text(SUMMARY)


class Engine:
    """Records the number of texts of each call."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[int] = []
        self.error = error

    def predict(self, text: TextInput) -> None:
        self.predict_batch([text])

    def choose_batches(self, texts: Sequence[TextInput]) -> None:
        assert texts

    def predict_batch(self, texts: Sequence[TextInput]) -> None:
        self.calls.append(len(texts))
        if self.error is not None:
            raise self.error


@pytest.fixture
def loadgen(monkeypatch: pytest.MonkeyPatch) -> FakeLoadGen:
    module = FakeLoadGen()
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", module)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "path", list(sys.path))
    return module


OPTIONS = LoadOptions(duration_s=0.01, texts_per_s=100.0, latency_ms=10.0)
TEXTS = [TextInput("a"), TextInput("b"), TextInput("c")]


@pytest.mark.parametrize(
    ("scenario", "calls"), [("SingleStream", [1, 1, 1]), ("Server", [1, 1, 1]), ("Offline", [3, 3])]
)
def test_every_query_is_predicted_and_completed(
    loadgen: FakeLoadGen, tmp_path: Path, scenario: str, calls: list[int]
) -> None:
    engine: Any = Engine()
    summary = run_scenario(engine, tmp_path, scenario, TEXTS, OPTIONS)
    assert summary["Result is"] == "INVALID"
    assert engine.calls == calls  # the first call of Offline measures the expected rate
    assert loadgen.completed == [100, 101, 102]
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize("scenario", ["SingleStream", "Server"])
def test_failing_engine_does_not_block_loadgen(loadgen: FakeLoadGen, tmp_path: Path, scenario: str) -> None:
    engine: Any = Engine(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        run_scenario(engine, tmp_path, scenario, TEXTS, OPTIONS)
    assert loadgen.completed == [100, 101, 102]
    assert engine.calls == [1]


def test_dead_worker_is_reported_for_every_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    class DeadWorker:
        def call(self, *arguments: Any) -> Any:
            raise WorkerError("its process ended with signal 9")

    class ArtifactCache:
        def environment(self, name: str) -> str:
            return name

    monkeypatch.setattr(measure_loadgen, "site_packages", lambda environment: "modules")
    engine_pool: Any = SimpleNamespace(running=[SimpleNamespace(name="dead", worker=DeadWorker())])
    artifact_cache: Any = ArtifactCache()
    found = measure_loadgen.measure_loadgen(engine_pool, artifact_cache, TEXTS, Settings(), lambda stage: None)
    assert {engines["dead"]["error"] for engines in found.values()} == {"its process ended with signal 9"}
    assert set(found) == set(SCENARIOS)
